"""scripts/convert_mace.py as far as it needs no package: from facts and tensors of a checkpoint to a model folder.

tests/convert/packages.py tries the rest against the package, by hand.
"""
import json
import os
import subprocess
import sys

import support

sys.path.insert(0, str(support.ROOT / "scripts"))

import compared_structures  # noqa: E402
import mace_folder  # noqa: E402


def read_tensors(path):
    header, data = support.read_header(path)
    header.pop("__metadata__", None)
    return {name: mace_folder.Stored(entry["dtype"], entry["shape"], data[slice(*entry["data_offsets"])])
            for name, entry in header.items()}


def checkpoint(folder, **changes):
    """What the converter would see of the checkpoint that this model folder came from."""
    config = json.loads((folder / "config.json").read_text())
    layers = config["num_interactions"]
    neighbours = config["avg_num_neighbors"]
    facts = {
        "model": "ScaleShiftMACE", "children": {"node_embedding": "LinearNodeEmbeddingBlock"},
        "settings": {"use_so3": False, "embedding_specs": None}, "heads": config.get("heads"),
        "apply_cutoff": config.get("apply_cutoff", True), "basis": "BesselBasis",
        "transform": {"none": None, "agnesi": "AgnesiTransform", "soft": "SoftTransform"}[
            config.get("distance_transform", "none")],
        "interactions": [{
            "block": config["interaction" if t > 0 else "interaction_first"], "radial_net": "FullyConnectedNet",
            "avg_num_neighbors": neighbours[t] if isinstance(neighbours, list) else neighbours,
            "convolution": config["convolutions"][t] if "convolutions" in config else None} for t in range(layers)],
        "readouts": ["LinearReadoutBlock"] * (layers - 1) + ["NonLinearReadoutBlock"],
        "activations": {"readouts": ("silu", 1.6791767923989418)},
    }
    return {**facts, **changes}, read_tensors(folder / "model.safetensors")


class ConvertMace(support.ProgramTest):
    def convert(self, facts, state):
        config, tensors = mace_folder.derive(facts, state)
        with mace_folder.new_folder(self.folder / "made" / "model") as folder:
            mace_folder.write_folder(folder, config, tensors)
        return self.folder / "made" / "model"

    def refused(self, facts, state, *words):
        with self.assertRaises(mace_folder.Unsupported) as caught:
            mace_folder.derive(facts, state)
        for word in words:
            self.assertIn(word, str(caught.exception))
        return caught.exception

    def testTheFolderComputesWhatTheCheckpointsPackageComputes(self):
        model = self.convert(*checkpoint(support.MODEL))
        expected = json.loads((support.DATA / "expected.json").read_text())
        for name in ("molecule", "triclinic"):
            frame, = self.evaluate("--use-fast", "false", support.DATA / f"{name}.xyz", model=model)["frames"]
            for key in ("energy", "forces"):
                self.assertLess(support.difference(frame[key], expected[name][key]), 1e-12)

    def testConfigAndTensorsAreThoseOfTheModel(self):
        for folder in [support.MODEL, *(support.ROOT / "tests" / "data" / "models_b" / name
                                        for name in ("density", "soft", "correlation4"))]:
            original = json.loads((folder / "config.json").read_text())
            facts, state = checkpoint(folder)
            config, tensors = mace_folder.derive(facts, state)
            for key, value in original.items():
                if key in ("avg_num_neighbors", "correlation") and not isinstance(value, list):
                    value = [value] * original["num_interactions"]
                self.assertEqual(config[key], value, f"{folder.name}: {key}")
            self.assertEqual({name: tensor.data for name, tensor in tensors.items()},
                             {name: tensor.data for name, tensor in state.items()
                              if not mace_folder.is_needless(name, tensor)})

    def testAModelWithoutScaleAndShiftGetsOneAndZero(self):
        facts, state = checkpoint(support.MODEL, model="MACE")
        del state["scale_shift.scale"], state["scale_shift.shift"]
        _, tensors = mace_folder.derive(facts, state)
        self.assertEqual(tensors["scale_shift.scale"].values(), (1.0,))
        self.assertEqual(tensors["scale_shift.shift"].values(), (0.0,))

    def testTensorsOfTwoPrecisionsAreStoredInTheLargerOne(self):
        facts, state = checkpoint(support.MODEL)
        for name in state:
            if state[name].is_floating:
                state[name] = state[name].to("F32")
        config, tensors = mace_folder.derive(facts, state)
        self.assertEqual(config["dtype"], "float32")
        self.assertEqual(config["r_max"], 5.0)
        state["r_max"] = state["r_max"].to("F64")
        config, tensors = mace_folder.derive(facts, state)
        self.assertEqual(config["dtype"], "float64")
        rounded = state["interactions.0.linear.weight"].values()
        self.assertEqual(tensors["interactions.0.linear.weight"].values(), rounded)

    def testWhatOlderVersionsStoredIsTaken(self):
        density = support.ROOT / "tests" / "data" / "models_b" / "density"
        facts, state = checkpoint(density)
        expected = mace_folder.derive(facts, dict(state))
        state["radial_embedding.cutoff_fn.p"] = state["pair_repulsion_fn.p"] = mace_folder.Stored.of("F64", (), [6.0])
        for name in ("r_max", "cutoff.r_max", "cutoff.p"):
            state[f"pair_repulsion_fn.{name}"] = mace_folder.Stored.of("F64", (), [3.7])
        config, tensors = mace_folder.derive(facts, state)
        self.assertEqual(config, expected[0])
        self.assertEqual({name: (tensor.dtype, tensor.data) for name, tensor in tensors.items()},
                         {name: (tensor.dtype, tensor.data) for name, tensor in expected[1].items()})
        state["radial_embedding.cutoff_fn.p"] = mace_folder.Stored.of("F64", (), [5.5])
        self.refused(facts, state, "radial_embedding.cutoff_fn.p", "5.5")

    def testAReducedBasisIsRecognisedByItsSize(self):
        facts, state = checkpoint(support.MODEL)
        self.assertFalse(mace_folder.derive(facts, state)[0]["reduced_cg"])
        prefix = mace_folder.CONTRACTION.format(1, 0)
        for name, columns in (("U_matrix_3", 22), ("weights_max", 22)):
            tensor = state[prefix + name]
            shape = (*tensor.shape[:-1], columns) if name == "U_matrix_3" else (tensor.shape[0], columns, 8)
            state[prefix + name] = mace_folder.Stored.of("F64", shape, [0.5] * (tensor.numel // 23 * 22))
        self.assertTrue(mace_folder.derive(facts, state)[0]["reduced_cg"])

    def testSizesOfTheFullBasisAreThoseOfThePackage(self):
        sizes = {(1, 0): [1, 2, 4, 9], (1, 1): [1, 2, 6], (2, 0): [1, 3, 11], (2, 1): [1, 4, 21], (2, 2): [1, 4, 23],
                 (3, 0): [1, 4, 23], (3, 1): [1, 6, 51], (3, 2): [1, 7, 65]}
        for (l_max, degree), counts in sizes.items():
            self.assertEqual([mace_folder.full_basis_size(l_max, degree, nu + 1) for nu in range(len(counts))], counts)

    def testEverythingUnsupportedIsNamedAtOnce(self):
        facts, state = checkpoint(support.MODEL, model="AtomicDipolesMACE", basis="GaussianBasis",
                                  settings={"use_so3": True})
        facts["children"]["joint_embedding"] = "GenericJointEmbedding"
        facts["interactions"][1]["block"] = "RealAgnosticAttResidualInteractionBlock"
        facts["readouts"][1] = "NonLinearBiasReadoutBlock"
        facts["activations"]["readouts"] = ("tanh", None)
        error = self.refused(facts, state, "AtomicDipolesMACE", "GaussianBasis", "use_so3", "joint_embedding",
                             "RealAgnosticAttResidualInteractionBlock", "NonLinearBiasReadoutBlock", "tanh", "silu")
        self.assertEqual(len(error.problems), 7)

    def testTensorsWithoutAPlaceAndMissingOnesAreNamed(self):
        facts, state = checkpoint(support.MODEL)
        state["interactions.0.extra.weight"] = state["r_max"]
        del state["products.1.linear.weight"]
        self.refused(facts, state, "interactions.0.extra.weight", "products.1.linear.weight")

    def testEdgeIrrepsAndParitiesOfTheirOwnAreRefused(self):
        facts, state = checkpoint(support.MODEL)
        facts["interactions"][0]["convolution"]["irreps_edge"] = "1x0e+1x1e+1x2e+1x3e"
        state["interactions.1.linear_up.weight"] = state["interactions.0.linear_up.weight"]
        self.refused(facts, state, "1x0e+1x1e+1x2e+1x3e", "1x0e+1x1o+1x2e+1x3o", "interactions.1.linear_up.weight")

    def testNothingIsLeftWhenTheComparisonFails(self):
        facts, state = checkpoint(support.MODEL)
        with self.assertRaises(ZeroDivisionError):
            with mace_folder.new_folder(self.folder / "new" / "model") as folder:
                mace_folder.write_folder(folder, *mace_folder.derive(facts, state))
                raise ZeroDivisionError
        self.assertEqual(list(self.folder.iterdir()), [])

    def testAFolderWithContentIsNotReplaced(self):
        self.file("model/README.md", "mine")
        with self.assertRaises(mace_folder.Failure):
            mace_folder.check_output(self.folder / "model")

    def testStructuresHaveEverySpeciesAndTheEdgesThatTheProgramFinds(self):
        radii = [0.2 + 0.01 * z for z in range(119)]
        species = [1, 6, 8]
        structures = compared_structures.random_structures(species, radii, 5.0, 3)
        self.assertEqual(structures, compared_structures.random_structures(species, radii, 5.0, 3))
        symbols = {1: "H", 6: "C", 8: "O"}
        path = self.file("all.xyz", compared_structures.as_xyz(structures.values(), symbols))
        frames = self.evaluate("--use-fast", "false", path)["frames"]
        self.assertEqual(len(frames), len(structures))
        for frame, (numbers, positions, cell, periodic) in zip(frames, structures.values()):
            self.assertEqual(frame["n_atoms"], len(numbers))
            self.assertEqual(frame["n_edges"], len(compared_structures.neighbours(positions, cell, periodic, 5.0)[0]))
        self.assertEqual({z for numbers, *_ in structures.values() for z in numbers}, set(species))

    def testTheScriptTeachesAndSaysWhatIsMissing(self):
        script = support.ROOT / "scripts" / "convert_mace.py"

        def run(*words):
            return subprocess.run([sys.executable, "-B", "-S", script, *words], capture_output=True, text=True,
                                  check=False, env={**os.environ, "PYTHONPATH": ""}, cwd=self.folder)

        text = run("--help")
        self.assertEqual(text.returncode, 0)
        for word in ("CHECKPOINT", "--hyperparameters", "mace-torch", "RealAgnosticDensityResidualInteractionBlock"):
            self.assertIn(word, text.stdout)
        absent = run("absent.model", "-o", "model", "--fastpath", self.program)
        self.assertEqual((absent.returncode, absent.stdout), (3, ""))
        self.assertIn("mace-torch", absent.stderr)
        self.file("full/file", "")
        self.assertEqual(run("absent.model", "-o", "full", "--fastpath", self.program).returncode, 2)


if __name__ == "__main__":
    support.main()
