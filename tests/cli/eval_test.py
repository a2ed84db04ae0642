import json
import resource
import shlex
import shutil
import signal
import struct
import subprocess
import time

import support

NAMES = ["molecule", "triclinic", "water8", "slab", "sparse"]
FILES = [support.DATA / f"{name}.xyz" for name in NAMES]
FRAME = ["file", "index", "energy", "node_energies", "forces", "stress", "n_atoms", "n_edges", "joined", "seconds",
         "seconds_graph", "seconds_first_use", "copied_bytes", "synchronizations", "decisions"]
# A model evaluated in another order of summation, and against numbers that another program computed.
TOLERANCE = 1e-12


def text_of(path):
    """A file without the blank lines at its end."""
    return path.read_text().rstrip() + "\n"


def expected():
    return json.loads((support.DATA / "expected.json").read_text())


class Eval(support.ProgramTest):
    def testJsonHasExactlyTheDocumentedShape(self):
        result = self.evaluate("--use-fast", "true", FILES[2])
        self.assertEqual(list(result), ["model", "device", "dtype", "use_fast", "frames"])
        self.assertEqual((result["model"], result["device"], result["dtype"], result["use_fast"]),
                         (str(support.MODEL), "cpu", "float64", "true"))
        frame, = result["frames"]
        self.assertEqual(list(frame), FRAME)
        self.assertEqual((frame["file"], frame["index"], frame["n_atoms"]), (str(FILES[2]), 0, 24))
        self.assertEqual([len(row) for row in frame["stress"]], [3, 3, 3])
        self.assertEqual({len(row) for row in frame["forces"]}, {3})
        self.assertEqual((len(frame["forces"]), len(frame["node_energies"])), (24, 24))
        for decision in frame["decisions"]:
            self.assertEqual(list(decision), ["module", "op", "choice", "reason", "candidates"])
        for name in ("seconds", "seconds_graph", "seconds_first_use"):
            self.assertGreaterEqual(frame[name], 0)
        self.assertEqual((frame["copied_bytes"], frame["synchronizations"]), (0, 0))

    def check(self, frames, tolerance):
        for name, frame in zip(NAMES, frames, strict=True):
            with self.subTest(structure=name):
                reference = expected()[name]
                self.assertEqual(frame["n_edges"], reference["n_edges"])
                for key in ("energy", "node_energies", "forces"):
                    self.assertLessEqual(support.difference(frame[key], reference[key]), tolerance, key)
                if "stress" in reference:
                    self.assertLessEqual(support.difference(frame["stress"], reference["stress"]), tolerance)
                else:
                    self.assertIsNone(frame["stress"])

    def testTheReferenceReproducesPublishedResults(self):
        frames = self.evaluate("--use-fast", "false", *FILES)["frames"]
        self.check(frames, TOLERANCE)
        for frame in frames:
            self.assertEqual({d["reason"]["code"] for d in frame["decisions"]}, {"forced_reference"})
            self.assertEqual([d for d in frame["decisions"] if d["candidates"]], [])

    def testThePluginServesModulesAndAgreesWithTheReference(self):
        fast = self.evaluate("--use-fast", "true", *FILES)["frames"]
        self.check(fast, TOLERANCE)
        for slow, frame in zip(self.evaluate("--use-fast", "false", *FILES)["frames"], fast, strict=True):
            self.assertTrue({"cpu_ref", "cpu_simd"} & {d["choice"] for d in frame["decisions"]})
            for key in ("energy", "forces"):
                self.assertLessEqual(support.difference(frame[key], slow[key]), 1e-13, key)

    def testFloat32AgreesWithFloat64ToSinglePrecision(self):
        for use_fast in ("false", "true"):
            frames = self.evaluate("--dtype", "float32", "--use-fast", use_fast, *FILES)["frames"]
            for name, frame in zip(NAMES, frames, strict=True):
                reference = expected()[name]
                self.assertLessEqual(support.difference(frame["energy"], reference["energy"]), 1e-6)
                self.assertLessEqual(support.difference(frame["forces"], reference["forces"]), 1e-5)

    def testFloat32WithAKernelWarnsOnceOnStandardError(self):
        result = self.succeed("eval", "--model", support.MODEL, "--dtype", "float32", "--use-fast", "true", *FILES)
        self.assertEqual(result.err.count("\n"), 1, result.err)
        self.assertEqual(self.succeed("eval", "--model", support.MODEL, "--dtype", "float32", "--use-fast", "false",
                                      *FILES).err, "")

    def testWithoutThePluginTheReferenceRunsAndSaysWhy(self):
        self.use_plugins()
        frames = self.evaluate("--use-fast", "true", *FILES)["frames"]
        self.check(frames, TOLERANCE)
        for frame in frames:
            self.assertEqual({(d["choice"], d["reason"]["code"]) for d in frame["decisions"]},
                             {("reference", "no_kernel")})

    def testStrictModeRefusesTheReference(self):
        self.use_plugins()
        arguments = ["eval", "--model", support.MODEL, "--use-fast", "true", FILES[0]]
        self.fail_with("strict_violation", *arguments, "--strict", "--output", "out.xyz", naming=["no plugin"])
        self.assertFalse((self.folder / "out.xyz").exists())
        self.env["FASTPATH_STRICT"] = "1"
        self.fail_with("strict_violation", *arguments)
        # What is set to another word was meant to change something.
        for word in ("true", "yes", "2"):
            self.env["FASTPATH_STRICT"] = word
            self.fail_with("invalid_argument", *arguments, naming=["FASTPATH_STRICT", word])
        for word in ("0", ""):
            self.env["FASTPATH_STRICT"] = word
            self.succeed(*arguments)

    def testTheNumberOfThreadsChangesNoBit(self):
        for use_fast in ("false", "true"):
            one, three = (self.evaluate("--use-fast", use_fast, "--threads", n, FILES[2])["frames"][0]
                          for n in ("1", "3"))
            for key in ("energy", "node_energies", "forces", "stress"):
                self.assertEqual(one[key], three[key], key)

    def testEveryFrameOfEveryFileIsEvaluatedInOrder(self):
        self.use_plugins("cpu_ref")
        both = self.file("both.xyz", text_of(FILES[0]) + text_of(FILES[4]) + "\n\n")
        frames = self.evaluate("--use-fast", "false", both, FILES[2])["frames"]
        self.assertEqual([(f["file"], f["index"]) for f in frames], [(str(both), 0), (str(both), 1), (str(FILES[2]), 0)])
        self.assertEqual([f["n_atoms"] for f in frames], [9, 3, 24])
        self.assertLessEqual(support.difference(frames[1]["energy"], expected()["sparse"]["energy"]), TOLERANCE)

    def testFramesAreEvaluatedTogetherAndGiveWhatEachGivesAlone(self):
        self.use_plugins("cpu_ref")
        many = self.file("many.xyz", "".join(text_of(FILES[i]) for i in (0, 4, 3, 0, 4)))
        for use_fast in ("false", "true"):
            frames = self.evaluate("--use-fast", use_fast, many)["frames"]
            self.assertEqual([frame["joined"] for frame in frames], [5] * 5)
            for frame, i in zip(frames, (0, 4, 3, 0, 4), strict=True):
                alone, = self.evaluate("--use-fast", use_fast, FILES[i])["frames"]
                self.assertEqual((alone["joined"], alone["n_edges"]), (1, frame["n_edges"]))
                for key in ("energy", "node_energies", "forces"):
                    self.assertLessEqual(support.difference(frame[key], alone[key]), TOLERANCE, key)

    def testWithoutForcesThereAreNone(self):
        frame, = self.evaluate("--no-forces", FILES[2], "--output", "out.xyz")["frames"]
        self.assertIsNone(frame["forces"])
        self.assertIsNone(frame["stress"])
        self.assertLessEqual(support.difference(frame["energy"], expected()["water8"]["energy"]), TOLERANCE)
        self.assertNotIn("forces", support.read_xyz(self.folder / "out.xyz")[0][0])

    def testTheTableHasOneRowPerFrame(self):
        self.use_plugins("cpu_ref")
        both = self.file("both.xyz", text_of(FILES[0]) + text_of(FILES[4]))
        text = self.succeed("eval", "--model", support.MODEL, "--use-fast", "true", both, FILES[2]).out
        header, *rows = text.splitlines()
        for title in ("structure", "atoms", "edges", "energy, eV", "max |F|", "seconds", "path"):
            self.assertIn(title, header)
        self.assertEqual([row.split()[0] for row in rows], ["both.xyz#1", "both.xyz#2", "water8.xyz"])
        self.assertIn(f"{expected()['water8']['energy']:.8f}", rows[2])
        self.assertRegex(rows[2], r"cpu_ref \d+/\d+$")
        self.assertRegex(self.succeed("eval", "--model", support.MODEL, "--use-fast", "false", FILES[2]).out,
                         r"reference\n$")

    def testAHubModelIsFoundByItsName(self):
        (self.folder / "hub").mkdir()
        (self.folder / "hub" / "mace_a").symlink_to(support.MODEL)
        self.env["FASTPATH_HUB"] = str(self.folder / "hub")
        self.assertEqual(self.evaluate(FILES[4], model="mace_a")["frames"][0]["n_edges"], 2)
        self.fail_with("not_found", "eval", "--model", "mace_b", FILES[4], naming=["mace_b"])


class Hessian(support.ProgramTest):
    def tensors(self, path):
        """{name: (dtype, shape, numbers)} of tensors of 64 bit reals and 32 bit integers, and the metadata, of a file."""
        content = path.read_bytes()
        start = 8 + struct.unpack("<Q", content[:8])[0]
        header = json.loads(content[8:start])
        metadata = header.pop("__metadata__", {})
        code = {"F64": "d", "I32": "i"}
        found = {}
        for name, item in header.items():
            if item["dtype"] not in code:
                continue
            begin, end = item["data_offsets"]
            size = (end - begin) // struct.calcsize(code[item["dtype"]])
            numbers = struct.unpack(f"<{size}{code[item['dtype']]}", content[start + begin:start + end])
            found[name] = (item["dtype"], item["shape"], list(numbers))
        return found, metadata

    def testIsThatOfThePackageWithTheAtomsItBelongsTo(self):
        want, _ = self.tensors(support.DATA / "data.safetensors")
        self.use_plugins("cpu_ref")
        for use_fast in ("false", "true"):
            self.evaluate("--use-fast", use_fast, "--hessian", "h.safetensors", FILES[0])
            found, metadata = self.tensors(self.folder / "h.safetensors")
            self.assertEqual(metadata, {"format": "fastpath-hessian", "unit": "eV/angstrom^2"})
            self.assertEqual({name: item[:2] for name, item in found.items()},
                             {"hessian": ("F64", [27, 27]), "atomic_numbers": ("I32", [9]),
                              "positions": ("F64", [9, 3]), "cell": ("F64", [3, 3])})
            self.assertLessEqual(support.difference(found["hessian"][2], want["molecule:hessian"][2]), 1e-10)
            rows = support.read_xyz(FILES[0])[0][1]
            self.assertEqual(len(rows), 9)
            self.assertEqual(found["positions"][2][:3], [float(x) for x in rows[0][1:4]])

    def testIsOfOneFrameAndRefusedBeforeTheWorkWhereItCannotBeWritten(self):
        arguments = ["eval", "--model", support.MODEL, "--use-fast", "false"]
        self.fail_with("invalid_argument", *arguments, "--hessian", "h.safetensors", FILES[0], FILES[4],
                       naming=["--hessian", "2 frames"])
        self.fail_with("not_found", *arguments, "--hessian", "absent/h", FILES[0], naming=["--hessian", "absent"])
        self.fail_with("invalid_argument", *arguments, "--hessian", "", FILES[0], naming=["--hessian"])
        self.assertFalse((self.folder / "h.safetensors").exists())


class OutputFile(support.ProgramTest):
    # A comment and a column that must survive, and old results that must not.
    SOURCE = """3
Lattice="9 0 0 0 9 0 0 0 9" Properties=species:S:1:pos:R:3:forces:R:3:tag:I:1 energy=-1.5 stress="1 2 3 4 5 6 7 8 9" title="two words" count=7 pbc="T T T"
O 0.0 0.0 0.0 9 9 9 1
H 0.96 0.0 0.0 9 9 9 2
H -0.24 0.93 0.0 9 9 9 3
3
Properties=species:S:1:pos:R:3 stress="1 2 3 4 5 6 7 8 9"
O 0.0 0.0 0.1
H 0.96 0.0 0.0
H -0.24 0.93 0.0
"""

    def testHoldsTheResultsToTheLastBitAndKeepsTheRest(self):
        source = self.file("in.xyz", self.SOURCE)
        output = self.folder / "out.xyz"
        frames = self.evaluate("--use-fast", "false", source, "--output", output)["frames"]
        written = support.read_xyz(output)
        self.assertEqual(len(written), 2)
        for (comment, rows), frame in zip(written, frames, strict=True):
            info = dict(word.split("=", 1) for word in shlex.split(comment) if "=" in word)
            self.assertEqual(float(info["energy"]), frame["energy"])
            names = info["Properties"].split(":")
            columns = {}
            at = 0
            for name, width in zip(names[::3], map(int, names[2::3])):
                columns[name] = [row[at:at + width] for row in rows]
                at += width
            self.assertEqual([[float(x) for x in row] for row in columns["forces"]], frame["forces"])
            if frame["index"] == 0:
                self.assertEqual([float(x) for x in info["stress"].split()], support.flat(frame["stress"]))
                self.assertEqual((info["title"], info["count"]), ("two words", "7"))
                self.assertEqual(columns["tag"], [["1"], ["2"], ["3"]])
            else:
                self.assertNotIn("stress", info)

    def testReadsBackToTheSameResults(self):
        source = self.file("in.xyz", self.SOURCE)
        first = self.evaluate("--use-fast", "false", source, "--output", "out.xyz")["frames"]
        again = self.evaluate("--use-fast", "false", "out.xyz")["frames"]
        for a, b in zip(first, again, strict=True):
            for key in ("energy", "forces", "stress", "n_edges"):
                self.assertEqual(a[key], b[key])

    def testMayReplaceItsOwnInput(self):
        source = self.file("in.xyz", self.SOURCE)
        frames = self.evaluate("--use-fast", "false", source, "--output", source)["frames"]
        self.assertIn(repr(frames[0]["energy"]), source.read_text())
        self.assertEqual([p.name for p in self.folder.iterdir() if p.is_file()], ["in.xyz"])

    def testDoesNotReplaceWhatElseIsRead(self):
        model = self.folder / "model"
        shutil.copytree(support.MODEL, model)
        water = self.file("water.xyz", (support.STRUCTURES / "water.xyz").read_text())
        before = {path: path.read_bytes() for path in [water, *model.iterdir()]}
        command = ("eval", "--model", model, "--use-fast", "false", water)
        for option, file in (("--output", model / "config.json"), ("--lock", model / "model.safetensors"),
                             ("--hessian", water), ("--lock", self.folder / "." / "water.xyz")):
            self.fail_with("invalid_argument", *command, option, file, naming=[option, file, "is read by this command"])
        self.assertEqual({path: path.read_bytes() for path in before}, before)

    def testIsNotTouchedIfOneFrameFails(self):
        bad = self.SOURCE + "1\nProperties=species:S:1:pos:R:3\nXe 0 0 0\n"
        source = self.file("in.xyz", bad)
        output = self.file("out.xyz", "precious")
        self.fail_with("invalid_argument", "eval", "--model", support.MODEL, source, "--output", output,
                       naming=[source, "frame 3", "Xe"])
        self.assertEqual(output.read_text(), "precious")
        self.assertEqual(sorted(p.name for p in self.folder.iterdir() if p.is_file()), ["in.xyz", "out.xyz"])

    def testIsWholeOrAbsentAfterASignalAndNothingIsBesideIt(self):
        # Large enough that a signal at the first sight of a new file comes while it is being written.
        source = self.file("in/in.xyz", ('1\na="' + "x" * 1000000 + '"\nH 0 0 0\n') * 20)
        for signal_ in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            with self.subTest(signal=signal_):
                folder = self.folder / signal_.name
                folder.mkdir()
                process = subprocess.Popen([self.program, "eval", "--model", support.MODEL, "--use-fast", "false",
                                            "--output", folder / "out.xyz", source], env=self.env,
                                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                while process.poll() is None and not any(folder.iterdir()):
                    time.sleep(0.001)
                process.send_signal(signal_)
                process.wait()
                for file in folder.iterdir():
                    self.assertEqual(file.name, "out.xyz")
                    self.assertEqual(len(support.read_xyz(file)), 20)

    def testThatGrowsBeyondALimitIsAnErrorAndLeavesNothing(self):
        source = self.file("in.xyz", self.SOURCE)
        for arguments in (["eval", "--model", support.MODEL, source, "--output", "out.xyz"],
                          ["hub", "create", support.ROOT / "examples/models/demo.config.json", "--seed", 1,
                           "--output", "model"]):
            result = self.run_program(*arguments, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (99, 99)))
            self.assertEqual((result.status, result.out), (5, ""), result.err)
            self.assertIn("File too large", result.err)
            # Besides what is kept about plugins, in the home of this test.
            self.assertEqual([p.name for p in self.folder.iterdir() if p.name != "home"], ["in.xyz"])

    def testAtALinkIsMadeWhereTheLinkLeads(self):
        source = self.file("in.xyz", self.SOURCE)
        (self.folder / "first").symlink_to("second")
        (self.folder / "second").symlink_to("out.xyz")
        self.evaluate(source, "--output", "first")
        self.assertTrue((self.folder / "first").is_symlink() and (self.folder / "second").is_symlink())
        self.assertEqual(len(support.read_xyz(self.folder / "out.xyz")), 2)
        (self.folder / "loop").symlink_to("loop")
        self.fail_with("io", "eval", "--model", support.MODEL, source, "--output", "loop", naming=["loop", "link"])
        self.assertTrue((self.folder / "loop").is_symlink())

    def testThatCannotBeWrittenIsAnErrorBeforeTheWork(self):
        source = self.file("in.xyz", self.SOURCE)
        self.fail_with("not_found", "eval", "--model", support.MODEL, source, "--output", "absent/out.xyz",
                       naming=["absent"])
        self.fail_with("invalid_argument", "eval", "--model", support.MODEL, source, "--output", self.folder,
                       naming=["directory"])


if __name__ == "__main__":
    support.main()
