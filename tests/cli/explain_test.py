import support

DECISION = ["module", "op", "choice", "reason", "candidates"]


class Explain(support.ProgramTest):
    def explain(self, *arguments):
        return self.succeed("explain", "--model", support.MODEL, "--json", *arguments).json

    def testJsonHasExactlyTheDocumentedShape(self):
        result = self.explain("--use-fast", "true", "--edges", "5000")
        self.assertEqual(list(result), ["model", "device", "dtype", "use_fast", "passes", "n_edges", "decisions",
                                        "measured", "not_counting", "unused_plugins"])
        self.assertEqual((result["measured"], result["not_counting"]), ([], []))
        self.assertEqual((result["device"], result["dtype"], result["use_fast"], result["n_edges"]),
                         ("cpu", "float64", "true", 5000))
        self.assertTrue(result["decisions"])
        for decision in result["decisions"]:
            self.assertEqual(list(decision), DECISION)
            self.assertEqual(list(decision["reason"]), ["code", "text"])
            for candidate in decision["candidates"]:
                self.assertEqual(list(candidate), ["plugin", "verdict", "reasons"])
                for reason in candidate["reasons"]:
                    self.assertEqual(list(reason), ["code", "text"])
        self.assertTrue({"cpu_ref", "cpu_simd"} & {d["choice"] for d in result["decisions"]})

    def testTakesTheSizeOfTheFirstFrame(self):
        self.assertEqual(self.explain(support.DATA / "water8.xyz")["n_edges"], 1288)
        self.fail_with("invalid_argument", "explain", "--model", support.MODEL, "--edges", "5",
                       support.DATA / "water8.xyz", naming=["--edges"])

    def testDecidesForThePassesThatAreAskedFor(self):
        plain = "forward, backward"
        self.assertEqual(self.explain()["passes"], plain)
        for passes, named in (("energy", "forward"), ("forces", plain),
                              ("training", plain + ", forward_tangent, backward_tangent")):
            result = self.explain("--passes", passes, "--use-fast", "true")
            self.assertEqual(result["passes"], named)
            self.assertTrue({"cpu_ref", "cpu_simd"} & {d["choice"] for d in result["decisions"]})
        self.fail_with("invalid_argument", "explain", "--model", support.MODEL, "--passes", "all", naming=["'all'"])

    def testUnderFalseNoPluginIsAskedOrListed(self):
        self.use_plugins()
        self.file("plugins/fastpath_broken.so", "hello")
        result = self.explain("--use-fast", "false")
        self.assertEqual({d["reason"]["code"] for d in result["decisions"]}, {"forced_reference"})
        self.assertEqual({d["choice"] for d in result["decisions"]}, {"reference"})
        self.assertEqual([d for d in result["decisions"] if d["candidates"]], [])
        self.assertEqual(result["unused_plugins"], [])

    def testUnderAutoOnTheCpuNothingIsMeasuredAndPriorsMayBeLeftOut(self):
        result = self.explain("--no-priors")
        self.assertEqual(result["use_fast"], "auto")
        self.assertEqual({d["reason"]["code"] for d in result["decisions"] if d["op"] != "message_step"},
                         {"unmeasured"})
        self.assertIn("prior", {d["reason"]["code"] for d in self.explain()["decisions"]})

    def testAPolicyFromAFileCountsAndAFaultInItIsNamed(self):
        self.file("policy.json", '{"preference": ["cpu_ref"], "use_priors": false}')
        decisions = self.explain("--policy", "policy.json", "--use-fast", "true")["decisions"]
        self.assertEqual({d["choice"] for d in decisions} - {"reference"}, {"cpu_ref"})
        self.assertEqual({d["choice"] for d in self.explain("--policy", "policy.json")["decisions"]}, {"reference"})
        self.file("policy.json", '{"min_edgs": {}}')
        self.fail_with("bad_file", "explain", "--model", support.MODEL, "--policy", "policy.json",
                       naming=["--policy", "policy.json", "min_edgs"])

    def testTheEnvironmentChoosesByOpAndWhatItNamesMustBeThere(self):
        self.env["FASTPATH_OP_SYMMETRIC_CONTRACTION"] = "reference"
        for use_fast in ("true", "auto"):
            decisions = self.explain("--use-fast", use_fast)["decisions"]
            found = [d for d in decisions if d["op"] == "symmetric_contraction"]
            self.assertTrue(found)
            self.assertEqual({(d["choice"], d["reason"]["code"]) for d in found}, {("reference", "environment")})
        self.env["FASTPATH_OP_SYMMETRIC_CONTRACTION"] = "cpu_fast"
        self.fail_with("invalid_argument", "explain", "--model", support.MODEL,
                       naming=["FASTPATH_OP_SYMMETRIC_CONTRACTION", "cpu_fast", "cpu_ref"])
        del self.env["FASTPATH_OP_SYMMETRIC_CONTRACTION"]
        self.env["FASTPATH_OP_CONTRACTION"] = "reference"
        self.fail_with("invalid_argument", "explain", "--model", support.MODEL,
                       naming=["FASTPATH_OP_CONTRACTION", "SYMMETRIC_CONTRACTION"])

    def testPluginsThatCannotBeUsedAreListed(self):
        self.use_plugins()
        self.file("plugins/fastpath_broken.so", "hello")
        result = self.explain("--use-fast", "true")
        self.assertEqual({d["reason"]["code"] for d in result["decisions"]}, {"no_kernel"})
        self.assertEqual([(p["id"], p["state"], p["reason"]["code"]) for p in result["unused_plugins"]],
                         [("broken", "rejected", "not_elf")])
        text = self.succeed("explain", "--model", support.MODEL, "--use-fast", "true").out
        self.assertRegex(text, r"Plugins that are not used:\n  broken \(rejected\): not_elf: ")

    def testTheTableHasEveryModuleAndVerboseEveryCandidate(self):
        decisions = self.explain("--use-fast", "true")["decisions"]
        table = self.succeed("explain", "--model", support.MODEL, "--use-fast", "true").out
        verbose = self.succeed("explain", "--model", support.MODEL, "--use-fast", "true", "--verbose").out
        for line in table.split("\n\n")[1].splitlines():
            self.assertLessEqual(len(line), 80, line)
        for decision in decisions:
            self.assertIn(f"\n{decision['module']} ({decision['op']}): {decision['choice']}\n", verbose)
            for candidate in decision["candidates"]:
                self.assertIn(f"  {candidate['plugin']} is {candidate['verdict']}\n", verbose)
        # What fused kernels do, or parts do for want of one, is nobody's shortcoming.
        within = [d for d in decisions if d["reason"]["code"] in ("in_parts", "covered_by_parent")]
        own = [d["choice"] for d in decisions if d not in within]
        self.assertTrue(within and own)
        by = ", ".join(f"{own.count(choice)} by {choice}" for choice in sorted(set(own)))
        self.assertIn(f"{len(decisions)} modules with a fast path: {by}, {len(within)} within others\n", table)


if __name__ == "__main__":
    support.main()
