#!/usr/bin/env python3
"""Makes reference.json: what the Stillinger-Weber potential says of crystalline silicon, computed by LAMMPS.

    examples/train_silicon/make_reference.py [FOLDER]

Lattice constant, cohesive energy, elastic constants and the vibrations of a cell of 64 atoms: what a model that was
trained on the data beside it is compared with. It needs the program `lmp` and nothing else but Python; half a minute.
"""

import json
import math
import pathlib
import sys

import lammps
from make_data import crystal, strained

GPA = 160.21766208  # of one eV/A^3
STRAIN = 1e-4
STEP = 1e-3  # A


def lattice_constant():
    """Where the pressure of the crystal is zero, by the secant method."""
    def pressure(constant):
        labels, = lammps.label([crystal((1, 1, 1), constant)])
        return sum(labels.stress[i][i] for i in range(3)) / 3

    a, b = 5.40, 5.45
    pa, pb = pressure(a), pressure(b)
    for _ in range(20):
        if abs(pb) < 1e-12 or pa == pb:
            break
        a, b, pa = b, b - pb * (b - a) / (pb - pa), pb
        pb = pressure(b)
    return b


def slopes(constant, pattern, component, relax):
    """d stress[component] / d strain for a strain e * pattern, in GPa."""
    structures = [strained(crystal((1, 1, 1), constant), [[sign * STRAIN * x for x in row] for row in pattern])
                  for sign in (1, -1)]
    if relax:
        structures = [lammps.relax(structure) for structure in structures]
    plus, minus = (labels.stress[component[0]][component[1]] for labels in lammps.label(structures))
    return (plus - minus) / (2 * STRAIN) * GPA


def hessian(structure):
    """Second derivatives of the energy, eV/A^2, by central differences of forces; made symmetric."""
    n = 3 * len(structure.positions)
    moved = []
    for i in range(n):
        for sign in (1, -1):
            positions = [list(p) for p in structure.positions]
            positions[i // 3][i % 3] += sign * STEP
            moved.append(lammps.Structure(positions, structure.cell))
    labels = lammps.label(moved)
    rows = []
    for i in range(n):
        plus, minus = ([f for force in labels[2 * i + s].forces for f in force] for s in (0, 1))
        rows.append([-(p - m) / (2 * STEP) for p, m in zip(plus, minus)])
    return [[(rows[i][k] + rows[k][i]) / 2 for k in range(n)] for i in range(n)]


def eigenvalues(matrix):
    """Of a symmetric matrix, ascending: Householder's reduction to three diagonals, then bisection."""
    a = [list(row) for row in matrix]
    n = len(a)
    for k in range(n - 2):
        x = [a[i][k] for i in range(k + 1, n)]
        length = math.sqrt(sum(v * v for v in x))
        if length == 0 or all(v == 0 for v in x[1:]):
            continue
        x[0] += math.copysign(length, x[0])
        scale = 2 / sum(v * v for v in x)
        p = [scale * sum(u * v for u, v in zip(a[i][k + 1:], x)) for i in range(k + 1, n)]
        factor = scale / 2 * sum(u * v for u, v in zip(p, x))
        q = [u - factor * v for u, v in zip(p, x)]
        for i in range(k + 1, n):
            xi, qi, row = x[i - k - 1], q[i - k - 1], a[i]
            row[k + 1:] = [value - xi * qj - qi * xj for value, qj, xj in zip(row[k + 1:], q, x)]
        a[k + 1][k] = a[k][k + 1] = -math.copysign(length, x[0])
        for i in range(k + 2, n):
            a[i][k] = a[k][i] = 0.0
    diagonal, beside = [a[i][i] for i in range(n)], [a[i + 1][i] for i in range(n - 1)]
    bound = max(abs(d) for d in diagonal) + 2 * max((abs(b) for b in beside), default=0.0)

    def below(limit):
        """How many eigenvalues are smaller: signs of the pivots."""
        count, pivot = 0, 1.0
        for i in range(n):
            pivot = diagonal[i] - limit - (beside[i - 1] ** 2 / pivot if i > 0 else 0.0)
            pivot = pivot if pivot != 0 else 1e-300
            count += pivot < 0
        return count

    result = []
    for index in range(n):
        low, high = -bound, bound
        while high - low > 1e-12 * bound:
            middle = (low + high) / 2
            low, high = (low, middle) if below(middle) > index else (middle, high)
        result.append((low + high) / 2)
    return result


def main():
    folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parent
    constant = lattice_constant()
    labels, = lammps.label([crystal((1, 1, 1), constant)])
    along, shear = [[1, 0, 0], [0, 0, 0], [0, 0, 0]], [[0, 0.5, 0], [0.5, 0, 0], [0, 0, 0]]
    c11 = slopes(constant, along, (0, 0), False)
    c12 = slopes(constant, along, (1, 1), False)
    values = eigenvalues(hessian(crystal((2, 2, 2), constant)))
    # sqrt(eV / A^2 / u) as a frequency.
    terahertz = math.sqrt(1.602176634e-19 / 1e-20 / 1.66053906660e-27) / (2 * math.pi) * 1e-12
    # The three that move the crystal as a whole are zero but for rounding.
    inside = sorted(values, key=abs)[3:]
    frequencies = [math.copysign(math.sqrt(abs(x) / lammps.MASS) * terahertz, x) for x in sorted(inside)]
    result = {
        "potential": "Stillinger-Weber, silicon",
        "lattice_constant": round(constant, 7), "energy_per_atom": round(labels.energy / 8, 8),
        "elastic_constants": {
            "c11": round(c11, 3), "c12": round(c12, 3), "c44": round(slopes(constant, shear, (0, 1), True), 3),
            "c44_unrelaxed": round(slopes(constant, shear, (0, 1), False), 3),
            "bulk_modulus": round((c11 + 2 * c12) / 3, 3)},
        "hessian": {
            "atoms": 64, "smallest_eigenvalue": round(min(inside), 6), "largest_eigenvalue": round(max(inside), 6),
            "translations": float(f"{max(abs(x) for x in sorted(values, key=abs)[:3]):.1e}"),
            "lowest_frequency": round(frequencies[0], 4), "highest_frequency": round(frequencies[-1], 4),
            "stable": min(inside) > 0},
        "units": {"lattice_constant": "A", "energy_per_atom": "eV", "elastic_constants": "GPa",
                  "eigenvalues": "eV/A^2", "frequencies": "THz"},
    }
    (folder / "reference.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
