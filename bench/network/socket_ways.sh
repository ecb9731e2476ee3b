#!/usr/bin/env bash
# Compares the ways in which Linux exchanges bytes over one TCP connection: send() and recv(), with and without sleeping,
# MSG_ZEROCOPY, and io_uring: plain, spinning, with registered memory, with multishot receives.
#
#   bash bench/network/socket_ways.sh [--runs 5] [--only loopback|links]
#
# loopback  two processes, one on each of two cores
# links     two network namespaces joined by links shaped to 1 Gbit/s (bench/network/namespaces.sh)
#
# Up to 4 KiB the time is that of one way; beyond, both processes send and receive at the same time. Each figure is the
# median over the runs, each of which measures all ways. Needs a compiler and liburing; links need root and iproute2.
set -euo pipefail
cd "$(dirname "$0")/../.."
source bench/network/namespaces.sh

runs=5
only="loopback links"
while [ $# -gt 0 ]; do
  case "$1" in
    --runs) runs=$2 && shift 2 ;;
    --only) only=$2 && shift 2 ;;
    -h | --help) sed -n '2,/^set/p' "$0" | sed '$d; s/^# \{0,1\}//' && exit 0 ;;
    *) echo "socket_ways.sh: unknown option $1; --help lists them" >&2 && exit 64 ;;
  esac
done

tag=fdl$$
work=$(mktemp -d)
trap 'end_namespaces "$tag-"; rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
"${CXX:-c++}" -std=c++20 -O2 bench/network/socket_ways.cpp -luring -o "$work/ways"

# measure PLACE ADDRESS: `server` and `client` are the commands before the program.
measure() {
  local run
  for run in $(seq "$runs"); do
    echo "socket_ways.sh: $1, run $run of $runs" >&2
    "${server[@]}" taskset -c 0 "$work/ways" serve 34567 &
    sleep 1
    "${client[@]}" taskset -c 1 timeout 300 "$work/ways" connect "$2" 34567 >>"$work/$1"
    wait $!
  done
  python3 - "$1" "$work/$1" <<'PYTHON'
import collections, statistics, sys

place, path = sys.argv[1:]
times = collections.defaultdict(list)
for line in open(path):
    way, size, median, _, cpu = line.split()
    times[way, int(size)].append((float(median), float(cpu)))
sizes = sorted({size for _, size in times})
names = {1 << 10: "KiB", 1 << 20: "MiB"}
label = {size: next((f"{size // unit} {name}" for unit, name in sorted(names.items(), reverse=True) if size >= unit), f"{size} B")
         for size in sizes}
print(f"\n{place}: us of one exchange; in brackets us of one processor")
print("| way | " + " | ".join(label[size] for size in sizes) + " |")
print("|---|" + "---|" * len(sizes))
for way in dict.fromkeys(way for way, _ in times):
    cells = []
    for size in sizes:
        median, cpu = (statistics.median(each) for each in zip(*times[way, size]))
        cells.append(f"{median:.3g} ({cpu:.3g})" if median < 1000 else f"{median:.0f} ({cpu:.0f})")
    print(f"| {way} | " + " | ".join(cells) + " |")
PYTHON
}

for place in $only; do
  if [ "$place" = loopback ]; then
    server=() client=()
    measure loopback 127.0.0.1
  elif [ "$place" = links ]; then
    require_namespaces socket_ways.sh "$work/ways"
    shaped_links 2
    server=(ip netns exec "$tag-0") client=(ip netns exec "$tag-1")
    measure links "$subnet.1"
  else
    echo "socket_ways.sh: --only takes loopback or links" >&2
    exit 64
  fi
done
