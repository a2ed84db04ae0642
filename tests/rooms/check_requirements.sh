#!/usr/bin/env bash
# check_requirements.sh FILE BUILD_FOLDER CTEST: fails if a test that the table names is not in the build, or a row of
# 1 to 50 is missing or doubled.
set -euo pipefail

table=$1 build=$2 ctest=$3
status=0
rows=$(sed -nE 's/^\| ([0-9]+) \|.*/\1/p' "$table")
if [ "$rows" != "$(seq 1 50)" ]; then
  echo "$table: rows are not 1 to 50, each once, in order"
  status=1
fi
known=$("$ctest" --test-dir "$build" -N | sed -nE 's/^ *Test +#[0-9]+: //p')
names=$(grep -oE '`[a-z_]+\.[A-Z][A-Za-z0-9_./]*`' "$table" | tr -d '`' | sort -u)
[ -n "$names" ] || { echo "$table: names no test at all" && exit 1; }
while IFS= read -r name; do
  if ! grep -qxF "$name" <<<"$known"; then
    echo "$table: names $name, which is not a test of this build"
    status=1
  fi
done <<<"$names"
exit "$status"
