#!/usr/bin/env python3
"""Writes the structures of examples/structures. Deterministic; needs nothing but Python.

Usage: scripts/make_structures.py [FOLDER]
"""
import math
import os
import sys

MASK = (1 << 64) - 1


class Random:
    """splitmix64: the same numbers with every version of Python."""

    def __init__(self, seed):
        self.state = seed

    def uniform(self):
        self.state = (self.state + 0x9E3779B97F4A7C15) & MASK
        z = self.state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        z ^= z >> 31
        return (z >> 11) * 2.0**-53

    def displacement(self, amplitude):
        return [amplitude * (2 * self.uniform() - 1) for _ in range(3)]

    def rotation(self):
        """A uniformly random rotation, by a random unit quaternion."""
        u1, u2, u3 = self.uniform(), 2 * math.pi * self.uniform(), 2 * math.pi * self.uniform()
        a, b = math.sqrt(1 - u1), math.sqrt(u1)
        x, y, z, w = a * math.sin(u2), a * math.cos(u2), b * math.sin(u3), b * math.cos(u3)
        return [
            [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)],
            [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)],
            [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)],
        ]


def add(a, b):
    return [x + y for x, y in zip(a, b)]


def subtract(a, b):
    return [x - y for x, y in zip(a, b)]


def scaled(a, factor):
    return [factor * x for x in a]


def normalised(a):
    return scaled(a, 1 / math.sqrt(sum(x * x for x in a)))


def cross(a, b):
    return [a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]]


def apply(matrix, a):
    return [sum(m * x for m, x in zip(row, a)) for row in matrix]


def write(path, atoms, cell=None, pbc="F F F"):
    fields = []
    if cell:
        fields.append('Lattice="' + " ".join(f"{x:.6f}" for row in cell for x in row) + '"')
    fields.append("Properties=species:S:1:pos:R:3")
    fields.append(f'pbc="{pbc}"')
    with open(path, "w", encoding="utf-8") as out:
        out.write(f"{len(atoms)}\n{' '.join(fields)}\n")
        for symbol, position in atoms:
            out.write(f"{symbol:<2} " + " ".join(f"{x:12.6f}" for x in position) + "\n")


DIAMOND = 5.431  # lattice constant of silicon at room temperature, A
FCC = [[0, 0, 0], [0, 0.5, 0.5], [0.5, 0, 0.5], [0.5, 0.5, 0]]


def silicon(path):
    """The conventional cell of diamond silicon, atoms displaced by up to 0.05 A along each axis."""
    random = Random(1)
    basis = FCC + [add(site, [0.25, 0.25, 0.25]) for site in FCC]
    atoms = [("Si", add(scaled(site, DIAMOND), random.displacement(0.05))) for site in basis]
    write(path, atoms, [[DIAMOND, 0, 0], [0, DIAMOND, 0], [0, 0, DIAMOND]], "T T T")


def slab(path):
    """Si(001), 1x2: six layers of two atoms, the top one dimerised; periodic in the plane of the surface only."""
    random = Random(2)
    side = DIAMOND / math.sqrt(2)  # of the 1x1 surface cell
    layer = DIAMOND / 4
    # Each layer sits half a bond further along x or y, in turn: (0,0) (1/2,0) (1/2,1/2) (0,1/2).
    offsets = [[0.0, 0.0], [0.5, 0.0], [0.5, 0.5], [0.0, 0.5]]
    count = 6
    atoms = []
    for n in range(count):
        for repeat in range(2):
            x = offsets[n % 4][0] * side
            y = (offsets[n % 4][1] + repeat) * side
            z = n * layer
            if n == count - 1:
                # The dimer: the two top atoms, whose bonds to the next layer would lie along y, move together from
                # 3.84 A to 2.32 A, and down a little.
                y += (0.5 - repeat) * (side - 2.32)
                z -= 0.20
            atoms.append(("Si", add([x, y, z], random.displacement(0.02))))
    # The third vector only says where the vacuum is.
    write(path, atoms, [[side, 0, 0], [0, 2 * side, 0], [0, 0, count * layer + 12.0]], "T T F")


def placed(a, b, c, length, angle, dihedral):
    """The atom at `length` from c, `angle` from b, `dihedral` about b-c from a; angles in degrees."""
    angle, dihedral = math.radians(angle), math.radians(dihedral)
    along = normalised(subtract(c, b))
    normal = normalised(cross(subtract(b, a), along))
    third = cross(normal, along)
    local = [-math.cos(angle), math.sin(angle) * math.cos(dihedral), math.sin(angle) * math.sin(dihedral)]
    result = c
    for factor, axis in zip(local, (along, third, normal)):
        result = add(result, scaled(axis, length * factor))
    return result


def ethanol(path):
    """Trans ethanol with textbook bond lengths and angles, a molecule in free space."""
    c1 = [0.0, 0.0, 0.0]
    c2 = [1.512, 0.0, 0.0]
    helper = [-0.5, 1.0, 0.0]
    o = placed(helper, c1, c2, 1.431, 107.8, 180.0)
    atoms = [("C", c1), ("C", c2), ("O", o), ("H", placed(c1, c2, o, 0.971, 105.4, 180.0))]
    for dihedral in (120.0, -120.0):  # CH2, on either side of the plane C-C-O
        atoms.append(("H", placed(helper, c1, c2, 1.096, 110.3, 180.0 + dihedral)))
    for dihedral in (180.0, 60.0, -60.0):  # CH3, staggered
        atoms.append(("H", placed(o, c2, c1, 1.091, 110.4, dihedral)))
    write(path, atoms)


def water(path):
    """32 waters in a cube at 0.997 g/cm3, on a distorted lattice, each turned at random without close contacts."""
    random = Random(3)
    count = 32
    grams = count * 18.01528 / 6.02214076e23
    side = (grams / 0.997) ** (1 / 3) * 1e8
    bond, half_angle = 0.9572, math.radians(104.52 / 2)
    molecule = [[0.0, 0.0, 0.0]] + [[bond * math.cos(half_angle), sign * bond * math.sin(half_angle), 0.0]
                                    for sign in (1, -1)]
    # 32 sites: a face-centred lattice of 2x2x2 cells.
    sites = [scaled(add(site, [i, j, k]), side / 2) for i in range(2) for j in range(2) for k in range(2)
             for site in FCC]

    def separation(a, b):
        d = subtract(a, b)
        return math.sqrt(sum((x - side * round(x / side)) ** 2 for x in d))

    def contact(a, b):
        """The smallest distance over its permitted minimum, over all pairs of two molecules."""
        shortest = {"OO": 2.5, "OH": 1.7, "HH": 1.7}
        kinds = "OHH"
        return min(separation(p, q) / shortest["".join(sorted(kinds[i] + kinds[j], reverse=True))]
                   for i, p in enumerate(a) for j, q in enumerate(b))

    molecules = []
    for site in sites:
        for attempt in range(100000):
            rotation = random.rotation()
            origin = add(add(site, [0.3, 0.3, 0.3]), random.displacement(0.25))
            candidate = [add(origin, apply(rotation, atom)) for atom in molecule]
            if all(contact(candidate, other) >= 1 for other in molecules):
                molecules.append(candidate)
                break
        else:
            sys.exit("make_structures.py: no room for a molecule; loosen the contacts")
    atoms = [(symbol, position) for m in molecules for symbol, position in zip("OHH", m)]
    write(path, atoms, [[side, 0, 0], [0, side, 0], [0, 0, side]], "T T T")


def main():
    folder = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(__file__), "..", "examples",
                                                               "structures")
    os.makedirs(folder, exist_ok=True)
    for make in (silicon, slab, ethanol, water):
        make(os.path.join(folder, make.__name__ + ".xyz"))


if __name__ == "__main__":
    main()
