#!/usr/bin/env bash
# run_guide.sh FILE PREFIX SOURCE FOLDER: runs the sh blocks of a guide one after the other in an empty FOLDER, and stops at
# the first command that fails. The energies of its evaluations must be equal.
set -euo pipefail
guide=$1 folder=$4
export PREFIX=$2 SOURCE=$3
unset FASTPATH_PLUGIN_PATH FASTPATH_PLUGIN_ONLY_PATH FASTPATH_CACHE_DIR XDG_DATA_HOME XDG_CACHE_HOME

rm -rf "$folder"
mkdir -p "$folder/home"
export HOME=$folder/home
awk '/^```/ { inside = ($0 == "```sh"); next } inside' "$guide" >"$folder/commands.sh"
[ -s "$folder/commands.sh" ] || { echo "$guide: no sh block" && exit 1; }
cd "$folder"
bash -euxo pipefail commands.sh | tee output.txt

energies=$(awk '$1 == "water.xyz" { print $4 }' output.txt)
[ "$(wc -l <<<"$energies")" -ge 2 ] || { echo "the guide evaluates nothing twice" && exit 1; }
[ "$(sort -u <<<"$energies" | wc -l)" -eq 1 ] || { echo "its evaluations differ: $energies" && exit 1; }
grep -qE '^mine +.*usable' output.txt || { echo "the plugin is not usable" && exit 1; }
