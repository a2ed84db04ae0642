import json
import os

import support


class OpenCl(support.ProgramTest):
    """On whatever device there is: the CPU, where PoCL is installed. FASTPATH_REQUIRE_PLUGINS=opencl: it must be there."""

    def setUp(self):
        super().setUp()
        self.use_plugins("opencl")
        self.env["FASTPATH_CACHE_DIR"] = str(self.folder / "cache")
        self.env["POCL_CACHE_DIR"] = str(self.folder / "pocl")
        (self.folder / "pocl").mkdir()

    def plugin(self):
        return self.succeed("list", "--json").json["plugins"][0]

    def needDevice(self):
        plugin = self.plugin()
        if plugin["state"] == "usable":
            return plugin
        if "opencl" in os.environ.get("FASTPATH_REQUIRE_PLUGINS", ""):
            self.fail(plugin["reason"]["text"])
        self.assertEqual(plugin["state"], "idle")
        self.skipTest(plugin["reason"]["text"])

    def testItsDevicesAreListed(self):
        plugin = self.needDevice()
        self.assertEqual(plugin["devices"][0]["name"], "opencl:0")
        self.assertTrue(plugin["devices"][0]["model"])
        for kernel in plugin["kernels"]:
            self.assertEqual(kernel["device"], "opencl")
            self.assertEqual(set(kernel["passes"]), {"forward", "backward"})

    def testWithoutADriverItIsIdleAndSaysWhatIsMissing(self):
        vendors = self.folder / "vendors"
        vendors.mkdir()
        self.env["OCL_ICD_VENDORS"] = str(vendors)
        plugin = self.plugin()
        self.assertEqual(plugin["state"], "idle")
        self.assertEqual(plugin["reason"]["code"], "no_device")
        self.assertIn("driver", plugin["reason"]["text"])
        self.fail_with("unavailable", "eval", "--model", support.MODEL, "--device", "opencl:0",
                       support.DATA / "sparse.xyz", naming=["opencl:0"])

    def testWherePoclCannotWriteItSaysSo(self):
        if "PoCL" not in self.needDevice()["devices"][0]["arch"]:
            self.skipTest("the first device is not PoCL's")
        self.env["POCL_CACHE_DIR"] = "/dev/null/pocl"
        self.env["FASTPATH_CACHE_DIR"] = str(self.folder / "another cache")
        plugin = self.plugin()
        if plugin["state"] == "usable":
            self.skipTest("other devices are left")
        self.assertEqual(plugin["state"], "idle")
        self.assertIn("POCL_CACHE_DIR", plugin["reason"]["text"])

    def testModelsAgreeWithTheReferenceAndKernelsAreKept(self):
        plugin = self.needDevice()
        expected = json.loads((support.DATA / "expected.json").read_text())
        files = [support.DATA / f"{name}.xyz" for name in sorted(expected)]
        device = ["--device", "opencl:0", "--use-fast", "true", "--strict", "--dtype"]
        for dtype, tolerance in [("float64", {"energy": 1e-12, "forces": 1e-12, "stress": 1e-12}),
                                 ("float32", {"energy": 1e-6, "forces": 1e-5, "stress": 1e-5})]:
            for frame in self.evaluate(*device, dtype, *files)["frames"]:
                with self.subTest(dtype=dtype, file=frame["file"]):
                    name = os.path.basename(frame["file"]).removesuffix(".xyz")
                    for key, limit in tolerance.items():
                        if frame[key] is not None:
                            self.assertLess(support.difference(frame[key], expected[name][key]), limit, key)
                    # All of it stays on the device: positions go there, energies and gradients come back, once.
                    covered = {d["op"] for d in frame["decisions"] if d["reason"]["code"] == "covered_by_parent"}
                    self.assertEqual(covered, {"spherical_harmonics", "radial_basis", "radial_mlp",
                                               "conv_tensor_product"})
                    self.assertEqual({d["choice"] for d in frame["decisions"] if d["op"] not in covered}, {"opencl"})
                    self.assertIn("message_step", {d["op"] for d in frame["decisions"] if d["choice"] == "opencl"})
                    self.assertEqual(frame["synchronizations"], 1)
                    self.assertLess(frame["copied_bytes"], 100 * frame["n_edges"] + 1000 * frame["n_atoms"] + 1000)
        if "PoCL" in plugin["devices"][0]["arch"]:  # it keeps them itself
            self.assertTrue(list((self.folder / "pocl").iterdir()))
            return
        kept = sorted((self.folder / "cache" / "kernels" / "opencl").iterdir())
        self.assertTrue(kept)
        # Damaged files are replaced, and an unwritable place changes nothing.
        kept[0].write_bytes(kept[0].read_bytes()[:-1])
        first = self.evaluate(*device, "float64", support.DATA / "sparse.xyz")["frames"][0]
        self.env["FASTPATH_CACHE_DIR"] = str(self.file("file", "") / "cache")
        second = self.evaluate(*device, "float64", support.DATA / "sparse.xyz")["frames"][0]
        self.assertEqual(first["energy"], second["energy"])
        self.assertEqual(first["forces"], second["forces"])


if __name__ == "__main__":
    support.main()
