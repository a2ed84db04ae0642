"""`fastpath train`: runs, interruptions, and what is wrong with configurations, data and disks."""
import fcntl
import json
import os
import pathlib
import random
import re
import resource
import shutil
import signal
import struct
import subprocess
import time

import support

SILICON = support.ROOT / "examples" / "train_silicon"
MODEL = {
    "r_max": 3.0, "num_bessel": 3, "polynomial_cutoff_p": 5, "radial_mlp": [4], "l_max": 1, "hidden_irreps": "2x0e+2x1o",
    "num_interactions": 2, "correlation": 2, "interaction_first": "RealAgnosticInteractionBlock",
    "interaction": "RealAgnosticResidualInteractionBlock",
}


def frames_of(name, count, kind="strained"):
    """The first frames of a kind, as text."""
    lines = (SILICON / f"{name}.xyz").read_text().splitlines(keepends=True)
    frames = []
    while lines:
        size = int(lines[0]) + 2
        if f"kind={kind}" in lines[1]:
            frames.append("".join(lines[:size]))
        lines = lines[size:]
    return frames[:count]


class Train(support.ProgramTest):
    def setUp(self):
        super().setUp()
        self.file("train.xyz", "".join(frames_of("train", 6)))
        self.file("validation.xyz", "".join(frames_of("validation", 2)))

    def config(self, name="config.json", **changes):
        """Writes a configuration of a small, short run; a dict in `changes` changes keys of a section."""
        config = {"data": {"training": "train.xyz", "validation": "validation.xyz"}, "model": dict(MODEL),
                  "loss": {"energy": 1, "forces": 1, "stress": 1}, "batch_size": 2, "epochs": 3, "output": "run"}
        if changes.pop("replace_model", False):
            config["model"] = changes.pop("model")
        for key, value in changes.items():
            if isinstance(value, dict) and key in config:
                config[key] = {**config[key], **value}
            else:
                config[key] = value
        return self.file(name, json.dumps(config))

    def content(self, run, *names):
        return [(self.folder / run / name).read_bytes() for name in names or ("model/model.safetensors",
                                                                             "model/config.json")]

    def log(self, run="run"):
        return [json.loads(line) for line in (self.folder / run / "log.jsonl").read_text().splitlines()]

    def testMakesAModelThatEvalLoads(self):
        result = self.succeed("train", self.config(epochs=4, optimizer={"learning_rate": 0.02}), "--json").json
        self.assertTrue(result["finished"])
        self.assertFalse(result["resumed"])
        log = self.log()
        self.assertEqual([line["epoch"] for line in log], [1, 2, 3, 4])
        best = min(log, key=lambda line: line["validation_loss"])
        self.assertEqual(result["best"]["epoch"], best["epoch"])
        # The model in the folder has the errors that were reported of it.
        frames = self.evaluate(self.folder / "validation.xyz", "--use-fast", "true", model=result["model"])["frames"]
        squares = []
        for frame, (_, rows) in zip(frames, support.read_xyz(self.folder / "validation.xyz")):
            labels = [[float(word) for word in row[4:7]] for row in rows]
            squares += [(a - b) ** 2 for a, b in zip(support.flat(frame["forces"]), support.flat(labels))]
        rmse = (sum(squares) / len(squares)) ** 0.5
        self.assertLess(abs(rmse - best["forces_rmse"]), 1e-9)
        self.assertLess(log[-1]["training_loss"], log[0]["training_loss"])
        svg = (self.folder / "run" / "curves.svg").read_text()
        self.assertEqual(svg.count("<polyline"), 5)

    def testTheSameSeedGivesTheSameBytes(self):
        config = self.config(epochs=2)
        self.succeed("train", config)
        self.succeed("train", config, "--output", "again", "--threads", 1)
        self.assertEqual(self.content("run"), self.content("again"))
        self.succeed("train", self.config("other.json", epochs=2, seed=2, output="other"))
        self.assertNotEqual(self.content("run"), self.content("other"))

    def testFastAndReferenceGiveTheSameLosses(self):
        config = self.config(epochs=2)
        self.succeed("train", config, "--use-fast", "false", "--output", "slow")
        self.succeed("train", config, "--use-fast", "true", "--output", "fast")
        for slow, fast in zip(self.log("slow"), self.log("fast")):
            for key in ("training_loss", "validation_loss", "forces_rmse"):
                # Steps carry roundings on; after six of them more is left of 1e-16 than after one.
                self.assertLess(abs(slow[key] - fast[key]), 1e-9 * abs(slow[key]), key)

    def testKilledAtAnyMomentItEndsWithTheSameFile(self):
        config = self.config(checkpoint_seconds=0, epochs=12)
        self.succeed("train", config, "--output", "whole")
        choose = random.Random(3)
        command = [self.program, "train", str(config), "--output", "killed"]
        kills = 0
        while True:
            process = subprocess.Popen(command, env=self.env, cwd=self.folder, stdout=subprocess.DEVNULL,
                                       stderr=subprocess.PIPE)
            try:
                # Longer each time, so that the run comes to its end however slow the machine is.
                _, err = process.communicate(timeout=choose.uniform(0.01, 0.03) * 1.1 ** kills)
                self.assertEqual(process.returncode, 0, err)
                break
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
                kills += 1
        self.assertGreater(kills, 0)
        self.assertEqual(self.content("whole"), self.content("killed"))
        unlike = [{**line, "seconds": 0} for line in self.log("killed")]
        self.assertEqual(unlike, [{**line, "seconds": 0} for line in self.log("whole")])
        left = [path.name for path in (self.folder / "killed").iterdir()]
        self.assertEqual(sorted(left), [".lock", "checkpoint.safetensors", "curves.svg", "log.jsonl", "model"])

    def testASignalEndsItWithACheckpoint(self):
        config = self.config(checkpoint_seconds=1000, epochs=100000)
        process = subprocess.Popen([self.program, "train", str(config)], env=self.env, cwd=self.folder,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        while b"validation" not in process.stdout.readline():  # the head of the table: an epoch is done
            self.assertIsNone(process.poll())
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, -signal.SIGTERM, err)
        self.assertIn(b"the same command goes on from", out)
        done = len(self.log())
        result = self.succeed("train", config, "--epochs", done + 1, "--json").json
        self.assertTrue(result["resumed"])
        self.succeed("train", config, "--epochs", done + 1, "--output", "whole")
        self.assertEqual(self.content("run"), self.content("whole"))

    def testAFinishedRunGoesOnWithMoreEpochs(self):
        config = self.config(epochs=1)
        self.succeed("train", config)
        again = self.succeed("train", config, "--json").json
        self.assertEqual((again["resumed"], again["epochs"]), (True, 1))
        self.succeed("train", config, "--epochs", 3)
        self.succeed("train", config, "--epochs", 3, "--output", "whole")
        self.assertEqual(self.content("run"), self.content("whole"))
        self.fail_with("invalid_argument", "train", config, naming=["after 3 epochs, the configuration has 1"])

    def testARunOfAnotherConfigurationIsRefused(self):
        self.succeed("train", self.config(epochs=1))
        other = self.config("other.json", epochs=1, optimizer={"learning_rate": 0.5}, batch_size=3)
        self.fail_with("invalid_argument", "train", other,
                       naming=["checkpoint.safetensors", "optimizer.learning_rate is 0.01, here 0.5",
                               "batch_size is 2, here 3", "--restart"])
        before = self.content("run")
        self.assertFalse(self.succeed("train", other, "--restart", "--json").json["resumed"])
        self.assertNotEqual(self.content("run"), before)

    def testDataThatChangedIsRefused(self):
        config = self.config(epochs=1)
        self.succeed("train", config)
        self.file("train.xyz", "".join(frames_of("train", 5)))
        self.fail_with("invalid_argument", "train", config, naming=["data.training has other content"])

    def testResumeWantsACheckpoint(self):
        self.fail_with("not_found", "train", self.config(), "--resume", naming=["run", "no checkpoint"])

    def testTwoProcessesDoNotTrainInOneFolder(self):
        config = self.config(epochs=1)
        (self.folder / "run").mkdir()
        with open(self.folder / "run" / ".lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self.fail_with("invalid_argument", "train", config, naming=["another process is training"])

    def testAFullDiskLeavesTheLastCheckpoint(self):
        config = self.config(epochs=1)
        self.succeed("train", config)
        before = self.content("run", "checkpoint.safetensors")
        # A limit on the size of files stands for the end of the disk: log and curves fit, a checkpoint does not.
        limit = len(before[0]) // 2
        command = [self.program, "train", str(config), "--epochs", "3"]
        result = subprocess.run(command, env=self.env, cwd=self.folder, capture_output=True, check=False,
                                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)))
        self.assertEqual(result.returncode, support.ERROR_CODES["io"], result.stderr)
        self.assertIn(b"checkpoint.safetensors: cannot write: File too large", result.stderr)
        self.assertEqual(self.content("run", "checkpoint.safetensors"), before)
        self.assertEqual([path.name for path in (self.folder / "run").glob(".fastpath*")], [])
        self.succeed("train", config, "--epochs", 3)
        self.succeed("train", config, "--epochs", 3, "--output", "whole")
        self.assertEqual(self.content("run"), self.content("whole"))

    def testALogThatCannotBeWrittenIsAnError(self):
        config = self.config(epochs=1)
        (self.folder / "run").mkdir()
        os.symlink("/dev/full", self.folder / "run" / "log.jsonl")
        self.fail_with("io", "train", config, "--json", naming=["log.jsonl", "No space left on device"])
        os.unlink(self.folder / "run" / "log.jsonl")
        self.succeed("train", config, "--resume")
        self.assertEqual(len(self.log()), 1)

    def testAnExplodingLossNamesItsStructures(self):
        config = self.config(epochs=50, batch_size=1, explosion=10,
                             optimizer={"learning_rate": 10, "clip_norm": 0})
        self.fail_with("numerics", "train", config, "--json",
                       naming=["epoch ", "batch ", "(train.xyz, frame ", "the loss is "])

    def testALossThatBeganAtNothingIsNoExplosion(self):
        """A model whose own results are the labels has nothing but rounding to compare later batches with."""
        model = self.starting_model()
        for name in ("train.xyz", "validation.xyz"):
            self.succeed("eval", "--model", model, "--use-fast", "false", "--output", "own." + name, self.folder / name)
        result = self.succeed("train", self.config(
            model={"start_from": str(model)}, replace_model=True, batch_size=1, output="own", epochs=2, explosion=1.0001,
            data={"training": "own.train.xyz", "validation": "own.validation.xyz"}), "--json").json
        self.assertTrue(result["finished"])
        self.assertLess(self.log("own")[0]["validation_loss"], 1e-20)

    def testFramesOfSeveralHeadsAreNotMixed(self):
        frames = [frame.replace(" energy=", " head=HEAD energy=") for frame in frames_of("train", 6)]

        def with_head(*heads, first=0):
            return "".join(f.replace("head=HEAD", head) for f, head in zip(frames[first:], heads))

        self.file("train.xyz", with_head("head=pbe", "head=pbe", "head=scan"))
        self.fail_with("bad_file", "train", self.config(),
                       naming=["train.xyz, frame 1 has head=pbe", "train.xyz, frame 3 has head=scan", "one for each"])
        self.file("train.xyz", with_head("", "head=pbe", "head=pbe"))
        self.fail_with("bad_file", "train", self.config(), naming=["train.xyz, frame 1 has no head=", "frame 2"])
        self.file("train.xyz", with_head("head=pbe", "head=pbe", "head=pbe"))
        self.file("validation.xyz", with_head("head=pbe", "head=pbe", "head=pbe", first=3))
        result = self.succeed("train", self.config(epochs=1))
        self.assertIn("all frames have head=pbe; the new model has one head", result.err)
        start = {"model": {"start_from": str(self.folder / "run" / "model")}, "replace_model": True, "output": "more"}
        self.fail_with("bad_file", "train", self.config(**start), naming=["train.xyz, frame 1 has head=pbe", "'default'"])
        self.file("train.xyz", with_head("head=default", "", "head=default"))
        self.file("validation.xyz", with_head("", "", "", first=3))
        self.succeed("train", self.config(epochs=1, **start))

    def testEarlyStoppingKeepsTheBestWeights(self):
        config = self.config(epochs=1000, early_stopping=2, optimizer={"learning_rate": 1.0}, explosion=0)
        result = self.succeed("train", config, "--json").json
        self.assertTrue(result["stopped_early"])
        self.assertEqual(result["epochs"], result["best"]["epoch"] + 2)
        # The same command leaves it so; more epochs than were asked for go on, as long again.
        self.assertEqual(self.succeed("train", config, "--json").json["epochs"], result["epochs"])
        longer = self.succeed("train", config, "--epochs", "1001", "--json").json
        self.assertTrue(longer["stopped_early"])
        self.assertGreaterEqual(longer["epochs"], result["epochs"] + 2)
        again = self.succeed("train", config, "--epochs", "1001")
        self.assertIn(f"of {longer['epochs']}, which ended early as no better one came", again.out)

    def testConfigurationErrorsNameTheKey(self):
        self.fail_with("bad_file", "train", self.config(loss={"frces": 1}, batch_size="two"),
                       naming=["config.json", "key 'loss.frces' is unknown, expected energy, forces",
                               "key 'batch_size' is 'two', expected an integer"])
        self.fail_with("not_found", "train", "nowhere.json", naming=["nowhere.json"])
        self.fail_with("invalid_argument", "train", naming=["no config"])

    def testDataErrorsNameTheFrame(self):
        frames = frames_of("train", 3)
        self.file("train.xyz", frames[0] + frames[1].replace(" energy=", " e0="))
        self.fail_with("bad_file", "train", self.config(), naming=["train.xyz", "'energy' in frame 2"])
        self.file("train.xyz", frames[0] + frames[1].replace("Si ", "Ge "))
        self.fail_with("bad_file", "train", self.config(model={"atomic_numbers": [14]}),
                       naming=["train.xyz, frame 2", "Ge", "the model has Si"])
        self.file("train.xyz", frames[0] + frames[1])
        self.file("validation.xyz", "")
        self.fail_with("bad_file", "train", self.config(), naming=["validation.xyz"])
        self.assertFalse((self.folder / "run").exists())

    def testWeightsOfFramesEnterTheLossAndNoErrors(self):
        model = self.starting_model()
        start = {"model": {"start_from": str(model)}, "replace_model": True, "epochs": 1}
        self.succeed("train", self.config(**start))
        plain = self.log()[0]
        text = (self.folder / "validation.xyz").read_text()
        self.file("validation.xyz", text.replace(" energy=", " config_weight=2 config_forces_weight=1.5 energy="))
        self.succeed("train", self.config(**start, loss={"forces": 2 / 3}, output="weighted"))
        weighted = self.log("weighted")[0]
        self.assertLess(abs(weighted["validation_loss"] - 2 * plain["validation_loss"]),
                        1e-12 * plain["validation_loss"])
        for key in ("energy_rmse", "forces_rmse", "stress_rmse"):
            self.assertEqual(weighted[key], plain[key])
        self.file("validation.xyz", text.replace(" energy=", " config_weight=-2 energy="))
        self.fail_with("bad_file", "train", self.config(**start),
                       naming=["validation.xyz, frame 1", "'config_weight' is -2"])

    def testDuplicatesAreWarnedOf(self):
        frames = frames_of("train", 2)
        self.file("train.xyz", frames[0] + frames[1] + frames[0])
        result = self.succeed("train", self.config(epochs=1))
        self.assertIn("warning", result.err)
        self.assertIn("train.xyz, frame 1 and train.xyz, frame 3", result.err)

    def testAReferenceEnergyOfAnElementThatIsNotThereIsNamed(self):
        self.fail_with("bad_file", "train", self.config(reference_energies={"Si": -1.0, "Ge": -2.0}),
                       naming=["'reference_energies' has an energy of Ge", "it has Si"])

    def testStressesThatMeanNothingAreWarnedOf(self):
        frames = frames_of("train", 2)
        stress = ' stress="0 0 0 0 0 0 0 0 0"'
        open_frame = re.sub(r' pbc="[^"]*"', "", frames[0]).replace(" energy=", ' pbc="T T F" energy=')
        self.file("train.xyz", "".join(re.sub(r' stress="[^"]*"', "", frame).replace(" energy=", stress + " energy=")
                                       for frame in (frames[1], open_frame)))
        result = self.succeed("train", self.config(epochs=1, loss={"stress": 1}))
        self.assertIn("warning", result.err)
        self.assertIn("train.xyz, frame 2: 1 of 2 frames have 'stress' but are not periodic", result.err)

    # On a terminal.

    PROGRESS = r"epoch \d+/\d+, batch \d+/\d+, loss [-+.e\d]+(, (\d+ h )?(\d+ min)? ?(\d+ s)? ?left)?"

    def testATerminalShowsHowFarItIs(self):
        terminal = support.Terminal(self, "train", self.config(epochs=40))
        status, screen = terminal.finish()
        self.assertEqual(status, 0, screen)
        shown = [text for text in terminal.texts() if text.startswith("epoch ") and "batch" in text]
        self.assertTrue(shown)
        for text in shown:
            self.assertRegex(text, f"^{self.PROGRESS}$")
            self.assertLess(len(text), 80)
        self.assertRegex(shown[0], "^epoch 1/40, batch 1/3, loss ")
        # At the end only the table is left, each line in a line of its own.
        rows = [line for line in screen if re.match(r" +\d+ ", line)]
        self.assertEqual([int(row.split()[0]) for row in rows], list(range(1, 41)))
        self.assertFalse([line for line in screen if "batch" in line])
        self.assertEqual(screen[-1], "")
        self.assertIn("/model: the model of epoch", "".join(screen))
        for line in [" " + line.strip() for line in rows]:
            self.assertLess(len(line), 80)

    def testTheTimeLeftIsShownWhereItIsKnown(self):
        terminal = support.Terminal(self, "train", self.config(epochs=100000))
        terminal.wait_for(rb"loss [-+.e\d]+, [ \dhmins]+ left")
        terminal.press(b"\x03")
        self.assertEqual(terminal.finish()[0], -signal.SIGINT)

    def testCtrlCLeavesACleanLine(self):
        config = self.config(epochs=100000)
        terminal = support.Terminal(self, "train", config)
        terminal.wait_for(rb"epoch (?!1/)\d+/100000, batch")
        terminal.press(b"\x03")
        status, screen = terminal.finish()
        self.assertEqual(status, -signal.SIGINT, screen)
        self.assertIn(b"^C", terminal.output)
        self.assertFalse([line for line in screen if "^C" in line or "batch" in line], screen)
        self.assertRegex("".join(screen[-4:]), r"stopped after \d+ epochs; the same command goes on from .*safetensors$")
        self.assertEqual(screen[-1], "")

    def testANarrowTerminalShowsOneLineAndADumbOneNone(self):
        config = self.config(epochs=60)
        narrow = support.Terminal(self, "train", config, "--json", columns=30, stdout=subprocess.DEVNULL)
        self.assertEqual(narrow.finish(), (0, [""]))
        self.assertIn(b"epoch 1/60, batch", narrow.output)
        dumb = support.Terminal(self, "train", config, "--restart", "--json", stdout=subprocess.DEVNULL, TERM="dumb")
        self.assertEqual(dumb.finish(), (0, [""]))
        self.assertEqual(dumb.output, b"")

    def testATerminalIsNotFlooded(self):
        terminal = support.Terminal(self, "train", self.config(epochs=300), "--json", stdout=subprocess.DEVNULL)
        start = time.monotonic()
        self.assertEqual(terminal.finish()[0], 0)
        seconds = time.monotonic() - start
        shown = [text for text in terminal.texts() if "batch" in text]
        # 900 batches; a line is shown ten times a second at most, and after each row of the table.
        self.assertLessEqual(len(shown), 2 + 10 * seconds)

    def testAnErrorStandsInALineOfItsOwn(self):
        config = self.config(epochs=50, batch_size=1, explosion=10, optimizer={"learning_rate": 10, "clip_norm": 0})
        terminal = support.Terminal(self, "train", config, columns=400)
        status, screen = terminal.finish()
        self.assertEqual(status, support.ERROR_CODES["numerics"])
        self.assertRegex(screen[-2], "^fastpath: error: epoch ")
        self.assertEqual(screen[-1], "")

    # Fine-tuning.

    def starting_model(self, name="first", frames="train.xyz", **changes):
        """A model that was trained for an epoch."""
        config = self.config(f"{name}.json", epochs=1, output=f"{name}.run", data={"training": frames}, **changes)
        return pathlib.Path(self.succeed("train", config, "--json").json["model"])

    def errors_of(self, model, *options):
        """Errors of a model on the validation set, as `eval` gives its results: eV per atom, eV/A, eV/A^3."""
        frames = self.evaluate(self.folder / "validation.xyz", "--use-fast", "true", *options, model=model)["frames"]
        energy, forces, stress = [], [], []
        for frame, (comment, rows) in zip(frames, support.read_xyz(self.folder / "validation.xyz")):
            label = float(re.search(r"energy=(\S+)", comment)[1])
            energy.append((frame["energy"] - label) / len(rows))
            labels = [float(word) for row in rows for word in row[4:7]]
            forces += [a - b for a, b in zip(support.flat(frame["forces"]), labels)]
            labels = [float(word) for word in re.search(r'stress="([^"]*)"', comment)[1].split()]
            stress += [a - b for a, b in zip(support.flat(frame["stress"]), labels)]
        return [(sum(x * x for x in values) / len(values)) ** 0.5 for values in (energy, forces, stress)]

    def assertErrors(self, line, expected):
        for key, value in zip(("energy_rmse", "forces_rmse", "stress_rmse"), expected):
            self.assertLess(abs(line[key] - value), 1e-9 * max(1, value), key)

    def testAModelToStartFromHasTheErrorsThatEvalGives(self):
        model = self.starting_model()
        result = self.succeed("train", self.config(model={"start_from": str(model.relative_to(self.folder))},
                                                   replace_model=True, epochs=2))
        log = self.log()
        self.assertEqual([line["epoch"] for line in log], [0, 1, 2])
        self.assertIsNone(log[0]["training_loss"])
        self.assertTrue(log[0]["best"])
        self.assertErrors(log[0], self.errors_of(model))
        # Nothing of it was changed before the first step.
        start = self.folder / "run" / "start"
        for name in ("config.json", "model.safetensors"):
            self.assertEqual((start / name).read_bytes(), (model / name).read_bytes())
        self.assertIn("starting from the model", result.out)
        self.assertRegex(result.out, r"(?m)^ +0 +\S+ +- ")
        # Constants are kept to the end, weights are not.
        before, after = (support.read_header(folder / "model.safetensors")
                         for folder in (model, self.folder / "run" / "model"))
        for name in ("atomic_energies_fn.atomic_energies", "scale_shift.scale", "scale_shift.shift"):
            self.assertEqual(*(data[slice(*header[name]["data_offsets"])] for header, data in (before, after)), name)
        self.assertNotEqual(before[1], after[1])
        self.assertEqual(*((folder / "config.json").read_text() for folder in (model, self.folder / "run" / "model")))

    def testAStartThatNoEpochImprovesIsTheResult(self):
        model = self.starting_model()
        config = self.config(model={"start_from": str(model)}, replace_model=True, epochs=1, explosion=0,
                             optimizer={"learning_rate": 5.0, "clip_norm": 0, "average_decay": 0})
        result = self.succeed("train", config, "--json").json
        self.assertEqual((result["best"]["epoch"], result["best"]["training_loss"]), (0, None))
        self.assertEqual(self.content("run"), [(model / name).read_bytes()
                                               for name in ("model.safetensors", "config.json")])

    def testAStartFromTheHub(self):
        model = self.starting_model()
        self.env["FASTPATH_HUB"] = str(self.folder / "hub")
        self.succeed("hub", "add", model, "--name", "first")
        config = self.config(model={"start_from": "first"}, replace_model=True, epochs=1)
        shutil.rmtree(model.parent)
        self.succeed("train", config)
        self.assertEqual(self.log()[0]["epoch"], 0)

    def testAnInterruptedRunNeedsNoStartingModelAnyMore(self):
        model = self.starting_model()
        config = self.config(model={"start_from": str(model)}, replace_model=True, checkpoint_seconds=0, epochs=6,
                             reference_energies="fit")
        self.succeed("train", config, "--output", "whole")
        self.succeed("train", config, "--epochs", 1)
        moved = model.rename(self.folder / "moved")
        choose = random.Random(5)
        command = [self.program, "train", str(config)]
        for kills in range(1000):
            process = subprocess.Popen(command, env=self.env, cwd=self.folder, stdout=subprocess.DEVNULL,
                                       stderr=subprocess.PIPE)
            try:
                _, err = process.communicate(timeout=choose.uniform(0.01, 0.03) * 1.1 ** kills)
                self.assertEqual(process.returncode, 0, err)
                break
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
        self.assertEqual(self.content("whole"), self.content("run"))
        self.assertEqual([{**line, "seconds": 0} for line in self.log("whole")],
                         [{**line, "seconds": 0} for line in self.log("run")])
        # Where it is there again, it must be the same; and the copy is never another.
        shutil.copytree(self.starting_model("other", seed=9), model)
        self.fail_with("invalid_argument", "train", config, naming=["model.start_from has other content", "--restart"])
        shutil.rmtree(model)
        moved.rename(model)
        self.succeed("train", config, "--resume")
        shutil.rmtree(self.folder / "run" / "start")
        shutil.copytree(self.folder / "other.run" / "model", self.folder / "run" / "start")
        self.fail_with("bad_file", "train", config, naming=["'start'", "--restart"])

    def testAStartIsKilledAtAnyMoment(self):
        model = self.starting_model()
        config = self.config(model={"start_from": str(model)}, replace_model=True, checkpoint_seconds=0, epochs=2)
        self.succeed("train", config, "--output", "whole")
        command = [self.program, "train", str(config)]
        for kills in range(1000):
            process = subprocess.Popen(command, env=self.env, cwd=self.folder, stdout=subprocess.DEVNULL,
                                       stderr=subprocess.PIPE)
            try:
                _, err = process.communicate(timeout=0.005 * 1.15 ** kills)
                self.assertEqual(process.returncode, 0, err)
                break
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
        self.assertEqual(self.content("whole"), self.content("run"))
        self.assertEqual(sorted(path.name for path in (self.folder / "run").iterdir()),
                         [".lock", "checkpoint.safetensors", "curves.svg", "log.jsonl", "model", "start"])

    def testReferenceEnergiesThatAreFitLeaveForcesAsTheyAre(self):
        model = self.starting_model()
        offset = 3.25  # eV per atom: another zero of the energy, as another code has
        for name in ("train.xyz", "validation.xyz"):
            text = (self.folder / name).read_text()
            sizes = iter([int(line) for line in text.splitlines() if line.isdigit()])
            self.file(name, re.sub(r" energy=(\S+)", lambda m: f" energy={float(m[1]) + offset * next(sizes)!r}", text))
        kept = self.config("kept.json", model={"start_from": str(model)}, replace_model=True, epochs=1, output="kept")
        fit = self.config("fit.json", model={"start_from": str(model)}, replace_model=True, epochs=1, output="fit",
                          reference_energies="fit")
        shift = self.config("shift.json", model={"start_from": str(model)}, replace_model=True, epochs=1,
                            output="shift", shift="data")
        for config in (kept, fit, shift):
            self.succeed("train", config)
        a, b, c = (self.log(run)[0] for run in ("kept", "fit", "shift"))
        for other in (b, c):
            self.assertLess(abs(a["forces_rmse"] - other["forces_rmse"]), 1e-12)
            self.assertLess(abs(a["stress_rmse"] - other["stress_rmse"]), 1e-12)
            self.assertGreater(a["energy_rmse"], 3)
            self.assertLess(other["energy_rmse"], 0.5)
        self.assertLess(abs(b["energy_rmse"] - c["energy_rmse"]), 1e-9)  # of one element they are the same
        self.assertErrors(b, self.errors_of(self.folder / "fit" / "start"))
        given = self.config("given.json", model={"start_from": str(model)}, replace_model=True, epochs=1,
                            output="given", reference_energies={"Si": 1.5}, shift=0.25)
        self.succeed("train", given)
        header, data = support.read_header(self.folder / "given" / "start" / "model.safetensors")
        for name, value in (("atomic_energies_fn.atomic_energies", 1.5), ("scale_shift.shift", 0.25)):
            self.assertEqual(struct.unpack("<d", data[slice(*header[name]["data_offsets"])]), (value,))

    def testOneOfSeveralHeadsIsGoneOnWith(self):
        model = {"format": "fastpath-model", "format_version": 1, "architecture": "mace", "dtype": "float64",
                 "atomic_numbers": [8, 14], "avg_num_neighbors": 5.0, "heads": ["low", "high", "third"],
                 "mlp_irreps": "5x0e", **MODEL}
        for layers in (1, 2):
            folder = self.folder / f"heads{layers}"
            made = self.file(f"heads{layers}.config.json", json.dumps({**model, "num_interactions": layers}))
            self.succeed("hub", "create", made, "--seed", 4, "--output", folder)
            # A new model has the same energies for all heads; here they differ.
            header, data = support.read_header(folder / "model.safetensors")
            data = bytearray(data)
            for name in ("atomic_energies_fn.atomic_energies", "scale_shift.scale", "scale_shift.shift"):
                start, end = header[name]["data_offsets"]
                values = [0.5 + 0.25 * i for i in range((end - start) // 8)]
                data[start:end] = struct.pack(f"<{len(values)}d", *values)
            support.write_header(folder / "model.safetensors", header, bytes(data))
            run = f"run{layers}"
            config = self.config(model={"start_from": str(folder), "head": "high"}, replace_model=True, epochs=1,
                                 output=run)
            self.succeed("train", config)
            self.assertErrors(self.log(run)[0], self.errors_of(folder, "--head", "high"))
            self.assertErrors(self.log(run)[0], self.errors_of(self.folder / run / "start"))
            trained = json.loads((self.folder / run / "model" / "config.json").read_text())
            self.assertEqual((trained["heads"], trained["atomic_numbers"]), (["high"], [8, 14]))
        several = self.config(model={"start_from": str(folder)}, replace_model=True, output="none")
        self.fail_with("invalid_argument", "train", several, naming=["low, high, third", "model.head"])
        unknown = self.config(model={"start_from": str(folder), "head": "medium"}, replace_model=True, output="none")
        self.fail_with("invalid_argument", "train", unknown, naming=["heads2", "'medium'", "low, high, third"])
        self.assertFalse((self.folder / "none").exists())

    def testTheDtypeOfFilesIsThatOfTheStartOrTheOneAskedFor(self):
        model = self.starting_model(model={"dtype": "float32"})
        config = self.config(model={"start_from": str(model)}, replace_model=True, epochs=1)
        self.succeed("train", config)
        self.assertErrors(self.log()[0], self.errors_of(model))
        wide = self.config(model={"start_from": str(model), "dtype": "float64"}, replace_model=True, epochs=1,
                           output="wide")
        self.succeed("train", wide)
        self.assertErrors(self.log("wide")[0], self.errors_of(model))
        for run, dtype in (("run", "float32"), ("wide", "float64")):
            self.assertEqual(json.loads((self.folder / run / "model" / "config.json").read_text())["dtype"], dtype)
        # Steps are made in float64 from the same numbers.
        self.assertEqual(self.log()[1]["training_loss"], self.log("wide")[1]["training_loss"])

    def testWhatIsWrongWithAStartIsNamed(self):
        model = self.starting_model()
        frames = frames_of("train", 3)
        self.file("other.xyz", frames[0] + frames[1].replace("Si ", "Ge "))
        start = {"model": {"start_from": str(model)}, "replace_model": True}
        self.fail_with("bad_file", "train", self.config(**start, data={"training": "other.xyz"}),
                       naming=["other.xyz, frame 2", "Ge", "the model has Si"])
        self.fail_with("bad_file", "train", self.config(**start, scale="data"),
                       naming=["'scale' is 'data', expected \"model\""])
        self.fail_with("bad_file", "train", self.config(reference_energies="model"),
                       naming=["'reference_energies' is 'model', expected \"fit\""])
        self.fail_with("bad_file", "train",
                       self.config(model={"start_from": str(model), "r_max": 4.0}, replace_model=True),
                       naming=["'model.r_max' is unknown, expected dtype, head, start_from"])
        self.fail_with("not_found", "train", self.config(model={"start_from": "nowhere"}, replace_model=True),
                       naming=["'nowhere'", "no such folder"])
        self.fail_with("not_found", "train", self.config(model={"start_from": "no/where"}, replace_model=True),
                       naming=["no/where", "no such folder"])
        self.assertFalse((self.folder / "run").exists())

    def testAStartIsNotReplacedByItsOwnRun(self):
        model = self.starting_model()
        shutil.copytree(model, self.folder / "run" / "model")
        before = sorted(path.name for path in (self.folder / "run" / "model").iterdir())
        config = self.config(model={"start_from": str(self.folder / "run" / "model")}, replace_model=True)
        self.fail_with("invalid_argument", "train", config, "--restart", naming=["run/model", "which the run replaces"])
        self.assertEqual(sorted(path.name for path in (self.folder / "run" / "model").iterdir()), before)

    def testARunFromAModelIsNoRunOfANewOne(self):
        model = self.starting_model()
        self.succeed("train", self.config(epochs=1))
        start = self.config("start.json", model={"start_from": str(model)}, replace_model=True, epochs=1)
        self.fail_with("invalid_argument", "train", start, naming=["model.start_from is not given", "model.r_max is 3"])
        self.succeed("train", start, "--restart")
        self.assertTrue((self.folder / "run" / "start").exists())
        self.succeed("train", self.config(epochs=1), "--restart")
        self.assertFalse((self.folder / "run" / "start").exists())

    def testHelpTeaches(self):
        text = self.succeed("train", "--help").out
        for word in ("hidden_irreps", "start_from", "docs/training.md", "checkpoint", "--restart", "examples/train_silicon"):
            self.assertIn(word, text)


if __name__ == "__main__":
    support.main()
