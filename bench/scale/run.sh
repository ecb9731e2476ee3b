#!/usr/bin/env bash
# Starts many ranks on this machine and prints what one rank costs: seconds to start, memory and descriptors, and how
# long it takes until all know of a killed rank. The ranks are processes without Python.
#
#   bash bench/scale/run.sh [--build build] [--ranks "8 16 32 64 128"] [--transport tcp] [--mesh "16 1000000"] [--bytes 4096]
#                           [--algorithm ring] [--no-kill] [--named STEPS] [--threads 1]
#
# --mesh lists values of FARANDOLE_TCP_MESH_RANKS: the second one connects all ranks with each other at the start.
# Columns: `start` is the time from the first process until the last rank has a communicator, `cpu` the processor time
# that all ranks together need until then (without the launcher), `first` the slowest first allreduce, `MiB` the memory
# of a rank, `own` what of it no other process uses, `fds` the descriptors of a rank (medians), `most` those of the rank
# that has the most, and `loss` the time from the kill until the last rank knows. With --named each rank also sums 20
# named tensors in each of so many steps: `step` is the slowest first step and `last` the slowest last one, `sent` the
# control messages of a rank in the first step (median), `root` those of rank 0, `later` those of all ranks in the last.
# With --threads T each process has T ranks, in threads: for numbers of ranks of which this machine cannot hold so many
# processes. Then the columns of a rank are the process's divided by T, and a kill loses the T ranks of a process. Where
# thousands of threads share two cores, the one of the coordinator may have to wait for seconds: FARANDOLE_LOST_AFTER_S=120.
set -euo pipefail
cd "$(dirname "$0")/../.."

build=build
ranks="8 16 32 64 128"
transport=tcp
mesh="16 1000000"
bytes=4096
algorithm=ring
kill=yes
named=0
threads=1
while [ $# -gt 0 ]; do
  case "$1" in
    --build) build=$2 && shift 2 ;;
    --ranks) ranks=$2 && shift 2 ;;
    --transport) transport=$2 && shift 2 ;;
    --mesh) mesh=$2 && shift 2 ;;
    --bytes) bytes=$2 && shift 2 ;;
    --algorithm) algorithm=$2 && shift 2 ;;
    --no-kill) kill="" && shift ;;
    --named) named=$2 && shift 2 ;;
    --threads) threads=$2 && shift 2 ;;
    -h | --help) sed -n '2,/^set/p' "$0" | sed '$d; s/^# \{0,1\}//' && exit 0 ;;
    *) echo "scale/run.sh: unknown option $1; --help lists them" >&2 && exit 64 ;;
  esac
done
[ -x "$build/bin/scale_rank" ] || { echo "scale/run.sh: build it with -DFARANDOLE_BENCH=ON --target scale_rank" >&2 && exit 77; }
ulimit -n "$(ulimit -Hn)"

now_ns() { python3 -c 'import time; print(time.monotonic_ns())'; }

# once RANKS MESH [LOST]: the lines of all ranks.
once() {
  local own_place=()
  [ "$threads" = 1 ] || own_place=(env THREADS="$threads" PLACE="unix:@farandole-scale-$(openssl rand -hex 8)" KEY="$(openssl rand -hex 16)")
  START_NS=$(now_ns) FARANDOLE_TRANSPORT=$transport FARANDOLE_TCP_MESH_RANKS=$2 FARANDOLE_ALGORITHM=$algorithm \
    FARANDOLE_START_TIMEOUT_S=300 FARANDOLE_LOG_LEVEL=error NAMED_STEPS=$named \
    timeout 600 "${own_place[@]}" "$build/bin/farandole" run -np "$(($1 / threads))" -- "$build/bin/scale_rank" "$bytes" ${3:+"$3"} 2>&1 || true
}

# summarize RANKS MESH THREADS: one row, of the lines of all ranks.
summarize() {
  python3 -c '
import re, statistics, sys
size, mesh, threads = map(int, sys.argv[1:])
facts, named, knew, killed = {}, {}, {}, None
for line in sys.stdin:
    word, *rest = re.sub(r"^\[\d+\] ", "", line).split() or [""]
    if word == "SCALE":
        facts[rest[0]] = [float(one) for one in rest[1:]]
    elif word == "NAMED":
        named[rest[0]] = [float(one) for one in rest[1:]]
    elif word == "KILLED":
        killed = int(rest[0])
    elif word == "KNEW":
        knew[rest[0]] = int(rest[1]), int(rest[2])
row = f"{size:6} {mesh:8} "
if len(facts) != size:
    sys.exit(print(row, f"only {len(facts)} ranks came"))
start, first, memory, own, descriptors, cpu = zip(*facts.values())
loss = "-"
if killed:
    right = [moment for moment, culprit in knew.values() if culprit // threads == size // 2 // threads]
    others = size - threads
    loss = f"{(max(right) - killed) / 1e9:.3f}" if len(right) == others else f"{len(right)} of {others}"
middle = lambda values: statistics.median_low(values)
print(row + f"{max(start):8.2f} {sum(cpu):8.2f} {max(first):8.3f} {middle(memory) / 1024:8.1f} {middle(own) / 1024:8.1f} "
      f"{middle(descriptors):6.0f} {max(descriptors):6.0f} {loss:>8}", end="")
if named:
    step, last, sent, later = zip(*named.values())
    root = named["0"][2]
    print(f" {max(step):8.3f} {max(last):8.4f} {middle(sent):6.0f} {root:6.0f} {sum(later):6.0f}", end="")
print()' "$@"
}

printf '%6s %8s %8s %8s %8s %8s %8s %6s %6s %8s\n' ranks mesh start,s cpu,s first,s MiB own,MiB fds most loss,s
[ "$named" = 0 ] || printf '%91s %8s %8s %6s %6s %6s\n' "" step,s last,s sent root later
for count in $ranks; do
  for limit in $mesh; do
    out=$(once "$count" "$limit" ${kill:+$((count / 2))})
    summarize "$count" "$limit" "$threads" <<<"$out"
  done
done
