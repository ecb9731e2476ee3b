#!/usr/bin/env bash
# Measures a collective of MPI beside farandole's ways to run it, on this host.
#
#   bash bench/mpi.sh [--ways "alone preloaded"] [--build build] [--collective allreduce] [--ranks "2 4 8"]
#                     [--sizes "4 64 ..."] [--mpi "openmpi mpich"] [--repeat 3] [--quick]
#
# The ways:
#   alone      the program bench/mpi_collective.c, built by each MPI's own compiler
#   preloaded  the same program with libfarandole_mpi_preload before it
#   schedules  farandole bench --transport mpi: farandole's schedules over messages of MPI
#   whole      the same with FARANDOLE_ALGORITHM=whole: MPI's own collective, called by farandole
#
# The ways take turns at each size; of the repetitions the least median counts, because other processes only make it
# longer. With more ranks than cores, MPI's ranks wait for each other's time slices; Open MPI then yields
# (--oversubscribe), MPICH 4.0 does not.
set -euo pipefail
cd "$(dirname "$0")/.."

ways="alone preloaded"
build=build
collective=allreduce
ranks="2 4 8"
sizes="4 64 1024 4096 16384 65536 262144 1048576 4194304 16777216 67108864"
mpis="openmpi mpich"
repeat=3
while [ $# -gt 0 ]; do
  case "$1" in
    --ways) ways=$2 && shift 2 ;;
    --build) build=$2 && shift 2 ;;
    --collective) collective=$2 && shift 2 ;;
    --ranks) ranks=$2 && shift 2 ;;
    --sizes) sizes=$2 && shift 2 ;;
    --mpi) mpis=$2 && shift 2 ;;
    --repeat) repeat=$2 && shift 2 ;;
    --quick) repeat=1 ranks=2 sizes="4 4096 1048576" && shift ;;
    -h | --help) sed -n '2,/^set/p' "$0" | sed '$d; s/^# \{0,1\}//' && exit 0 ;;
    *) echo "mpi.sh: unknown option $1; --help lists them" >&2 && exit 64 ;;
  esac
done
for way in $ways; do
  case "$way" in
    alone | preloaded | schedules | whole) ;;
    *) echo "mpi.sh: unknown way $way; --help lists them" >&2 && exit 64 ;;
  esac
done
build=$(realpath "$build")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

for mpi in $mpis; do
  for file in "lib/libfarandole_mpi_preload_$mpi.so" bin/farandole; do
    [ -f "$build/$file" ] || { echo "mpi.sh: $build/$file is not built" >&2 && exit 64; }
  done
  command -v "mpicc.$mpi" >/dev/null || { echo "mpi.sh: mpicc.$mpi is missing" >&2 && exit 77; }
  "mpicc.$mpi" -O2 -o "$work/$mpi" bench/mpi_collective.c
done

# launch MPI RANKS VARIABLE=VALUE PROGRAM...: with the variable on every rank.
launch() {
  local mpi=$1 count=$2 variable=$3
  shift 3
  if [ "$mpi" = openmpi ]; then
    timeout 600 mpirun.openmpi --oversubscribe -n "$count" -x "$variable" "$@"
  else
    timeout 600 mpiexec.hydra -n "$count" -genv "${variable%%=*}" "${variable#*=}" "$@"
  fi
}

# measure MPI RANKS BYTES WAY: a line of bytes and microseconds.
measure() {
  local program=("$work/$1" "$collective" "$3") variable=MPI_COLLECTIVE=$collective
  case "$4" in
    preloaded) variable=LD_PRELOAD=$build/lib/libfarandole_mpi_preload_$1.so ;;
    schedules | whole)
      program=("$build/bin/farandole" bench --launched --transport mpi --collective "$collective" --sizes "$3" --json)
      [ "$4" = schedules ] || variable=FARANDOLE_ALGORITHM=whole
      ;;
  esac
  launch "$1" "$2" "$variable" "${program[@]}"
}

for mpi in $mpis; do
  for count in $ranks; do
    for size in $sizes; do
      for _ in $(seq "$repeat"); do
        for way in $ways; do measure "$mpi" "$count" "$size" "$way" | sed "s/^/$mpi $count $way /"; done
      done
    done
    echo "mpi.sh: $mpi, $count ranks measured after $SECONDS s" >&2
  done
done >"$work/times"

python3 - "$work/times" "$collective" "$ways" <<'PY'
import json
import sys

best = {}
for line in open(sys.argv[1]):
    mpi, ranks, way, rest = line.split(maxsplit=3)
    if rest.startswith("{"):
        result = json.loads(rest)
        size, time = result["bytes"], result["time_us_median"]
    else:
        size, time = rest.split()
    key = (mpi, int(ranks), way, int(size))
    best[key] = min(float(time), best.get(key, float("inf")))
ways = sys.argv[3].split()
for mpi, ranks in sorted({key[:2] for key in best}):
    others = "".join(f"{way:>12} {'times':>6}" for way in ways[1:])
    print(f"\n{sys.argv[2]}, {mpi}, {ranks} ranks: microseconds\n{'bytes':>10}{ways[0]:>12}{others}")
    for size in sorted({key[3] for key in best if key[:2] == (mpi, ranks)}):
        first = best[mpi, ranks, ways[0], size]
        columns = (best[mpi, ranks, way, size] for way in ways[1:])
        print(f"{size:>10}{first:>12.2f}" + "".join(f"{time:>12.2f} {first / time:>6.2f}" for time in columns))
PY
