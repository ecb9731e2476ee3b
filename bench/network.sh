#!/usr/bin/env bash
# Measures allreduce between hosts: network namespaces joined by links of 1 Gbit/s, then by links with 1 ms of delay.
#
#   bash bench/network.sh [--program build/bin/farandole] [--hosts 4] [--ranks 1] [--only speed|delay|hosts|flows|compression|racks]
#
# speed   each link shaped to 1 Gbit/s both ways (tbf): time beside the bound 2(p-1)/p * bytes / bandwidth
# delay   a switch in user space holds each frame for 1 ms: time of small messages in one-way delays
# hosts   two hosts with two ranks each, 1 Gbit/s: the ranks of a host share the bytes between hosts
# compression  the links of speed: allreduces compressed to int8, float8_e4m3, int4 and bfloat16 beside float32
# racks   eight hosts in two racks, every other host in the same one, joined by 1 Gbit/s: ranks that know their location
#         beside ranks that do not
# flows   two hosts, 1 Gbit/s, of which each connection gets a quarter (htb): four connections a channel beside one
#
# Needs root, iproute2, python3 and a compiler. All namespaces are removed at every exit. Prints one line for each
# measurement; the exit code is 1 if a target is missed.
set -euo pipefail
cd "$(dirname "$0")/.."
source bench/network/namespaces.sh

program=build/bin/farandole
hosts=4
ranks=1
only="speed delay hosts flows compression racks"
while [ $# -gt 0 ]; do
  case "$1" in
    --program) program=$2 && shift 2 ;;
    --hosts) hosts=$2 && shift 2 ;;
    --ranks) ranks=$2 && shift 2 ;;
    --only) only=$2 && shift 2 ;;
    -h | --help) sed -n '2,/^set/p' "$0" | sed '$d; s/^# \{0,1\}//' && exit 0 ;;
    *) echo "network.sh: unknown option $1; --help lists them" >&2 && exit 64 ;;
  esac
done
require_namespaces network.sh "$program"
program=$(realpath "$program")

tag=fdl$$
work=$(mktemp -d)
switch_pid=
tear_down() {
  end_namespaces "$tag-"
  if [ -n "$switch_pid" ]; then
    kill "$switch_pid" 2>/dev/null || true
    wait "$switch_pid" 2>/dev/null || true
    switch_pid=
  fi
}
trap 'tear_down; rm -rf "$work"' EXIT
trap 'exit 130' INT TERM

# limited_flows: two shaped hosts, on which each connection gets 250 Mbit/s. Connections are distinguished by bits 1 to 6
# of the port of host 1, which connects: the kernel assigns every other port to connecting sockets.
limited_flows() {
  shaped_links 2
  local host port bits class
  for host in 0 1; do
    port=$([ "$host" -eq 0 ] && echo dport || echo sport)
    ip netns exec "$tag-$host" tc qdisc del dev eth0 root
    {
      echo "qdisc add dev eth0 root handle 1: htb default fff"
      echo "class add dev eth0 parent 1: classid 1:1 htb rate 1gbit burst 128k cburst 128k quantum 60000"
      echo "class add dev eth0 parent 1:1 classid 1:fff htb rate 1gbit burst 128k cburst 128k quantum 60000"
      for bits in $(seq 0 63); do
        class=$(printf '1:%x' $((bits + 16)))
        echo "class add dev eth0 parent 1:1 classid $class htb rate 250mbit burst 64k cburst 64k quantum 60000"
        echo "filter add dev eth0 parent 1: protocol ip prio 1 u32 match ip protocol 6 0xff" \
          "match ip $port $((bits * 2)) 0x7e flowid $class"
      done
    } | ip netns exec "$tag-$host" tc -batch -
  done
}

# slow_links COUNT DELAY_US
slow_links() {
  local names=()
  for host in $(seq 0 $(($1 - 1))); do names+=("${tag}t$host"); done
  "${CXX:-c++}" -std=c++20 -O2 -o "$work/slow_switch" bench/network/slow_switch.cpp
  "$work/slow_switch" "$2" "${names[@]}" >"$work/switch" &
  switch_pid=$!
  until grep -q ready "$work/switch"; do kill -0 "$switch_pid" && sleep 0.05; done
  for host in $(seq 0 $(($1 - 1))); do
    ip netns add "$tag-$host"
    ip link set "${tag}t$host" netns "$tag-$host" name eth0
    address "$host" eth0
  done
}

# racked_links COUNT: shaped hosts, of which those with odd numbers are on a second bridge. The link between the bridges
# has the bandwidth of one host.
racked_links() {
  local host end
  shaped_links "$1"
  ip -n "$tag-sw" link add br1 type bridge
  ip -n "$tag-sw" link set br1 up
  for host in $(seq 1 2 $(($1 - 1))); do ip -n "$tag-sw" link set "port$host" master br1; done
  ip -n "$tag-sw" link add trunk0 type veth peer name trunk1
  for end in 0 1; do
    ip -n "$tag-sw" link set "trunk$end" master "br$end" up
    ip netns exec "$tag-sw" tc qdisc add dev "trunk$end" root tbf rate 1gbit burst 128kb latency 50ms
  done
}

# racks_bench HOSTS SIZES: without locations, then with them.
racks_bench() {
  bench "$1" 1 "$2"
  knows_racks=1 bench "$1" 1 "$2"
}

# bench HOSTS RANKS_PER_HOST SIZES [COMPRESSION]: JSON lines of rank 0.
bench() {
  local pids=() host failed=0 location
  export FARANDOLE_JOB_KEY="network bench $tag $RANDOM"
  for host in $(seq 0 $(($1 - 1))); do
    location=${knows_racks:+rack-$((host % 2))}
    FARANDOLE_LOCATION=$location ip netns exec "$tag-$host" timeout 100 "$program" run --nnodes "$1" --node-rank "$host" -np "$2" --no-prefix \
      --rendezvous 10.77.0.1:29400 -- "$program" bench --launched --json --sizes "$3" --compression "${4:-none}" >"$work/out$host" 2>"$work/err$host" &
    pids+=($!)
  done
  for pid in "${pids[@]}"; do wait "$pid" || failed=1; done
  [ "$failed" -eq 0 ] || { cat "$work"/err* >&2 && return 1; }
  cat "$work/out0"
}

# flows_bench SIZES: over one connection, then over four.
flows_bench() {
  FARANDOLE_TCP_STREAMS=1 bench 2 1 "$1"
  FARANDOLE_TCP_STREAMS=4 bench 2 1 "$1"
}

# compression_bench HOSTS RANKS_PER_HOST SIZES: as they are, then in each format.
compression_bench() {
  local format
  for format in none int8 float8_e4m3 int4 bfloat16; do bench "$1" "$2" "$3" "$format"; done
}

# table WHAT HOSTS: reads JSON lines, prints a row for each, and compares it with its target.
table() {
  python3 - "$1" "$2" 3<&0 <<'PY'
import json, math, os, sys
what, hosts = sys.argv[1], int(sys.argv[2])
bad = rows = 0
alone = {}  # microseconds over one connection, by size
for line in os.fdopen(3):
    row = json.loads(line)
    rows += 1
    ranks, size, median = row["ranks"], row["bytes"], row["time_us_median"]
    if what == "delay":
        limit = (math.ceil(math.log2(hosts)) + 1) * 1000
        checked, good = size <= 4096, median <= limit
        text = f"{median / 1000:6.2f} one-way delays, at most {limit / 1000:.0f}"
    elif what == "flows":
        # Some of the four connections may share a class by chance.
        checked, faster = size >= 1 << 20 and size in alone, alone.get(size, median) / median
        good = faster >= 2
        text = f"{'4 connections' if size in alone else '1 connection '}, {faster:5.2f} times as fast, at least 2"
        alone.setdefault(size, median)
    elif what == "racks":
        # Unordered, each byte crosses between the racks between every two neighbours: eight times instead of twice.
        checked, faster = size >= 1 << 20 and size in alone, alone.get(size, median) / median
        good = faster >= 2
        text = f"{'by location' if size in alone else 'by rank    '}, {faster:5.2f} times as fast, at least 2"
        alone.setdefault(size, median)
    elif what == "compression":
        alone.setdefault(size, median)
        faster, form = alone[size] / median, row.get("compression", "none")
        checked, good = form == "int8" and size >= 8 << 20, faster >= 3.2
        text = f"{form:12} {size / median / 1e3:7.3f} GB/s, {faster:5.2f} times as fast" + ", at least 3.2" * checked
    else:
        limit = 2 * (hosts - 1) / hosts * size / 125e6 * 1e6
        checked, good = size >= 8 << 20, limit / median >= 0.9
        text = f"bound {limit:11.1f} us, reached {100 * limit / median:5.1f} %, at least 90"
    bad += checked and not good
    outcome = "" if not checked else "holds" if good else "MISSED"
    print(f"{what:11} {row['transport']:8} {ranks} ranks {hosts} hosts {size:10} B  median {median:11.1f} us  "
          f"min {row['time_us_min']:11.1f} us  {text}  {outcome}", flush=True)
sys.exit(1 if bad or not rows else 0)
PY
}

missed=0
for part in $only; do
  case "$part" in
    speed) shaped_links "$hosts" && bench "$hosts" "$ranks" 4,64K,1M,8M,16M,64M >"$work/rows" && table speed "$hosts" <"$work/rows" || missed=1 ;;
    delay) slow_links "$hosts" 1000 && bench "$hosts" 1 4,1K,4K,64K,256K >"$work/rows" && table delay "$hosts" <"$work/rows" || missed=1 ;;
    flows) limited_flows && flows_bench 4,64K,1M,8M,64M >"$work/rows" && table flows 2 <"$work/rows" || missed=1 ;;
    compression) shaped_links "$hosts" && compression_bench "$hosts" "$ranks" 64K,1M,8M,64M >"$work/rows" && table compression "$hosts" <"$work/rows" || missed=1 ;;
    racks) racked_links 8 && racks_bench 8 4,64K,1M,8M,32M >"$work/rows" && table racks 8 <"$work/rows" || missed=1 ;;
    hosts) shaped_links 2 && bench 2 2 4,64K,1M,8M,16M,64M >"$work/rows" && table hosts 2 <"$work/rows" || missed=1 ;;
    *) echo "network.sh: --only $part is none of speed, delay, hosts, flows, compression, racks" >&2 && exit 64 ;;
  esac
  tear_down
done
exit "$missed"
