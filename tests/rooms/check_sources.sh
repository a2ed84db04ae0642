#!/usr/bin/env bash
# check_sources.sh ROOT RULE [EXPECTED]: prints each line of the tree at ROOT that breaks RULE, and fails if there is one.
# With a file EXPECTED it fails unless exactly the lines of that file break the rule.
set -euo pipefail

root=$1 rule=$2 expected=${3:-}
cd "$root"

# The files of the library that may print: the default warning handler.
may_print=(core/src/dispatch/warning.cpp)

# files FOLDER PATTERN...: source files below a folder that exists.
files() {
  local folder=$1
  [ -d "$folder" ] || return 0
  find "$folder" -type f \( -name '*.hpp' -o -name '*.h' -o -name '*.cpp' -o -name '*.c' -o -name '*.cu' -o -name '*.hip' \)
}

# includes_outside FOLDER REGEX: include lines whose target, with its quotes or brackets, does not match.
includes_outside() {
  local file
  files "$1" | sort | while IFS= read -r file; do
    { grep -nE '^[[:space:]]*#[[:space:]]*include' "$file" || true; } |
      { grep -vE "^[0-9]+:[[:space:]]*#[[:space:]]*include[[:space:]]*($2)" || true; } | sed "s|^|$file:|"
  done
}

# The code of a file with its line numbers, without string literals and comments that start and end on one line.
code_of() { sed -E -e 's/"([^"\\]|\\.)*"/""/g' -e 's|//.*||' -e 's|/\*[^*]*\*/||g' "$1" | grep -nE '[^[:space:]]'; }

standard='<[a-z_0-9]+>'

case "$rule" in
  PublicHeadersIncludeOnlyTheStandardLibraryAndEachOther)
    violations=$(includes_outside core/include "$standard|\"fastpath/[a-z_0-9]+\.hpp\"")
    ;;
  TheSdkIncludesOnlyTheStandardLibraryAndItself)
    violations=$(
      includes_outside sdk/include/fastpath/sdk "$standard|\"fastpath/((plugin|compile)\.h|sdk/[a-z_0-9/]+\.hpp)\""
      if [ -f sdk/include/fastpath/plugin.h ]; then
        { grep -nE '^[[:space:]]*#[[:space:]]*include' sdk/include/fastpath/plugin.h || true; } |
          { grep -v '<stdint\.h>' || true; } | sed 's|^|sdk/include/fastpath/plugin.h:|'
      fi
    )
    ;;
  PluginsSeeOnlyTheSdk)
    violations=$(
      files plugins | sort | xargs -r grep -HnE '#[[:space:]]*include[[:space:]]*["<](fastpath/[^"<>]*|[^"<>]*core/[^"<>]*)[">]' |
        { grep -vE 'include[[:space:]]*["<]fastpath/(plugin\.h|sdk/)' || true; }
      find plugins -name CMakeLists.txt -exec grep -HnE 'fastpath::core|fastpath_objects|/core/' {} + || true
    )
    ;;
  ProgramExamplesAndBenchSeeOnlyPublicHeaders)
    violations=$(
      for room in core/cli examples bench; do
        # `fastpath/sdk` is for the plugin that an example brings along.
        files "$room" | sort | xargs -r grep -HnE '#[[:space:]]*include[[:space:]]*"([^"]*core/src/|(tensor|module|ops|models|dispatch|policy|io)/)' || true
        if [ -d "$room" ]; then
          find "$room" -name CMakeLists.txt -exec grep -HnE 'fastpath_objects|core/src' {} + || true
        fi
      done
    )
    ;;
  OnlyUnitTestsSeeInsideTheLibrary)
    # fastpath_unit_test() in tests/CMakeLists.txt is the one way in, but for the fuzzers, which feed single readers.
    violations=$(
      find . -name CMakeLists.txt -not -path './build*' -not -path './core/*' -not -path './tests/CMakeLists.txt' \
        -not -path './tests/unit/*' -not -path './tests/fuzz/*' -not -path './tests/rooms/violations/*' -exec grep -Hn 'fastpath_objects' {} + || true
    )
    ;;
  NoFileHidesAHeaderOfTheStandardLibrary)
    # A file in an include path comes before <compare> and its like, whatever it is.
    violations=$(
      for room in bench core examples plugins sdk tests/gpu tests/plugin tests/unit; do
        [ ! -d "$room" ] || find "$room" -type f \( -not -name '*.*' -o -name '*.h' \)
      done | sort | while IFS= read -r file; do
        name=$(basename "$file")
        ! echo "#include <$name>" | c++ -std=c++20 -fsyntax-only -x c++ - 2>/dev/null || echo "$file: hides <$name>"
      done
    )
    ;;
  TheLibraryNeitherExitsNorPrints)
    before='(^|[^A-Za-z0-9_.:>])(::|std::)?'
    ends="$before(exit|_exit|_Exit|quick_exit|abort|terminate)[[:space:]]*\\("
    prints="std::(cout|cerr|clog|wcout|wcerr)|\\b(stdout|stderr|STDOUT_FILENO|STDERR_FILENO)\\b|fmt::print|$before(printf|vprintf|puts|putchar|perror|psignal)[[:space:]]*\\(|${before}write[[:space:]]*\\([[:space:]]*[12][[:space:]]*,"
    violations=$(
      for path in "${may_print[@]}"; do
        [ -f "$path" ] || [ -n "$expected" ] || echo "$path: may print, says this check, but is not there"
      done
      { files core/src; files core/include; } | sort | while IFS= read -r file; do
        allowed=false
        for path in "${may_print[@]}"; do [ "$file" = "$path" ] && allowed=true; done
        code_of "$file" | { grep -E "$ends" || true; } | sed "s|^|$file:|"
        # fd.bind: where the output of a child process goes is no output of ours.
        $allowed || code_of "$file" | { grep -E "$prints" || true; } | { grep -v 'posix::fd\.bind(' || true; } |
          sed "s|^|$file:|"
      done
    )
    ;;
  EveryPublicHeaderIsListedAndSoCompiledAlone)
    violations=$(
      for room in core sdk; do
        { files "$room/include"; } | sort | while IFS= read -r file; do
          grep -qF "${file#"$room"/}" "$room/CMakeLists.txt" || echo "$file: not in the file set of $room/CMakeLists.txt"
        done
      done
    )
    ;;
  *)
    echo "check_sources.sh: unknown rule $rule" >&2
    exit 2
    ;;
esac

if [ -n "$expected" ]; then
  diff -u "$expected" - <<<"$violations"
elif [ -n "$violations" ]; then
  printf '%s\n' "$violations" "$rule: the lines above break it"
  exit 1
fi
