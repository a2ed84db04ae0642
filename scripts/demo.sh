#!/usr/bin/env bash
# From nothing to energies: builds the program and its plugins, then shows what runs and what it gives.
# Usage: scripts/demo.sh [MODEL_FOLDER [FILE.xyz...]]; by default what lies in examples/.
set -euo pipefail
cd "$(dirname "$0")/.."

if [ "${1:-}" = "-h" ] || [ "${1:-}" = "--help" ]; then
  sed -n '2,3s/^# //p' "$0"
  exit 0
fi

configs=(examples/models/*/config.json)
model=${1:-$(dirname "${configs[0]}")}
[ $# -gt 0 ] && shift
structures=("$@")
[ ${#structures[@]} -gt 0 ] || structures=(examples/structures/*.xyz)
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
echo
echo "\$ fastpath list"
"$fastpath" list
echo
echo "\$ fastpath explain --model $model ${structures[0]}"
"$fastpath" explain --model "$model" "${structures[0]}"

results=$(mktemp -d)
trap 'rm -rf "$results"' EXIT
for index in "${!structures[@]}"; do
  for use_fast in false true; do
    "$fastpath" eval --model "$model" --dtype float64 --use-fast "$use_fast" --json "${structures[$index]}" \
      >"$results/$index-$use_fast.json"
  done
done
echo
echo "\$ fastpath eval --model $model --dtype float64 --use-fast false|true --json FILE"
python3 - "$results" "${structures[@]}" <<'PYTHON'
import json
import os
import sys

results, files = sys.argv[1], sys.argv[2:]


def frames(index, use_fast):
    with open(os.path.join(results, f"{index}-{use_fast}.json")) as text:
        return json.load(text)["frames"]


def largest(values):
    return max((abs(v) for row in values for v in row), default=0.0)


def relative(pairs, scale):
    difference = max((abs(a - b) for a, b in pairs), default=0.0)
    return difference / scale if scale > 0 else difference


header = ["structure", "atoms", "edges", "energy, eV", "largest force, eV/A", "diff. energy", "diff. forces",
          "reference, ms", "fast, ms"]
rows = []
worst = 0.0
served = set()
for index, path in enumerate(files):
    both = list(zip(frames(index, "false"), frames(index, "true")))
    for number, (reference, fast) in enumerate(both):
        energy = relative([(reference["energy"], fast["energy"])], abs(reference["energy"]))
        forces = relative([(a, b) for x, y in zip(reference["forces"], fast["forces"]) for a, b in zip(x, y)],
                          largest(reference["forces"]))
        worst = max(worst, energy, forces)
        served |= {d["choice"] for d in fast["decisions"] if d["choice"] != "reference"}
        name = os.path.splitext(os.path.basename(path))[0] + (f"[{number}]" if len(both) > 1 else "")
        rows.append([name, str(reference["n_atoms"]), str(reference["n_edges"]), f"{reference['energy']:.8f}",
                     f"{largest(reference['forces']):.6f}", f"{energy:.1e}", f"{forces:.1e}",
                     f"{1e3 * reference['seconds']:.1f}", f"{1e3 * fast['seconds']:.1f}"])
widths = [max(len(row[i]) for row in [header] + rows) for i in range(len(header))]
for row in [header] + rows:
    print("  ".join(row[i].ljust(w) if i == 0 else row[i].rjust(w) for i, w in enumerate(widths)).rstrip())
print(f"\nfast paths served by: {', '.join(sorted(served)) or 'none, the reference ran everywhere'}; "
      "differences are relative, fast against reference")
if not worst <= 1e-12:
    sys.exit(f"fast and reference differ by {worst:.1e}, more than 1e-12")
PYTHON
