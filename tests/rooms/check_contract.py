"""check_contract.py DOCUMENT [--expected FILE] COMMAND...

Compares the obligations that DOCUMENT numbers with the checks that COMMAND lists, a line each: name, P-01, statement with
further obligations. Every obligation is held by a check or says why none can hold it, and every check is named at each
obligation it is for. Checks that there are one by one for ops and dtypes are named numerics.OP.DTYPE. Fails if there is
something to say; with a file, unless it is exactly what the file says.
"""
import pathlib
import re
import subprocess
import sys

NAME = r"[a-z_0-9]+\.[A-Za-z_0-9.]+"


def checks_of(command):
    """name -> the obligations of the check."""
    listed = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    found = {}
    for name, statement in re.findall(rf"^({NAME})\s+(P-\d\d.*)$", listed, flags=re.M):
        name = re.sub(r"^numerics\..*", "numerics.OP.DTYPE", name)
        found.setdefault(name, set()).update(re.findall(r"P-\d\d", statement))
    return found


def findings(document, checks):
    lines = pathlib.Path(document).read_text().splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if re.match(r"\| P-\d\d \|", line)]
    expected = [f"P-{i:02}" for i in range(1, len(rows) + 1)]
    if sorted(row[0] for row in rows) != expected:
        yield f"the numbers are not {expected[0]} to {expected[-1]}, each once"
    if not checks:
        yield "no check is listed"
    codes = set()  # of reasons and errors, as the documents beside this one list them
    for name in ("reasons.md", "cli.md"):
        codes |= set(re.findall(r"`([a-z_]+)`", (pathlib.Path(document).parent / name).read_text()))
    held = {}
    for row in rows:
        if len(row) != 4:
            yield f"{row[0]} has {len(row)} cells, expected 4"
            continue
        for code in re.findall(r"`([a-z_]+)`", row[2]):
            if code not in codes:
                yield f"{row[0]} speaks of {code}, which neither reasons.md nor cli.md lists"
        reason = re.fullmatch(r"not checked: (.+)", row[3])
        held[row[0]] = [] if reason else re.findall(rf"`({NAME})`", row[3])
        if not reason and not held[row[0]]:
            yield f"{row[0]} is held by nothing: a check, or 'not checked:' and why"
        for name in held[row[0]]:
            if name not in checks:
                yield f"{row[0]} names {name}, which is no check"
    for name, obligations in checks.items():
        for obligation in sorted(obligations):
            if obligation not in held:
                yield f"{name} is for {obligation}, which is no obligation"
            elif name not in held[obligation]:
                yield f"{name} is for {obligation}, where it is not named"


def main(document, *rest):
    expected = []
    if rest[0] == "--expected":
        expected, rest = pathlib.Path(rest[1]).read_text().splitlines(), rest[2:]
    found = list(findings(document, checks_of(rest)))
    print("\n".join(found))
    sys.exit(1 if found != expected else 0)


main(*sys.argv[1:])
