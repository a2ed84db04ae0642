#!/usr/bin/env python3
"""Makes train.xyz, validation.xyz and test.xyz: silicon, labelled with the Stillinger-Weber potential by LAMMPS.

    examples/train_silicon/make_data.py [FOLDER]

It needs the program `lmp` (Debian: apt-get install lammps) and nothing else but Python. Everything random comes from
fixed seeds. Before it writes, it compares labels of every kind of structure with finite differences of energies.
"""

import math
import pathlib
import random
import sys

import lammps
from lammps import Structure

A0 = 5.431  # A, the lattice constant
SITES = [(0, 0, 0), (0, 2, 2), (2, 0, 2), (2, 2, 0), (1, 1, 1), (1, 3, 3), (3, 1, 3), (3, 3, 1)]  # in quarters
# (kind, how many for training, validation and test)
COUNTS = {"bulk": (10, 2, 4), "strained": (28, 6, 8), "rattled": (24, 4, 6), "vacancy": (7, 1, 2), "surface": (12, 2, 4),
          "liquid": (16, 3, 5)}


def crystal(repeats, constant=A0):
    """The diamond lattice; repeats along x, y, z."""
    positions = [[constant * (cell[k] + site[k] / 4) for k in range(3)]
                 for cell in [(i, j, k) for i in range(repeats[0]) for j in range(repeats[1]) for k in range(repeats[2])]
                 for site in SITES]
    return Structure(positions, [[constant * repeats[i] if i == k else 0.0 for k in range(3)] for i in range(3)])


def strained(structure, strain):
    """The structure under x -> x (1 + strain), turned into LAMMPS's form of a cell."""
    matrix = [[(i == k) + strain[i][k] for k in range(3)] for i in range(3)]
    rows = [[sum(row[j] * matrix[j][k] for j in range(3)) for k in range(3)] for row in structure.cell]
    # Gram-Schmidt: rows = lower triangle times orthonormal axes.
    axes, lower = [], []
    for row in rows:
        along = [sum(x * y for x, y in zip(row, axis)) for axis in axes]
        rest = [x - sum(c * axis[k] for c, axis in zip(along, axes)) for k, x in enumerate(row)]
        length = math.sqrt(sum(x * x for x in rest))
        axes.append([x / length for x in rest])
        lower.append([*along, length] + [0.0] * (2 - len(along)))
    moved = [[sum(x * matrix[j][k] for j, x in enumerate(position)) for k in range(3)] for position in structure.positions]
    positions = [[sum(x * y for x, y in zip(position, axis)) for axis in axes] for position in moved]
    return Structure(positions, lower, structure.periodic, structure.kind)


def rattled(structure, width, generator):
    return Structure([[x + generator.gauss(0, width) for x in position] for position in structure.positions],
                     structure.cell, structure.periodic, structure.kind)


def rounded(structure):
    """With the digits that a file has, so that labels belong to exactly what it holds; atoms inside the cell."""
    cell = [[round(x, 6) for x in row] for row in structure.cell]
    positions = []
    for position in structure.positions:
        p = list(position)
        for i in (2, 1, 0):  # a cell in LAMMPS's form: the last direction first
            turns = math.floor(p[i] / cell[i][i]) if structure.periodic[i] else 0
            p = [x - turns * y for x, y in zip(p, cell[i])]
        positions.append([round(x, 5) for x in p])
    return Structure(positions, cell, structure.periodic, structure.kind)


def make(kind, index, generator):
    """One structure of a kind; index runs over all of the kind, for what is swept rather than drawn."""
    if kind == "bulk":
        return crystal((1, 1, 1), A0 * (0.93 + 0.01 * index))
    if kind == "strained":
        strain = [[0.0] * 3 for _ in range(3)]
        for i in range(3):
            for k in range(i, 3):
                strain[i][k] = strain[k][i] = generator.uniform(-0.05, 0.05) * (1 if i == k else 0.5)
        return rattled(strained(crystal((1, 1, 1)), strain), 0.02 if index % 2 else 0.0, generator)
    if kind == "rattled":
        repeats = (2, 2, 1) if index % 2 else (2, 1, 1)
        return rattled(crystal(repeats, A0 * generator.uniform(0.98, 1.02)), (0.04, 0.08, 0.14)[index % 3], generator)
    if kind == "vacancy":
        whole = crystal((2, 2, 2), A0 * generator.uniform(0.99, 1.01))
        whole.positions.pop(generator.randrange(len(whole.positions)))
        return rattled(whole, 0.06, generator)
    if kind == "surface":
        # (001), four layers thick and a vacuum of 12 A; dangling bonds are moved by the rattling.
        slab = crystal((2, 2, 1), A0 * generator.uniform(0.99, 1.01))
        slab.cell[2][2] += 12.0
        slab.positions = [[x, y, z + 6.0] for x, y, z in slab.positions]
        slab.periodic = (True, True, False)
        return rattled(slab, (0.03, 0.07, 0.12)[index % 3], generator)
    if kind == "liquid":
        # 0.15 ps at each temperature: so short a trajectory does not magnify rounding to what a file shows.
        start = rattled(crystal((2, 2, 2), A0 * generator.uniform(0.96, 1.02)), 0.4, generator)
        return lammps.follow(start, (6000, 3500, (2000, 2500, 3000)[index % 3]), 150, generator.randrange(1, 10**6))
    raise ValueError(kind)


def data_sets():
    """{file: structures}; the sets share the sweep of the bulk, every third volume being unseen."""
    sets = {"train": [], "validation": [], "test": []}
    for kind, counts in COUNTS.items():
        order = [name for name, count in zip(sets, counts) for _ in range(count)]
        generator = random.Random(f"silicon {kind}")
        if kind == "bulk":  # in turns over the volumes
            random.Random("silicon order").shuffle(order)
        for index, name in enumerate(order):
            structure = rounded(make(kind, index, generator))
            structure.kind = kind
            sets[name].append(structure)
    return sets


def as_frame(structure, labels):
    lattice = " ".join(f"{x:.6f}" for row in structure.cell for x in row)
    stress = ""
    if all(structure.periodic):  # elsewhere there is no volume
        stress = ' stress="' + " ".join(f"{x:.9f}" for row in labels.stress for x in row) + '"'
    flags = " ".join("T" if flag else "F" for flag in structure.periodic)
    lines = [str(len(structure.positions)),
             f'Lattice="{lattice}" Properties=species:S:1:pos:R:3:forces:R:3 pbc="{flags}" kind={structure.kind} '
             f"energy={labels.energy:.8f}{stress}"]
    for position, force in zip(structure.positions, labels.forces):
        numbers = [f"{x:.5f}" for x in position] + [f"{x:.6f}" for x in force]
        lines.append("Si " + " ".join("0" + n[n.index("."):] if float(n) == 0 else n for n in numbers))
    return "\n".join(lines) + "\n"


def check(structures):
    """Forces and stress against central differences of energies, one structure of each kind."""
    h = 1e-4
    moved, wanted = [], []
    for structure in structures:
        for atom, axis in ((0, 0), (len(structure.positions) // 2, 1), (len(structure.positions) - 1, 2)):
            for sign in (1, -1):
                positions = [list(p) for p in structure.positions]
                positions[atom][axis] += sign * h
                moved.append(Structure(positions, structure.cell, structure.periodic))
            wanted.append((structure, "force", atom, axis))
        if all(structure.periodic):
            for i, k in ((0, 0), (1, 1), (2, 2), (0, 1), (0, 2), (1, 2)):
                for sign in (1, -1):
                    # Along one axis of the lower triangle, so that nothing turns: dE/d(this) = V times the stress.
                    cell = [[row[j] + (sign * h * row[k] if j == i else 0) for j in range(3)] for row in structure.cell]
                    positions = [[p[j] + (sign * h * p[k] if j == i else 0) for j in range(3)]
                                 for p in structure.positions]
                    moved.append(Structure(positions, cell, structure.periodic))
                wanted.append((structure, "stress", i, k))
    energies = [labels.energy for labels in lammps.label(moved)]
    own = dict(zip(map(id, structures), lammps.label(structures)))
    worst = {"force": 0.0, "stress": 0.0}
    for n, (structure, what, i, k) in enumerate(wanted):
        slope = (energies[2 * n] - energies[2 * n + 1]) / (2 * h)
        labels = own[id(structure)]
        error = abs(-slope - labels.forces[i][k]) if what == "force" else abs(slope / structure.volume
                                                                             - labels.stress[i][k])
        worst[what] = max(worst[what], error)
    print(f"finite differences of energies: forces differ by {worst['force']:.1e} eV/A, stress by "
          f"{worst['stress']:.1e} eV/A^3")
    if not (worst["force"] < 1e-5 and worst["stress"] < 1e-6):
        raise SystemExit("labels are not derivatives of the energy; nothing was written")


def main():
    folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else __file__).resolve()
    folder = folder if folder.is_dir() else folder.parent
    sets = data_sets()
    check([next(s for s in sets["train"] if s.kind == kind and s is not sets["train"][0]) for kind in COUNTS])
    for name, structures in sets.items():
        text = "".join(as_frame(s, labels) for s, labels in zip(structures, lammps.label(structures)))
        (folder / f"{name}.xyz").write_text(text)
        print(f"{name}.xyz: {len(structures)} frames, {sum(len(s.positions) for s in structures)} atoms, {len(text)} bytes")


if __name__ == "__main__":
    main()
