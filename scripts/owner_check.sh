#!/usr/bin/env bash
# owner_check.sh FOLDER: status 1, and a line that says why, if fastpath would refuse plugins in FOLDER because they, or a
# directory on the way, belong to another user or may be written by others (docs/security.md).
set -euo pipefail

if [ $# -ne 1 ] || [ ! -d "$1" ]; then
  sed -n '2,3s/^# //p' "$0" >&2
  exit 2
fi

# check PATH: ends the script if it is not safe.
check() {
  local owner mode bits
  read -r owner mode < <(stat -c '%u %a' "$1")
  bits=$((8#$mode))
  if [ "$owner" -ne 0 ] && [ "$owner" -ne "$(id -u)" ]; then
    echo "'$1' belongs to user $owner"
    exit 1
  fi
  # A sticky directory of root counts as safe.
  if ((bits & 8#022)) && ! { [ -d "$1" ] && [ "$owner" -eq 0 ] && ((bits & 8#1000)); }; then
    echo "'$1' may be written by others (mode $mode)"
    exit 1
  fi
}

folder=$(cd "$1" && pwd -P)
for file in "$folder"/fastpath_*.so; do
  [ ! -f "$file" ] || check "$file"
done
while check "$folder" && [ "$folder" != / ]; do
  folder=$(dirname "$folder")
done
