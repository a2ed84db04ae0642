"""bench/run as far as it goes without building or measuring."""
import pathlib
import subprocess
import unittest

RUN = pathlib.Path(__file__).with_name("run")


class Run(unittest.TestCase):
    def run_script(self, *arguments):
        return subprocess.run([RUN, *arguments], capture_output=True, text=True, check=False)

    def test_TeachesWhatItCanDo(self):
        run = self.run_script("--help")
        self.assertEqual(run.returncode, 0, run.stderr)
        for word in ("--quick", "--full", "--docs", "ops ARGS", "model ARGS", "build/bench", "spread"):
            self.assertIn(word, run.stdout)
        self.assertNotIn("set -", run.stdout)

    def test_RefusesWhatItDoesNotKnow(self):
        for arguments, word in (((), "nothing to do"), (("--fast",), "'--fast' is unknown"),
                                (("--quick", "x"), "--quick takes no arguments"), (("--full", "x"), "--docs alone")):
            run = self.run_script(*arguments)
            self.assertEqual(run.returncode, 2, arguments)
            self.assertEqual(run.stdout, "")
            self.assertTrue(run.stderr.startswith("bench/run: "), run.stderr)
            self.assertIn(word, run.stderr)


unittest.main()
