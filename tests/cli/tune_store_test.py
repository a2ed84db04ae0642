import json
import time

import support

NOW = int(time.time()) - 1000


def line_of(record):
    """A line as the store writes it: with the FNV-1a sum of the bytes of the record."""
    text = json.dumps(record, separators=(",", ":"))
    state = 0xcbf29ce484222325
    for byte in text.encode():
        state = ((state ^ byte) * 0x100000001b3) % 2 ** 64
    return f'{{"fastpath_measurement":1,"sum":"{state:016x}","record":{text}}}\n'


def record(number, **changes):
    result = {"op": "conv_tensor_product", "op_version": 1, "config": f"{number:016x}", "device": "cpu Some CPU x86-64 4",
              "dtype": "float64", "passes": 3, "threads": 2, "plugin": "cpu_ref",
              "points": [{"edges": 10, "nodes": 2, "conclusive": True, "repeats": 7, "reference": 1e-3, "kernel": 2e-3,
                          "reference_spread": 0.01, "kernel_spread": 0.02}],
              "windows": [], "inconclusive": False, "plugin_version": "0.1", "plugin_build": "a build",
              "library_version": "0.1.0", "driver": "", "host": "host", "unix_time": NOW + number}
    return {**result, **changes}


class TuneStore(support.ProgramTest):
    def setUp(self):
        super().setUp()
        self.store = self.folder / "measurements"
        self.store.mkdir()
        self.env["FASTPATH_MEASUREMENTS"] = str(self.store)

    def write(self, name, *records):
        return self.file(name, "".join(line_of(r) for r in records))

    def tune(self, *arguments):
        return self.succeed("tune", *arguments, "--json").json

    def testListShowsEveryRecordAndWhyItDoesNotCount(self):
        self.write("measurements/a.jsonl", record(1), record(2, plugin="gone"))
        self.file("measurements/b.jsonl", "torn")
        result = self.tune("--list")
        self.assertEqual(result["directories"]["user"], str(self.store))
        states = [(r["op"], r["plugin"], r["counts"], [reason["code"] for reason in r["reasons"]])
                  for r in result["records"]]
        self.assertEqual(states, [("conv_tensor_product", "cpu_ref", False, ["other_device", "other_build"]),
                                  ("conv_tensor_product", "gone", False, ["other_device", "other_build"]),
                                  ("", "", False, ["bad_record"])])
        self.assertEqual([r["plugin"] for r in self.tune("--list", "--plugin", "go*")["records"]], ["gone", ""])
        text = self.succeed("tune", "--list").out
        self.assertIn("b.jsonl:1", " ".join(text.split()))
        self.assertIn("Some CPU", text)
        found = self.succeed("doctor", "--json").json["measured"]
        self.assertEqual((found["records"], found["counting"], found["stale"]), (3, 0, 0))

    def testWithoutRecordsItSaysWhereTheyWouldBe(self):
        self.assertIn(str(self.store), " ".join(self.succeed("tune", "--list").out.split()).replace(" ", ""))

    def testWhatIsExportedCanBeImportedElsewhere(self):
        self.write("measurements/a.jsonl", record(1), record(2, plugin="gone"))
        self.assertEqual(self.tune("--export", "all.jsonl")["kept"], 2)
        self.assertEqual(self.tune("--export", "one.jsonl", "--plugin", "gone")["kept"], 1)
        self.env["FASTPATH_MEASUREMENTS"] = str(self.folder / "other")
        self.assertEqual(self.tune("--import", "one.jsonl")["added"], 1)
        change = self.tune("--import", "all.jsonl")
        self.assertEqual((change["added"], change["known"], change["skipped"]), (1, 1, []))
        self.assertEqual(len(self.tune("--list")["records"]), 2)
        self.fail_with("not_found", "tune", "--import", "none.jsonl", naming=["none.jsonl"])
        self.file("other.txt", "something else\n")
        self.fail_with("bad_file", "tune", "--import", "other.txt", naming=["other.txt:1"])

    def testMergeMakesOneFileAndForgetRemovesWhatIsNamed(self):
        self.write("measurements/a.jsonl", record(1), record(2))
        self.write("measurements/b.jsonl", record(1, unix_time=NOW + 100), record(3, op="model", plugin="use_fast"))
        change = self.tune("--merge")
        self.assertEqual((change["kept"], change["removed"]), (3, 1))
        self.assertEqual(len(list(self.store.glob("*.jsonl"))), 1)
        self.assertEqual(self.tune("--forget", "--op", "model")["removed"], 1)
        self.assertEqual({r["op"] for r in self.tune("--list")["records"]}, {"conv_tensor_product"})
        self.assertEqual(self.tune("--forget", "--stale")["removed"], 2)
        self.assertEqual(self.tune("--list")["records"], [])

    def testAProjectHasALayerOfItsOwn(self):
        (self.folder / ".fastpath" / "measurements").mkdir(parents=True)
        self.write("one.jsonl", record(1))
        self.assertEqual(self.tune("--import", "one.jsonl", "--layer", "project")["added"], 1)
        self.assertEqual([r["layer"] for r in self.tune("--list")["records"]], ["project"])
        self.assertEqual(self.tune("--forget", "--all")["removed"], 0)
        self.assertEqual(self.tune("--forget", "--all", "--layer", "project")["removed"], 1)

    def testWhatIsAskedMustBeClear(self):
        self.fail_with("invalid_argument", "tune", "--forget", naming=["--forget", "--all"])
        self.fail_with("invalid_argument", "tune", "--list", "--merge", naming=["one of"])
        self.fail_with("invalid_argument", "tune", "--merge", "--layer", "system", naming=["system", "project"])
        self.fail_with("invalid_argument", "tune", "--merge", "--op", "x", naming=["--op"])


class Measured(support.ProgramTest):
    """Decisions of the program by records that are of this machine and these plugins."""

    def setUp(self):
        super().setUp()
        store = self.folder / "measurements"
        store.mkdir()
        self.env["FASTPATH_MEASUREMENTS"] = str(store)
        self.succeed("eval", "--model", support.MODEL, "--use-fast", "true", "--lock", "run.lock", "--threads", "1",
                     support.STRUCTURES / "water.xyz")
        self.choices = [c for c in json.loads((self.folder / "run.lock").read_text())["choices"]
                        if c["choice"] != "reference"]
        cpu = next(d for p in self.succeed("list", "--json").json["plugins"] for d in p["devices"]
                   if d["name"] == "cpu")
        units = self.succeed("doctor", "--json").json["cpu"]["threads"]
        self.device = f"cpu {cpu['model']} {cpu['arch']} {units}"

    def measure(self, **changes):
        """A record of each kernel that runs under true: faster than the reference from 500 edges on, or as `changes`."""
        lines = {}
        for choice in self.choices:
            points = [{"edges": n, "nodes": n // 10, "conclusive": True, "repeats": 7, "reference": 1e-6 * n,
                       "kernel": 4e-4 + 2e-7 * n, "reference_spread": 0.01, "kernel_spread": 0.01}
                      for n in (10, 100, 500, 1000, 10000)]
            lines[choice["op"], choice["config"]] = line_of(record(
                0, op=choice["op"], op_version=choice["op_version"], config=choice["config"], device=self.device,
                passes=choice["passes"], threads=1, plugin=choice["choice"],
                **{"plugin_build": choice["build"], "points": points, "library_version": self.version(), "unix_time": int(time.time()),
                   "windows": [{"min_edges": 500, "max_edges": 0, "min_spread": 0.04, "max_spread": 0}], **changes}))
        self.file("measurements/host.jsonl", "".join(lines.values()))
        return len(lines)

    def version(self):
        return self.succeed("--version", "--json").json["version"]

    def explain(self, edges, *arguments):
        return self.succeed("explain", "--model", support.MODEL, "--threads", "1", "--no-priors", "--edges", edges,
                            "--json", *arguments).json

    def testExplainFollowsThemAndShowsTimesAndCrossover(self):
        self.measure()
        names = {c["module"] for c in self.choices}
        small, large = self.explain(100), self.explain(5000)
        for result, fast in ((small, False), (large, True)):
            found = [d for d in result["decisions"] if d["module"] in names]
            self.assertEqual({d["choice"] != "reference" for d in found}, {fast})
            self.assertLessEqual({d["reason"]["code"] for d in found}, {"measured"} if fast else
                                 {"measured", "in_parts"})
        costs = large["measured"]
        self.assertEqual({c["module"] for c in costs} >= names, True)
        for cost in costs:
            self.assertAlmostEqual(cost["reference_seconds"], 5e-3, 6)
            self.assertLess(cost["kernel_seconds"], 2e-3)
            self.assertEqual(cost["windows"], [{"min_edges": 500, "max_edges": None, "min_spread": 0.04,
                                                "max_spread": 0.0}])
            self.assertIsNone(cost["stale"])
        text = self.succeed("explain", "--model", support.MODEL, "--threads", "1", "--edges", "5000").out
        self.assertIn("from 500 (+-4 %)", " ".join(text.split()))
        self.assertIn("5 ms", text)
        self.assertEqual(self.explain(5000, "--deterministic")["measured"], [])
        self.assertNotIn("measured", {d["reason"]["code"]
                                      for d in self.explain(5000, "--deterministic")["decisions"]})

    def evaluate(self, *arguments):
        return self.succeed("eval", "--model", support.MODEL, "--threads", "1", "--no-priors", "--json", *arguments,
                            support.STRUCTURES / "water.xyz").json["frames"][0]

    def testADeterministicEvaluationFollowsNone(self):
        """Both arms are known, and the kernels are faster at every size."""
        points = [{"edges": n, "nodes": max(n // 10, 1), "conclusive": True, "repeats": 7, "reference": 1e-5 * n,
                   "kernel": 1e-6 * n, "reference_spread": 0.01, "kernel_spread": 0.01} for n in (1, 100, 10000)]
        self.measure(points=points, windows=[{"min_edges": 0, "max_edges": 0, "min_spread": 0, "max_spread": 0}])
        records = (self.folder / "measurements" / "host.jsonl").read_bytes()
        measured, without = self.evaluate(), self.evaluate("--deterministic")
        names = {c["module"] for c in self.choices}
        self.assertEqual({d["reason"]["code"] for d in measured["decisions"] if d["module"] in names}, {"measured"})
        self.assertNotIn("reference", {d["choice"] for d in measured["decisions"] if d["module"] in names})
        self.assertEqual({d["choice"] for d in without["decisions"]}, {"reference"})
        self.assertNotIn("measured", {d["reason"]["code"] for d in without["decisions"]})
        # Nor is the fastest one looked for under true.
        forced = self.evaluate("--deterministic", "--use-fast", "true")
        self.assertNotIn('"measured"', json.dumps(forced["decisions"]))
        files = {f.name: f.read_bytes() for f in (self.folder / "measurements").iterdir()}
        self.assertEqual(files, {"host.jsonl": records})

    def testExplainTellsWhichDoNotCountAndWhy(self):
        number = self.measure()
        self.assertEqual(self.explain(5000)["not_counting"], [])
        self.measure(plugin_build="another build")
        with open(self.folder / "measurements" / "host.jsonl", "a") as file:
            file.write(line_of(record(7, plugin_build="of an op that the model has not")) + "torn\n")
        result = self.explain(5000)
        self.assertEqual([(r["code"], r["records"]) for r in result["not_counting"]],
                         [("other_build", number), ("bad_record", 1)])
        self.assertIn("another build", result["not_counting"][0]["text"])
        self.assertEqual(result["measured"], [])
        self.assertEqual([r["code"] for r in self.explain(5000, "--dtype", "float32")["not_counting"]],
                         ["bad_record"])
        self.assertEqual(self.explain(5000, "--use-fast", "false")["not_counting"], [])
        text = " ".join(self.succeed("explain", "--model", support.MODEL, "--threads", "1", "--edges", "5000").out.split())
        self.assertIn("not counted here", text)
        self.assertIn(f"other_build: {number} records, the first of build 'another build'", text)

    def testDoctorSaysToTuneAgainWhereTheyAreStale(self):
        number = self.measure()
        self.assertEqual(self.succeed("doctor", "--json").json["measured"],
                         {"records": number, "counting": number, "stale": 0, "reasons": []})
        self.measure(library_version="0.0.1")
        found = self.succeed("doctor", "--json").json["measured"]
        self.assertEqual((found["records"], found["counting"], found["stale"]), (number, number, number))
        self.assertIn("tune again", " ".join(self.succeed("doctor").out.split()))
        self.assertIn("fastpath 0.0.1", self.explain(5000)["measured"][0]["stale"])
        self.assertIn("measured", {d["reason"]["code"] for d in self.explain(5000)["decisions"]})


if __name__ == "__main__":
    support.main()
