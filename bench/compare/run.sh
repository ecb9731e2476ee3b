#!/usr/bin/env bash
# Compares farandole with Open MPI, MPICH and Gloo, and with the limits of the machine, in one run on this host.
#   bash bench/compare/run.sh [--quick] [--only P1,P4] [--json FILE] [--pictures FOLDER]
# Installs what is missing (Debian's MPIs side by side, PyTorch for Gloo, Matplotlib), builds farandole, and runs every
# library in turn on the same sizes and ranks, several times: allreduce through shared memory with 2, 4 and 8 ranks, over
# loopback TCP, named operations with the gradients of two networks, Python, start and end, reduction kernels. Prints a
# table for each target of the project with ours, the peers, the limit and the ratio, and at the end which targets hold.
#   --quick            fewer sizes and launches: under 3 minutes instead of under 15
#   --only P1,P4       only these targets: P1 P2 P3 P4 P6 P8 P9 P10 P12
#   --json FILE        every cell as one JSON object a line
#   --prepare          install and build, measure nothing
#   --pictures FOLDER  where shm.png and tcp.png go (default: build/compare)
# Exits with 0 if everything was measured, whether targets hold or not. Do not use the machine meanwhile.
set -euo pipefail

case " $* " in *" --help "* | *" -h "*)
  sed -n '2,/^set -/{/^set -/d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"
  exit 0
  ;;
esac

called_from=$PWD
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
source tests/setup.sh

readonly built=build/compare
readonly warnings=(-Wall -Wextra -Wshadow -Werror)

build_library() {
  install_python_package
  local log=$built/build.log
  setup_say "building what is compared"
  { cmake -G Ninja -S . -B build -DCMAKE_BUILD_TYPE=Release -DFARANDOLE_BENCH=ON &&
    cmake --build build --target farandole farandole_program reduce_bench; } >"$log" 2>&1 || {
    tail -n 30 "$log" >&2
    setup_fail "the build failed (above); see $log"
  }
}

# compile COMPILER PROGRAM SOURCE [ARGUMENTS...]
compile() {
  local compiler=$1 program=$built/$2 source=bench/compare/$3
  shift 3
  [[ ! -x $program || -n $(find bench/compare include build/lib -newer "$program" -type f -print -quit) ]] || return 0
  "$compiler" -O3 -std=c++20 "${warnings[@]}" "$source" -o "$program" "$@" ||
    setup_fail "$source does not compile with $compiler (above)"
}

build_programs() {
  local c_only=(-DOMPI_SKIP_MPICXX -DMPICH_SKIP_MPICXX)
  local ours=(-Iinclude -Isrc -Lbuild/lib -lfarandole "-Wl,-rpath,$PWD/build/lib")
  compile g++ limits limits.cpp -march=native
  compile g++ farandole_allreduce farandole_allreduce.cpp "${ours[@]}"
  compile g++ farandole_named named.cpp "${ours[@]}"
  compile mpicxx.openmpi openmpi_allreduce mpi_allreduce.cpp "${c_only[@]}"
  compile mpicxx.mpich mpich_allreduce mpi_allreduce.cpp "${c_only[@]}"
}

# Matplotlib has a venv of its own: only the pictures need it, and everything else is measured without it.
make_plotter() {
  [[ ! -e $built/plotter/complete ]] || return 0
  setup_say "installing Matplotlib for the pictures"
  rm -rf "$built/plotter"
  python3 -m venv "$built/plotter" &&
    "$built/plotter/bin/python" -m pip install --quiet --disable-pip-version-check matplotlib==3.10.3 &&
    touch "$built/plotter/complete" || setup_say "Matplotlib cannot be installed; there will be no pictures"
}

mkdir -p "$built"
set_up_machine
setup_install_packages bench/compare/packages.txt
build_library
build_programs
make_plotter
plotter=()
[[ ! -e $built/plotter/complete ]] || plotter=(--plotter "$built/plotter/bin/python")
[[ " $* " != *" --prepare "* ]] || exit 0
exec python bench/compare/compare.py --built "$built" --library build --from "$called_from" ${plotter[@]+"${plotter[@]}"} "$@"
