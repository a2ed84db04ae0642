"""LAMMPS (the program `lmp`, Debian's package lammps) as a calculator of the Stillinger-Weber potential."""

import pathlib
import shutil
import subprocess
import tempfile

BAR = 1 / 1.6021765e6  # eV/A^3, by the factor that LAMMPS itself has in its units "metal"
MASS = 28.0855
POTENTIAL = pathlib.Path(__file__).resolve().parent / "Si.sw"


class Structure:
    """Silicon atoms. The rows of `cell` are a, b, c in LAMMPS's form: a along x, b in the plane of x and y."""

    def __init__(self, positions, cell, periodic=(True, True, True), kind=""):
        self.positions, self.cell, self.periodic, self.kind = positions, cell, periodic, kind
        assert cell[0][1] == cell[0][2] == cell[1][2] == 0

    @property
    def volume(self):
        return self.cell[0][0] * self.cell[1][1] * self.cell[2][2]


class Labels:
    """energy (eV), forces (eV/A), stress (eV/A^3, 3x3; how the energy grows with a strain, over the volume)."""

    def __init__(self, energy, forces, stress):
        self.energy, self.forces, self.stress = energy, forces, stress


def run(commands, folder):
    program = shutil.which("lmp")
    if program is None:
        raise SystemExit("the program lmp is not installed; on Debian: apt-get install lammps")
    path = pathlib.Path(folder) / "in.lammps"
    path.write_text("\n".join(commands) + "\n")
    done = subprocess.run([program, "-in", path, "-log", "none", "-screen", "none", "-nocite"], cwd=folder,
                          capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"lmp failed: {done.stdout}{done.stderr}")


def write_data(structure, path):
    """A data file in full precision."""
    cell = structure.cell
    lines = ["silicon", "", f"{len(structure.positions)} atoms", "1 atom types", ""]
    lines += [f"0 {cell[i][i]!r} {axis}lo {axis}hi" for i, axis in enumerate("xyz")]
    lines += [f"{cell[1][0]!r} {cell[2][0]!r} {cell[2][1]!r} xy xz yz", "", "Atoms", ""]
    lines += [f"{i + 1} 1 {x!r} {y!r} {z!r}" for i, (x, y, z) in enumerate(structure.positions)]
    path.write_text("\n".join(lines) + "\n")


def start(structure, name, folder):
    """The commands that make a structure."""
    write_data(structure, pathlib.Path(folder) / f"{name}.data")
    # Where a direction is not periodic the cell has a vacuum in it, and periodic images do not meet.
    return ["clear", "units metal", "atom_style atomic", "atom_modify map array sort 0 0", "box tilt large",
            f"read_data {name}.data", f"mass 1 {MASS}", "pair_style sw", f"pair_coeff * * {POTENTIAL} Si",
            "neighbor 1.0 bin", "compute virial all pressure NULL virial", "thermo_style custom step pe c_virial[1]"]


def read_dump(path):
    lines = path.read_text().splitlines()
    return [[float(word) for word in line.split()[1:]] for line in lines[9:]]


def label(structures):
    """Labels of structures, in order."""
    with tempfile.TemporaryDirectory(prefix="silicon-") as folder:
        commands = []
        for i, structure in enumerate(structures):
            commands += start(structure, str(i), folder) + [
                "run 0", 'print "$(pe:%.17g) ' + " ".join(f"$(c_virial[{k}]:%.17g)" for k in range(1, 7))
                + '" append values', f"write_dump all custom {i}.dump id fx fy fz modify sort id format float %.17g"]
        run(commands, folder)
        rows = (pathlib.Path(folder) / "values").read_text().splitlines()
        result = []
        for i, row in enumerate(rows):
            energy, xx, yy, zz, xy, xz, yz = (float(word) for word in row.split())
            pressure = [[xx, xy, xz], [xy, yy, yz], [xz, yz, zz]]
            forces = read_dump(pathlib.Path(folder) / f"{i}.dump")
            result.append(Labels(energy, forces, [[-x * BAR for x in line] for line in pressure]))
        assert len(result) == len(structures)
        return result


def follow(structure, temperatures, steps, seed):
    """The structure after `steps` steps of 1 fs at each temperature in turn."""
    with tempfile.TemporaryDirectory(prefix="silicon-") as folder:
        commands = start(structure, "0", folder) + [
            "timestep 0.001", f"velocity all create {temperatures[0]} {seed} dist gaussian mom yes rot no"]
        for temperature in temperatures:
            commands += [f"fix move all nvt temp {temperature} {temperature} 0.05", f"run {steps}", "unfix move"]
        commands.append("write_dump all custom end.dump id x y z modify sort id format float %.17g")
        run(commands, folder)
        return Structure(read_dump(pathlib.Path(folder) / "end.dump"), structure.cell, structure.periodic, structure.kind)


def relax(structure):
    """The structure with its atoms where no force is left, the cell as it is."""
    with tempfile.TemporaryDirectory(prefix="silicon-") as folder:
        run(start(structure, "0", folder) + [
            "min_style cg", "minimize 0 1e-12 10000 100000",
            "write_dump all custom end.dump id x y z modify sort id format float %.17g"], folder)
        return Structure(read_dump(pathlib.Path(folder) / "end.dump"), structure.cell, structure.periodic, structure.kind)
