#!/usr/bin/env bash
# check_binaries.sh library FILE: fails if the library refers to a function that ends the process or prints to stdout.
# check_binaries.sh plugins FOLDER: fails if a plugin exports more than its query function, or needs the host's library.
# check_binaries.sh runpath FOLDER [NOT]: fails if a program or library in the folder, or below it but not below NOT, has
# a RUNPATH with an entry that is empty or relative, which stands for the current directory.
set -euo pipefail

status=0
case "$1" in
  library)
    # No _exit: a child process that failed to start another program has to end with it. The sources are checked for it.
    forbidden='exit|quick_exit|_Exit|abort|printf|vprintf|puts|putchar|perror|_ZSt4c(out|err|log)'
    symbols=$(nm -D --undefined-only "$2" | sed -E 's/^ *[A-Za-z] //; s/@.*//')
    [ -n "$symbols" ] || { echo "$2: no undefined symbols at all, so nothing was looked at" && exit 1; }
    if found=$(grep -xE "$forbidden" <<<"$symbols"); then
      echo "$2 refers to: ${found//$'\n'/, }"
      status=1
    fi
    ;;
  plugins)
    shopt -s nullglob
    plugins=("$2"/*.so)
    [ ${#plugins[@]} -gt 0 ] || { echo "$2: no plugin there" && exit 1; }
    for plugin in "${plugins[@]}"; do
      exported=$(nm -D --defined-only "$plugin" | awk '{print $NF}' | sed 's/@.*//' | sort | tr '\n' ' ')
      if [ "$exported" != "fastpath_plugin_query_v1 " ]; then
        echo "$plugin exports: $exported(expected fastpath_plugin_query_v1 alone)"
        status=1
      fi
      if readelf -d "$plugin" | grep -E 'NEEDED.*\[libfastpath'; then
        echo "$plugin needs the host's library"
        status=1
      fi
    done
    ;;
  runpath)
    looked_at=0
    while IFS= read -r -d '' file; do
      [ "$(head -c 4 "$file" | tr -d '\0')" = $'\x7fELF' ] || continue
      looked_at=$((looked_at + 1))
      while IFS= read -r entries; do
        if grep -qE '(^|:)($|:|[^/$:]|\$[^O{]|\$\{[^O])' <<<"$entries"; then
          echo "$file: the RUNPATH '$entries' has an entry that is neither absolute nor below \$ORIGIN"
          status=1
        fi
      done < <(readelf -d "$file" 2>/dev/null | sed -nE 's/.*\((RUNPATH|RPATH)\).*\[(.*)\]$/\2/p')
    done < <(find "$2" -path "${3:-/nothing}" -prune -o -type f ! -name '*.o' ! -name '*.a' -size +0 -print0)
    [ "$looked_at" -gt 0 ] || { echo "$2: no program and no library there" && exit 1; }
    echo "$looked_at programs and libraries looked at"
    ;;
  *)
    echo "check_binaries.sh: unknown subject $1" >&2
    exit 2
    ;;
esac
exit "$status"
