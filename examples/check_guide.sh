#!/usr/bin/env bash
# check_guide.sh ROOT GUIDE: every C++ or CMake line of the guide must stand in the file that the line before its block
# names, as in <!-- examples/host_minimal/main.cpp -->. What is compiled there is then true here. Leading and trailing
# blanks do not count; comments on a line of their own, and `...` are free.
set -euo pipefail
cd "$1"
guide=$2

awk '
  /^<!-- .* -->$/ { source = $2; next }
  /^```(cpp|cmake)$/ { inside = 1; if (source == "") { print NR ": a block without a source"; bad = 1 } else load(); next }
  /^```/ { if (inside) { inside = 0; source = ""; blocks++ } next }
  inside {
    line = trim($0)
    if (line == "" || line == "..." || line ~ /^(\/\/|# )/) next
    if (!((source, line) in known)) { print FILENAME ":" NR ": not in " source ": " line; bad = 1 }
    next
  }
  function trim(text) { gsub(/^[ \t]+|[ \t]+$/, "", text); return text }
  function load(   text, status) {
    while ((status = (getline text < source)) > 0) known[source, trim(text)] = 1
    if (status < 0) { print NR ": there is no file " source; bad = 1 }
    close(source)
  }
  END {
    if (!blocks) { print FILENAME ": no block to check"; bad = 1 }
    exit bad
  }
' "$guide"
