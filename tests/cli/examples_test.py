import subprocess
import sys

import support

DEMO = support.ROOT / "examples" / "models" / "demo"
FILES = sorted(support.STRUCTURES.glob("*.xyz"))


class Examples(support.ProgramTest):
    def testTheDemoModelIsWhatItsConfigAndSeedGive(self):
        self.succeed("hub", "create", DEMO.parent / "demo.config.json", "--seed", 7, "--output", "demo")
        for name in ("config.json", "model.safetensors"):
            self.assertEqual((self.folder / "demo" / name).read_bytes(), (DEMO / name).read_bytes(), name)

    def testTheStructuresAreWhatTheirScriptWrites(self):
        subprocess.run([sys.executable, support.ROOT / "scripts" / "make_structures.py", self.folder], check=True)
        self.assertEqual(sorted(p.name for p in self.folder.glob("*.xyz")), [p.name for p in FILES])
        for file in FILES:
            self.assertEqual((self.folder / file.name).read_text(), file.read_text(), file.name)

    def testTheDemoModelEvaluatesEveryStructureAlikeOnBothPaths(self):
        self.assertEqual([p.stem for p in FILES], ["ethanol", "silicon", "slab", "water"])
        slow = self.evaluate("--use-fast", "false", *FILES, model=DEMO)["frames"]
        fast = self.evaluate("--use-fast", "true", *FILES, model=DEMO)["frames"]
        self.assertEqual([f["stress"] is not None for f in slow], [False, True, False, True])
        for a, b in zip(slow, fast, strict=True):
            self.assertTrue({d["choice"] for d in b["decisions"]} & {"cpu_ref", "cpu_simd"})
            self.assertLessEqual(support.difference(b["energy"], a["energy"]), 1e-12)
            self.assertLessEqual(support.difference(b["forces"], a["forces"]), 1e-12)


if __name__ == "__main__":
    support.main()
