#!/usr/bin/env bash
# Checks and times the kernels of an NVIDIA or AMD GPU. Usage: scripts/gpu_check.sh [--plugin cuda|hip|opencl] [--build DIR]
# Builds what it needs, runs the conformance kit and a model on the device, and prints a table of time, bandwidth and
# FLOP rate. Exit status: 0; 1 if a check failed; 2 for a wrong option; 77 if there is no such GPU, with the reason.
set -euo pipefail
cd "$(dirname "$0")/.."

plugins=(cuda hip)
build=build/release
while [ $# -gt 0 ]; do
  case "$1" in
    --plugin) plugins=("${2:?--plugin needs a name}") && shift ;;
    --build) build=${2:?--build needs a folder} && shift ;;
    --help) sed -n '2,4s/^# //p' "$0" && exit 0 ;;
    *) echo "gpu_check.sh: '$1' is not an option; see --help" >&2 && exit 2 ;;
  esac
  shift
done

mkdir -p build/log
log=build/log/gpu-check.log
targets=(fastpath_cli fastpath_probe fastpath_bench fastpath_bench_device plugins/all)
if ! { [ -f "$build/CMakeCache.txt" ] || { ./scripts/install_deps.sh && cmake --preset release; }; } >"$log" 2>&1 ||
  ! cmake --build "$build" -j "$(nproc)" --target "${targets[@]}" >>"$log" 2>&1; then
  echo "gpu_check.sh: the build failed; $log ends with:" >&2
  tail -n 20 "$log" >&2
  exit 1
fi
fastpath=$build/bin/fastpath
folder=$build/lib/fastpath/plugins

# The plugin that has a device, and the device's name; or the reasons why none has.
found=$("$fastpath" list --json | python3 -c '
import json, sys
names = sys.argv[1:]
listed = {plugin["id"]: plugin for plugin in json.load(sys.stdin)["plugins"]}
for name in names:
    plugin = listed.get(name)
    if plugin and plugin["state"] == "usable":
        print(name, plugin["devices"][0]["name"])
        break
else:
    for name in names:
        reason = listed[name]["reason"]["text"] if name in listed else "not built here"
        print(f"{name}: {reason}", file=sys.stderr)
' "${plugins[@]}") || true
if [ -z "$found" ]; then
  echo "no GPU that a plugin serves: nothing was checked" >&2
  exit 77
fi
read -r plugin device <<<"$found"
echo "== $plugin, device $device"

status=0
echo "== conformance"
"$fastpath" verify --quick "$folder/fastpath_$plugin.so" || status=1
echo "== a model on the device against the reference"
for dtype in float64 float32; do
  "$fastpath" verify --model tests/data/refdata/mace_a/model --device "$device" --dtype "$dtype" \
    --structure tests/data/refdata/mace_a/water8.xyz || status=1
done
echo "== speed of conv_tensor_product"
edges=100000,1000000
[ "$plugin" != opencl ] || edges=2000
"$build/bin/fastpath_bench_device" "$folder/fastpath_$plugin.so" --edges "$edges" || status=1
echo "== whole evaluations: a model of MACE medium's size, energies and forces"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
sed -e 's/"hidden_irreps": "[^"]*"/"hidden_irreps": "128x0e+128x1o"/' -e 's/"l_max": [0-9]*/"l_max": 3/' \
  examples/models/demo.config.json >"$scratch/config.json"
"$fastpath" hub create "$scratch/config.json" --seed 1 --output "$scratch/model" >/dev/null || status=1
sizes=1000,8000
[ "$plugin" != opencl ] || sizes=24
for dtype in float32 float64; do
  "$build/bin/fastpath_bench" --model "$scratch/model" --device "$device" --dtype "$dtype" --arms fast \
    --sizes "$sizes" --budget 5 || status=1
done
exit $status
