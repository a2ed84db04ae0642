import itertools
import json
import math
import os
import pathlib
import re
import shutil
import struct
import subprocess
import zipfile

import support

NUMBERS = {"H": 1, "C": 6, "N": 7, "O": 8, "Si": 14}
DEMO = support.ROOT / "examples" / "models" / "demo"
TRAINED = support.ROOT / "examples" / "models" / "silicon"
UNSEEN = support.ROOT / "examples" / "train_silicon" / "test.xyz"
MODELS_B = support.ROOT / "tests" / "data" / "models_b"
STRUCTURES_B = [MODELS_B / "crystal.xyz", MODELS_B / "molecule.xyz"]
NONE = "RealAgnosticInteractionBlock"
RESIDUAL = "RealAgnosticResidualInteractionBlock"
DENSITY = "RealAgnosticDensityInteractionBlock"
DENSITY_RESIDUAL = "RealAgnosticDensityResidualInteractionBlock"
CONFIG = {
    "format": "fastpath-model", "format_version": 1, "architecture": "mace", "dtype": "float64",
    "atomic_numbers": [1, 6, 8], "r_max": 3.5, "num_bessel": 4, "polynomial_cutoff_p": 5, "radial_mlp": [8], "l_max": 2,
    "hidden_irreps": "3x0e+3x1o", "num_interactions": 2, "correlation": 2, "interaction_first": NONE,
    "interaction": RESIDUAL, "mlp_irreps": "4x0e", "avg_num_neighbors": 8.0,
}
# One entry a layout that no model of the test data has.
LAYOUTS = {
    "one_layer": {"num_interactions": 1, "correlation": 3, "hidden_irreps": "4x0e", "l_max": 3,
                  "heads": ["a", "b", "c"]},
    "last_irreps": {"keep_last_layer_irreps": True, "interaction_first": RESIDUAL, "apply_cutoff": False,
                    "interaction": DENSITY, "correlation": [1, 2], "avg_num_neighbors": [3.0, 7.0]},
    "scalars": {"l_max": 0, "hidden_irreps": "5x0e", "correlation": 4, "interaction_first": DENSITY,
                "interaction": DENSITY_RESIDUAL, "radial_mlp": [5, 6], "activation_constant": 1.5},
    "high_degree": {"l_max": 4, "hidden_irreps": "2x0e+2x1o+2x2e", "polynomial_cutoff_p": 2, "num_bessel": 1,
                    "distance_transform": "soft"},
    # Paths in another order than MACE's, two of them into one block, and one that leads nowhere.
    "convolutions": {"num_interactions": 2, "l_max": 1, "hidden_irreps": "3x0e+3x1o", "convolutions": [
        {"irreps_in": "3x0e", "irreps_edge": "1x0e+1x1o", "irreps_out": "3x1o+3x0e",
         "instructions": [[0, 1, 0], [0, 0, 1]]},
        {"irreps_in": "3x0e+3x1o", "irreps_edge": "1x0e+1x1o", "irreps_out": "3x0e+3x1e+3x1o",
         "instructions": [[1, 1, 0], [1, 1, 1], [0, 1, 2], [0, 0, 0], [1, 0, 2]]}]},
}


def cross(a, b):
    return [a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]]


def dot(a, b):
    return sum(x * y for x, y in zip(a, b))


class Structure:
    """Atoms of a file of ours, and the edges of a cutoff, found by trying every pair in every image."""

    def __init__(self, path):
        (comment, rows), = support.read_xyz(path)
        self.path = path
        self.symbols = [row[0] for row in rows]
        self.positions = [[float(x) for x in row[1:4]] for row in rows]
        lattice = re.search(r'Lattice="([^"]*)"', comment)
        numbers = [float(x) for x in lattice.group(1).split()] if lattice else []
        self.cell = [numbers[i:i + 3] for i in range(0, len(numbers), 3)]
        self.pbc = [word == "T" for word in re.search(r'pbc="([^"]*)"', comment).group(1).split()]

    def images(self, r_max):
        reach = [0, 0, 0]
        for axis in range(3):
            if self.pbc[axis]:
                normal = cross(self.cell[(axis + 1) % 3], self.cell[(axis + 2) % 3])
                volume = abs(dot(self.cell[axis], normal))
                reach[axis] = math.ceil(r_max * math.sqrt(dot(normal, normal)) / volume) + 1
        for counts in itertools.product(*(range(-n, n + 1) for n in reach)):
            if any(counts):
                yield [sum(counts[k] * self.cell[k][axis] for k in range(3)) for axis in range(3)]
            else:
                yield [0.0, 0.0, 0.0]

    def edges(self, r_max):
        result = []
        for shift in self.images(r_max):
            for s, a in enumerate(self.positions):
                x, y, z = shift[0] - a[0], shift[1] - a[1], shift[2] - a[2]
                for r, b in enumerate(self.positions):
                    square = (b[0] + x) ** 2 + (b[1] + y) ** 2 + (b[2] + z) ** 2
                    if square < r_max ** 2 and (s != r or any(shift)):
                        result.append((s, r, *shift))
        return result


def frame(structures, edges, heads=(), cells=False, batch=False, direction=()):
    """A frame of the input of the program `reload`. Several structures become one batch."""
    atoms = [(NUMBERS[symbol], *position) for s in structures for symbol, position in zip(s.symbols, s.positions)]
    lines = ["frame", f"atoms {len(atoms)}", *(" ".join(map(repr, atom)) for atom in atoms)]
    starts = list(itertools.accumulate((len(s.symbols) for s in structures), initial=0))
    rows = [(s + start, r + start, *shift) for start, part in zip(starts, edges) for s, r, *shift in part]
    lines += [f"edges {len(rows)}", *(" ".join(map(repr, row)) for row in rows)]
    if cells:
        lines.append(f"cell {len(structures)}")
        lines += [" ".join(map(repr, support.flat(s.cell) if all(s.pbc) else [0.0] * 9)) for s in structures]
    if batch:
        lines.append("batch " + " ".join(str(i) for i, s in enumerate(structures) for _ in s.symbols))
    if heads:
        lines.append(f"head {len(heads)} " + " ".join(map(str, heads)))
    if direction:
        lines.append("direction " + " ".join(map(repr, direction)))
    return "\n".join(lines) + "\n"


class Export(support.ProgramTest):
    def setUp(self):
        super().setUp()
        self.reload_program = os.environ["FASTPATH_TEST_TORCHSCRIPT"]
        if not self.reload_program:
            self.skipTest("built without libtorch")

    def export(self, model, name="model.pt"):
        self.succeed("export", "--torchscript", name, "--model", model)
        return self.folder / name

    def create(self, name, **changes):
        config = self.file(f"{name}.json", json.dumps({**CONFIG, **changes}))
        self.succeed("hub", "create", config, "--seed", 3, "--output", self.folder / name)
        return self.folder / name

    def reload(self, *arguments):
        # Tensors are tiny, and threads of libtorch that wait for each other are slow where others work, too.
        process = subprocess.run([self.reload_program, *map(str, arguments)], cwd=self.folder, stdin=subprocess.DEVNULL,
                                 env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False)
        self.assertEqual(process.returncode, 0, process.stderr)
        return json.loads(process.stdout)

    def evaluate_exported(self, exported, frames, *more):
        content = f"module {exported}\n" + "".join(frames)
        return self.reload("evaluate", self.file("input", content), *more)

    def compare(self, got, expected, energy, forces):
        self.assertLessEqual(support.difference(got["energy"], [expected["energy"]]), energy)
        self.assertLessEqual(support.difference(got["node_energies"], expected["node_energies"]), energy)
        self.assertLessEqual(support.difference(got["forces"], support.flat(expected["forces"])), forces)
        self.assertEqual("stress" in got, expected["stress"] is not None)
        if expected["stress"] is not None:
            self.assertLessEqual(support.difference(got["stress"], support.flat(expected["stress"])), forces)

    def compare_models(self, models, paths, energy=1e-12, forces=1e-12, convert=""):
        """Exported models, without fastpath, against fastpath's reference, for every head."""
        structures = [Structure(path) for path in paths]
        content, cases = "", []
        for model in models:
            config = json.loads((model / "config.json").read_text())
            edges = [s.edges(config["r_max"]) for s in structures]
            content += f"module {self.export(model, model.name + '.pt')}\n{convert}\n"
            for i, head in enumerate(config.get("heads", ["default"])):
                content += "".join(frame([s], [e], [i], all(s.pbc)) for s, e in zip(structures, edges))
                wanted = self.evaluate("--use-fast", "false", "--head", head, *paths, model=model)["frames"]
                cases += [(model.name, head, len(e), want) for e, want in zip(edges, wanted)]
        results = self.reload("evaluate", self.file("input", content))
        self.assertEqual(len(results), len(cases))
        for got, (model, head, n_edges, want) in zip(results, cases):
            with self.subTest(model=model, head=head, structure=want["file"]):
                self.assertEqual(n_edges, want["n_edges"])
                self.compare(got, want, energy, forces)

    def testTheReloadedModelGivesTheReference(self):
        self.compare_models([support.MODEL], sorted(support.DATA.glob("*.xyz")))

    def testTheReloadedDemoModelGivesTheReference(self):
        self.compare_models([DEMO], [support.STRUCTURES / f"{name}.xyz" for name in ("ethanol", "silicon", "slab")])

    def testTheReloadedTrainedModelGivesTheReference(self):
        # Of the structures that it was not trained on, one of each kind; a surface has no stress. In the perfect crystal
        # forces vanish, and what is left of them is rounding.
        kinds = {}
        for comment, rows in support.read_xyz(UNSEEN):
            kind = re.search(r"kind=(\w+)", comment)[1]
            text = f"{len(rows)}\n{comment}\n" + "".join(" ".join(row) + "\n" for row in rows)
            if kind != "bulk":
                kinds.setdefault(kind, self.file(f"{kind}.xyz", text))
        self.assertEqual(sorted(kinds), ["liquid", "rattled", "strained", "surface", "vacancy"])
        self.compare_models([TRAINED], sorted(kinds.values()))

    def testEveryBlockIsExported(self):
        self.compare_models([MODELS_B / name for name in ("correlation4", "density", "soft")], STRUCTURES_B)

    def testEveryLayoutIsExported(self):
        self.compare_models([self.create(name, **changes) for name, changes in LAYOUTS.items()], STRUCTURES_B)

    def testAModelInFloat32IsOneInFloat32(self):
        model = self.create("small", dtype="float32", pair_repulsion=True)
        self.compare_models([model], STRUCTURES_B[:1], 1e-6, 1e-5)
        tensors = self.reload("tensors", "small.pt")
        self.assertEqual({entry[0] for entry in tensors["parameters"].values()}, {"Float"})
        os.remove(self.folder / "small.pt")
        # After conversion it computes what fastpath does in float64: constants have been rounded once, when stored.
        self.compare_models([model], STRUCTURES_B[:1], convert="float64")

    def testTensorsHaveTheNamesOfTheStateDict(self):
        for model in (support.MODEL, MODELS_B / "density"):
            exported = self.export(model, model.name + ".pt")
            tensors = self.reload("tensors", exported)
            header, _ = support.read_header(model / "model.safetensors")
            ignored = re.compile(r"_zeroed$|\.output_mask$|\.bias$|conv_tp\.weight$|_w3j_")  # docs/model-format.md
            wanted = {name: entry["shape"] for name, entry in header.items()
                      if name != "__metadata__" and not ignored.search(name)}
            found = {name: entry[1:] for kind in tensors.values() for name, entry in kind.items()}
            self.assertEqual(sorted(found), sorted(wanted))
            for name, shape in wanted.items():
                self.assertIn(shape, (found[name], [1]), name)  # a scalar may be stored as [1]
            self.assertIn("products.0.symmetric_contractions.contractions.0.weights.1", tensors["parameters"])
            self.assertIn("products.0.symmetric_contractions.contractions.0.U_matrix_2", tensors["buffers"])
            with zipfile.ZipFile(exported) as archive:
                name, = (name for name in archive.namelist() if name.endswith("/extra/config.json"))
                self.assertEqual(json.loads(archive.read(name))["r_max"],
                                 json.loads((model / "config.json").read_text())["r_max"])

    def testForcesCanBeDifferentiatedByPositionsAndParameters(self):
        # What training and Hessians need: second derivatives through the reloaded module.
        def arrays(path):
            header, data = support.read_header(path)
            for name, entry in header.items():
                if name != "__metadata__" and entry["dtype"] == "F64":
                    start, stop = entry["data_offsets"]
                    yield name, list(struct.unpack(f"<{(stop - start) // 8}d", data[start:stop]))

        expected = dict(arrays(support.DATA / "paramgrads.safetensors"))
        hessian = dict(arrays(support.DATA / "data.safetensors"))["molecule:hessian"]
        s = Structure(support.DATA / "molecule.xyz")
        result, = self.evaluate_exported(self.export(support.MODEL), [frame([s], [s.edges(5.0)], direction=expected["fv"])])
        names = [name[4:] for name in expected if name.startswith("dFv:")]
        self.assertEqual(sorted(result["gradients"]), sorted(names))
        for name in names:
            self.assertLessEqual(support.difference(result["gradients"][name], expected["dFv:" + name]), 1e-10, name)
        self.assertLessEqual(support.difference(support.flat(result["hessian"]), hessian), 1e-10)

    def testABatchGivesWhatItsGraphsGive(self):
        model = MODELS_B / "soft"
        structures = [Structure(MODELS_B / "molecule.xyz"), Structure(MODELS_B / "crystal.xyz")]
        edges = [s.edges(3.2) for s in structures]
        both, first, second = self.evaluate_exported(self.export(model), [
            frame(structures, edges, [1, 0], cells=True, batch=True), frame(structures[:1], edges[:1], [1]),
            frame(structures[1:], edges[1:], [0], cells=True)])
        self.assertLessEqual(support.difference(both["energy"], first["energy"] + second["energy"]), 1e-13)
        for name in ("node_energies", "forces", "virial"):
            self.assertLessEqual(support.difference(both[name], first[name] + second[name]), 1e-13, name)
        # A molecule has no volume, and so no stress rather than a wrong one.
        self.assertTrue(all(math.isnan(x) for x in both["stress"][:9]))
        self.assertLessEqual(support.difference(both["stress"][9:], second["stress"]), 1e-13)
        self.assertNotIn("stress", first)

    def testWithoutEdgesForcesAreZero(self):
        s = Structure(support.DATA / "sparse.xyz")
        result, = self.evaluate_exported(self.export(support.MODEL), [frame([s], [[]])])
        self.assertEqual(result["forces"], [0.0] * len(s.symbols) * 3)
        self.assertEqual(result["virial"], [0.0] * 9)

    def testTheReloadedModelRefusesWrongInput(self):
        exported = self.export(support.MODEL)
        s = Structure(support.DATA / "molecule.xyz")
        good = frame([s], [[(0, 1, 0.0, 0.0, 0.0)]], [0])
        wrong = {
            "1, 6, 8": good.replace(f"atoms {len(s.symbols)}\n{NUMBERS[s.symbols[0]]} ", f"atoms {len(s.symbols)}\n7 "),
            "head": good.replace("head 1 0", "head 1 1"),
            "cell": good + "cell 2\n" + "1 0 0 0 1 0 0 0 1\n" * 2,
            "shorter than": good.replace("\n0 1 0.0", "\n0 0 0.0"),
            "index": good.replace("\n0 1 0.0", f"\n0 {len(s.symbols)} 0.0"),
        }
        results = self.evaluate_exported(exported, [good, *wrong.values()])
        self.assertIn("energy", results[0])
        for (text, content), result in zip(wrong.items(), results[1:]):
            self.assertNotEqual(content, good)
            self.assertEqual(list(result), ["error"], text)
            self.assertIn(text, result["error"])

    def testLaterCallsGiveTheSame(self):
        # libtorch optimises at the second and third call, for what it saw before.
        s, other = Structure(MODELS_B / "molecule.xyz"), Structure(MODELS_B / "crystal.xyz")
        direction = [math.sin(i) for i in range(3 * len(s.symbols))]
        a, b = frame([s], [s.edges(3.5)], direction=direction), frame([other], [other.edges(3.5)], cells=True)
        model = self.create("scalars", **LAYOUTS["scalars"])
        first, _, *later = self.evaluate_exported(self.export(model), [a, b, a, a, a, a], "optimise")
        self.assertEqual(len(later), 4)
        for result in later:
            for name in ("energy", "forces", "hessian"):
                self.assertLessEqual(support.difference(result[name], first[name]), 1e-11, name)
            for name, gradient in first["gradients"].items():
                self.assertLessEqual(support.difference(result["gradients"][name], gradient), 1e-10, name)

    def testJsonSaysWhatWasMade(self):
        facts = self.succeed("export", "--torchscript", "model.pt", "--model", DEMO, "--json").json
        self.assertEqual(list(facts), ["file", "model", "architecture", "dtype", "parameters", "bytes"])
        self.assertEqual((facts["file"], facts["architecture"], facts["dtype"]), ("model.pt", "mace", "float64"))
        self.assertEqual(facts["bytes"], (self.folder / "model.pt").stat().st_size)
        self.assertGreater(facts["parameters"], 1000)

    def testAFileIsReplacedOnlyIfThatIsAskedFor(self):
        model = MODELS_B / "soft"
        self.file("model.pt", "precious")
        self.fail_with("io", "export", "--torchscript", "model.pt", "--model", model, naming=["model.pt", "--overwrite"])
        self.assertEqual((self.folder / "model.pt").read_text(), "precious")
        self.succeed("export", "--torchscript", "model.pt", "--model", model, "--overwrite")
        self.assertEqual((self.folder / "model.pt").read_bytes()[:2], b"PK")
        self.assertEqual([path.name for path in self.folder.iterdir()], ["model.pt"])

    def testAFullDiskIsAnError(self):
        self.fail_with("io", "export", "--torchscript", "/dev/full", "--model", MODELS_B / "soft", "--overwrite",
                       naming=["/dev/full", "No space left"])


class ExportErrors(support.ProgramTest):
    """What is wrong before libtorch is needed, and what is where it is not there."""

    def testArgumentsAreNamed(self):
        self.fail_with("invalid_argument", "export", "--model", DEMO, naming=["--torchscript FILE"])
        self.fail_with("invalid_argument", "export", "--torchscript", "a.pt", naming=["--model DIR"])
        self.fail_with("invalid_argument", "export", "--torchscript", "", "--model", DEMO, naming=["name is empty"])
        self.fail_with("invalid_argument", "export", "--torchscript", self.folder, "--model", DEMO,
                       naming=[self.folder, "is a directory"])

    def testAMissingModelIsNamed(self):
        self.fail_with("not_found", "export", "--torchscript", "a.pt", "--model", "nothing", naming=["nothing"])
        self.assertEqual(list(self.folder.iterdir()), [])

    def testAFolderThatIsNotThereIsNamed(self):
        self.fail_with("not_found", "export", "--torchscript", "deep/a.pt", "--model", DEMO, naming=["deep"])

    def testAFolderThatMayNotBeWrittenToIsNamed(self):
        folder = self.folder / "closed"
        folder.mkdir()
        folder.chmod(0o555)
        self.fail_unprivileged("io", "export", "--torchscript", folder / "a.pt", "--model", DEMO,
                               naming=[folder, "Permission denied"])

    def testNeitherTheLibraryNorTheProgramIsLinkedWithLibtorch(self):
        library = self.plugins.parents[1] / "libfastpath.so.0"
        for path in (library, pathlib.Path(self.program)):
            self.assertNotIn(b"libtorch_cpu", path.read_bytes())
        writer = library.parent / "fastpath" / "fastpath_torchscript.so"
        if writer.exists():
            self.assertIn(b"libtorch_cpu", writer.read_bytes())

    def library_alone(self):
        """The library without what lies beside it, for this test's program."""
        library = self.plugins.parents[1] / "libfastpath.so.0"
        shutil.copy(library, self.folder / "libfastpath.so.0")
        self.env["LD_LIBRARY_PATH"] = str(self.folder)
        return self.folder / "fastpath" / "fastpath_torchscript.so"

    def testWithoutLibtorchTheErrorSaysWhatToInstall(self):
        missing = self.library_alone()
        self.fail_with("unavailable", "export", "--torchscript", "a.pt", "--model", MODELS_B / "soft",
                       naming=["libtorch-dev", missing])
        self.assertFalse((self.folder / "a.pt").exists())

    def testALibraryOfLibtorchThatIsBrokenOrOfAnotherVersionIsNamed(self):
        file = self.library_alone()
        file.parent.mkdir()
        file.write_text("no library")
        self.fail_with("unavailable", "export", "--torchscript", "a.pt", "--model", MODELS_B / "soft",
                       naming=[file, "cannot be loaded"])
        shutil.copy(self.plugins / "fastpath_cpu_ref.so", file)
        self.fail_with("unavailable", "export", "--torchscript", "a.pt", "--model", MODELS_B / "soft",
                       naming=[file, "has no function"])
        self.assertFalse((self.folder / "a.pt").exists())


if __name__ == "__main__":
    support.main()
