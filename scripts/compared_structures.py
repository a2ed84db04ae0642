"""Random structures for comparing two programs, and their neighbours by brute force. Needs nothing but Python."""

import math
import random


def random_structures(species, radii, r_max, seed):
    """Structures with every species: {name: (numbers, positions, cell or None, periodic)}.

    Distances are at least three quarters of the sum of the covalent radii, so that pair repulsions act; cells are
    shorter than the cutoff; one atom is alone.
    """
    generator = random.Random(seed)
    pool = []

    def draw(count):
        numbers = []
        for _ in range(count):
            if not pool:
                pool.extend(generator.sample(species, len(species)))
            numbers.append(pool.pop())
        return numbers

    def fill(numbers, cell, periodic):
        rows = cell or [[0, 0, 0]] * 3
        shifts = [[sum(n[i] * rows[i][k] for i in range(3)) for k in range(3)]
                  for n in [(a, b, c) for a in (-1, 0, 1) for b in (-1, 0, 1) for c in (-1, 0, 1)]
                  if all(periodic[i] or n[i] == 0 for i in range(3))]
        placed, size = [], 1.5 * max(radii[z] for z in numbers)
        for z in numbers:
            for trial in range(1, 100000):
                if trial % 200 == 0:
                    size *= 1.02
                if cell is None:
                    position = [size * (2 * generator.random() - 1) for _ in range(3)]
                else:
                    fraction = [generator.random() for _ in range(3)]
                    position = [sum(fraction[i] * rows[i][k] for i in range(3)) for k in range(3)]
                if all(math.dist(position, [q + s for q, s in zip(other, shift)]) > 0.75 * (radii[z] + radii[y])
                       for other, y in placed for shift in shifts):
                    placed.append((position, z))
                    break
            else:
                return None
        return [position for position, _ in placed]

    def crystal(numbers, periodic):
        # A cell of its own shape, enlarged until the atoms fit.
        shape = [[1 + 0.1 * generator.random() if i == k else 0.25 * (generator.random() - 0.5) for k in range(3)]
                 for i in range(3)]
        size = max(2.2, 1.6 * sum(radii[z] ** 3 for z in numbers) ** (1 / 3))
        while True:
            cell = [[size * x for x in row] for row in shape]
            positions = fill(numbers, cell, periodic)
            if positions is not None:
                return numbers, positions, cell, periodic
            size *= 1.08

    none, slab, full = [False] * 3, [True, True, False], [True] * 3
    molecule = draw(max(7, len(species) // 2))
    result = {"molecule": (molecule, fill(molecule, None, none), None, none),
              "crystal": crystal(draw(4), full), "slab": crystal(draw(4), slab)}
    rest = draw(max(3, min(len(species), len(pool))))
    positions = fill(rest, None, none)
    farthest = max(math.dist(position, [0, 0, 0]) for position in positions)
    result["with an atom alone"] = ([*rest, species[0]], [*positions, [farthest + 2 * r_max, 0.1, -0.2]], None, none)
    return result


def neighbours(positions, cell, periodic, r_max):
    """Every directed pair closer than r_max: (senders, receivers, unit shifts)."""
    rows = cell or [[0, 0, 0]] * 3
    reach = [0, 0, 0]
    if cell is not None:
        volume = abs(sum(rows[0][i] * cross(rows[1], rows[2])[i] for i in range(3)))
        for i in range(3):
            height = volume / math.hypot(*cross(rows[(i + 1) % 3], rows[(i + 2) % 3]))
            reach[i] = math.ceil(r_max / height) + 1 if periodic[i] else 0
    senders, receivers, shifts = [], [], []
    for n in [(a, b, c) for a in range(-reach[0], reach[0] + 1) for b in range(-reach[1], reach[1] + 1)
              for c in range(-reach[2], reach[2] + 1)]:
        shift = [sum(n[i] * rows[i][k] for i in range(3)) for k in range(3)]
        for s, p in enumerate(positions):
            for r, q in enumerate(positions):
                if (s != r or n != (0, 0, 0)) and math.dist(p, [x + y for x, y in zip(q, shift)]) < r_max:
                    senders.append(s)
                    receivers.append(r)
                    shifts.append(n)
    return senders, receivers, shifts


def cross(a, b):
    return [a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]]


def as_xyz(structures, symbols):
    """Extended XYZ whose numbers read back to the same doubles."""
    lines = []
    for numbers, positions, cell, periodic in structures:
        lattice = "" if cell is None else 'Lattice="{}" '.format(" ".join(repr(float(x)) for row in cell for x in row))
        flags = " ".join("FT"[flag] for flag in periodic)
        lines += [str(len(numbers)), f'{lattice}Properties=species:S:1:pos:R:3 pbc="{flags}"']
        lines += [" ".join([symbols[z], *(repr(float(x)) for x in p)]) for z, p in zip(numbers, positions)]
    return "\n".join(lines) + "\n"
