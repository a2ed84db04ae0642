"""`fastpath tune`: what it measures, keeps and prints. No figure is looked at: this machine may be busy."""
import json
import os
import pty
import signal
import subprocess

import support

HARMONICS = {"l_max": 2, "normalize": 1, "normalization": "component"}


class Tune(support.ProgramTest):
    def setUp(self):
        super().setUp()
        self.store = self.folder / "measurements"
        self.env["FASTPATH_MEASUREMENTS"] = str(self.store)
        self.use_plugins("cpu_ref")
        self.config = self.file("harmonics.json", json.dumps(HARMONICS))

    def records(self):
        """What the store has a record of, or two where one was made again."""
        lines = [json.loads(line)["record"] for file in sorted(self.store.rglob("*")) if file.is_file()
                 for line in file.read_text().splitlines() if line]
        return {(record["op"], record["config"], record["plugin"]) for record in lines}

    def check(self, measurement):
        self.assertRegex(measurement["config"], "^[0-9a-f]{16}$")
        self.assertEqual(measurement["passes"], "forward, backward")
        self.assertEqual(measurement["dtype"], "float64")
        self.assertEqual(measurement["threads"], 1)
        self.assertTrue(measurement["points"])
        sizes = [point["n_edges"] for point in measurement["points"]]
        self.assertEqual(sizes, sorted(set(sizes)))
        for point in measurement["points"]:
            numbers = {"reference_seconds", "kernel_seconds", "reference_spread", "kernel_spread", "repeats"}
            self.assertEqual(numbers & set(point), numbers if point["conclusive"] else set())
            if point["conclusive"]:
                self.assertGreater(min(point["reference_seconds"], point["kernel_seconds"]), 0)
        for window in measurement["windows"]:
            self.assertLess(window["min_edges"], window["max_edges"] or 1e9)

    def testMeasuresTheOpsOfAModelAndTheWhole(self):
        result = self.succeed("tune", "--model", support.MODEL, "--budget", "3s", "--threads", "1", "--max-edges", "300",
                              "--json").json
        self.assertFalse(result["stopped"])
        for measurement in result["measurements"]:
            self.check(measurement)
        asked = {each["op"] for part in ("measurements", "not_measured") for each in result[part]}
        self.assertLessEqual({"model", "spherical_harmonics", "radial_mlp", "conv_tensor_product"}, asked)
        self.assertIn("spherical_harmonics", {each["op"] for each in result["measurements"]})
        for each in result["not_measured"]:
            self.assertTrue(each["reason"]["text"])
        self.assertEqual(len(self.records()), len(result["measurements"]))

    def testMeasuresOneOpAndShowsATable(self):
        arguments = ("tune", "--op", "spherical_harmonics", "--config", self.config, "--budget", "0.5s", "--threads", "1")
        text = self.succeed(*arguments, "--max-edges", "100").out
        self.assertRegex(text, r"op +config +kernel +faster at edges +spread +times as fast\n")
        self.assertRegex(text, r"(?m)^spherical_harmonics +[0-9a-f]{8} +cpu_ref +(inconclusive|not up to|always|from|up)")
        result = self.succeed(*arguments, "--min-edges", "20", "--max-edges", "20", "--json").json
        self.assertEqual([point["n_edges"] for point in result["measurements"][0]["points"]], [20])
        self.check(result["measurements"][0])

    def testCtrlCKeepsWhatIsComplete(self):
        master, terminal = pty.openpty()
        self.addCleanup(os.close, master)
        process = subprocess.Popen([self.program, "tune", "--model", support.MODEL, "--budget", "30s", "--max-edges", "60",
                                    "--threads", "1", "--json"], env=self.env, cwd=self.folder, stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=terminal)
        os.close(terminal)
        seen = b""
        while b"\r\x1b[K2/" not in seen:  # the line of progress: the first one is complete
            seen += os.read(master, 1000)
        process.send_signal(signal.SIGINT)
        out = process.communicate()[0]
        self.assertEqual(process.returncode, -signal.SIGINT)
        result = json.loads(out)
        self.assertTrue(result["stopped"])
        self.assertGreaterEqual(len(result["measurements"]), 1)
        self.assertIn("stopped", json.dumps(result["not_measured"]))
        self.assertEqual(len(self.records()), len(result["measurements"]))

    def testItsLineFitsTheTerminalAndIsGoneAtTheEnd(self):
        for columns in (80, 24):
            terminal = support.Terminal(self, "tune", "--op", "spherical_harmonics", "--config", self.config, "--budget",
                                        "0.5s", "--threads", "1", "--max-edges", "40", "--json", columns=columns,
                                        stdout=subprocess.DEVNULL)
            self.assertEqual(terminal.finish(), (0, [""]))
            self.assertRegex(terminal.output, rb"\r\x1b\[K1/1, \d+ s left: spher")

    def testKeysOfATerminalStopItAndLeaveACleanLine(self):
        terminal = support.Terminal(self, "tune", "--model", support.MODEL, "--budget", "30s", "--max-edges", "60",
                                    "--threads", "1", stdout=subprocess.DEVNULL)
        terminal.wait_for(rb"\r\x1b\[K1/")
        terminal.press(b"\x03")
        status, screen = terminal.finish()
        self.assertEqual(status, -signal.SIGINT)
        self.assertIn(b"^C", terminal.output)
        self.assertFalse([line for line in screen if "^C" in line or " left" in line], screen)
        for text in terminal.texts():
            self.assertTrue("^C" in text or len(text) < 80, text)

    def testWritesAReport(self):
        page = self.folder / "page.html"
        self.succeed("tune", "--op", "spherical_harmonics", "--config", self.config, "--budget", "0.3s", "--threads", "1",
                     "--max-edges", "40", "--report", page)
        text = page.read_text()
        self.assertIn("spherical_harmonics by cpu_ref", text)
        alone = self.folder / "alone.html"
        self.assertRegex(self.succeed("tune", "--report", alone, "--threads", "1").out, "^1 measurement ")
        self.assertIn("spherical_harmonics by cpu_ref", alone.read_text())
        missing = self.folder / "no" / "page.html"
        self.fail_with("not_found", "tune", "--report", missing, naming=["--report", str(missing.parent)])
        # Before an hour of measuring, not after it.
        self.fail_with("not_found", "tune", "--op", "spherical_harmonics", "--config", self.config, "--budget", "60m",
                       "--report", missing, naming=["--report", str(missing.parent)])

    def testWhatMakesNoSenseIsNamed(self):
        one = ("--op", "spherical_harmonics", "--config", self.config)
        for arguments, naming in (((), ["--model DIR"]), (("--model", support.MODEL, *one), ["--model", "--op"]),
                                  (("--op", "spherical_harmonics"), ["--config"]), ((*one, "--budget", "soon"), ["'soon'"]),
                                  ((*one, "--budget", "0"), ["'0'"]), ((*one, "--passes", "all"), ["'all'"]),
                                  ((*one, "--min-edges", "9", "--max-edges", "8"), ["--min-edges 9"]),
                                  ((*one, "--min-edges", "0"), ["--min-edges"]), ((*one, "--dtype", "int32"), ["int32"]),
                                  ((*one, "--threads", "0"), ["--threads"]), (("--report", "x", "--json"), ["--json"]),
                                  ((*one, "--device", "opencl:0"), ["opencl:0"]),
                                  ((*one, "--deterministic"), ["--deterministic", "measure"])):
            with self.subTest(arguments=arguments):
                self.fail_with("invalid_argument", "tune", *arguments, naming=naming)
        for content, naming in (("[]", ["not a JSON object"]), ('{"l_max": null}', ["'l_max'", "null"]), ("{", ["JSON"]),
                                ('{"l_max": ' + 100000 * "[" + 100000 * "]" + "}", ["nested more than 4 deep"])):
            self.fail_with("bad_file", "tune", "--op", "spherical_harmonics", "--config", self.file("bad", content),
                           naming=naming)
        self.fail_with("not_found", "tune", "--op", "spherical_harmonics", "--config", "nowhere", naming=["nowhere"])
        self.fail_with("unavailable", "tune", "--model", support.MODEL, "--device", "opencl:7", naming=["opencl:7"])
        self.assertFalse(self.store.exists())


support.main()
