"""Models that are named: `fastpath hub list | show | add | verify | remove`, and names where a folder is expected."""
import hashlib
import os
import pathlib
import shutil

import support

WATER = support.DATA / "water8.xyz"
FILES = ["README.md", "SHA256SUMS", "config.json", "model.safetensors"]


class HubModels(support.ProgramTest):
    def setUp(self):
        super().setUp()
        self.hub, self.site = self.folder / "hub", self.folder / "site"
        self.env["FASTPATH_HUB"] = f"{self.hub}:{self.site}"

    def add(self, name, *options):
        return self.succeed("hub", "add", support.MODEL, "--name", name, *options)

    def models(self, command="list"):
        found = self.run_program("hub", command, "--json")
        self.assertEqual(found.err, "")
        return {model["directory"]: model for model in found.json["models"]}

    def broken(self, name, *naming):
        """It is listed as broken, verified as broken, and not used."""
        folder = self.hub / name
        model = self.models("verify")[str(folder)]
        self.assertEqual(model["state"], "broken")
        for word in naming:
            self.assertIn(word, model["problem"])
        self.assertEqual(self.run_program("hub", "verify", name).status, 1)
        self.fail_with("bad_file", "eval", "--model", name, WATER, naming=[name, folder, *naming])

    def testWhatIsAddedIsUsedByItsName(self):
        self.add("a-model")
        self.assertEqual(sorted(p.name for p in (self.hub / "a-model").iterdir()), FILES)
        self.assertEqual(sorted(p.name for p in self.hub.iterdir()), ["a-model"])
        frames = [self.evaluate("--use-fast", "false", WATER, model=model)["frames"][0]
                  for model in ("a-model", support.MODEL)]
        self.assertEqual(frames[0]["energy"], frames[1]["energy"])
        for command in (("explain",), ("hub", "show")):
            where = ["--model", "a-model"] if command[0] == "explain" else ["a-model"]
            self.succeed(*command, *where)

    def testChecksumsAreThoseOfSha256sum(self):
        self.add("m")
        lines = (self.hub / "m" / "SHA256SUMS").read_text().splitlines()
        sums = dict(reversed(line.split("  ")) for line in lines)
        self.assertEqual(sorted(sums), ["README.md", "config.json", "model.safetensors"])
        for name, digest in sums.items():
            self.assertEqual(hashlib.sha256((self.hub / "m" / name).read_bytes()).hexdigest(), digest)

    def testTheNameIsThatOfTheFolder(self):
        model = self.copy_of_model()
        for path in (model, str(model) + "/"):
            made = self.succeed("hub", "add", path, "--json").json
            self.assertEqual((made["name"], made["directory"]), ("model", str(self.hub / "model")))
            self.succeed("hub", "remove", "model")

    def testAReadmeComesAlongOrIsWritten(self):
        self.add("without")
        self.assertIn("1, 6, 8", (self.hub / "without" / "README.md").read_text())
        model = self.copy_of_model()
        (model / "README.md").write_text("# Mine\n")
        self.succeed("hub", "add", model, "--name", "with")
        self.assertEqual(self.succeed("hub", "show", "with", "--json").json["readme"], "# Mine\n")

    def testShowSaysWhatAModelIs(self):
        self.add("m")
        facts = self.succeed("hub", "show", "m", "--json").json
        self.assertEqual(facts["directory"], str(self.hub / "m"))
        self.assertEqual((facts["architecture"], facts["dtype"], facts["r_max"]), ("mace", "float64", 5.0))
        self.assertEqual((facts["atomic_numbers"], facts["heads"]), ([1, 6, 8], ["default"]))
        self.assertEqual(facts["config"]["hidden_irreps"], "8x0e+8x1o")
        self.assertIn("1, 6, 8", self.succeed("hub", "show", support.MODEL).out)

    def testTheFirstOfTwoHubsCounts(self):
        self.add("both", "--hub", self.site)
        self.add("both")
        self.add("only", "--hub", self.site)
        models = self.models()
        self.assertEqual(list(models), [str(p) for p in (self.hub / "both", self.site / "both", self.site / "only")])
        self.assertEqual([model["shadowed"] for model in models.values()], [False, True, False])
        self.assertEqual(self.succeed("hub", "show", "both", "--json").json["directory"], str(self.hub / "both"))
        self.assertEqual(self.succeed("hub", "show", "only", "--json").json["directory"], str(self.site / "only"))
        self.assertIn("shadowed", self.succeed("hub", "list").out)

    def testAHubThatMayNotBeWrittenIsRead(self):
        self.add("m", "--hub", self.site)
        self.hub.mkdir()
        for hub in (self.hub, self.site):
            hub.chmod(0o555)
            self.addCleanup(hub.chmod, 0o755)
        with self.unprivileged():
            self.succeed("hub", "show", "m")
            self.fail_with("io", "hub", "add", support.MODEL, "--name", "n", naming=[self.hub / "n", "Permission denied"])
            self.fail_with("io", "hub", "remove", "m", naming=[self.site / "m", "Permission denied"])
        self.assertEqual(sorted(p.name for p in (self.site / "m").iterdir()), FILES)

    def testAModelCopiedInPartIsRefused(self):
        self.add("m")
        os.truncate(self.hub / "m" / "model.safetensors", 4000)
        self.broken("m", "model.safetensors", "copied in part")
        (self.hub / "m" / "model.safetensors").unlink()
        self.broken("m", "model.safetensors", "missing")
        self.assertEqual(self.models("list")[str(self.hub / "m")]["state"], "broken")

    def testAFolderThatWasPutThereHasNoChecksums(self):
        self.hub.mkdir()
        shutil.copytree(support.MODEL, self.hub / "m")
        self.assertEqual(self.models("verify")[str(self.hub / "m")]["state"], "no checksums")
        self.evaluate("--use-fast", "false", WATER, model="m")
        (self.hub / "m" / "config.json").unlink()
        self.broken("m", "config.json", "missing")

    def testAChangedFileIsRefused(self):
        self.add("m")
        config = self.hub / "m" / "config.json"
        config.write_text(config.read_text().replace("14.0", "15.0"))
        self.broken("m", "config.json", "changed")
        self.assertEqual(self.models("list")[str(self.hub / "m")]["state"], "whole")  # which reads no contents

    def testAListOfChecksumsThatIsNoneIsRefused(self):
        self.add("m")
        sums = self.hub / "m" / "SHA256SUMS"
        whole = sums.read_text()
        first = whole.splitlines()[0]
        for text, word in ((whole + "nonsense\n", "nonsense"), (first + "\n", "does not list"), ("", "does not list"),
                           (whole.replace("README.md", "../README.md"), "expected a checksum"),
                           (whole.replace(first[:64], first[:64].upper()), "expected a checksum")):
            sums.write_text(text)
            self.broken("m", "SHA256SUMS", word)

    def testWhatAnInterruptedCopyLeftIsNamed(self):
        (self.hub / ".m.partial-123").mkdir(parents=True)
        model, = self.models().values()
        self.assertEqual((model["name"], model["state"]), (".m.partial-123", "broken"))
        self.assertIn("interrupted", model["problem"])

    def testNothingIsReplaced(self):
        self.add("m")
        before = (self.hub / "m" / "config.json").stat().st_ino
        self.fail_with("io", "hub", "add", support.MODEL, "--name", "m", naming=[self.hub / "m", "exists"])
        self.assertEqual((self.hub / "m" / "config.json").stat().st_ino, before)

    def testAFolderThatIsNoModelIsNotAdded(self):
        model = self.copy_of_model()
        os.truncate(model / "model.safetensors", 4000)
        self.fail_with("bad_file", "hub", "add", model, naming=["model.safetensors"])
        self.add("m")
        broken = self.folder / "broken"
        shutil.copytree(self.hub / "m", broken)
        (broken / "README.md").write_text("another one")
        self.fail_with("bad_file", "hub", "add", broken, naming=[broken, "README.md"])
        self.fail_with("not_found", "hub", "add", self.folder / "absent", naming=[self.folder / "absent"])
        self.assertEqual([p.name for p in self.hub.iterdir()], ["m"])

    def testNamesAreChecked(self):
        for name in (".hidden", "-x", "a/b", "a b", "x" * 64, "a\nb"):
            self.fail_with("invalid_argument", "hub", "add", support.MODEL, f"--name={name}", naming=["letters"])
        self.fail_with("invalid_argument", "hub", "add", support.MODEL, "--name", "", naming=["letters"])
        self.assertFalse(self.hub.exists())
        for command in ("show", "remove", "verify"):
            self.fail_with("not_found", "hub", command, "absent", naming=["absent", self.hub, self.site])
        for command, word in (("show", "named"), ("remove", "named"), ("add", "folder")):
            self.fail_with("invalid_argument", "hub", command, naming=[word])

    def testRemoveTakesOnlyWhatIsTheModels(self):
        self.add("m")
        (self.hub / "m" / "notes.txt").write_text("mine")
        self.fail_with("io", "hub", "remove", "m", naming=[self.hub / "m", "notes.txt"])
        self.assertEqual(len(list((self.hub / "m").iterdir())), 5)
        (self.hub / "m" / "notes.txt").unlink()
        self.assertEqual(self.succeed("hub", "remove", "m", "--json").json,
                         {"name": "m", "directory": str(self.hub / "m")})
        self.assertEqual(list(self.hub.iterdir()), [])

    def testRemoveOfALinkLeavesWhatItNames(self):
        model = self.copy_of_model()
        self.hub.mkdir()
        (self.hub / "m").symlink_to(model)
        self.evaluate("--use-fast", "false", WATER, model="m")
        self.succeed("hub", "remove", "m")
        self.assertTrue((model / "config.json").exists())
        self.assertEqual(list(self.hub.iterdir()), [])

    def testALinkThatLeadsNowhereIsBrokenAndCanBeRemoved(self):
        self.hub.mkdir()
        (self.hub / "m").symlink_to(self.folder / "gone")
        model, = self.succeed("hub", "list", "--json").json["models"]
        self.assertEqual((model["name"], model["state"]), ("m", "broken"))
        self.assertIn(str(self.folder / "gone"), model["problem"])
        self.fail_with("bad_file", "hub", "show", "m", naming=[self.hub / "m", self.folder / "gone"])
        self.succeed("hub", "remove", "m")
        self.assertEqual(list(self.hub.iterdir()), [])

    def testAVariableThatNamesNoDirectoryIsShown(self):
        self.env["FASTPATH_HUB"] = ":"
        self.assertIn("FASTPATH_HUB is ':', which names no directory", self.succeed("hub", "list").out)
        file = self.folder / "file"
        file.write_text("")
        self.env["FASTPATH_HUB"] = str(file)
        self.assertIn("file (is no directory)", self.succeed("hub", "list").out)

    def testWithoutAVariableTheHubIsInTheUsersDirectory(self):
        del self.env["FASTPATH_HUB"]
        home = pathlib.Path(self.env["HOME"])
        self.assertEqual(self.add("m", "--json").json["directory"], str(home / ".local/share/fastpath/models/m"))
        self.env["XDG_DATA_HOME"] = str(self.folder / "data")
        self.fail_with("not_found", "hub", "show", "m", naming=[self.folder / "data" / "fastpath/models"])
        self.assertIn("does not exist", self.succeed("hub", "list").out)
        del self.env["XDG_DATA_HOME"], self.env["HOME"]
        self.fail_with("invalid_argument", "hub", "add", support.MODEL, "--name", "m", naming=["FASTPATH_HUB"])
        self.fail_with("not_found", "eval", "--model", "m", WATER, naming=["FASTPATH_HUB"])

    def testAFullDiskLeavesNothing(self):
        self.add("m")
        whole = sum(p.stat().st_size for p in (self.hub / "m").iterdir())

        def small_files():
            import resource
            import signal
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (whole // 2, whole // 2))

        result = self.run_program("hub", "add", support.MODEL, "--name", "n", preexec_fn=small_files)
        self.assertEqual(result.status, support.ERROR_CODES["io"], result.err)
        self.assertIn(str(self.hub / "n"), result.err)
        self.assertEqual([p.name for p in self.hub.iterdir()], ["m"])


if __name__ == "__main__":
    support.main()
