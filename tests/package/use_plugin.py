"""use_plugin.py PROGRAM FOLDER PLUGIN OP MODEL STRUCTURE

Has PROGRAM evaluate MODEL with the plugins of FOLDER: PLUGIN must be usable there, run every module of OP, and give the
energies and forces of the reference.
"""
import json
import os
import subprocess
import sys
import tempfile

HOME = tempfile.TemporaryDirectory(prefix="fastpath-package-")
TOLERANCE = 1e-12  # of a whole model in float64, kernels against reference


def run(program, folder, *arguments):
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("FASTPATH_", "XDG_"))}
    if "FASTPATH_CHECK_OWNER" in os.environ:  # the build tree is another user's, see tests/owner_check.cmake.in
        environment["FASTPATH_CHECK_OWNER"] = os.environ["FASTPATH_CHECK_OWNER"]
    environment["FASTPATH_PLUGIN_ONLY_PATH"] = folder
    environment["HOME"] = HOME.name  # nothing is kept from one run of the test to the next
    environment["FASTPATH_SYSTEM_MEASUREMENTS"] = HOME.name + "/none"
    process = subprocess.run([program, *arguments, "--json"], env=environment, stdout=subprocess.PIPE, check=False)
    if process.returncode != 0:
        sys.exit(f"{' '.join(arguments)}: exit status {process.returncode}")
    return json.loads(process.stdout)


def flat(values):
    return [x for value in values for x in flat(value)] if isinstance(values, list) else [values]


def difference(a, b):
    a, b = flat(a), flat(b)
    assert len(a) == len(b)
    return max(abs(x - y) for x, y in zip(a, b)) / max(abs(y) for y in b)


def main(program, folder, plugin, op, model, structure):
    plugins = run(program, folder, "list")["plugins"]
    state = [p["state"] for p in plugins if p["id"] == plugin]
    if state != ["usable"]:
        sys.exit(f"{plugin} is not usable: {plugins}")
    fast, slow = [run(program, folder, "eval", "--model", model, "--dtype", "float64", "--use-fast", use, structure)
                  for use in ("true", "false")]
    for a, b in zip(fast["frames"], slow["frames"]):
        chosen = [d["choice"] for d in a["decisions"] if d["op"] == op]
        if not chosen or set(chosen) != {plugin}:
            sys.exit(f"modules of {op} are run by {chosen}, expected {plugin}: {a['decisions']}")
        for name in ("energy", "forces"):
            error = difference(a[name], b[name])
            print(f"{a['file']}: {len(chosen)} modules by {plugin}, {name} differ by {error:.1e}")
            if not error <= TOLERANCE:
                sys.exit(f"{name}: {error} from the reference, expected at most {TOLERANCE}")


main(*sys.argv[1:])
