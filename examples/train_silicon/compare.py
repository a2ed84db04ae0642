#!/usr/bin/env python3
"""Compares a model with the potential whose labels it learned: errors on structures that it has not seen, and the crystal.

    examples/train_silicon/compare.py [MODEL] [--program FASTPATH] [--json]

MODEL is a model folder, by default examples/models/silicon. Printed are root mean squares of the errors on test.xyz, and
lattice constant, cohesive energy, elastic constants and the eigenvalues of the Hessian of 64 atoms beside those of
reference.json. It needs nothing but Python and the program. It ends with 1 if the model's crystal is not stable.
"""

import argparse
import json
import math
import pathlib
import re
import struct
import subprocess
import sys
import tempfile

from make_data import crystal, strained
from make_reference import GPA, STRAIN, eigenvalues

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]


class Program:
    """`fastpath eval` with one model."""

    def __init__(self, program, model, folder):
        self.command = [str(program), "eval", "--model", str(model), "--use-fast", "true", "--json"]
        self.folder = folder

    def run(self, *arguments):
        done = subprocess.run([*self.command, *map(str, arguments)], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SystemExit(done.stderr.strip())
        return json.loads(done.stdout)["frames"]

    def write(self, structures):
        path = self.folder / "structures.xyz"
        with open(path, "w", encoding="ascii") as out:
            for structure in structures:
                cell = " ".join(repr(float(x)) for row in structure.cell for x in row)
                out.write(f'{len(structure.positions)}\nLattice="{cell}" Properties=species:S:1:pos:R:3\n')
                out.writelines("Si " + " ".join(repr(float(x)) for x in atom) + "\n" for atom in structure.positions)
        return path

    def evaluate(self, *structures):
        return self.run(self.write(structures))

    def hessian(self, structure):
        path = self.folder / "hessian.safetensors"
        self.run("--hessian", path, self.write([structure]))
        content = path.read_bytes()
        size = struct.unpack("<Q", content[:8])[0]
        start, stop = json.loads(content[8:8 + size])["hessian"]["data_offsets"]
        values = struct.unpack(f"<{(stop - start) // 8}d", content[8 + size + start:8 + size + stop])
        n = 3 * len(structure.positions)
        return [list(values[i * n:(i + 1) * n]) for i in range(n)]


def read_labels(path):
    """(kind, energy, forces, stress or None) of every frame."""
    lines = path.read_text().splitlines()
    frames = []
    while lines:
        count, comment = int(lines[0]), lines[1]
        stress = re.search(r'stress="([^"]*)"', comment)
        frames.append((re.search(r"kind=(\w+)", comment)[1], float(re.search(r"energy=(\S+)", comment)[1]),
                       [float(word) for line in lines[2:2 + count] for word in line.split()[4:7]],
                       stress and [float(word) for word in stress[1].split()]))
        lines = lines[2 + count:]
    return frames


def rms(values):
    return math.sqrt(sum(x * x for x in values) / len(values))


def flat(rows):
    return [x for row in rows for x in row]


def errors(program, path):
    labels, results = read_labels(path), program.run(path)
    forces, energies, stresses = {}, [], []
    for (kind, energy, force, stress), result in zip(labels, results):
        forces.setdefault(kind, []).extend(a - b for a, b in zip(flat(result["forces"]), force))
        energies.append((result["energy"] - energy) / result["n_atoms"])
        if stress:
            stresses += [a - b for a, b in zip(flat(result["stress"]), stress)]
    return {"structures": len(labels), "energy": rms(energies), "stress": rms(stresses),
            "forces": rms([x for values in forces.values() for x in values]),
            "forces_by_kind": {kind: rms(values) for kind, values in forces.items()}}


def lattice_constant(program):
    def pressure(constant):
        stress = program.evaluate(crystal((1, 1, 1), constant))[0]["stress"]
        return sum(stress[i][i] for i in range(3)) / 3

    a, b = 5.40, 5.45
    pa, pb = pressure(a), pressure(b)
    for _ in range(20):
        if abs(pb) < 1e-11 or pa == pb:
            break
        a, b, pa = b, b - pb * (b - a) / (pb - pa), pb
        pb = pressure(b)
    return b


def solve(matrix, right):
    """Gauss, with the largest pivot of a column."""
    n = len(right)
    a = [[*row, value] for row, value in zip(matrix, right)]
    for k in range(n):
        best = max(range(k, n), key=lambda i: abs(a[i][k]))
        a[k], a[best] = a[best], a[k]
        for i in range(k + 1, n):
            factor = a[i][k] / a[k][k]
            a[i] = [x - factor * y for x, y in zip(a[i], a[k])]
    x = [0.0] * n
    for i in reversed(range(n)):
        x[i] = (a[i][n] - sum(a[i][k] * x[k] for k in range(i + 1, n))) / a[i][i]
    return x


def relaxed(program, structure):
    """Newton's steps with the Hessian; the first atom stays where it is."""
    inverse_of = [row[3:] for row in program.hessian(structure)[3:]]
    for _ in range(4):
        force = flat(program.evaluate(structure)[0]["forces"])[3:]
        if max(map(abs, force)) < 1e-9:
            break
        step = [0.0, 0.0, 0.0, *solve(inverse_of, force)]
        structure.positions = [[x + step[3 * i + k] for k, x in enumerate(atom)]
                               for i, atom in enumerate(structure.positions)]
    return structure


def slope(program, constant, pattern, component, relax):
    structures = [strained(crystal((1, 1, 1), constant), [[sign * STRAIN * x for x in row] for row in pattern])
                  for sign in (1, -1)]
    if relax:
        structures = [relaxed(program, structure) for structure in structures]
    plus, minus = (result["stress"][component[0]][component[1]] for result in program.evaluate(*structures))
    return (plus - minus) / (2 * STRAIN) * GPA


def compare(program):
    constant = lattice_constant(program)
    along, shear = [[1, 0, 0], [0, 0, 0], [0, 0, 0]], [[0, 0.5, 0], [0.5, 0, 0], [0, 0, 0]]
    c11, c12 = (slope(program, constant, along, component, False) for component in ((0, 0), (1, 1)))
    values = sorted(eigenvalues(program.hessian(crystal((2, 2, 2), constant))), key=abs)
    return {
        "errors": errors(program, HERE / "test.xyz"),
        "lattice_constant": constant,
        "energy_per_atom": program.evaluate(crystal((1, 1, 1), constant))[0]["energy"] / 8,
        "elastic_constants": {"c11": c11, "c12": c12, "c44": slope(program, constant, shear, (0, 1), True),
                              "c44_unrelaxed": slope(program, constant, shear, (0, 1), False),
                              "bulk_modulus": (c11 + 2 * c12) / 3},
        "hessian": {"smallest_eigenvalue": min(values[3:]), "largest_eigenvalue": max(values[3:]),
                    "translations": max(map(abs, values[:3])), "stable": min(values[3:]) > 0}}


def print_table(found, reference):
    error = found["errors"]
    print(f"errors on {error['structures']} unseen structures, root mean square")
    print(f"  energy {1000 * error['energy']:10.2f} meV per atom")
    print(f"  stress {1000 * error['stress']:10.3f} meV/A^3")
    print(f"  forces {1000 * error['forces']:10.1f} meV/A   "
          + ", ".join(f"{kind} {1000 * value:.0f}" for kind, value in error["forces_by_kind"].items()))
    print(f"\n{'the crystal':<32}{'model':>12}{'potential':>12}")
    rows = [("lattice constant, A", "lattice_constant", None), ("energy, eV per atom", "energy_per_atom", None)]
    rows += [(f"{name}, GPa", "elastic_constants", name) for name in found["elastic_constants"]]
    rows += [(f"{name.replace('_', ' ')}, eV/A^2", "hessian", name)
             for name in ("smallest_eigenvalue", "largest_eigenvalue")]
    for title, group, name in rows:
        values = [facts[group] if name is None else facts[group][name] for facts in (found, reference)]
        print(f"{title:<32}{values[0]:>12.4f}{values[1]:>12.4f}")
    print(f"{'stable':<32}{str(found['hessian']['stable']):>12}{str(reference['hessian']['stable']):>12}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", default=ROOT / "examples" / "models" / "silicon")
    parser.add_argument("--program", default=ROOT / "build" / "release" / "bin" / "fastpath")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = compare(Program(arguments.program, arguments.model, pathlib.Path(folder)))
    if arguments.json:
        print(json.dumps(found, indent=1))
    else:
        print_table(found, json.loads((HERE / "reference.json").read_text()))
    return 0 if found["hessian"]["stable"] else 1


if __name__ == "__main__":
    sys.exit(main())
