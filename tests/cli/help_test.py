import os
import pty
import re
import select
import subprocess

import support

COMMANDS = [["list"], ["doctor"], ["explain"], ["eval"], ["train"], ["tune"], ["bench"], ["compile"], ["export"], ["hub"], ["cache"],
            *(["hub", command] for command in ("list", "show", "add", "verify", "remove", "create"))]


class Help(support.ProgramTest):
    def testNamesEveryCommandAndShowsAnExample(self):
        text = self.succeed("--help").out
        for command in ("list", "doctor", "explain", "eval", "train", "tune", "bench", "compile", "export", "hub", "cache"):
            self.assertRegex(text, rf"(?m)^  {command} +\S")
        self.assertIn("Examples:\n  fastpath ", text)
        self.assertEqual(self.succeed("help").out, text)
        self.assertEqual(self.succeed("-h").out, text)

    def testEveryCommandHasAHelpTextThatFitsATerminal(self):
        for command in COMMANDS:
            with self.subTest(command=command):
                text = self.succeed(*command, "--help").out
                self.assertIn("Usage: fastpath " + " ".join(command), text)
                if command != ["hub"]:
                    self.assertRegex(text, r"Examples?:\n  fastpath ")
                for line in text.split("Example")[0].splitlines():
                    self.assertLessEqual(len(line), 80, line)
                self.assertEqual(self.succeed("help", *command).out, text)

    def testWithoutACommandIsAnErrorThatPointsToHelp(self):
        self.fail_with("invalid_argument", naming=["no command", "fastpath --help"])
        self.fail_with("invalid_argument", "hub", naming=["no command", "fastpath hub --help"])

    def testAnUnknownCommandIsNamedWithTheNearestOne(self):
        self.fail_with("invalid_argument", "lst", naming=["'lst'", "'list'"])
        self.fail_with("invalid_argument", "hub", "craete", naming=["'craete'", "'create'"])
        self.assertNotIn("did you mean", self.fail_with("invalid_argument", "quux", naming=["'quux'"]).err)

    def testAnUnknownOptionIsNamedWithTheNearestOne(self):
        self.fail_with("invalid_argument", "eval", "--modle", "x", "f.xyz", naming=["'--modle'", "'--model'"])
        self.fail_with("invalid_argument", "list", "--jsn", naming=["'--jsn'", "'--json'"])
        self.fail_with("invalid_argument", "--vrsion", naming=["'--vrsion'", "'--version'"])
        # An unambiguous beginning is a misspelling too: scripts would break when an option is added.
        self.fail_with("invalid_argument", "list", "--js", naming=["'--js'", "'--json'"])

    def testOptionsThatLackTheirValueOrRepeatAreNamed(self):
        self.fail_with("invalid_argument", "eval", "--model", naming=["--model"])
        self.fail_with("invalid_argument", "eval", "--model", "a", "--model", "b", "f.xyz", naming=["--model"])
        self.fail_with("invalid_argument", "eval", "f.xyz", naming=["--model"])
        self.fail_with("invalid_argument", "eval", "--model", support.MODEL, naming=["no structure"])
        self.fail_with("invalid_argument", "list", "operand", naming=["operand"])

    def testOptionValuesThatAreNotAcceptedAreNamed(self):
        wrong = {"--device": "gpu", "--dtype": "float16", "--use-fast": "maybe", "--threads": "-1"}
        for option, value in wrong.items():
            with self.subTest(option=option):
                self.fail_with("invalid_argument", "eval", "--model", support.MODEL, option, value, "f.xyz",
                               naming=[option, value])
        for value in ("0", "", "1.5", "99999999999999999999"):
            self.fail_with("invalid_argument", "eval", "--model", support.MODEL, "--threads", value, "f.xyz",
                           naming=["--threads"])
        self.fail_with("invalid_argument", "eval", "--model", support.MODEL, "--dtype", "int32", "f.xyz",
                       naming=["--dtype", "int32"])


class Version(support.ProgramTest):
    def testIsOneLine(self):
        self.assertRegex(self.succeed("--version").out, r"^fastpath \d+\.\d+\.\d+ .*\n$")

    def testAsJsonHasTheFactsOfTheBuild(self):
        facts = self.succeed("--version", "--json").json
        self.assertEqual(list(facts), ["version", "compiler", "build_type", "sanitizer", "system", "plugin_abi"])
        self.assertRegex(facts["version"], r"^\d+\.\d+\.\d+$")
        self.assertRegex(facts["plugin_abi"], r"^1\.\d+$")
        self.assertRegex(facts["compiler"], r"^(GCC|Clang) \d+")


class Output(support.ProgramTest):
    def testAFullDiskIsAnError(self):
        with open("/dev/full", "wb") as full:
            result = self.run_program("--help", stdout=full)
        self.assertEqual(result.status, support.ERROR_CODES["io"])
        self.assertIn("standard output", result.err)

    def testAReaderThatGoesAwayIsQuiet(self):
        reader, writer = os.pipe()
        os.close(reader)
        result = self.run_program("--help", stdout=writer)
        os.close(writer)
        self.assertEqual((result.status, result.err), (141, ""))

    def testErrorsShowControlCharactersAsEscapes(self):
        self.assertIn("\\x1b[31m", self.fail_with("invalid_argument", "\x1b[31mred").err)
        self.assertIn("'\\xff\\xc3\u00fc'", self.fail_with("invalid_argument", "\udcff\udcc3\u00fc").err)

    def on_terminal(self, **env):
        controller, terminal = pty.openpty()
        process = subprocess.Popen([self.program, "list"], env={**self.env, "TERM": "xterm", **env}, stdout=terminal,
                                   stderr=terminal, stdin=subprocess.DEVNULL)
        os.close(terminal)
        output = b""
        while select.select([controller], [], [], 60)[0]:
            try:
                piece = os.read(controller, 65536)
            except OSError:  # the other end is closed
                break
            if not piece:
                break
            output += piece
        os.close(controller)
        self.assertEqual(process.wait(), 0)
        return output.decode()

    def testColourAppearsOnATerminalOnlyAndNotUnderNoColor(self):
        self.use_plugins()
        self.file("plugins/fastpath_broken.so", "no object file")
        self.assertNotIn("\x1b", self.succeed("list").out)
        self.assertIn("\x1b[31m", self.on_terminal())
        self.assertNotIn("\x1b", self.on_terminal(NO_COLOR="1"))
        self.assertIn("\x1b[31m", self.on_terminal(NO_COLOR=""))
        self.assertNotIn("\x1b", self.on_terminal(TERM="dumb"))


class Documentation(support.ProgramTest):
    def testNamesEveryErrorCodeInTheTableOfExitCodes(self):
        header = (support.ROOT / "core/include/fastpath/error.hpp").read_text()
        codes = re.findall(r"(?m)^  (\w+),", header.split("enum class ErrorCode {")[1].split("};")[0])
        self.assertGreater(len(codes), 10)
        text = (support.ROOT / "docs/cli.md").read_text().split("## Exit codes")[1].split("\n## ")[0]
        named = re.findall(r"(?m)^\| \d+ \|.*\| (.*) \|$", text)
        self.assertEqual(sorted(re.findall(r"`(\w+)`", " ".join(named))), sorted(codes))
        for status, names in re.findall(r"(?m)^\| (\d+) \|.*\| (`.*`) \|$", text):
            for name in re.findall(r"`(\w+)`", names):
                if name in support.ERROR_CODES:
                    self.assertEqual(support.ERROR_CODES[name], int(status), name)

    def testNamesEveryCommandAndOption(self):
        text = (support.ROOT / "docs/cli.md").read_text()
        for command in COMMANDS:
            for option in re.findall(r"--[a-z][a-z-]+", self.succeed(*command, "--help").out):
                self.assertIn(option, text)


if __name__ == "__main__":
    support.main()
