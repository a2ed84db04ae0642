"""The plugin cpu_simd, with each instruction set that this CPU can run."""
import json
import re

from support import MODEL, ProgramTest, main

VARIABLE = "FASTPATH_CPU_SIMD_TARGET"


class CpuSimd(ProgramTest):
    def setUp(self):
        super().setUp()
        self.plugin = self.plugins / "fastpath_cpu_simd.so"

    def reasons(self):
        self.use_plugins("cpu_simd")
        result = self.succeed("explain", "--model", MODEL, "--use-fast", "true", "--json").json
        return [(r["code"], r["text"]) for d in result["decisions"] for c in d["candidates"] for r in c["reasons"]]

    def targets(self):
        """What the plugin says that this CPU can run."""
        self.env[VARIABLE] = "?"
        texts = [text for code, text in self.reasons() if code == "arch"]
        del self.env[VARIABLE]
        return re.split(", | or ", re.search("this CPU can run (.*)$", texts[0]).group(1))

    def check(self, *options):
        result = self.succeed("verify", self.plugin, "--json", *options).json
        self.assertEqual(result["failed"], 0, json.dumps([c for c in result["checks"] if c["failures"]], indent=1))
        return result

    def testPassesEveryCheckThatItCan(self):
        # Quick: in all cycles of the check for growth AddressSanitizer would keep more freed memory than may grow.
        self.assertGreater(self.check("--quick")["passed"], 60)

    def testAgreesWithTheReferenceUnderEachInstructionSet(self):
        targets = self.targets()
        self.assertTrue(targets)
        for target in targets:
            with self.subTest(target):
                self.env[VARIABLE] = target
                self.assertGreaterEqual(self.check("--only", "numerics.*")["passed"], 8)
                self.assertFalse([text for code, text in self.reasons() if code == "arch"])

    def testAnInstructionSetThatIsNotThereIsNamedWithWhatIs(self):
        self.env[VARIABLE] = "avx9"
        self.assertTrue([text for code, text in self.reasons()
                         if code == "arch" and f"{VARIABLE} is 'avx9', but this CPU can run " in text])


if __name__ == "__main__":
    main()
