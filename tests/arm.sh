#!/usr/bin/env bash
# Tests the reduction kernels on ARM: cross-compiles them and runs them under an emulator with and without SVE.
#   bash tests/arm.sh
# tests/run.sh does not run this. Installs Debian's cross compiler and qemu-user, and unpacks Highway for arm64 under
# build/arm. The last line is "N passed, N failed".
set -euo pipefail
cd "$(dirname "$0")/.."
source tests/setup.sh

readonly work=build/arm
readonly tests=$work/data_test
mkdir -p "$work/root" "$work/lists/partial" "$work/cache/archives/partial" "$work/objects"
packages=$work/packages.txt
printf '%s\n' g++-aarch64-linux-gnu qemu-user googletest >"$packages"
setup_install_packages "$packages"

# Unpacks Highway's two packages of another architecture, with lists of their own: apt's lists do not change.
fetch_highway() {
  [[ ! -d $work/root/usr/include/hwy ]] || return 0
  local here=$PWD/$work
  local apt=(apt-get -q -o "Dir::State::lists=$here/lists" -o "Dir::Cache=$here/cache" -o APT::Sandbox::User=root
    -o APT::Architectures::=amd64 -o APT::Architectures::=arm64)
  { "${apt[@]}" update && (cd "$work" && "${apt[@]}" download libhwy1:arm64 libhwy-dev:arm64); } >"$work/apt.log" 2>&1 ||
    setup_fail "libhwy for arm64 cannot be fetched; see $work/apt.log"
  local package
  for package in "$work"/*_arm64.deb; do dpkg -x "$package" "$work/root"; done
}

# compile SOURCE OPTIONS...: makes one object in $work/objects. `wait` returns the failure of a background compile.
compile() {
  local source=$1
  shift
  "${compiler[@]}" "$@" -c "$source" -o "$work/objects/$(basename "$source").o"
}

fetch_highway
compiler=(aarch64-linux-gnu-g++ -std=c++20 -fPIC -Isrc -isystem "$work/root/usr/include"
  -isystem /usr/src/googletest/googletest/include)
! command -v ccache >/dev/null || compiler=(ccache "${compiler[@]}")
readonly warnings=(-Wall -Wextra -Wshadow -Werror -Wno-restrict -Wno-missing-field-initializers)
setup_say "compiling module data for ARM"
rm -f "$work"/objects/*
running=()
for source in src/data/*.cpp src/base/status.cpp; do
  compile "$source" -O2 "${warnings[@]}" &
  running+=($!)
  ((${#running[@]} < $(nproc))) || {
    wait "${running[0]}"
    running=("${running[@]:1}")
  }
done
for one in "${running[@]}"; do wait "$one"; done
compile tests/unit/data/data_test.cpp -O1 "${warnings[@]}"
for source in gtest-all.cc gtest_main.cc; do
  compile "/usr/src/googletest/googletest/src/$source" -O1 -w -I/usr/src/googletest/googletest
done
libraries=$PWD/$work/root/usr/lib/aarch64-linux-gnu
aarch64-linux-gnu-g++ "$work"/objects/*.o -o "$tests" -L"$libraries" -lhwy -lpthread

passed=0
failed=0
for machine in cortex-a72 max,sve256=on; do
  log=$work/${machine%%,*}.log
  qemu-aarch64 -cpu "$machine" -L /usr/aarch64-linux-gnu -E "LD_LIBRARY_PATH=$libraries" "$tests" >"$log" 2>&1 || true
  good=$(sed -n 's/^\[  PASSED  \] \([0-9]*\) test.*/\1/p' "$log")
  total=$(sed -n 's/^\[==========\] \([0-9]*\) tests* from .* ran\..*/\1/p' "$log")
  # Without the last lines the program ended early; without NEON's tests it did not run on an ARM machine.
  if [[ -z $total ]] || ! grep -q '^\[       OK \] OnEachTarget/.*/NEON' "$log"; then
    tail -n 20 "$log"
    good=0 total=1
  fi
  grep -h '^\[  FAILED  \].*ms)' "$log" || true
  setup_say "$machine: ${good:-0} of $total passed"
  passed=$((passed + ${good:-0}))
  failed=$((failed + total - ${good:-0}))
done
echo "$passed passed, $failed failed"
((failed == 0))
