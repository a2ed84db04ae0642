#!/usr/bin/env bash
# From nothing to energies: builds the program and its plugins, then shows what runs and what it gives.
# Usage: scripts/demo.sh [MODEL_FOLDER [FILE.xyz...]]; by default the trained model of silicon and structures in examples/.
set -euo pipefail
cd "$(dirname "$0")/.."

if [ "${1:-}" = "-h" ] || [ "${1:-}" = "--help" ]; then
  sed -n '2,3s/^# //p' "$0"
  exit 0
fi

structures=(examples/structures/*.xyz)
[ $# -gt 0 ] || structures=(examples/structures/{silicon,slab}.xyz) # the trained model knows no other element
[ $# -lt 2 ] || structures=("${@:2}")
model=${1:-examples/models/silicon}
for path in "$model/config.json" "${structures[@]}"; do
  if [ ! -f "$path" ]; then
    echo "demo.sh: there is no file $path" >&2
    exit 1
  fi
done

logs=build/log
mkdir -p "$logs"
./scripts/install_deps.sh || echo "going on without; the build says what it lacks"

run() {
  local what=$1 log=$2
  shift 2
  echo "$what (log: $log)"
  if ! "$@" >"$log" 2>&1; then
    { grep -m 1 -A 60 -E '^FAILED: |^CMake Error' "$log" || tail -n 40 "$log"; } >&2
    echo "$what: FAILED, see $log" >&2
    exit 1
  fi
}
run "configuring" "$logs/demo-configure.log" cmake --preset release
run "building the program and the plugins" "$logs/demo-build.log" \
  cmake --build build/release -j "$(nproc)" --target core/all plugins/all

fastpath=build/release/bin/fastpath
if ! why=$(./scripts/owner_check.sh build/release/lib/fastpath/plugins); then
  # What was built a moment ago may be loaded, whoever owns the directory.
  echo "$why: the demo sets FASTPATH_CHECK_OWNER=0"
  export FASTPATH_CHECK_OWNER=0
fi
echo
echo "\$ fastpath list"
"$fastpath" list
echo
echo "\$ fastpath explain --model $model --use-fast true ${structures[0]}"
"$fastpath" explain --model "$model" --use-fast true "${structures[0]}"

results=$(mktemp -d)
trap 'rm -rf "$results"' EXIT
for index in "${!structures[@]}"; do
  for use_fast in false true; do
    # Three times in one process: the table shows the best time, so that no one-off cost counts.
    "$fastpath" eval --model "$model" --dtype float64 --use-fast "$use_fast" --json \
      "${structures[$index]}" "${structures[$index]}" "${structures[$index]}" >"$results/$index-$use_fast.json"
  done
done
echo
echo "\$ fastpath eval --model $model --dtype float64 --use-fast false|true --json FILE"
python3 - "$results" "${structures[@]}" <<'PYTHON'
import json
import os
import sys

results, files = sys.argv[1], sys.argv[2:]


def repetitions(index, use_fast):
    """Frames of the file, once per time that it was evaluated."""
    with open(os.path.join(results, f"{index}-{use_fast}.json")) as text:
        frames = json.load(text)["frames"]
    count = len(frames) // 3
    return [frames[i * count:(i + 1) * count] for i in range(3)]


def largest(values):
    return max((sum(x * x for x in row) ** 0.5 for row in values), default=0.0)


def relative(a, b):
    """max|a - b| / max|b|, infinite where a number is not finite."""
    difference = max((abs(x - y) for x, y in zip(a, b)), default=0.0)
    scale = max((abs(y) for y in b), default=0.0)
    result = difference / scale if scale > 0 else difference
    return result if result < float("inf") else float("inf")


header = ["structure", "atoms", "edges", "use_fast", "energy, eV", "max |F|", "diff. E", "diff. F", "ms"]
rows = []
worst = 0.0
served = set()
for index, path in enumerate(files):
    reference, fast = repetitions(index, "false"), repetitions(index, "true")
    for number, (a, b) in enumerate(zip(reference[0], fast[0])):
        name = os.path.splitext(os.path.basename(path))[0] + (f"#{number + 1}" if len(fast[0]) > 1 else "")
        energy = relative([b["energy"]], [a["energy"]])
        forces = relative([x for row in b["forces"] for x in row], [x for row in a["forces"] for x in row])
        worst = max(worst, energy, forces)
        served |= {d["choice"] for d in b["decisions"] if d["choice"] != "reference"}
        for use_fast, frame, runs in (("false", a, reference), ("true", b, fast)):
            seconds = min(run[number]["seconds"] for run in runs)
            first = use_fast == "false"
            rows.append([name if first else "", str(frame["n_atoms"]) if first else "",
                         str(frame["n_edges"]) if first else "", use_fast, f"{frame['energy']:.8f}",
                         f"{largest(frame['forces']):.6f}", "" if first else f"{energy:.0e}",
                         "" if first else f"{forces:.0e}", f"{1e3 * seconds:.2f}"])
widths = [max(len(row[i]) for row in [header] + rows) for i in range(len(header))]
for row in [header] + rows:
    print("  ".join(row[i].ljust(w) if i in (0, 3) else row[i].rjust(w) for i, w in enumerate(widths)).rstrip())
print("\nForces in eV/A; differences of fast against reference, relative; the best time of three.")
print(f"Fast paths served by: {', '.join(sorted(served)) or 'none, the reference ran everywhere'}.")
if not worst <= 1e-12:
    sys.exit(f"fast and reference differ by {worst:.1e}, more than 1e-12")
PYTHON
