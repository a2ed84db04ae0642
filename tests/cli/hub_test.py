import json

import support

CONFIG = {
    "format": "fastpath-model", "format_version": 1, "architecture": "mace", "dtype": "float64",
    "atomic_numbers": [1, 8], "r_max": 4.0, "num_bessel": 4, "polynomial_cutoff_p": 5, "radial_mlp": [8], "l_max": 1,
    "hidden_irreps": "2x0e+2x1o", "num_interactions": 2, "correlation": 2,
    "interaction_first": "RealAgnosticInteractionBlock", "interaction": "RealAgnosticResidualInteractionBlock",
    "mlp_irreps": "4x0e", "avg_num_neighbors": 8.0,
}
NAMES = ["config.json", "model.safetensors"]


class HubCreate(support.ProgramTest):
    def create(self, name, seed, **changes):
        config = self.file("config.json", json.dumps({**CONFIG, **changes}))
        self.succeed("hub", "create", config, "--seed", seed, "--output", self.folder / name)
        return self.folder / name

    def testTheSameSeedGivesTheSameFilesAndAnotherSeedOthers(self):
        a, b, c = self.create("a", 1), self.create("b", 1), self.create("c", 2)
        self.assertEqual(sorted(p.name for p in a.iterdir()), NAMES)
        for name in NAMES:
            self.assertEqual((a / name).read_bytes(), (b / name).read_bytes())
        self.assertNotEqual((a / NAMES[1]).read_bytes(), (c / NAMES[1]).read_bytes())

    def testTheModelCanBeEvaluated(self):
        for dtype in ("float64", "float32"):
            model = self.create("model_" + dtype, 3, dtype=dtype)
            frame, = self.evaluate("--use-fast", "false", self.water(), model=model)["frames"]
            self.assertEqual(frame["n_atoms"], 3)
            self.assertGreater(max(abs(x) for x in support.flat(frame["forces"])), 0)

    def water(self):
        return self.file("water.xyz", "3\nProperties=species:S:1:pos:R:3\nO 0 0 0\nH 0.96 0 0\nH -0.24 0.93 0\n")

    def testJsonSaysWhatWasMade(self):
        config = self.file("config.json", json.dumps(CONFIG))
        result = self.succeed("hub", "create", config, "--seed", 18446744073709551615, "--output", "model", "--json")
        facts = result.json
        self.assertEqual(list(facts), ["directory", "seed", "parameters"])
        self.assertEqual((facts["directory"], facts["seed"]), ("model", 18446744073709551615))
        self.assertGreater(facts["parameters"], 100)

    def testOverwritesNothing(self):
        model = self.create("model", 1)
        before = {name: (model / name).read_bytes() for name in NAMES}
        self.fail_with("io", "hub", "create", self.folder / "config.json", "--seed", 2, "--output", model,
                       naming=[model])
        self.assertEqual({name: (model / name).read_bytes() for name in NAMES}, before)

    def testABadConfigLeavesNothingBehind(self):
        for content in ("", "{}", json.dumps({**CONFIG, "l_max": "one"}), json.dumps({**CONFIG, "colour": 1})):
            config = self.file("config.json", content)
            self.fail_with("bad_file", "hub", "create", config, "--seed", 1, "--output", "model", naming=[config])
            self.assertFalse((self.folder / "model").exists())

    def testAModelThatCannotFitIsRefusedAtOnce(self):
        for changes in ({"radial_mlp": [65536] * 100}, {"hidden_irreps": "10000000x0e", "l_max": 0},
                        {"l_max": 11, "correlation": 4}):
            config = self.file("config.json", json.dumps({**CONFIG, **changes}))
            self.fail_with("out_of_memory", "hub", "create", config, "--seed", 1, "--output", "model",
                           naming=[config, "bytes"])
            self.assertFalse((self.folder / "model").exists())

    def testAFolderThatCannotBeMadeIsNamedAsItWasAskedFor(self):
        config = self.file("config.json", json.dumps(CONFIG))
        for folder in (config / "model", "/proc/model"):
            result = self.fail_with("io", "hub", "create", config, "--seed", 1, "--output", folder, naming=[folder])
            self.assertNotIn("partial", result.err)

    def testAConfigThatMayNotBeReadIsNotMissing(self):
        config = self.file("hidden/config.json", json.dumps(CONFIG))
        config.parent.chmod(0)
        self.addCleanup(config.parent.chmod, 0o700)
        self.fail_unprivileged("io", "hub", "create", config, "--seed", 1, "--output", "model",
                               naming=[config, "Permission denied"])

    def testAFrameMayNameAHeadThatIsANumber(self):
        model = self.create("model", 5, heads=["default", "2"])
        frame = "2\n{}\nO 0 0 0\nH 0.96 0 0\n"
        plain, named = self.file("plain.xyz", frame.format("")), self.file("named.xyz", frame.format("head=2"))
        first = self.evaluate("--use-fast", "false", plain, model=model)["frames"][0]["energy"]
        second = self.evaluate("--use-fast", "false", "--head", "2", plain, model=model)["frames"][0]["energy"]
        self.assertNotEqual(first, second)
        self.assertEqual(self.evaluate("--use-fast", "false", named, model=model)["frames"][0]["energy"], second)

    def testMissingArgumentsAreNamed(self):
        config = self.file("config.json", json.dumps(CONFIG))
        self.fail_with("invalid_argument", "hub", "create", config, "--seed", 1, naming=["--output"])
        self.fail_with("invalid_argument", "hub", "create", config, "--output", "model", naming=["--seed"])
        self.fail_with("invalid_argument", "hub", "create", "--seed", 1, "--output", "model", naming=["config"])
        self.fail_with("invalid_argument", "hub", "create", config, "--seed", "-1", "--output", "model",
                       naming=["--seed", "-1"])
        self.fail_with("not_found", "hub", "create", "absent.json", "--seed", 1, "--output", "model",
                       naming=["absent.json"])


if __name__ == "__main__":
    support.main()
