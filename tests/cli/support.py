"""What the tests of the program share."""
import contextlib
import fcntl
import json
import math
import os
import pathlib
import pty
import re
import resource
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "data" / "refdata" / "mace_a"
MODEL = DATA / "model"
STRUCTURES = ROOT / "examples" / "structures"

ERROR_CODES = {"invalid_argument": 2, "not_found": 3, "bad_file": 4, "io": 5, "unavailable": 6,
               "strict_violation": 7, "out_of_memory": 8, "numerics": 10}


class Result:
    def __init__(self, process):
        self.status = process.returncode
        self.out = process.stdout.decode()
        self.err = process.stderr.decode()

    @property
    def json(self):
        def refuse(word):
            raise ValueError(f"{word} in JSON")

        return json.loads(self.out, parse_constant=refuse)


class ProgramTest(unittest.TestCase):
    """A test with a folder of its own, an environment without the user's settings, and the plugins of the build."""

    maxDiff = None
    prefix = []  # of every command line

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="fastpath-cli-"))
        self.addCleanup(shutil.rmtree, self.folder)
        self.program = os.environ["FASTPATH_TEST_PROGRAM"]
        self.plugins = pathlib.Path(os.environ["FASTPATH_TEST_PLUGINS"])
        # FASTPATH_CHECK_OWNER is set by CTest where the build lies in a directory of another user.
        self.env = {k: v for k, v in os.environ.items() if k == "FASTPATH_CHECK_OWNER" or
                    (not k.startswith("FASTPATH_") and k not in ("NO_COLOR", "XDG_CACHE_HOME", "XDG_DATA_HOME"))}
        self.env["HOME"] = str(self.folder / "home")
        self.env["FASTPATH_SYSTEM_MEASUREMENTS"] = str(self.folder / "system")
        self.env["FASTPATH_PLUGIN_ONLY_PATH"] = str(self.plugins)

    def use_plugins(self, *names):
        """Copies plugins of the build into a folder of its own, which becomes the whole search path."""
        folder = self.folder / "plugins"
        folder.mkdir(exist_ok=True)
        for name in names:
            shutil.copy(self.plugins / f"fastpath_{name}.so", folder)
        self.env["FASTPATH_PLUGIN_ONLY_PATH"] = str(folder)
        return folder

    def run_program(self, *arguments, **options):
        process = subprocess.run([*self.prefix, self.program, *map(str, arguments)], env=self.env, cwd=self.folder,
                                 stdin=subprocess.DEVNULL, stdout=options.pop("stdout", subprocess.PIPE),
                                 stderr=subprocess.PIPE, check=False, **options)
        process.stdout = process.stdout or b""
        return Result(process)

    def succeed(self, *arguments):
        result = self.run_program(*arguments)
        self.assertEqual(result.status, 0, result.err)
        return result

    def fail_with(self, code, *arguments, naming=()):
        """The program must give one error that names these things, print nothing else, and exit as documented."""
        result = self.run_program(*arguments)
        self.assertEqual(result.status, ERROR_CODES[code], result.out + result.err)
        self.assertEqual(result.out, "")
        self.assertTrue(result.err.startswith("fastpath: error: "), result.err)
        self.assertEqual(result.err.count("fastpath: error: "), 1, result.err)
        self.assertEqual(result.err.count("\n"), 1, result.err)
        for thing in naming:
            self.assertIn(str(thing), result.err)
        return result

    def evaluate(self, *arguments, model=MODEL):
        return self.succeed("eval", "--model", model, "--json", *arguments).json

    def file(self, name, content):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    def with_memory(self, limit, *arguments):
        """Runs the program with so many bytes of address space; a sanitizer needs more than there are."""
        if self.succeed("--version", "--json").json["sanitizer"]:
            self.skipTest("built with a sanitizer, which takes address space of its own")
        return self.run_program(*arguments,
                                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)))

    @contextlib.contextmanager
    def unprivileged(self):
        """Inside, the program runs as a user whom file permissions bind; root would see nothing of them."""
        if os.geteuid() != 0:
            yield
            return
        setpriv = shutil.which("setpriv")
        if setpriv is None:
            self.skipTest("root without setpriv: permissions cannot be tested")
        os.chmod(self.folder, 0o755)
        self.prefix = [setpriv, "--reuid=65534", "--regid=65534", "--clear-groups"]
        try:
            if self.run_program("--version").status != 0:
                self.skipTest("nobody may not run the program where it was built")
            yield
        finally:
            self.prefix = []

    def fail_unprivileged(self, code, *arguments, naming=()):
        """As fail_with(), as a user whom file permissions bind."""
        with self.unprivileged():
            return self.fail_with(code, *arguments, naming=naming)

    def copy_of_model(self):
        folder = self.folder / "model"
        shutil.copytree(MODEL, folder)
        return folder


class Terminal:
    """A program on a terminal of its own, which takes keys and shows what a user would see."""

    def __init__(self, test, *arguments, columns=80, stdout=None, **env):
        self.columns, self.output = columns, b""
        self.controller, terminal = pty.openpty()
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self.process = subprocess.Popen(
            [test.program, *map(str, arguments)], env={**test.env, "TERM": "xterm", "NO_COLOR": "1", **env},
            cwd=test.folder, stdin=terminal, stdout=terminal if stdout is None else stdout, stderr=terminal,
            start_new_session=True, preexec_fn=lambda: fcntl.ioctl(2, termios.TIOCSCTTY, 0))
        os.close(terminal)
        test.addCleanup(self.close)

    def read(self):
        """False at the end."""
        try:
            piece = os.read(self.controller, 65536)
        except OSError:  # the other end is closed
            return False
        self.output += piece
        return bool(piece)

    def wait_for(self, pattern):
        while not re.search(pattern, self.output):
            if not self.read():
                raise AssertionError(f"{pattern} is not in {self.output}")

    def press(self, keys):
        os.write(self.controller, keys)

    def finish(self):
        """The status of the program, and the lines that are left on the screen."""
        while self.read():
            pass
        return self.process.wait(), self.screen()

    def texts(self):
        """Every text that stood in a line before it was cleared or left."""
        return [text for text in re.split(r"\r?\n|\r|\x1b\[K", self.output.decode()) if text]

    def screen(self):
        """The lines; one that is too long for the terminal goes on in the next."""
        lines, column = [""], 0
        for part in re.findall(r"\x1b\[K|.", self.output.decode(), re.S):
            if part == "\x1b[K":
                lines[-1] = lines[-1][:column]
            elif part == "\r":
                column = 0
            elif part == "\n":
                lines.append("")
            else:
                if column == self.columns:
                    lines.append("")
                    column = 0
                lines[-1] = lines[-1][:column] + part + lines[-1][column + 1:]
                column += 1
        return lines

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.controller)


def flat(values):
    if isinstance(values, list):
        return [x for value in values for x in flat(value)]
    return [values]


def difference(got, expected):
    """max|got - expected| / max|expected|; infinite where shapes differ or a value is not a number."""
    a, b = flat(got), flat(expected)
    if len(a) != len(b) or any(not isinstance(x, (int, float)) or math.isnan(x) for x in a + b):
        return math.inf
    largest = max((abs(x) for x in b), default=0.0)
    worst = max((abs(x - y) for x, y in zip(a, b)), default=0.0)
    return worst / largest if largest > 0 else worst


def read_xyz(path):
    """Frames of an extended-XYZ file of the form that the program writes: (comment, rows of words)."""
    lines = pathlib.Path(path).read_text().splitlines()
    frames = []
    while lines:
        count = int(lines[0])
        frames.append((lines[1], [line.split() for line in lines[2:2 + count]]))
        lines = lines[2 + count:]
    return frames


def read_header(path):
    """Header and data of a safetensors file."""
    content = pathlib.Path(path).read_bytes()
    size = struct.unpack("<Q", content[:8])[0]
    return json.loads(content[8:8 + size]), content[8 + size:]


def write_header(path, header, data):
    text = json.dumps(header).encode()
    pathlib.Path(path).write_bytes(struct.pack("<Q", len(text)) + text + data)


def main():
    """Lists the tests of the calling file, or runs them."""
    module = sys.modules["__main__"]
    suite = unittest.defaultTestLoader.loadTestsFromModule(module)
    if "--list" in sys.argv:
        for case in suite:
            for test in case:
                print(test.id().split(".", 1)[1].replace(".test", "."))
        return
    names = [name.replace(".", ".test", 1) for name in sys.argv[1:]]
    unittest.main(module=module, argv=sys.argv[:1] + names)
