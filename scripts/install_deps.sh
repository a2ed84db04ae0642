#!/usr/bin/env bash
# Installs the Debian packages that the build needs and that are missing. Usage: scripts/install_deps.sh [ci] [hip]
# Fast when there is nothing to do. Without apt-get, or without the right to use it, it names the packages and goes on.
set -euo pipefail

# Build tools: a program of that name is enough, wherever it comes from. Form: package=program.
tools=(cmake=cmake ninja-build=ninja g++=g++ ccache=ccache git=git python3=python3)
libraries=(libboost1.81-dev libboost-program-options1.81-dev libboost-filesystem1.81-dev libtbb-dev libhwy-dev
  libdlpack-dev nlohmann-json3-dev libfmt-dev libgtest-dev libgmock-dev libbenchmark-dev
  ocl-icd-opencl-dev pocl-opencl-icd)  # OpenCL on the CPU: where generated kernels run in tests

for group in "$@"; do
  case "$group" in
    ci)
      tools+=(clang-14=clang++-14 clang-format-14=clang-format-14 clang-tidy-14=clang-tidy-14)
      libraries+=(libclang-rt-14-dev
        libtorch-dev  # for the TorchScript export
        chromium)     # 122 MB: tests look at pages in it
      ;;
    hip)  # hipRTC, with which AMD kernels are compiled and checked without a device; 200 MB with its LLVM
      libraries+=(libamdhip64-5 libhiprtc-builtins5)
      ;;
    *)
      echo "install_deps.sh: unknown group '$group'; known: ci, hip" >&2
      exit 2
      ;;
  esac
done

installed() { command -v dpkg >/dev/null && dpkg -s "$1" 2>/dev/null | grep -q '^Status: install ok installed'; }

missing=()
for entry in "${tools[@]}"; do
  command -v "${entry#*=}" >/dev/null || installed "${entry%%=*}" || missing+=("${entry%%=*}")
done
for package in "${libraries[@]}"; do
  installed "$package" || missing+=("$package")
done
[ ${#missing[@]} -eq 0 ] && exit 0

as_root=()
if [ "$(id -u)" -ne 0 ]; then
  as_root=(sudo)
fi
if ! command -v apt-get >/dev/null || { [ ${#as_root[@]} -gt 0 ] && ! command -v sudo >/dev/null; }; then
  echo "not installed, and apt-get cannot be used here; Debian calls these packages: ${missing[*]}"
  exit 0
fi

echo "installing: ${missing[*]}"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
apt() { "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 "$@" >>"$log" 2>&1; }
if ! { apt update && apt install -y --no-install-recommends "${missing[@]}"; }; then
  tail -n 15 "$log" >&2
  echo "install_deps.sh: apt-get could not install: ${missing[*]}" >&2
  exit 1
fi
