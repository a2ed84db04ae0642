"""check_contract.py DOCUMENT FOLDER... [--expected FILE]

Compares the obligations that DOCUMENT numbers with the checks that the sources below the folders register, as
{{"name", "P-01", "statement; P-02"}, ...}: every obligation is held by a check or says why none can hold it, every check is
named at each obligation it is for. Fails if there is something to say; with a file, unless it is exactly what the file says.

check_contract.py --fill DOCUMENT FOLDER... writes the names of the checks into the last column. What stands behind a
semicolon there stays, and so does the reason of an obligation without a check.
"""
import pathlib
import re
import sys


def checks_of(folders):
    """name -> the obligations of the check."""
    found = {}
    for folder in folders:
        for path in sorted(pathlib.Path(folder).rglob("*.cpp")):
            for name, first, statement in re.findall(
                    r'\{\{?\s*"([a-z_0-9]+\.[a-z_0-9]+)",\s*"(P-\d\d)",\s*((?:"(?:[^"\\]|\\.)*"\s*)+)', path.read_text()):
                found[name] = {first, *re.findall(r"P-\d\d", statement)}
    return found


def findings(document, checks):
    lines = pathlib.Path(document).read_text().splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if re.match(r"\| P-\d\d \|", line)]
    expected = [f"P-{i:02}" for i in range(1, len(rows) + 1)]
    if sorted(row[0] for row in rows) != expected:
        yield f"the numbers are not {expected[0]} to {expected[-1]}, each once"
    if not checks:
        yield "no check is registered anywhere"
    codes = set()  # of reasons and errors, as the documents beside this one list them
    for name in ("reasons.md", "cli.md"):
        codes |= set(re.findall(r"`([a-z_]+)`", (pathlib.Path(document).parent / name).read_text()))
    for row in rows:
        for code in re.findall(r"`([a-z_]+)`", row[2]) if len(row) > 2 else []:
            if code not in codes:
                yield f"{row[0]} speaks of {code}, which neither reasons.md nor cli.md lists"
    held = {}
    for row in rows:
        if len(row) != 4:
            yield f"{row[0]} has {len(row)} cells, expected 4"
            continue
        reason = re.fullmatch(r"not checked: (.+)", row[3])
        held[row[0]] = [] if reason else re.findall(r"`([a-z_0-9]+\.[a-z_0-9]+)`", row[3])
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


def fill(document, checks):
    path = pathlib.Path(document)
    lines = path.read_text().splitlines()
    for i, line in enumerate(lines):
        row = re.fullmatch(r"(\| (P-\d\d) \|.*\|) ?([^|]*)\|", line)
        names = [f"`{name}`" for name, obligations in checks.items() if row and row.group(2) in obligations]
        if names:
            lines[i] = f"{row.group(1)} {';'.join([', '.join(names), *row.group(3).strip().split(';')[1:]])} |"
    path.write_text("\n".join(lines) + "\n")


def main(document, *rest):
    if document == "--fill":
        return fill(rest[0], checks_of(rest[1:]))
    expected = None
    if "--expected" in rest:
        expected = pathlib.Path(rest[-1]).read_text().splitlines()
        rest = rest[:-2]
    found = list(findings(document, checks_of(rest)))
    print("\n".join(found))
    sys.exit(1 if found != (expected or []) else 0)


main(*sys.argv[1:])
