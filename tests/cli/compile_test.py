import os
import pathlib

import support

ENTRY = ["module", "op", "plugin", "arch", "dtype", "verdict", "reasons", "cached", "compiler", "kernels"]
KERNEL = ["kernel", "registers", "shared_bytes", "spill_bytes", "code_bytes"]
LIBRARIES = {"sm_80": "NVRTC", "sm_90": "NVRTC", "gfx90a": "hipRTC", "gfx1030": "hipRTC"}


class Compile(support.ProgramTest):
    def setUp(self):
        super().setUp()
        self.cache = self.folder / "cache"
        self.env["FASTPATH_CACHE_DIR"] = str(self.cache)

    def compile(self, arch, *arguments):
        """The JSON of a run; a skip where the compiler's library is not installed."""
        result = self.run_program("compile", "--model", support.MODEL, "--arch", arch, "--json", *arguments)
        if result.status == support.ERROR_CODES["unavailable"] and LIBRARIES[arch] + " could not be opened" in result.err:
            self.skipTest(result.err.strip())
        self.assertEqual(result.status, 0, result.err)
        return result.json

    def kept(self):
        return sorted(path for path in self.cache.rglob("*.kernels"))

    def checkCompiles(self, arch, plugin):
        first = self.compile(arch, "--dtype", "float32", "--passes", "energy")
        self.assertEqual(list(first), ["model", "passes", "modules"])
        compiled = [m for m in first["modules"] if m["verdict"] == "compiled"]
        self.assertTrue({"message_step", "conv_tensor_product"} <= {m["op"] for m in compiled})
        for module in first["modules"]:
            self.assertEqual(list(module), ENTRY)
            self.assertEqual((module["plugin"], module["arch"], module["dtype"]), (plugin, arch, "float32"))
            self.assertEqual(bool(module["reasons"]), module["verdict"] == "refused", module)
        for module in compiled:
            self.assertTrue(module["kernels"])
            self.assertTrue(module["compiler"].startswith(LIBRARIES[arch]))
            for kernel in module["kernels"]:
                self.assertEqual(list(kernel), KERNEL)
                self.assertGreater(kernel["registers"], 0)
                self.assertGreater(kernel["code_bytes"], 0)
                self.assertGreaterEqual(min(kernel["shared_bytes"], kernel["spill_bytes"]), 0)
        kept = self.kept()
        self.assertTrue(kept)
        second = self.compile(arch, "--dtype", "float32", "--passes", "energy")
        self.assertEqual([m for m in second["modules"] if m["verdict"] == "compiled" and not m["cached"]], [])
        self.assertEqual([m["kernels"] for m in second["modules"]], [m["kernels"] for m in first["modules"]])
        self.assertEqual(self.kept(), kept)
        table = self.succeed("compile", "--model", support.MODEL, "--arch", arch, "--dtype", "float32", "--passes",
                             "energy").out
        self.assertRegex(table, r"(?m)^arch +dtype +kernel +registers +shared +spill +code +modules$")
        for kernel in ("radial_basis_forward", "message_step_forward_0?"):  # a long name takes two lines
            self.assertRegex(table, rf"(?m)^{arch} +float32 +{kernel} +\d+ +\d+ +\d+ +\d+ +\d+$")
        self.assertRegex(table, r"(?m)^\d+ modules: 0 compiled, \d+ in the cache before, \d+ without a kernel, 0 failed$")

    def testACompilerThatIsNotInstalledIsNamed(self):
        for arch, library in (("sm_90", "NVRTC"), ("gfx90a", "hipRTC")):
            result = self.run_program("compile", "--model", support.MODEL, "--arch", arch, "--emit", "radial_basis")
            self.assertEqual(result.status, 0, "source needs no compiler: " + result.err)
            result = self.run_program("compile", "--model", support.MODEL, "--arch", arch, "--passes", "energy", "--json")
            if result.status != 0:
                self.assertEqual(result.status, support.ERROR_CODES["unavailable"], result.err)
                self.assertIn(f"for {arch}: {library} could not be opened", result.err)

    def testFillsTheCacheForNvidiaAndSaysWhatKernelsNeed(self):
        self.checkCompiles("sm_90", "cuda")

    def testFillsTheCacheForAmdAndSaysWhatKernelsNeed(self):
        self.checkCompiles("gfx90a", "hip")

    def testLeavesNothingToCompileForAnEvaluationOnTheDevice(self):
        names = {m["module"] for m in self.compile("sm_90", "--dtype", "float64")["modules"]
                 if m["verdict"] == "compiled"}
        self.assertTrue({"products.0.regroup", "readouts.1.activation"} <= names, names)
        kept = self.kept()
        # A driver whose device is host memory: kernels are created there, but compute nothing. NVRTC 13 crashes beside it,
        # so a kernel that is not in the cache ends the program.
        self.env["LD_LIBRARY_PATH"] = os.environ["FASTPATH_TEST_FAKE_DRIVERS"]
        explained = self.succeed("explain", "--model", support.MODEL, "--device", "cuda:0", "--use-fast", "true",
                                 "--dtype", "float64", "--json").json
        asked = {d["module"] for d in explained["decisions"] if any(c["plugin"] == "cuda" for c in d["candidates"])}
        self.assertTrue(names <= asked, names - asked)
        for decision in explained["decisions"]:
            for candidate in decision["candidates"]:
                self.assertNotIn("create_failed", [r["code"] for r in candidate["reasons"]], decision)
        self.assertEqual(self.kept(), kept)

    def testPrintsSourceAndCompilesNothing(self):
        result = self.succeed("compile", "--model", support.MODEL, "--arch", "sm_80", "--dtype", "float64",
                              "--emit", "spherical_harm*")
        self.assertIn("// cuda spherical_harmonics of ", result.out)
        self.assertIn("typedef double real;", result.out)
        self.assertIn("spherical_harmonics_backward(", result.out)
        self.assertNotIn("radial_basis_forward(", result.out)
        self.assertEqual(self.kept(), [])
        energy = self.succeed("compile", "--model", support.MODEL, "--arch", "sm_80", "--dtype", "float64",
                              "--emit", "spherical_harmonics", "--passes", "energy")
        self.assertNotIn("spherical_harmonics_backward", energy.out)

    def testNamesWhatItDoesNotKnow(self):
        compile = ("compile", "--model", support.MODEL)
        self.fail_with("invalid_argument", *compile, naming=["--arch"])
        self.fail_with("invalid_argument", *compile, "--arch", "sm_80,", naming=["--arch", "empty"])
        self.fail_with("invalid_argument", *compile, "--arch", "banana", naming=["'banana'", "sm_90", "gfx90a"])
        self.fail_with("invalid_argument", *compile, "--arch", "sm_80", "--dtype", "int32", naming=["int32"])
        self.fail_with("invalid_argument", *compile, "--arch", "sm_80", "--passes", "all", naming=["'all'"])
        self.fail_with("invalid_argument", *compile, "--arch", "sm_80", "--emit", "no_such_op", naming=["no_such_op"])
        self.fail_with("not_found", "compile", "--model", "/no/such/model", "--arch", "sm_80",
                       naming=["/no/such/model"])

    def testWithoutAPluginThatCompilesSaysSo(self):
        self.use_plugins("cpu_ref")
        self.fail_with("unavailable", "compile", "--model", support.MODEL, "--arch", "sm_80", naming=["cuda and hip"])

    def testAnArchitectureThatTheCompilerDoesNotKnowIsAFinding(self):
        result = self.run_program("compile", "--model", support.MODEL, "--arch", "sm_999", "--dtype", "float32")
        if result.status == support.ERROR_CODES["unavailable"]:
            self.skipTest(result.err.strip())
        self.assertEqual(result.status, 1, result.out + result.err)
        self.assertRegex(result.out, r"(?m)^Does not compile:$")
        self.assertIn("NVRTC", result.out)


class Gpu(support.ProgramTest):
    def plugin(self, id):
        found = [p for p in self.succeed("list", "--json").json["plugins"] if p["id"] == id]
        self.assertEqual(len(found), 1)
        return found[0]

    def testWithoutADriverPluginsAreIdleAndSayWhatIsMissing(self):
        for id, word in (("cuda", "libcuda.so.1"), ("hip", "amdgpu")):
            plugin = self.plugin(id)
            if plugin["state"] == "usable":
                continue  # this machine has such a device
            self.assertEqual((plugin["state"], plugin["reason"]["code"]), ("idle", "no_device"), plugin)
            self.assertTrue(plugin["kernels"])
            self.assertTrue(word in plugin["reason"]["text"] or "VISIBLE_DEVICES" in plugin["reason"]["text"], plugin)

    def testDevicesAreThoseThatTheDriverShows(self):
        fake = pathlib.Path(os.environ["FASTPATH_TEST_FAKE_DRIVERS"])
        self.env["LD_LIBRARY_PATH"] = str(fake)
        plugin = self.plugin("cuda")
        self.assertEqual(plugin["state"], "usable", plugin)
        self.assertEqual([(d["name"], d["model"], d["arch"]) for d in plugin["devices"]],
                         [("cuda:0", "Fake H100", "sm_90"), ("cuda:1", "Fake A100", "sm_80")])


if __name__ == "__main__":
    support.main()
