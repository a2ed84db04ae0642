import hashlib
import os
import shutil

import support

OPS = ["conv_tensor_product", "irreps_linear", "radial_basis", "radial_mlp", "regroup_channels", "scaled_silu",
       "species_linear", "spherical_harmonics", "sum", "symmetric_contraction"]


class List(support.ProgramTest):
    def plugin(self, id):
        found = [p for p in self.succeed("list", "--json").json["plugins"] if p["id"] == id]
        self.assertEqual(len(found), 1)
        return found[0]

    def testJsonHasExactlyTheDocumentedShape(self):
        result = self.succeed("list", "--json").json
        self.assertEqual(list(result), ["search_path", "plugins"])
        self.assertEqual(result["search_path"], [{"directory": str(self.plugins),
                                                  "source": "FASTPATH_PLUGIN_ONLY_PATH", "exists": True,
                                                  "reason": {"code": "usable", "text": ""}}])
        plugin = self.plugin("cpu_ref")
        self.assertEqual(list(plugin), ["id", "version", "vendor", "path", "state", "reason", "devices", "kernels",
                                        "sha256", "trust"])
        content = (self.plugins / "fastpath_cpu_ref.so").read_bytes()
        self.assertEqual(plugin["sha256"], hashlib.sha256(content).hexdigest())
        self.assertEqual(plugin["trust"], "unchecked")
        self.assertEqual(plugin["path"], str(self.plugins / "fastpath_cpu_ref.so"))
        self.assertEqual(plugin["state"], "usable")
        self.assertEqual(list(plugin["reason"]), ["code", "text"])
        self.assertEqual(plugin["reason"]["code"], "usable")
        self.assertEqual([list(d) for d in plugin["devices"]], [["name", "model", "arch"]])
        self.assertEqual(plugin["devices"][0]["name"], "cpu")
        self.assertTrue(plugin["devices"][0]["model"])
        for kernel in plugin["kernels"]:
            self.assertEqual(list(kernel), ["op", "device", "dtypes", "passes"])
            self.assertEqual(kernel["device"], "cpu")
            self.assertLessEqual({"float32", "float64"}, set(kernel["dtypes"]))
            self.assertLessEqual({"forward", "backward"}, set(kernel["passes"]))
        self.assertEqual(sorted({k["op"] for k in plugin["kernels"]}), OPS)

    def testWithoutPluginsSaysSoAndSucceeds(self):
        folder = self.use_plugins()
        self.assertEqual(self.succeed("list", "--json").json["plugins"], [])
        text = self.succeed("list").out
        self.assertIn("No plugin was found", text)
        self.assertIn(str(folder), text)

    def testAMissingDirectoryIsListedAsMissing(self):
        self.env["FASTPATH_PLUGIN_ONLY_PATH"] = str(self.folder / "absent")
        self.assertEqual(self.succeed("list", "--json").json,
                         {"search_path": [{"directory": str(self.folder / "absent"),
                                           "source": "FASTPATH_PLUGIN_ONLY_PATH", "exists": False,
                                           "reason": {"code": "no_directory", "text": "it does not exist"}}],
                          "plugins": []})
        self.assertIn("does not exist", self.succeed("list").out)

    def testAPluginAppearsAndDisappearsWithItsFile(self):
        folder = self.use_plugins("cpu_ref")
        self.assertEqual(self.plugin("cpu_ref")["state"], "usable")
        away = shutil.move(folder / "fastpath_cpu_ref.so", self.folder / "fastpath_cpu_ref.so")
        self.assertEqual(self.succeed("list", "--json").json["plugins"], [])
        shutil.move(away, folder)
        self.assertEqual(self.plugin("cpu_ref")["state"], "usable")

    def testNamesOfDirectoriesCannotBreakTheTable(self):
        folder = self.folder / "red\x1b[31m\nline"
        folder.mkdir()
        self.file(folder / "fastpath_x\x1b[31m.so", "hello")
        self.env["FASTPATH_PLUGIN_ONLY_PATH"] = str(folder)
        text = self.succeed("list").out
        self.assertNotIn("\x1b", text)
        self.assertIn("red\\x1b[31m\\x0aline (FASTPATH_PLUGIN_ONLY_PATH)\n", text)
        self.assertEqual(self.succeed("list", "--json").json["search_path"][0]["directory"], str(folder))

    def testARelativePluginPathInADirectoryThatIsGoneIsAnError(self):
        gone = self.folder / "gone"
        gone.mkdir()

        def leave():
            os.chdir(gone)
            gone.rmdir()

        result = self.run_program("list", "--plugin-path", "x", preexec_fn=leave)
        self.assertEqual((result.status, result.out), (5, ""), result.err)
        self.assertIn("--plugin-path", result.err)

    def testDisabledPluginsAreListedAsDisabled(self):
        for options in (["--disable", "cpu_*"], ["--enable", "cuda*"], ["--disable=x", "--disable=cpu_ref"]):
            with self.subTest(options=options):
                plugins = self.succeed("list", "--json", *options).json["plugins"]
                state = {p["id"]: (p["state"], p["reason"]["code"]) for p in plugins}
                self.assertEqual(state["cpu_ref"], ("disabled", "disabled"))

    def testPluginPathIsSearchedFirst(self):
        folder = self.use_plugins("cpu_ref")
        del self.env["FASTPATH_PLUGIN_ONLY_PATH"]
        result = self.succeed("list", "--json", "--plugin-path", "plugins").json
        self.assertEqual(result["search_path"][0], {"directory": str(folder), "source": "api", "exists": True,
                                                    "reason": {"code": "usable", "text": ""}})
        mine = [p for p in result["plugins"] if p["id"] == "cpu_ref"]
        self.assertEqual(mine[0]["path"], str(folder / "fastpath_cpu_ref.so"))
        self.assertEqual(mine[0]["state"], "usable")
        for other in mine[1:]:
            self.assertEqual(other["state"], "shadowed")

    def testFilesThatAreNoPluginsAreListedWithTheirReason(self):
        folder = self.use_plugins("cpu_ref")
        whole = (folder / "fastpath_cpu_ref.so").read_bytes()
        self.file("plugins/fastpath_text.so", "hello")
        self.file("plugins/fastpath_empty.so", "")
        self.file("plugins/fastpath_half.so", whole[:len(whole) // 2])
        self.file("plugins/other.so", whole)
        (folder / "fastpath_folder.so").mkdir()
        plugins = {p["id"]: p for p in self.succeed("list", "--json").json["plugins"]}
        self.assertEqual({id: p["state"] for id, p in plugins.items()},
                         {"cpu_ref": "usable", "text": "rejected", "empty": "rejected", "half": "rejected",
                          "folder": "rejected"})
        self.assertEqual(plugins["text"]["reason"]["code"], "not_elf")
        self.assertEqual(plugins["half"]["reason"]["code"], "truncated")
        self.assertEqual(plugins["folder"]["reason"]["code"], "not_a_file")

    def testTrustIsShownWhereThereIsAListOfAllowedPlugins(self):
        folder = self.use_plugins("cpu_ref")
        self.assertNotIn("trust", self.succeed("list").out)
        digest = hashlib.sha256((folder / "fastpath_cpu_ref.so").read_bytes()).hexdigest()
        self.file("allowed", f"# checked by hand\n{digest}  fastpath_cpu_ref.so\n")
        self.file("nothing", "# nothing yet\n")
        for mode, allowed, trust, state in (("require", "allowed", "trusted", "usable"),
                                            ("warn", "nothing", "not_listed", "usable"),
                                            ("require", "nothing", "not_listed", "rejected")):
            with self.subTest(mode=mode, allowed=allowed):
                options = ["list", "--trust", mode, "--allow-list", allowed]
                plugin = self.succeed(*options, "--json").json["plugins"][0]
                self.assertEqual((plugin["trust"], plugin["state"]), (trust, state))
                text = self.succeed(*options).out
                self.assertIn(trust, text)
                self.assertEqual("untrusted" in text, state == "rejected")

    def testTrustComesFromTheEnvironmentUnlessAnOptionSaysSomethingElse(self):
        self.use_plugins("cpu_ref")
        self.env["FASTPATH_TRUST"] = "require"
        self.fail_with("invalid_argument", "list", naming=["'require'", "--allow-list", "FASTPATH_ALLOW_LIST"])
        self.env["FASTPATH_ALLOW_LIST"] = str(self.file("nothing", ""))
        self.assertEqual(self.plugin("cpu_ref")["reason"]["code"], "untrusted")
        plugin = self.succeed("list", "--trust", "off", "--json").json["plugins"][0]
        self.assertEqual((plugin["state"], plugin["trust"]), ("usable", "unchecked"))

    def testAListOfAllowedPluginsThatCannotBeUsedIsAnErrorNamingItsLine(self):
        self.env.pop("FASTPATH_CHECK_OWNER", None)
        trust = ["list", "--trust", "require", "--allow-list"]
        self.fail_with("not_found", *trust, "absent", naming=[self.folder / "absent"])
        malformed = self.file("malformed", "# a comment\n\nfastpath_cpu_ref.so\n")
        self.fail_with("bad_file", *trust, malformed, naming=[f"{malformed}:3: ", "64 hexadecimal digits"])
        os.chmod(malformed, 0o666)
        self.fail_with("bad_file", *trust, malformed, naming=[malformed, "everybody may write"])
        self.fail_with("invalid_argument", "list", "--trust", "sometimes", naming=["--trust", "sometimes", "require"])
        self.fail_with("invalid_argument", "list", "--trust", "require", naming=["no list of allowed plugins"])

    def testTheTableFitsEightyColumnsAndLosesNothing(self):
        self.use_plugins("cpu_ref")
        name = "an_id_that_is_much_longer_than_any_column_could_be"
        self.file(f"plugins/fastpath_{name}.so", "hello")
        table = self.succeed("list").out.split("\n\n")[1]
        for line in table.splitlines():
            self.assertLessEqual(len(line), 80, line)
        for title in ("id", "version", "vendor", "state", "devices", "reason"):
            self.assertIn(title, table.splitlines()[0])
        first_column = "".join(line.split(" ")[0] for line in table.splitlines()[1:])
        self.assertIn(name, first_column)

    def testKeepsWhatTryingFoundInTheCacheOfTheUser(self):
        self.use_plugins("cpu_ref")
        cache = self.folder / "home" / ".cache" / "fastpath" / "probe"
        first = self.succeed("list", "--json").json
        kept = list(cache.glob("*.txt"))
        self.assertEqual(len(kept), 1)
        self.assertIn("conv_tensor_product", kept[0].read_text())
        self.assertEqual(self.succeed("list", "--json").json, first)
        self.env["FASTPATH_CACHE_DIR"] = str(self.folder / "own")
        self.assertEqual(self.succeed("list", "--json").json, first)
        self.assertEqual(len(list((self.folder / "own" / "probe").glob("*.txt"))), 1)

    def testWritesNothingWithoutCache(self):
        self.use_plugins("cpu_ref")
        self.assertEqual(self.plugin("cpu_ref")["state"], "usable")
        shutil.rmtree(self.folder / "home")
        self.succeed("list", "--no-cache")
        self.assertFalse((self.folder / "home").exists())

    def testWorksWithACacheThatCannotBeWritten(self):
        self.use_plugins("cpu_ref")
        self.env["FASTPATH_CACHE_DIR"] = str(self.file("no-directory", "a file"))
        self.assertEqual(self.plugin("cpu_ref")["state"], "usable")

    def testTriesPluginsAsAsked(self):
        self.use_plugins("cpu_ref")
        for options in (["--probe", "helper"], ["--probe", "in-process"], ["--probe=automatic"], ["--retry"]):
            with self.subTest(options=options):
                plugins = self.succeed("list", "--json", *options).json["plugins"]
                self.assertEqual([p["state"] for p in plugins], ["usable"])
                self.assertEqual(sorted({k["op"] for k in plugins[0]["kernels"]}), OPS)
        self.fail_with("invalid_argument", "list", "--probe", "never",
                       naming=["--probe", "'never'", "helper", "in_process", "automatic"])
        self.env["FASTPATH_PROBE"] = "in_process"
        self.assertEqual(self.plugin("cpu_ref")["state"], "usable")
        self.env["FASTPATH_PROBE"] = "maybe"
        self.fail_with("invalid_argument", "list", naming=["FASTPATH_PROBE", "'maybe'", "helper", "in_process"])


if __name__ == "__main__":
    support.main()
