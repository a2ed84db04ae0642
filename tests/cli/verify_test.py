"""fastpath verify: a plugin's contract, and a model's physics."""
import json
import os
import pathlib
import re

from support import MODEL, ProgramTest, main

CONTRACT = pathlib.Path(__file__).resolve().parents[2] / "docs" / "plugin-contract.md"


class Verify(ProgramTest):
    def setUp(self):
        super().setUp()
        self.cpu_ref = self.plugins / "fastpath_cpu_ref.so"
        self.lying = pathlib.Path(os.environ["FASTPATH_TEST_LYING"])

    def testThePluginOfThisTreePassesEveryCheckThatItCan(self):
        result = self.succeed("verify", self.cpu_ref, "--quick", "--json").json
        self.assertEqual(result["failed"], 0, json.dumps([c for c in result["checks"] if c["failures"]], indent=1))
        self.assertGreater(result["passed"], 60)
        skipped = {c["check"]: c["note"] for c in result["checks"] if c["verdict"] == "skipped"}
        self.assertEqual(set(skipped), {"calls.no_memory", "devices.none", "devices.memory", "devices.streams",
                                        "devices.lost", "kernels.capturing", "kernels.large",
                                        "queries.numerics_version", "numerics.message_step.float32",
                                        "numerics.message_step.float64"})
        for note in skipped.values():
            self.assertTrue(note)
        numerics = [c for c in result["checks"] if c["check"].startswith("numerics.") and c["verdict"] != "skipped"]
        self.assertEqual(len(numerics), 20)  # ten ops in two dtypes
        for check in numerics:
            self.assertRegex(check["note"], r"[0-9]+ configurations.*[0-9]+ comparisons, largest error")

    def testAPluginThatLiesGetsStatusOneAndItsObligationNamed(self):
        plugin = self.lying / "fastpath_lying_writes_past_the_end.so"
        result = self.run_program("verify", plugin, "--only", "kernels.guards", "--seed", 3)
        self.assertEqual(result.status, 1, result.err)
        self.assertIn("P-57 broken in: ", result.out)
        self.assertRegex(result.out, "found: .*after its last element")
        self.assertRegex(result.out, "expected: nothing written")
        self.assertRegex(result.out, "again: fastpath verify .*--only kernels.guards --seed 3")
        self.assertRegex(result.out, r"kernels +0 +1 +0")

    def testACrashEndsACheckAndNotTheProgram(self):
        plugin = self.lying / "fastpath_lying_crashes.so"
        result = self.run_program("verify", plugin, "--only", "calls.statuses", "--only", "file.*", "--json")
        self.assertEqual(result.status, 1, result.err)
        checks = {c["check"]: c for c in result.json["checks"]}
        self.assertEqual(checks["file.exports"]["verdict"], "passed")
        failure = checks["calls.statuses"]["failures"][0]
        self.assertEqual(failure["obligation"], "P-20")
        self.assertRegex(failure["found"], "signal 11|exited with status")  # the latter under a sanitizer
        self.assertIn("forward", failure["step"])

    def testChecksAreChosenByNameAndByObligation(self):
        result = self.succeed("verify", self.cpu_ref, "--only", "P-02", "--only", "file.m*", "--json").json
        self.assertEqual([c["check"] for c in result["checks"]], ["file.exports", "file.metadata"])
        self.fail_with("invalid_argument", "verify", self.cpu_ref, "--only", "nothing.*", naming=["--only"])

    def testEveryObligationOfACheckIsInTheContract(self):
        listed = self.succeed("verify", "--list-checks").out.splitlines()
        known = set(re.findall(r"^\| (P-\d\d) \|", CONTRACT.read_text(), flags=re.M))
        self.assertGreater(len(listed), 70)
        for line in listed:
            name, obligation, statement = line.split(maxsplit=2)
            self.assertIn(obligation, known, name)
            self.assertTrue(statement)

    def testWhatIsNoPluginFailsAndIsSaidToBeNone(self):
        text = self.file("fastpath_text.so", "not a library")
        result = self.run_program("verify", text, "--json")
        self.assertEqual(result.status, 1, result.err)
        checks = {c["check"]: c for c in result.json["checks"]}
        self.assertEqual(checks["file.object"]["failures"][0]["obligation"], "P-01")
        self.fail_with("not_found", "verify", self.folder / "fastpath_absent.so", naming=["fastpath_absent.so"])
        self.fail_with("invalid_argument", "verify", naming=["--model"])
        self.fail_with("invalid_argument", "verify", self.cpu_ref, "--dtype", "float32", naming=["--dtype"])
        self.fail_with("invalid_argument", "verify", self.cpu_ref, "--model", MODEL, naming=["--model"])
        self.fail_with("invalid_argument", "verify", "--model", MODEL, "--only", "x", naming=["--only"])

    def testAModelIsComparedWithItsReferenceAndItsPhysics(self):
        self.use_plugins("cpu_ref")
        for dtype in ("float64", "float32"):
            result = self.succeed("verify", "--model", MODEL, "--dtype", dtype, "--quick", "--json").json
            self.assertTrue(result["passed"])
            self.assertTrue(result["ran_fast"])
            self.assertEqual({d["choice"] for d in result["decisions"] if d["op"] != "message_step"}, {"cpu_ref"})
            checks = {c["check"]: c for c in result["checks"]}
            self.assertEqual(set(checks), {"energy", "node_energies", "forces", "stress", "parameter_gradients",
                                           "forces_by_differences", "stress_by_differences", "net_force", "rotation",
                                           "permutation", "translation", "energy_drift"})
            for check in checks.values():
                self.assertEqual(check["verdict"], "passed", check)
                self.assertLessEqual(check["error"], check["limit"])

    def testWithoutAnyKernelItSaysThatNothingRanFast(self):
        self.use_plugins()
        result = self.succeed("verify", "--model", MODEL, "--quick")
        self.assertIn("no module ran fast", result.out.splitlines()[0])
        self.assertRegex(result.out, r"forces +skipped")
        self.assertRegex(result.out, r"net_force +passed")


class ConformanceProgram(ProgramTest):
    """What vendors have where there is only the SDK."""

    def setUp(self):
        super().setUp()
        self.program = pathlib.Path(self.program).with_name("fastpath-conformance")
        self.cpu_ref = self.plugins / "fastpath_cpu_ref.so"
        self.lying = pathlib.Path(os.environ["FASTPATH_TEST_LYING"])

    def testNamesWhatIsWrongWithItsArgumentsAndChecksNothing(self):
        for arguments, naming in (((), "no plugin is named"),
                                  ((self.folder / "none.so",), f"{self.folder / 'none.so'}: there is no such file"),
                                  ((self.cpu_ref, "--only", "nothing.*"), "--only: no check of that name"),
                                  ((self.cpu_ref, "--seed", "abc"), "--seed: 'abc' is not a whole number"),
                                  ((self.cpu_ref, "--seed"), "--seed needs a value"),
                                  ((self.cpu_ref, "--timeout", "0"), "--timeout: '0' is not"),
                                  ((self.cpu_ref, "--quik"), "there is no option '--quik'"),
                                  ((self.cpu_ref, self.cpu_ref), "one plugin at a time")):
            with self.subTest(naming):
                result = self.run_program(*arguments)
                self.assertEqual((result.status, result.out), (2, ""))
                self.assertIn(f"fastpath-conformance: error: {naming}", result.err)

    def testHelpTeaches(self):
        text = self.succeed("--help").out
        for word in ("Usage:", "Example:", "Exit status:", "--only", "--seed", "--quick", "--large", "--list"):
            self.assertIn(word, text)

    def testALieIsStatusOneAndTheObligationIsNamed(self):
        result = self.run_program(self.lying / "fastpath_lying_writes_past_the_end.so", "--only", "kernels.guards")
        self.assertEqual(result.status, 1, result.err)
        self.assertIn("P-57 in: ", result.out)
        self.assertIn("0 passed, 1 failed, 0 skipped", result.out)


if __name__ == "__main__":
    main()
