#!/usr/bin/env bash
# Builds and runs the tests. Usage: scripts/test.sh [--preset NAME] [arguments of ctest...]
# Example: scripts/test.sh --preset asan -R '^unit\.Tensor'
set -euo pipefail
cd "$(dirname "$0")/.."

preset=release
if [ "${1:-}" = "-h" ] || [ "${1:-}" = "--help" ]; then
  sed -n '2,3s/^# //p' "$0"
  exit 0
fi
if [ "${1:-}" = "--preset" ]; then
  preset=${2:?"--preset needs a name; cmake --list-presets shows them"}
  shift 2
fi

# Some tests ask for more memory than any machine has: a refusal, as without a sanitizer.
export ASAN_OPTIONS="allocator_may_return_null=1${ASAN_OPTIONS:+:$ASAN_OPTIONS}"

jobs=$(nproc)
logs=build/log
mkdir -p "$logs"

./scripts/install_deps.sh || echo "going on without; the build says what it lacks"

# run WHAT LOG COMMAND...: silent unless it fails.
run() {
  local what=$1 log=$2 started=$SECONDS
  shift 2
  echo "[$preset] $what (log: $log)"
  if ! "$@" >"$log" 2>&1; then
    # The compiler's first complaint, or the end where there is none.
    { grep -m 1 -A 60 -E '^FAILED: |^CMake Error' "$log" || tail -n 40 "$log"; } >&2
    echo "[$preset] $what: FAILED after $((SECONDS - started)) s, see $log" >&2
    exit 1
  fi
}

run configure "$logs/$preset-configure.log" cmake --preset "$preset"
run build "$logs/$preset-build.log" cmake --build --preset "$preset" -j "$jobs"

log=$logs/$preset-test.log
echo "[$preset] test (log: $log)"
status=0
ctest --preset "$preset" -j "$jobs" "$@" >"$log" 2>&1 || status=$?
if [ "$status" -ne 0 ]; then
  # All but the tests that passed: what each failed one printed, then ctest's closing lines with their names.
  grep -vE '^ +Start +[0-9]+: |^ *[0-9]+/[0-9]+ Test .* Passed ' "$log" | tail -n 200 >&2 || true
  echo "[$preset] test: FAILED, see $log" >&2
  exit "$status"
fi
sed -n '/% tests passed/,$p' "$log"
