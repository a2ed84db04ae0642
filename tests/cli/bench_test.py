"""`fastpath bench`: a driver of the programs that measure, and of their comparison. Never how fast anything is."""
import json
import pathlib

import support


class Bench(support.ProgramTest):
    def setUp(self):
        super().setUp()
        if not pathlib.Path(self.program).with_name("fastpath_bench").exists():
            self.skipTest("this build has no benchmarks")

    def measure(self):
        self.succeed("bench", "model", "--model", support.DATA / "model", "--structure", support.DATA / "sparse.xyz",
                     "--sizes", "3", "--arms", "reference", "--dtype", "float64", "--threads", "1", "--budget", "0",
                     "--min-rounds", "1", "--json", "before.json")
        return json.loads((self.folder / "before.json").read_text())

    def scaled(self, data, factor):
        """The same measurement with other times."""
        for result in data["results"]:
            for arm in result["arms"]:
                arm["median_seconds"] *= factor
                arm["mad_seconds"] = 0.0
        return json.dumps(data)

    def testMeasuresModelsAndComparesWithWhatWasMeasuredBefore(self):
        self.file("quick.json", self.scaled(self.measure(), 1e-6))
        self.file("slow.json", self.scaled(self.measure(), 1e6))
        result = self.run_program("bench", "--compare", "slow.json")
        self.assertEqual(result.status, 0, result.err)
        self.assertIn("Nothing is slower than before", result.out)
        self.assertIn("Faster:", result.out)
        (self.folder / "new").mkdir()
        result = self.run_program("bench", "--output", "new", "--compare", "slow.json", "quick.json")
        self.assertEqual(result.status, 1, result.err)
        self.assertIn("Slower, or gone:", result.out)
        # What seems to be slower is measured twice, and what is not once.
        self.assertEqual(sorted(path.name for path in (self.folder / "new").glob("*-?.json")),
                         ["quick-1.json", "quick-2.json", "slow-1.json"])
        findings = json.loads((self.folder / "new" / "quick.findings.json").read_text())["findings"]
        self.assertEqual({finding["kind"] for finding in findings}, {"slower"})

    def testOtherFilesSayNothing(self):
        self.file("other.json", "{}")
        result = self.run_program("bench", "--compare", "other.json")
        self.assertEqual(result.status, 2)
        self.assertIn("other.json", result.err)
        elsewhere = self.measure()
        elsewhere["machine"]["cpu"] = "another CPU"
        self.file("elsewhere.json", json.dumps(elsewhere))
        result = self.run_program("bench", "--compare", "elsewhere.json")
        self.assertEqual(result.status, 2, result.out)
        self.assertIn("another CPU", result.err)

    def testWhatIsWrongIsNamed(self):
        self.fail_with("invalid_argument", "bench", naming=["expected model, ops or --compare"])
        self.fail_with("invalid_argument", "bench", "modle", naming=["'modle'", "model"])
        self.fail_with("invalid_argument", "bench", "--compare", naming=["--compare", "expected files"])
        self.fail_with("not_found", "bench", "--compare", "none.json", naming=["none.json"])
        self.file("other.json", "{}")
        self.fail_with("not_found", "bench", "--output", "none", "--compare", "other.json", naming=["--output", "none"])

    def testOptionsAreThoseOfThePrograms(self):
        self.assertIn("--structure", self.succeed("bench", "model", "--help").out)
        self.assertIn("--edges", self.succeed("bench", "ops", "--help").out)


if __name__ == "__main__":
    support.main()
