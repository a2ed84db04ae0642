"""The binary interface of plugin.h: where every member of every struct lies, and the value of every constant.

    layout.py lint HEADER                                    what the rules of the header forbid
    layout.py check HEADER RECORDS POLICY COMPILER STANDARD  compares with RECORDS/plugin_MAJOR.MINOR.layout
    layout.py write HEADER RECORDS COMPILER STANDARD         records the layout of a version that has no record yet

A compiler computes the numbers, as C (c11) or as C++ (c++20); this script finds the names.
"""
import pathlib
import re
import subprocess
import sys
import tempfile

INTEGERS = {f"{sign}int{bits}_t" for sign in ("", "u") for bits in (8, 16, 32, 64)}
SCALARS = INTEGERS | {"double", "char", "void"}
NOT_OF_THE_ABI = {"FP_SDK_VERSION", "FP_ABI_MAJOR", "FP_ABI_MINOR", "FP_ABI_VERSION", "FP_EXPORT"}


class Member:
    def __init__(self, text):
        text = " ".join(text.split())
        pointer = re.fullmatch(r"(.+?) ?\(\*(\w+)\)\((.*)\)", text)
        if pointer:
            result, self.name, parameters = pointer.groups()
            self.types = [result] + [without_name(p) for p in parameters.split(",")]
            self.declaration = f"{self.types[0]} (*{self.name})({', '.join(self.types[1:])})"
        else:
            plain = re.fullmatch(r"(.+?) ?\b(\w+) ?(\[\w+\])?", text)
            kind, self.name, array = plain.groups() if plain else (text, text, None)
            self.types = [kind]
            self.declaration = f"{kind} {self.name}{array or ''}"


def without_name(parameter):
    """`const char* text` is `const char*`: names of parameters are not part of the interface."""
    words = re.fullmatch(r"(.*[\s*])\w+", parameter.strip())
    return " ".join((words.group(1) if words else parameter).split())


class Header:
    def __init__(self, path):
        text = pathlib.Path(path).read_text()
        self.path = path
        text = re.sub(r"/\*.*?\*/", " ", text, flags=re.S)
        text = re.sub(r"//[^\n]*", " ", text)
        self.structs = {}
        for name, body in re.findall(r"\bstruct (\w+) \{(.*?)\}", text, flags=re.S):
            self.structs[name] = [Member(m) for m in body.split(";") if m.strip()]
        self.enumerators = []
        for body in re.findall(r"\benum \{(.*?)\}", text, flags=re.S):
            self.enumerators += [item.split("=")[0].strip() for item in body.split(",") if item.strip()]
        self.macros = [name for name in re.findall(r"^#define (FP_\w+) ", text, flags=re.M) if name not in NOT_OF_THE_ABI]
        self.functions = [" ".join(f.split()) for f in re.findall(r"typedef (\w+ \(\*\w+\)\([^;]*\));", text)]
        version = [re.search(rf"#define FP_ABI_{part} (\d+)u", text) for part in ("MAJOR", "MINOR")]
        if not self.structs or None in version:
            sys.exit(f"{path}: no structs or no FP_ABI_MAJOR and FP_ABI_MINOR")
        self.version = ".".join(v.group(1) for v in version)


def lint(header):
    """Sentences about structs that break the rules of the header."""
    found = []
    for name, members in header.structs.items():
        first = members[0].declaration if members else "nothing"
        if first != "uint32_t struct_size":
            found.append(f"{name} starts with {first}, expected uint32_t struct_size")
        if f"FP_SIZE_{name.removeprefix('fp_').upper()}" not in header.macros:
            found.append(f"{name} has no constant FP_SIZE_{name.removeprefix('fp_').upper()}")
        for member in members:
            for kind in member.types:
                bare = kind.replace("const ", "").replace("struct ", "").rstrip(" *")
                is_pointer = kind.endswith("*")
                if bare in SCALARS or (bare.startswith("fp_") and is_pointer):
                    continue
                found.append(f"{name}.{member.name} uses '{kind}': neither of fixed width nor a pointer to one of ours")
    return found


def measure(header, compiler, standard):
    """The layout as lines of text."""
    lines = ['#include <stddef.h>', '#include <stdio.h>', f'#include "{pathlib.Path(header.path).resolve()}"',
             '#ifdef __cplusplus', '#define ALIGNMENT(t) alignof(t)', '#else', '#define ALIGNMENT(t) _Alignof(t)', '#endif',
             '#define NUMBER(x) printf("constant " #x " %lld\\n", (long long)(x))',
             '#define TEXT(x) printf("text " #x " %s\\n", x)',
             'int main(void) {']
    for name, members in header.structs.items():
        lines.append(f'  printf("struct {name} size %zu alignment %zu\\n", sizeof({name}), ALIGNMENT({name}));')
        for m in members:
            lines.append(f'  printf("  %zu %zu {m.declaration}\\n", offsetof({name}, {m.name}), '
                         f'sizeof((({name}*)0)->{m.name}));')
    for function in header.functions:
        lines.append(f'  printf("function {function}\\n");')
    # A macro whose value is text keeps it in quotes, which the preprocessor alone can tell.
    for name in header.enumerators + header.macros:
        is_text = re.search(rf'^#define {name} "', pathlib.Path(header.path).read_text(), flags=re.M)
        is_function = re.search(rf"^#define {name}\(", pathlib.Path(header.path).read_text(), flags=re.M)
        if not is_function:
            lines.append(f"  {'TEXT' if is_text else 'NUMBER'}({name});")
    lines += ["  return 0;", "}", ""]
    with tempfile.TemporaryDirectory() as folder:
        source = pathlib.Path(folder) / ("layout.cpp" if "++" in standard else "layout.c")
        program = pathlib.Path(folder) / "layout"
        source.write_text("\n".join(lines))
        built = subprocess.run([compiler, f"-std={standard}", source, "-o", program], stderr=subprocess.PIPE, text=True,
                               check=False)
        if built.returncode != 0:
            sys.exit(f"{header.path} does not compile with {compiler} as {standard}:\n{built.stderr}")
        return subprocess.run([program], stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()


class Layout:
    def __init__(self, lines):
        self.sizes, self.members, self.constants = {}, {}, {}
        struct = None
        for line in lines:
            words = line.split()
            if line.startswith("  "):
                declaration = " ".join(words[2:])
                self.members[struct][Member(declaration).name] = (int(words[0]), int(words[1]), declaration)
            elif words[0] == "struct":
                struct = words[1]
                self.sizes[struct], self.members[struct] = (int(words[3]), int(words[5])), {}
            elif words[0] == "function":
                self.constants[re.search(r"\(\*(\w+)\)", line).group(1)] = " ".join(words[1:])
            elif words[0] in ("constant", "text"):
                self.constants[words[1]] = " ".join(words[2:])

    def gaps(self):
        """Padding that is not written down as a member."""
        found = []
        for struct, members in self.members.items():
            end = 0
            for name, (offset, size, _) in members.items():
                if offset != end:
                    found.append(f"{struct}: {offset - end} bytes of padding before {name}; a reserved member belongs there")
                end = offset + size
            if end != self.sizes[struct][0]:
                found.append(f"{struct}: {self.sizes[struct][0] - end} bytes of padding at the end; "
                             "a reserved member belongs there")
            stated = self.constants.get(f"FP_SIZE_{struct.removeprefix('fp_').upper()}")
            if stated is not None and int(stated) != end:
                found.append(f"{struct} ends at byte {end}, its FP_SIZE_ constant says {stated}")
        return found


def compare(old, new):
    """(what breaks plugins of the old layout, what was added)."""
    broken, added = [], []
    for struct, members in old.members.items():
        if struct not in new.members:
            broken.append(f"{struct}: gone")
            continue
        now = new.members[struct]
        for name, (offset, size, declaration) in members.items():
            if name not in now:
                broken.append(f"{struct}.{name}: gone, was '{declaration}' at byte {offset}")
                continue
            if now[name][0] != offset:
                broken.append(f"{struct}.{name}: moved from byte {offset} to {now[name][0]}")
            if now[name][1:] != (size, declaration):
                broken.append(f"{struct}.{name}: '{declaration}' of {size} bytes became '{now[name][2]}' of {now[name][1]}")
        end = max(offset for offset, _, _ in members.values())
        for name, (offset, size, declaration) in now.items():
            if name not in members:
                (added if offset > end else broken).append(f"{struct}.{name}: new, '{declaration}' at byte {offset}")
        if new.sizes[struct][1] != old.sizes[struct][1]:
            broken.append(f"{struct}: alignment {old.sizes[struct][1]} became {new.sizes[struct][1]}")
    added += [f"{struct}: new" for struct in new.members if struct not in old.members]
    grown = {f"FP_SIZE_{s.removeprefix('fp_').upper()}" for s in old.members}
    for name, value in old.constants.items():
        if name not in new.constants:
            broken.append(f"{name}: gone, was {value}")
        elif new.constants[name] != value and name not in grown:  # sizes grow with their structs, which are compared above
            broken.append(f"{name}: {value} became {new.constants[name]}")
    added += [f"{name}: new, {value}" for name, value in new.constants.items() if name not in old.constants]
    return broken, added


def check(header, records, policy, compiler, standard):
    """Sentences about what is wrong; none if the layout is the recorded one of its version."""
    lines = measure(header, compiler, standard)
    now = Layout(lines)
    found = now.gaps()
    record = records / f"plugin_{header.version}.layout"
    if not record.exists():
        found.append(f"{record} is not there: a new version {header.version} needs a record, made with layout.py write")
    elif record.read_text().splitlines() != lines:
        broken, added = compare(Layout(record.read_text().splitlines()), now)
        found += broken + added
        found.append(f"plugin.h is not what {record.name} says, and its version is still {header.version}: a change must "
                     "raise FP_ABI_MINOR, be recorded in docs/abi-policy.md, and have a record of its own")
    known = re.findall(r"^\| (\d+\.\d+) \|", policy.read_text(), flags=re.M)
    for path in sorted(records.glob("plugin_*.layout")):
        version = path.stem.removeprefix("plugin_")
        if version not in known:
            found.append(f"{policy.name} has no line for ABI {version}, which {path.name} records")
        if tuple(map(int, version.split("."))) >= tuple(map(int, header.version.split("."))):
            continue
        broken, _ = compare(Layout(path.read_text().splitlines()), now)
        found += [f"against ABI {version}: {sentence}" for sentence in broken]
        if broken:
            found.append(f"plugins built for ABI {version} would misread this host: members are only ever appended")
    if header.version not in known:
        found.append(f"{policy.name} has no line for ABI {header.version}")
    return found


def main(command, header, *rest):
    header = Header(header)
    if command == "lint":
        found = lint(header)
    elif command == "check":
        records, policy, compiler, standard = rest
        found = check(header, pathlib.Path(records), pathlib.Path(policy), compiler, standard)
    elif command == "write":
        records, compiler, standard = rest
        record = pathlib.Path(records) / f"plugin_{header.version}.layout"
        lines = measure(header, compiler, standard)
        if record.exists() and record.read_text().splitlines() != lines:
            sys.exit(f"{record} exists and says otherwise: raise FP_ABI_MINOR first")
        record.write_text("\n".join(lines) + "\n")
        return
    else:
        sys.exit(__doc__)
    for sentence in found:
        print(sentence)
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
