"""`fastpath train`: runs, interruptions, and what is wrong with configurations, data and disks."""
import fcntl
import json
import os
import random
import resource
import signal
import subprocess

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

    def testEarlyStoppingKeepsTheBestWeights(self):
        config = self.config(epochs=1000, early_stopping=2, optimizer={"learning_rate": 1.0}, explosion=0)
        result = self.succeed("train", config, "--json").json
        self.assertTrue(result["stopped_early"])
        self.assertEqual(result["epochs"], result["best"]["epoch"] + 2)

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

    def testDuplicatesAreWarnedOf(self):
        frames = frames_of("train", 2)
        self.file("train.xyz", frames[0] + frames[1] + frames[0])
        result = self.succeed("train", self.config(epochs=1))
        self.assertIn("warning", result.err)
        self.assertIn("train.xyz, frame 1 and train.xyz, frame 3", result.err)

    def testHelpTeaches(self):
        text = self.succeed("train", "--help").out
        for word in ("hidden_irreps", "docs/training.md", "checkpoint", "--restart", "examples/train_silicon"):
            self.assertIn(word, text)


if __name__ == "__main__":
    support.main()
