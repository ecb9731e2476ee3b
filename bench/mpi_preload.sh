#!/usr/bin/env bash
# Measures a collective of an MPI program with and without farandole's library preloaded, on this host.
#
#   bash bench/mpi_preload.sh [--library build/lib] [--collective allreduce] [--ranks "2 4 8"] [--sizes "4 64 ..."]
#                             [--mpi "openmpi mpich"] [--repeat 3] [--quick]
#
# The program is bench/mpi_collective.c, built by each MPI's own compiler. Both candidates take turns at each size; of the
# repetitions the least median counts, because other processes only make it longer. With more ranks than cores, MPI's
# ranks wait for each other's time slices; Open MPI then yields (--oversubscribe), MPICH 4.0 does not.
set -euo pipefail
cd "$(dirname "$0")/.."

library=build/lib
collective=allreduce
ranks="2 4 8"
sizes="4 64 1024 4096 16384 65536 262144 1048576 4194304 16777216 67108864"
mpis="openmpi mpich"
repeat=3
while [ $# -gt 0 ]; do
  case "$1" in
    --library) library=$2 && shift 2 ;;
    --collective) collective=$2 && shift 2 ;;
    --ranks) ranks=$2 && shift 2 ;;
    --sizes) sizes=$2 && shift 2 ;;
    --mpi) mpis=$2 && shift 2 ;;
    --repeat) repeat=$2 && shift 2 ;;
    --quick) repeat=1 ranks=2 sizes="4 4096 1048576" && shift ;;
    -h | --help) sed -n '2,/^set/p' "$0" | sed '$d; s/^# \{0,1\}//' && exit 0 ;;
    *) echo "mpi_preload.sh: unknown option $1; --help lists them" >&2 && exit 64 ;;
  esac
done
library=$(realpath "$library")
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for mpi in $mpis; do
  [ -f "$library/libfarandole_mpi_preload_$mpi.so" ] ||
    { echo "mpi_preload.sh: $library/libfarandole_mpi_preload_$mpi.so is not built" >&2 && exit 64; }
  command -v "mpicc.$mpi" >/dev/null || { echo "mpi_preload.sh: mpicc.$mpi is missing" >&2 && exit 77; }
  "mpicc.$mpi" -O2 -o "$work/$mpi" bench/mpi_collective.c
done

# measure MPI RANKS BYTES [LIBRARY]: a line of bytes and microseconds.
measure() {
  local mpi=$1 count=$2 size=$3 preload=${4:-}
  if [ "$mpi" = openmpi ]; then
    timeout 600 mpirun.openmpi --oversubscribe -n "$count" ${preload:+-x LD_PRELOAD="$preload"} "$work/$mpi" "$collective" "$size"
  else
    timeout 600 mpiexec.hydra -n "$count" ${preload:+-genv LD_PRELOAD "$preload"} "$work/$mpi" "$collective" "$size"
  fi
}

for mpi in $mpis; do
  for count in $ranks; do
    for size in $sizes; do
      for _ in $(seq "$repeat"); do
        measure "$mpi" "$count" "$size" | sed "s/^/$mpi $count alone /"
        measure "$mpi" "$count" "$size" "$library/libfarandole_mpi_preload_$mpi.so" | sed "s/^/$mpi $count preloaded /"
      done
    done
    echo "mpi_preload.sh: $mpi, $count ranks measured after $SECONDS s" >&2
  done
done >"$work/times"

python3 - "$work/times" "$collective" <<'PY'
import sys

best = {}
for line in open(sys.argv[1]):
    mpi, ranks, how, size, time = line.split()
    key = (mpi, int(ranks), how, int(size))
    best[key] = min(float(time), best.get(key, float("inf")))
for mpi, ranks in sorted({key[:2] for key in best}):
    print(f"\n{sys.argv[2]}, {mpi}, {ranks} ranks: microseconds\n{'bytes':>10} {'MPI alone':>12} {'preloaded':>12} {'times':>7}")
    for size in sorted({key[3] for key in best if key[:2] == (mpi, ranks)}):
        alone, ours = best[mpi, ranks, "alone", size], best[mpi, ranks, "preloaded", size]
        print(f"{size:>10} {alone:>12.2f} {ours:>12.2f} {alone / ours:>7.2f}")
PY
