import json

import support

WATER = support.STRUCTURES / "water.xyz"


class Lock(support.ProgramTest):
    def evaluate(self, *arguments):
        return self.succeed("eval", "--model", support.MODEL, "--json", *arguments, WATER).json["frames"][0]

    def testARunIsRepeatedByItsLockUnderAnyUseFast(self):
        first = self.evaluate("--use-fast", "true", "--lock", "run.lock")
        for use_fast in ("true", "auto"):
            again = self.evaluate("--use-fast", use_fast, "--replay", "run.lock")
            self.assertEqual(again["energy"], first["energy"])
            self.assertEqual([d["choice"] for d in again["decisions"]], [d["choice"] for d in first["decisions"]])
            own = {d["reason"]["code"] for d in again["decisions"] if d["choice"] != "reference"}
            self.assertEqual(own, {"lock"})
        explained = self.succeed("explain", "--model", support.MODEL, "--replay", "run.lock", "--json", WATER).json
        self.assertEqual([d["choice"] for d in explained["decisions"]], [d["choice"] for d in first["decisions"]])

    def testFramesThatWereJoinedAreJoinedAgain(self):
        # Alone each would be too small for a kernel, and no size of the lock is theirs.
        cpu = next(device["model"] for plugin in self.succeed("list", "--json").json["plugins"]
                   for device in plugin["devices"] if device["name"] == "cpu")
        self.file("policy.json", json.dumps({"min_edges_float64": {cpu: 4800}}))
        run = ["eval", "--model", support.MODEL, "--use-fast", "auto", "--policy", "policy.json", "--json",
               support.STRUCTURES / "ethanol.xyz", WATER]
        first = self.succeed(*run, "--lock", "run.lock").json["frames"]
        self.assertEqual([frame["joined"] for frame in first], [2, 2])
        lock = json.loads((self.folder / "run.lock").read_text())
        self.assertEqual({choice["min_edges"] for choice in lock["choices"]}, {4800})
        again = self.succeed(*run, "--replay", "run.lock").json["frames"]
        self.assertEqual([frame["energy"] for frame in again], [frame["energy"] for frame in first])

    def testTheReferenceIsLockedToo(self):
        self.evaluate("--use-fast", "false", "--lock", "run.lock")
        again = self.evaluate("--use-fast", "true", "--replay", "run.lock")
        self.assertEqual({(d["choice"], d["reason"]["code"]) for d in again["decisions"]}, {("reference", "lock")})

    def testWhatDiffersIsNamed(self):
        self.evaluate("--use-fast", "true", "--lock", "run.lock")
        replay = ["eval", "--model", support.MODEL, "--replay", "run.lock"]
        self.fail_with("unavailable", *replay, "--no-forces", WATER, naming=["lock", "forward"])
        self.fail_with("unavailable", *replay, "--dtype", "float32", WATER, naming=["float64", "float32"])
        self.fail_with("invalid_argument", *replay, "--use-fast", "false", WATER, naming=["--replay"])
        lock = json.loads((self.folder / "run.lock").read_text())
        for choice in lock["choices"]:
            choice["build"] = choice["build"] and "another"
        self.file("run.lock", json.dumps(lock))
        self.fail_with("unavailable", *replay, WATER, naming=["another"])
        self.use_plugins()
        self.fail_with("unavailable", *replay, WATER, naming=["cpu_", "no such plugin is usable here"])

    def testAFileThatIsNoLockAndOneThatCannotBeWrittenAreNamed(self):
        self.file("run.lock", "{}")
        self.fail_with("bad_file", "eval", "--model", support.MODEL, "--replay", "run.lock", WATER,
                       naming=["--replay", "run.lock"])
        self.fail_with("not_found", "eval", "--model", support.MODEL, "--lock", "none/run.lock", WATER,
                       naming=["--lock", "none"])


if __name__ == "__main__":
    support.main()
