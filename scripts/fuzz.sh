#!/usr/bin/env bash
# Builds the fuzzers and lets each search for a while. Usage: scripts/fuzz.sh [--runs N] [--jobs N] [fuzzer...]
# Example: scripts/fuzz.sh --runs 1000000 elf extxyz
# New inputs are kept in build/fuzz/corpus/NAME; an input that is a finding is named, and stays in build/fuzz/findings.
set -euo pipefail
cd "$(dirname "$0")/.."

runs=100000
jobs=$(nproc)
names=()
while [ $# -gt 0 ]; do
  case "$1" in
    -h | --help)
      sed -n '2,4s/^# //p' "$0"
      exit 0
      ;;
    --runs | --jobs)
      [[ "${2:-}" =~ ^[0-9]+$ ]] || { echo "fuzz.sh: $1 needs a number, found '${2:-}'" >&2; exit 2; }
      if [ "$1" = --runs ]; then runs=$2; else jobs=$2; fi
      shift 2
      ;;
    -*)
      echo "fuzz.sh: unknown option '$1'; known: --runs, --jobs, --help" >&2
      exit 2
      ;;
    *)
      [ -f "tests/fuzz/fuzz_$1.cpp" ] || { echo "fuzz.sh: there is no fuzzer '$1' (tests/fuzz/fuzz_$1.cpp)" >&2; exit 2; }
      names+=("$1")
      shift
      ;;
  esac
done
if [ ${#names[@]} -eq 0 ]; then
  for file in tests/fuzz/fuzz_*.cpp; do
    name=${file##*/fuzz_}
    names+=("${name%.cpp}")
  done
fi

mkdir -p build/log build/fuzz/findings
if ! { cmake --preset fuzz && cmake --build --preset fuzz -j "$jobs"; } >build/log/fuzz-build.log 2>&1; then
  { grep -m 1 -A 60 -E '^FAILED: |^CMake Error' build/log/fuzz-build.log || tail -n 40 build/log/fuzz-build.log; } >&2
  exit 1
fi

# fuzz NAME: one line of result, or the finding.
fuzz() {
  local name=$1 log=build/log/fuzz-$1.log dictionary=()
  mkdir -p "build/fuzz/corpus/$name"
  [ -f "tests/fuzz/$name.dict" ] && dictionary=("-dict=tests/fuzz/$name.dict")
  if ! ASAN_OPTIONS="allocator_may_return_null=1:detect_leaks=0${ASAN_OPTIONS:+:$ASAN_OPTIONS}" \
    "build/fuzz/bin/fuzz_$name" -runs="$runs" -max_len=16384 -timeout=20 -rss_limit_mb=4096 \
    -artifact_prefix="build/fuzz/findings/$name-" "${dictionary[@]}" \
    "build/fuzz/corpus/$name" "tests/fuzz/corpus/$name" >"$log" 2>&1; then
    tail -n 60 "$log" >&2
    echo "fuzz $name: FINDING, see $log" >&2
    return 1
  fi
  echo "fuzz $name: $(grep -E '^Done [0-9]+ runs' "$log"), no finding"
}

export runs
export -f fuzz
printf '%s\0' "${names[@]}" | xargs -0 -P "$jobs" -I{} bash -euo pipefail -c 'fuzz {}'
