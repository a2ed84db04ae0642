import os
import pathlib
import re
import shutil
import subprocess

import support

STAGES = ["directory", "file", "object", "metadata", "trust", "cache", "probe", "load", "negotiate", "devices",
          "kernels"]


def documented_advice():
    """What docs/reasons.md says can be done about each reason, without its marks for code."""
    text = (support.ROOT / "docs" / "reasons.md").read_text()
    return {code: advice.replace("`", "")
            for code, advice in re.findall(r"(?m)^\| `([a-z_]+)` \| .* \| (.*) \|$", text)}


class Doctor(support.ProgramTest):
    def setUp(self):
        super().setUp()
        self.env.pop("FASTPATH_CHECK_OWNER", None)
        self.env["FASTPATH_CACHE_DIR"] = str(self.folder / "cache")
        self.use_plugins("cpu_ref")

    def doctor(self, *arguments, status=0):
        result = self.run_program("doctor", *arguments)
        self.assertEqual(result.status, status, result.err + result.out)
        return result

    def files(self, *arguments, status=0):
        return {pathlib.Path(f["path"]).name: f for f in self.doctor("--json", *arguments, status=status).json["files"]}

    def use_zoo(self, pattern):
        """Copies plugins of the zoo, and files that are none, into the plugins' folder."""
        zoo = pathlib.Path(os.environ["FASTPATH_TEST_ZOO"])
        folder = self.use_plugins()
        files = sorted(zoo.glob(f"fastpath_zoo_{pattern}.so"))
        if not files:
            self.skipTest("the zoo of plugins was not built")
        for file in files:
            shutil.copy(file, folder)
        good = (zoo / "fastpath_zoo_good.so").read_bytes()
        self.file("plugins/fastpath_made_text.so", "#!/bin/sh\n")
        self.file("plugins/fastpath_made_truncated.so", good[:len(good) // 2])
        self.file("plugins/fastpath_made_copy.so", good)
        self.file("plugins/fastpath_made_open.so", good).chmod(0o666)
        (folder / "fastpath_made_link.so").symlink_to("nowhere")
        (folder / "fastpath_made_folder.so").mkdir()
        return folder

    def testJsonHasExactlyTheDocumentedShape(self):
        result = self.doctor("--json").json
        self.assertEqual(list(result), [
            "version", "plugin_abi", "compiler", "build_type", "system", "library", "cpu", "user", "elevated",
            "check_owner", "allow_group_writable", "trust", "allow_list", "cache", "probe", "variables", "measured",
            "search_path", "files", "summary"])
        self.assertEqual(result["measured"], {"records": 0, "counting": 0, "stale": 0, "reasons": []})
        self.assertEqual(list(result["search_path"][0]), ["directory", "source", "exists", "reason", "advice"])
        self.assertEqual(result["summary"], {"files": 1, "states": {"usable": 1}, "wrong_files": 0,
                                             "wrong_directories": 0})
        file = result["files"][0]
        listed = self.succeed("list", "--json").json["plugins"][0]
        self.assertEqual({key: file[key] for key in listed}, listed)
        self.assertEqual(list(file)[len(listed):], ["stage", "cause", "advice", "stages"])
        self.assertEqual((file["stage"], file["advice"]), ("kernels", "Nothing."))
        self.assertEqual([s["stage"] for s in file["stages"]], STAGES)
        self.assertRegex(result["library"], r"/libfastpath\.so[.0-9]*$")
        self.assertFalse(result["elevated"])
        self.assertEqual([v["name"] for v in result["variables"]], ["FASTPATH_CACHE_DIR", "FASTPATH_PLUGIN_ONLY_PATH",
                                                                      "FASTPATH_SYSTEM_MEASUREMENTS"])

    def testMeasurementsThatCannotBeReadAreTold(self):
        store = self.folder / "measurements"
        store.mkdir()
        (store / "one.jsonl").write_text('{"fastpath_measurement":1}\nno record\n')
        self.env["FASTPATH_MEASUREMENTS"] = str(store)
        found = self.doctor("--json").json["measured"]
        self.assertEqual((found["records"], found["counting"]), (2, 0))
        self.assertEqual([reason["code"] for reason in found["reasons"]], ["bad_record", "bad_record"])
        self.assertRegex(self.doctor().out, r"measured +2 records, 0 of them count")

    def testEveryFileOfTheZooHasStageReasonCauseAndAdvice(self):
        folder = self.use_zoo("*")
        files = self.files(status=1)
        self.assertEqual(sorted(files), sorted(p.name for p in folder.iterdir()))
        advice = documented_advice()
        for name, file in files.items():
            with self.subTest(file=name):
                code = file["reason"]["code"]
                self.assertEqual(file["advice"], advice[code])
                self.assertTrue(file["cause"])
                failed = [s for s in file["stages"] if s["verdict"] == "failed"]
                self.assertEqual([s["stage"] for s in file["stages"]], STAGES)
                self.assertLessEqual(len(failed), 1)
                if file["state"] in ("rejected", "quarantined"):
                    self.assertEqual([s["stage"] for s in failed], [file["stage"]])
                    self.assertEqual(failed[0]["reason"], file["reason"])
        # The copy comes first in the order of names, so the original is the duplicate.
        self.assertEqual(files["fastpath_made_copy.so"]["state"], "usable")
        self.assertEqual(files["fastpath_zoo_good.so"]["reason"]["code"], "duplicate")
        self.assertEqual({n: (f["stage"], f["reason"]["code"]) for n, f in files.items()
                          if "_made_" in n and "copy" not in n},
                         {"fastpath_made_text.so": ("object", "not_elf"),
                          "fastpath_made_truncated.so": ("object", "truncated"),
                          "fastpath_made_open.so": ("file", "unsafe_mode"),
                          "fastpath_made_link.so": ("file", "not_a_file"),
                          "fastpath_made_folder.so": ("file", "not_a_file")})

    def testTheTextFitsEightyColumnsAndHasEveryFileWithWhatToDo(self):
        folder = self.use_zoo("[aemn]*")
        result = self.doctor(status=1)
        for line in result.out.splitlines():
            self.assertLessEqual(len(line), 80, line)
        joined = "".join(result.out.split())
        for path in folder.iterdir():
            self.assertIn("".join(str(path).split()), joined)
        count = len(list(folder.iterdir()))
        for label in ("state", "stage", "reason", "cause", "to do"):
            self.assertGreaterEqual(len(re.findall(rf"(?m)^  {label} +\S", result.out)), count, label)
        self.assertRegex(result.out.splitlines()[-1], "rejected|wrong")
        self.assertIn(f"{count} files: ", result.out)

    def testVerboseHasEveryStepAndTheHash(self):
        text = self.doctor("--verbose").out
        for stage in STAGES:
            self.assertRegex(text, rf"(?m)^    {stage} +(passed|skipped)")
        self.assertRegex("".join(text.split()), "sha256[0-9a-f]{64}")

    def testWhereNothingIsWrongItSaysSoAndSucceeds(self):
        self.assertIn("1 file: 1 usable. Nothing is wrong.", self.doctor().out)
        self.use_plugins()
        (self.folder / "plugins" / "fastpath_cpu_ref.so").unlink()
        self.assertIn("No plugin was found", self.doctor().out)

    def testFilesAreLookedAtAloneWhateverTheirNames(self):
        whole = (self.plugins / "fastpath_cpu_ref.so").read_bytes()
        self.file("vendor.so.1", whole)
        self.file("half.so", whole[:1000])
        files = self.files("vendor.so.1")
        self.assertEqual({n: f["state"] for n, f in files.items()}, {"vendor.so.1": "usable"})
        files = self.files("half.so", self.folder / "vendor.so.1", status=1)
        self.assertEqual([f["reason"]["code"] for f in files.values()], ["truncated", "usable"])
        self.fail_with("not_found", "doctor", "absent.so", naming=["absent.so"])

    def testVariablesAreListedAndMisspelledOnesNamedWithTheNearest(self):
        self.env["FASTPATH_STRCIT"] = "1"
        self.env["FASTPATH_ZZ"] = "\x1b[31m"
        found = {v["name"]: v for v in self.doctor("--json").json["variables"]}
        self.assertEqual(found["FASTPATH_STRCIT"], {
            "name": "FASTPATH_STRCIT", "value": "1", "known": False,
            "note": "not a variable of fastpath, did you mean 'FASTPATH_STRICT'?"})
        self.assertFalse(found["FASTPATH_ZZ"]["known"])
        self.assertTrue(found["FASTPATH_PLUGIN_ONLY_PATH"]["known"])
        text = self.doctor().out
        self.assertNotIn("\x1b", text)
        self.assertIn("did you mean 'FASTPATH_STRICT'?", " ".join(text.split()))

    def testKnowsTheVariablesOfTheDocumentation(self):
        text = (support.ROOT / "docs" / "cli.md").read_text()
        documented = re.findall(r"(?m)^\| `(FASTPATH_[A-Z_]+)` \|", text)
        self.assertGreater(len(documented), 5)
        source = (support.ROOT / "core" / "cli" / "doctor.cpp").read_text()
        table = source[source.index("kVariables{"):source.index("};", source.index("kVariables{"))]
        self.assertEqual(sorted(re.findall(r'"(FASTPATH_[A-Z_]+)"', table)), sorted(documented))

    def testDirectoriesThatAreNamedAndCannotBeSearchedAreWrong(self):
        self.env["FASTPATH_PLUGIN_ONLY_PATH"] = f"{self.folder}/absent:plugins:{self.folder}/plugins"
        result = self.doctor("--json", status=1).json
        self.assertEqual([d["reason"]["code"] for d in result["search_path"]],
                         ["no_directory", "relative_path", "usable"])
        self.assertEqual(result["summary"]["wrong_directories"], 2)
        self.assertIn("2 directories of the search path are wrong", " ".join(self.doctor(status=1).out.split()))
        # The user's directory need not exist. Who owns that of the build is not the question.
        self.env["FASTPATH_CHECK_OWNER"] = "0"
        del self.env["FASTPATH_PLUGIN_ONLY_PATH"]
        self.assertEqual(self.doctor("--json").json["summary"]["wrong_directories"], 0)

    def testAnUnsafeDirectoryIsTheReasonOfItsFiles(self):
        folder = self.folder / "plugins"
        folder.chmod(0o777)
        result = self.doctor("--json", status=1).json
        self.assertEqual(result["search_path"][0]["reason"]["code"], "unsafe_mode")
        self.assertIn("chmod go-w", result["search_path"][0]["advice"])
        file = result["files"][0]
        self.assertEqual((file["state"], file["stage"], file["reason"]["code"]),
                         ("rejected", "directory", "unsafe_mode"))
        self.assertIn(f"'{folder}'", file["cause"])
        self.assertEqual(self.files("--no-owner-check")["fastpath_cpu_ref.so"]["state"], "usable")
        self.env["FASTPATH_CHECK_OWNER"] = "0"
        text = self.doctor().out
        self.assertIn("not checked", text)
        self.env["FASTPATH_CHECK_OWNER"] = "maybe"
        self.fail_with("invalid_argument", "doctor", naming=["FASTPATH_CHECK_OWNER", "'maybe'"])

    def testASharedGroupIsUnsafeUnlessItWasAllowed(self):
        if os.geteuid() != 0:
            self.skipTest("only root can give files to any group")
        folder = self.folder / "plugins"
        os.chown(folder, 0, 65534)
        folder.chmod(0o2775)
        file = self.files(status=1)["fastpath_cpu_ref.so"]
        self.assertEqual(file["reason"]["code"], "unsafe_mode")
        self.assertIn("--allow-group-writable", file["advice"])
        self.assertEqual(self.files("--allow-group-writable")["fastpath_cpu_ref.so"]["state"], "usable")
        self.env["FASTPATH_ALLOW_GROUP_WRITABLE"] = "1"
        self.assertEqual(self.files()["fastpath_cpu_ref.so"]["state"], "usable")

    def testFilesAndDirectoriesThatCannotBeReadSaySo(self):
        folder = self.folder / "plugins"
        (folder / "fastpath_cpu_ref.so").chmod(0)
        with self.unprivileged():
            file = self.files(status=1)["fastpath_cpu_ref.so"]
            self.assertEqual((file["stage"], file["reason"]["code"]), ("file", "unreadable"))
            folder.chmod(0o711)
            directory = self.doctor("--json", status=1).json["search_path"][0]
            self.assertEqual((directory["exists"], directory["reason"]["code"]), (True, "unreadable"))

    def testAnotherUsersFilesAreUnsafeForTheOneWhoRunsTheProgram(self):
        if os.geteuid() != 0:
            self.skipTest("only root can run the program as somebody else")
        with self.unprivileged():
            self.assertEqual(self.files()["fastpath_cpu_ref.so"]["state"], "usable")  # of root
            os.chown(self.folder / "plugins" / "fastpath_cpu_ref.so", 65534, 65534)
            self.assertEqual(self.files()["fastpath_cpu_ref.so"]["state"], "usable")  # of the user
            os.chown(self.folder / "plugins" / "fastpath_cpu_ref.so", 12345, 65534)
            file = self.files(status=1)["fastpath_cpu_ref.so"]
            self.assertEqual(file["reason"]["code"], "unsafe_owner")
            self.assertIn("belongs to user 12345; it must belong to root or to user 65534", file["cause"])

    def testAProgramWithElevatedRightsDoesNotListenToItsCaller(self):
        """A set-user-ID copy of the program, as root's, started by another user."""
        if os.geteuid() != 0:
            self.skipTest("only root can make a set-user-ID program of root")
        os.chmod(self.folder, 0o755)

        def elevated(program):
            copy = self.folder / ("elevated-" + pathlib.Path(program).name)
            shutil.copy(program, copy)
            copy.chmod(0o4755)
            return str(copy)

        with self.unprivileged():
            probe = subprocess.run([*self.prefix, elevated(shutil.which("id")), "-u"], stdout=subprocess.PIPE,
                                   check=False)
            if probe.stdout.strip() != b"0":
                self.skipTest("set-user-ID programs do not work in the temporary directory")
            self.env["FASTPATH_PLUGIN_PATH"] = self.env["FASTPATH_PLUGIN_ONLY_PATH"]
            self.env["FASTPATH_CHECK_OWNER"] = "0"
            self.env["FASTPATH_TRUST"] = "nonsense"
            self.program = elevated(self.program)
            result = self.run_program("doctor", "--json")
            self.assertIn(result.status, (0, 1), result.err)
            result = result.json
            self.assertTrue(result["elevated"])
            self.assertTrue(result["check_owner"])
            self.assertEqual(result["trust"], "off")
            self.assertEqual([(d["source"], d["reason"]["code"]) for d in result["search_path"]][:3],
                             [("FASTPATH_PLUGIN_ONLY_PATH", "ignored_elevated"),
                              ("FASTPATH_PLUGIN_PATH", "ignored_elevated"), ("user", "ignored_elevated")])
            self.assertNotIn(str(self.folder / "plugins"), [str(pathlib.Path(f["path"]).parent)
                                                            for f in result["files"]])
            for name in ("FASTPATH_PLUGIN_PATH", "FASTPATH_CHECK_OWNER", "FASTPATH_TRUST"):
                note = [v["note"] for v in result["variables"] if v["name"] == name]
                self.assertEqual(note, ["ignored, because this process has elevated rights"])
            text = self.run_program("doctor").out
            self.assertIn("elevated rights", text)
            self.fail_with("unavailable", "doctor", "--no-owner-check", naming=["--no-owner-check", "elevated rights"])
            # What the caller owns is not loaded by way of an option either.
            os.chown(self.folder / "plugins", 65534, 65534)
            mine = self.run_program("doctor", "--json", "--plugin-path", "plugins").json["files"]
            mine = [f for f in mine if pathlib.Path(f["path"]).parent == self.folder / "plugins"]
            self.assertEqual([f["reason"]["code"] for f in mine], ["unsafe_owner"])


if __name__ == "__main__":
    support.main()
