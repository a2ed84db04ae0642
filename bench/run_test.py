"""bench/run as far as it goes without building or measuring, and bench/compare_runs on small files."""
import json
import pathlib
import subprocess
import tempfile
import unittest

RUN = pathlib.Path(__file__).with_name("run")
COMPARE = pathlib.Path(__file__).with_name("compare_runs")


def measured(seconds, spread=0.01, kind="ops", cpu="A CPU", **changes):
    """A file of one result with the arms `seconds` names: {("cpu_simd", 1): seconds}."""
    arms = [{"name": name, "threads": threads, "median_seconds": value, "memory_bytes": 1, "ratio": 1.0,
             "mad_seconds": None if value is None or spread is None else spread * value}
            for (name, threads), value in seconds.items()]
    result = {"dtype": "float64", "pass": "forward", "edges": 1000, "arms": arms}
    result |= {"op": "radial_basis", "layer": "mace_small", "flops": None, "bytes": 1} if kind == "ops" else {"atoms": 20}
    data = {"bench": kind, "format_version": 2, "date": "2026-01-31T12:00:00Z",
            "build": {"version": "0.1.0", "build_type": "Release", "sanitizer": ""},
            "machine": {"cpu": cpu, "units": 2, "load_average": 0.1}, "results": [result], "slower": [],
            "settings": {"command": "fastpath_bench_ops --edges 1000 --json old.json --seconds 1"}}
    if kind != "ops":
        data["model"] = {"parameters": 1000}
    return data | changes


class Run(unittest.TestCase):
    def run_script(self, *arguments):
        return subprocess.run([RUN, *arguments], capture_output=True, text=True, check=False)

    def test_TeachesWhatItCanDo(self):
        run = self.run_script("--help")
        self.assertEqual(run.returncode, 0, run.stderr)
        for word in ("--quick", "--full", "--docs", "--training", "ops ARGS", "model ARGS", "build/bench", "spread"):
            self.assertIn(word, run.stdout)
        self.assertNotIn("set -", run.stdout)

    def test_RefusesWhatItDoesNotKnow(self):
        for arguments, word in (((), "nothing to do"), (("--fast",), "'--fast' is unknown"),
                                (("--quick", "x"), "--quick takes no arguments"), (("--full", "x"), "--docs alone"),
                                (("--compare",), "expected files")):
            run = self.run_script(*arguments)
            self.assertEqual(run.returncode, 2, arguments)
            self.assertEqual(run.stdout, "")
            self.assertTrue(run.stderr.startswith("bench/run: "), run.stderr)
            self.assertIn(word, run.stderr)

    def test_SaysBeforeItBuildsThatABaselineCannotBeRead(self):
        run = self.run_script("--compare", "/nowhere/old.json")
        self.assertEqual(run.returncode, 2)
        self.assertEqual(run.stdout, "")
        self.assertIn("/nowhere/old.json: No such file", run.stderr)


class Compare(unittest.TestCase):
    def compare(self, status, *files):
        """What bench/compare_runs prints of these measurements, and what it found."""
        with tempfile.TemporaryDirectory(prefix="fastpath-bench-") as folder:
            paths = []
            for i, data in enumerate(files):
                paths.append(pathlib.Path(folder, f"{i}.json"))
                paths[-1].write_text(json.dumps(data))
            found = pathlib.Path(folder, "found.json")
            run = subprocess.run([COMPARE, "--json", found, *paths], capture_output=True, text=True, check=False)
            self.assertEqual(run.returncode, status, run.stdout + run.stderr)
            if status == 2:
                self.assertEqual(run.stdout, "")
                self.assertTrue(run.stderr.startswith("bench/compare_runs: "), run.stderr)
                return run.stderr, None
            self.assertEqual(run.stderr, "")
            return run.stdout, json.loads(found.read_text())["findings"]

    def test_TellsWhatIsSlowerByMoreThanTheSpread(self):
        old = measured({("reference", 1): 4e-3, ("cpu_ref", 1): 3e-3, ("cpu_simd", 1): 1e-3, ("cpu_simd", 2): 8e-4})
        new = measured({("reference", 1): 4.1e-3, ("cpu_ref", 1): 2e-3, ("cpu_simd", 1): 1.2e-3, ("cpu_simd", 2): 8e-4})
        text, findings = self.compare(1, old, new)
        self.assertEqual([(each["arm"], each["threads"], each["kind"]) for each in findings],
                         [("cpu_ref", 1, "faster"), ("cpu_simd", 1, "slower")])
        self.assertAlmostEqual(findings[1]["factor"], 1.2)
        self.assertIn("4 arms compared", text)
        self.assertIn("radial_basis mace_small float64 forward 1000 edges: cpu_simd with 1 thread takes 1.20 times", text)
        for spread in (0.15, None):  # a single run counts as spreading by a tenth
            data = measured({("cpu_simd", 1): 1.2e-3}, spread)
            self.assertIn("Nothing is slower", self.compare(0, measured({("cpu_simd", 1): 1e-3}, spread), data)[0])
        self.compare(0, measured({("cpu_simd", 1): 1e-3}, 0), measured({("cpu_simd", 1): 1.04e-3}, 0))

    def test_CountsOfSeveralMeasurementsTheFastest(self):
        old, slow, fast = (measured({("cpu_simd", 1): seconds}) for seconds in (1e-3, 1.5e-3, 1.02e-3))
        self.compare(1, old, slow, slow)
        self.compare(0, old, slow, fast)

    def test_TellsWhatIsGoneOrFails(self):
        old = measured({("cpu_ref", 1): 1e-3, ("cpu_simd", 1): 1e-3, ("other", 1): None}, kind="whole_model")
        new = measured({("cpu_ref", 1): 1e-3, ("cpu_simd", 1): None}, kind="whole_model")
        text, findings = self.compare(1, old, new)
        self.assertEqual([(each["arm"], each["kind"]) for each in findings], [("cpu_simd", "failing")])
        self.assertIn("20 atoms float64 forward 1000 edges: cpu_simd with 1 thread is failing", text)
        del new["results"][0]["arms"][1]
        self.assertIn("cpu_simd with 1 thread is missing", self.compare(1, old, new)[0])

    def test_RefusesWhatSaysNothingOfEachOther(self):
        old = measured({("cpu_ref", 1): 1e-3})
        debug = measured({("cpu_ref", 1): 1e-3}, build={"version": "0.1.0", "build_type": "Debug", "sanitizer": ""})
        for other, word in ((measured({("cpu_ref", 1): 1e-3}, cpu="Another"), "machine.cpu 'A CPU' and 'Another'"),
                            (debug, "build.build_type 'Release' and 'Debug'"),
                            (measured({("cpu_ref", 1): 1e-3}, kind="whole_model"), "benchmarks 'ops' and 'whole_model'"),
                            (measured({("acme", 1): 1e-3}), "no arm"), (old | {"format_version": 1}, "format_version"),
                            ([], "member 'bench'")):
            self.assertIn(word, self.compare(2, old, other)[0])
        self.assertIn("found one file", self.compare(2, old)[0])

    def test_KnowsHowAFileWasMeasured(self):
        with tempfile.TemporaryDirectory(prefix="fastpath-bench-") as folder:
            path = pathlib.Path(folder, "old.json")
            for command, status in (("fastpath_bench_ops --plugins /old --edges 9 --json x --threads 1", 0), ("rm -r x", 2)):
                path.write_text(json.dumps(measured({("cpu_ref", 1): 1e-3}, settings={"command": command})))
                run = subprocess.run([COMPARE, "--command", path], capture_output=True, text=True, check=False)
                self.assertEqual(run.returncode, status, run.stderr)
                self.assertEqual(run.stdout, "" if status else "fastpath_bench_ops --edges 9 --threads 1\n")


if __name__ == "__main__":
    unittest.main()
