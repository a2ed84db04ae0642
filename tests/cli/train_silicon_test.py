"""The data of examples/train_silicon are what its README says, and the program reads them."""
import json
import re
import sys

import support

FOLDER = support.ROOT / "examples" / "train_silicon"
TRAINED = support.ROOT / "examples" / "models" / "silicon"
SETS = ("train", "validation", "test")
MODEL = {
    "format": "fastpath-model", "format_version": 1, "architecture": "mace", "dtype": "float64", "atomic_numbers": [14],
    "r_max": 3.0, "num_bessel": 2, "polynomial_cutoff_p": 5, "radial_mlp": [2], "l_max": 0, "hidden_irreps": "1x0e",
    "num_interactions": 1, "correlation": 1, "interaction_first": "RealAgnosticInteractionBlock",
    "interaction": "RealAgnosticInteractionBlock", "avg_num_neighbors": 4.0,
}


def key(comment, name):
    found = re.search(rf'{name}=(?:"([^"]*)"|(\S+))', comment)
    return None if found is None else found[1] or found[2]


def numbers(comment, name):
    text = key(comment, name)
    return None if text is None else [float(word) for word in text.split()]


class TrainSilicon(support.ProgramTest):
    @classmethod
    def setUpClass(cls):
        cls.sets = {name: support.read_xyz(FOLDER / f"{name}.xyz") for name in SETS}

    def testCountsAreThoseOfTheReadme(self):
        text = (FOLDER / "README.md").read_text()
        rows = re.findall(r"^\| `(\w+)` \| (\d+) \| (\d+) \| (\d+) \|", text, re.M)
        self.assertEqual(len(rows), 6)
        for kind, *counts in rows:
            found = [sum(key(comment, "kind") == kind for comment, _ in self.sets[name]) for name in SETS]
            self.assertEqual(found, list(map(int, counts)), kind)
        self.assertEqual(sum(len(frames) for frames in self.sets.values()),
                         sum(int(count) for _, *counts in rows for count in counts))

    def testEveryFrameHasItsLabels(self):
        for name, frames in self.sets.items():
            for comment, rows in frames:
                self.assertEqual(key(comment, "Properties"), "species:S:1:pos:R:3:forces:R:3")
                self.assertLess(numbers(comment, "energy")[0] / len(rows), -2)
                self.assertEqual({len(row) for row in rows}, {7})
                self.assertEqual({row[0] for row in rows}, {"Si"})
                for axis in (4, 5, 6):  # to the rounding of six digits
                    self.assertLess(abs(sum(float(row[axis]) for row in rows)), 1e-6 * len(rows), name)
                periodic = key(comment, "pbc") == "T T T"
                stress = numbers(comment, "stress")
                self.assertEqual(periodic, key(comment, "kind") != "surface")
                self.assertEqual(stress is not None, periodic)
                if periodic:
                    self.assertEqual([stress[i] for i in (3, 6, 7)], [stress[i] for i in (1, 2, 5)])

    def testTheStressOfAStretchedCrystalIsPositive(self):
        constant = json.loads((FOLDER / "reference.json").read_text())["lattice_constant"]
        crystals = [(numbers(comment, "Lattice")[0], numbers(comment, "stress")[0], numbers(comment, "energy")[0])
                    for frames in self.sets.values() for comment, _ in frames if key(comment, "kind") == "bulk"]
        for size, stress, _ in crystals:
            self.assertEqual(stress > 0, size > constant)
        # Its work over a step of the lattice constant is the difference of energies: units of the stress.
        crystals.sort()
        for (a, stress_a, energy_a), (b, stress_b, energy_b) in zip(crystals, crystals[1:]):
            work = 3 * (stress_a * a * a + stress_b * b * b) / 2 * (b - a)
            self.assertLess(abs(work - (energy_b - energy_a)), 0.01)

    def testNoStructureIsInTwoPlaces(self):
        seen = [(key(comment, "Lattice"), tuple(map(tuple, rows))) for frames in self.sets.values()
                for comment, rows in frames]
        self.assertEqual(len(seen), len(set(seen)))

    def testTheProgramReadsAllOfThem(self):
        config = self.file("config.json", json.dumps(MODEL))
        self.succeed("hub", "create", config, "--seed", 1, "--output", self.folder / "model")
        frames = self.evaluate("--use-fast", "false", *(FOLDER / f"{name}.xyz" for name in SETS),
                               model=self.folder / "model")["frames"]
        self.assertEqual([frame["n_atoms"] for frame in frames],
                         [len(rows) for frames in self.sets.values() for _, rows in frames])

    def testTheReferenceIsTheKnownPotential(self):
        reference = json.loads((FOLDER / "reference.json").read_text())
        # As Balamane, Halicioglu and Tiller found for it, Phys. Rev. B 46, 2250 (1992), in GPa.
        for name, value in (("c11", 151), ("c12", 76), ("c44", 56)):
            self.assertLess(abs(reference["elastic_constants"][name] - value), 1, name)
        self.assertLess(abs(reference["lattice_constant"] - 5.431), 1e-3)
        self.assertGreater(reference["hessian"]["smallest_eigenvalue"], 0)

    def testItsConfigurationTrains(self):
        config = json.loads((FOLDER / "config.json").read_text())
        frames = (FOLDER / "train.xyz").read_text().split("\n8\n")  # the first 38 have eight atoms
        self.file("train.xyz", "8\n" + "\n8\n".join(frames[10:13]) + "\n")
        config["data"] = {"training": "train.xyz", "validation": "train.xyz"}
        result = self.succeed("train", self.file("config.json", json.dumps(config)), "--epochs", 1, "--json").json
        self.assertTrue(result["finished"])
        trained = json.loads((TRAINED / "config.json").read_text())
        made = json.loads((self.folder / config["output"] / "model" / "config.json").read_text())
        self.assertEqual(trained, made)

    def testTheTrainedModelHasTheErrorsThatItsReadmeStates(self):
        sys.path.insert(0, str(FOLDER))
        import compare
        program = compare.Program(self.program, TRAINED, self.folder)
        stated = re.search(r"forces \| (\d+) meV/A \|", (TRAINED / "README.md").read_text())
        found = compare.errors(program, FOLDER / "test.xyz")
        self.assertEqual(found["structures"], len(self.sets["test"]))
        self.assertLess(abs(1000 * found["forces"] - int(stated[1])), 1)
        reference = json.loads((FOLDER / "reference.json").read_text())
        self.assertLess(abs(compare.lattice_constant(program) - reference["lattice_constant"]), 0.02)


if __name__ == "__main__":
    support.main()
