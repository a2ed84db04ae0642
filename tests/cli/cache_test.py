"""`fastpath cache`: what is kept between runs, and removing it."""
import support

FILES = {"probe": "probe/0123456789abcdef.txt", "gate": "gate/" + 64 * "a", "kernels": "kernels/cuda/x.y.kernels"}


class Cache(support.ProgramTest):
    def setUp(self):
        super().setUp()
        self.cache = self.folder / "cache"
        self.env["FASTPATH_CACHE_DIR"] = str(self.cache)
        for file in [*FILES.values(), "kernels/mine.txt", "gate/notes", "probe/lock", "other/1.kernels"]:
            (self.cache / file).parent.mkdir(parents=True, exist_ok=True)
            (self.cache / file).write_text("1234")

    def directories(self, *arguments):
        found = self.succeed("cache", "--json", *arguments).json["directories"]
        return {entry["name"]: entry for entry in found}

    def left(self):
        return sorted(str(path.relative_to(self.cache)) for path in self.cache.rglob("*") if path.is_file())

    def testListsEveryDirectoryThatIsWritten(self):
        found = self.directories()
        self.assertEqual(list(found), ["probe", "gate", "kernels", "measurements", "models"])
        for name in FILES:
            self.assertEqual((found[name]["directory"], found[name]["files"], found[name]["bytes"], found[name]["cleared"]),
                             (str(self.cache / name), 1, 4, False))
        self.assertEqual([found[name]["other_files"] for name in FILES], [1, 1, 1])
        self.assertEqual(found["measurements"]["files"], 0)
        text = self.succeed("cache").out
        self.assertIn("compiled kernels for GPUs", " ".join(text.split()))
        self.assertLessEqual(max(map(len, text.splitlines())), 80)

    def testClearRemovesWhatIsNamedAndNothingElse(self):
        before = self.left()
        self.assertTrue(self.directories("--clear", "kernels")["kernels"]["cleared"])
        self.assertEqual(self.left(), sorted(set(before) - {FILES["kernels"]}))
        self.succeed("cache", "--clear")
        self.assertEqual(self.left(), sorted(set(before) - set(FILES.values())))

    def testWhatAProcessKeptIsKnown(self):
        self.succeed("cache", "--clear")
        self.evaluate("--use-fast", "true", support.DATA / "molecule.xyz")
        found = self.directories()
        self.assertGreater(found["gate"]["files"], 0)
        self.assertGreater(found["probe"]["files"], 0)
        self.succeed("cache", "--clear")
        found = self.directories()
        self.assertEqual((found["gate"]["files"], found["probe"]["files"]), (0, 0))
        self.evaluate("--use-fast", "true", support.DATA / "molecule.xyz")

    def testADirectoryThatIsNoneHidesNoOther(self):
        self.env["FASTPATH_MEASUREMENTS"] = str(self.file("file", ""))
        found = self.directories()
        self.assertIn("file: cannot be read", found["measurements"]["problem"])
        self.assertEqual((found["gate"]["files"], found["gate"]["problem"]), (1, None))

    def testWhatIsWrongIsNamed(self):
        self.fail_with("invalid_argument", "cache", "--clear", "models", naming=["'models'", "probe, gate or kernels"])
        self.fail_with("invalid_argument", "cache", "kernels", naming=["'kernels'", "--clear"])


if __name__ == "__main__":
    support.main()
