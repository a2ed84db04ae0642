"""bench/plot on small files: well-formed pictures with every point, tables in a page, errors that name the file."""
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree

PLOT = pathlib.Path(__file__).with_name("plot")
SVG = "{http://www.w3.org/2000/svg}"
SECTIONS = ("machine", "commands", "targets", "models", "ops", "slower")


def arm(name, threads, seconds):
    return {"name": name, "threads": threads, "median_seconds": seconds, "mad_seconds": None if seconds is None else seconds / 50,
            "min_seconds": seconds, "runs": 3, "memory_bytes": 3 << 20, "ratio": 2.0, "flops_per_second": 1e9,
            "bytes_per_second": 2e9, "of_roof": 0.5}


def arms(seconds):
    return [arm("reference", 1, 8 * seconds)] + [arm(name, threads, seconds / threads * factor)
                                                 for name, factor in (("cpu_ref", 4), ("cpu_simd", 1)) for threads in (1, 2)]


def common(kind):
    return {"bench": kind, "format_version": 2, "date": "2026-01-31T12:00:00Z",
            "build": {"version": "0.1.0", "compiler": "GCC 12", "build_type": "Release", "sanitizer": "", "flags": "-O3"},
            "machine": {"cpu": "A <CPU> & more", "arch": "x86-64-v4", "units": 2, "memory_bytes": 1 << 34, "system": "Linux",
                        "vectors": "AVX-512", "caches": [{"level": "L1", "bytes": 49152}, {"level": "L2", "bytes": 2 << 20}],
                        "rates": [{"threads": n, "float32_flops": 1.7e11 * n, "float64_flops": 9e10 * n, "reads": [
                            {"level": level, "bytes": size, "bytes_per_second": rate * n}
                            for level, size, rate in (("L1", 24576, 3e11), ("L2", 1 << 20, 1.2e11), ("", 1 << 22, 5e10),
                                                      ("memory", 1 << 29, 1.2e10))]} for n in (1, 2)]},
            "settings": {"command": "fastpath_bench_ops --seconds 1"}, "results": [], "slower": []}


def ops_file():
    data = common("ops")
    for edges in (12, 1000, 20000):
        for op, flops in (("conv_tensor_product", 3e4), ("radial_mlp", 2e5), ("spherical_harmonics", None)):
            for dtype in ("float32", "float64"):
                for kind in ("forward", "forward_backward"):
                    data["results"].append({"op": op, "layer": "mace_medium", "dtype": dtype, "pass": kind, "edges": edges,
                                            "nodes": 9, "flops": flops and flops * edges, "bytes": 7e3 * edges,
                                            "arms": arms(1e-6 * edges)})
    return data


def model_file():
    data = common("whole_model")
    data["model"] = {"name": "m", "channels": 8, "l_max": 3, "layers": 2, "parameters": 1000, "r_max": 5.0}
    for atoms in (20, 180):
        for dtype in ("float32", "float64"):
            data["results"].append({"dtype": dtype, "pass": "forces", "atoms": atoms, "edges": 50 * atoms,
                                    "arms": arms(1e-3 * atoms)})
    data["results"][-1]["arms"][0]["median_seconds"] = None  # it did not fit
    data["slower"].append({"where": "m, 20 atoms", "text": "cpu_simd is slow", "slow": "cpu_simd", "factor": 1.5})
    return data


class Plot(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="fastpath-plot-"))
        self.addCleanup(shutil.rmtree, self.folder)

    def write(self, name, data):
        path = self.folder / name
        path.write_text(data if isinstance(data, str) else json.dumps(data))
        return path

    def plot(self, *arguments):
        return subprocess.run([sys.executable, "-B", PLOT, *map(str, arguments)], capture_output=True, text=True, check=False)

    def points(self, name):
        root = xml.etree.ElementTree.parse(self.folder / "out" / name).getroot()
        self.assertEqual(root.tag, SVG + "svg")
        return sum(element.get("class") == "point" for element in root.iter())

    def test_DrawsEveryPointOfOpsAndModels(self):
        run = self.plot("--output", self.folder / "out", self.write("a.json", ops_file()), self.write("b.json", model_file()))
        self.assertEqual(run.returncode, 0, run.stderr)
        names = ["roofline-float32.svg", "ops-float32.svg", "roofline-float64.svg", "ops-float64.svg", "model-m.svg"]
        self.assertEqual(run.stdout.split(), [str(self.folder / "out" / name) for name in names])
        self.assertEqual(self.points("roofline-float32.svg"), 2 * 2)  # ops with FLOPs, passes, at 20,000 edges
        self.assertEqual(self.points("ops-float64.svg"), 3 * 3 * 5)  # ops, sizes, arms
        self.assertEqual(self.points("model-m.svg"), 2 * 2 * 5 - 1)  # one did not run
        text = (self.folder / "out" / "roofline-float32.svg").read_text()
        for part in ("A &lt;CPU&gt; &amp; more", "2026-01-31", "FMA peak 170 GFLOP/s", "L1 300 GB/s", "memory 12 GB/s"):
            self.assertIn(part, text)

    def test_PutsOpsOfSeveralFilesIntoOnePicture(self):
        more = ops_file()
        more["results"] = [{**r, "edges": 100000} for r in more["results"] if r["edges"] == 12]
        a, b = self.write("a.json", ops_file()), self.write("b.json", more)
        self.assertEqual(self.plot("--output", self.folder / "out", a, b).returncode, 0)
        self.assertEqual(self.points("ops-float64.svg"), 3 * 4 * 5)
        more["machine"]["units"] = 64
        run = self.plot("--output", self.folder / "out", a, self.write("b.json", more))
        self.assertEqual(run.returncode, 1)
        self.assertIn("units is 2 and 64", run.stderr)

    def test_WritesTheTablesOfAPageAnew(self):
        old = "".join(f"<!-- begin {name} -->\nold\n<!-- end {name} -->\nkept\n" for name in SECTIONS)
        page = self.write("page.md", old)
        run = self.plot("--output", self.folder / "out", "--page", page, self.write("a.json", ops_file()),
                        self.write("b.json", model_file()))
        self.assertEqual(run.returncode, 0, run.stderr)
        text = page.read_text()
        self.assertNotIn("old", text)
        self.assertEqual(text.count("kept"), len(SECTIONS))
        for part in ("| mace_medium | float32 | F | 12 | 96 µs ±2% | 48 µs ±2% | 12 µs ±2% | 6 µs ±2% |", "out of memory",
                     "cpu_simd is slow", "1 thread, forward: times its roof | ≤ 2 | 2.00 | yes |", "build/release/bin/fastpath_bench_ops --seconds 1", "(out/model-m.svg)"):
            self.assertIn(part, text + (self.folder / "out" / "ops.md").read_text())
        self.assertIn("(out/ops.md)", text)
        self.assertIn("| mace_medium | float32 | F | 20000 | 160 ms", text)
        self.assertNotIn("| mace_medium | float32 | F | 12 |", text)

    def test_SaysWhatIsWrongWithAFile(self):
        good = ops_file()
        bad = {"none": None, "text": "{", "kind": {"bench": "list_plugins"}, "version": {**good, "format_version": 1},
               "member": {key: value for key, value in good.items() if key != "machine"},
               "arm": {**good, "results": [{**good["results"][0], "arms": [{"name": "x"}]}]}}
        says = {"none": "No such file", "text": "not JSON", "kind": "'list_plugins', expected", "version": "expected 2",
                "member": "lacks 'machine'", "arm": "results[0].arms[0] lacks 'threads'"}
        for name, data in bad.items():
            path = self.folder / f"{name}.json" if data is None else self.write(f"{name}.json", data)
            run = self.plot(path)
            self.assertEqual(run.returncode, 1, name)
            self.assertTrue(run.stderr.startswith(f"plot: {path}: "), run.stderr)
            self.assertIn(says[name], run.stderr)
            self.assertEqual(run.stdout, "")
        page = self.write("page.md", "nothing to fill in\n")
        run = self.plot("--page", page, self.write("good.json", good))
        self.assertEqual(run.returncode, 1)
        self.assertIn("page.md: has no '<!-- begin", run.stderr)


unittest.main()
