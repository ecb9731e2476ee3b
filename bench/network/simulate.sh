#!/usr/bin/env bash
# Compares `farandole simulate` with measurement: allreduces between network namespaces whose links are shaped.
#
#   bash bench/network/simulate.sh [--program build/bin/farandole] [--hosts 2,4,8] [--total 200] [--sizes 64K,256K,1M,4M,16M]
#                                  [--algorithms ring,recursive_doubling,halving_doubling,binomial_tree,direct]
#                                  [--rounds 2] [--output FILE]
#
# Each host has one rank and a link in each direction, without bursts. The links share --total Mbit/s, because one machine
# must move the packets of all of them. A link's latency is the time of a 4-byte exchange between two hosts, its bandwidth
# that of a transfer of 8 MiB between two hosts. Each point is measured in several rounds, of which the one with the least
# median counts: other work on the machine only makes a round slower.
#
# Each point is simulated twice: with all ranks in step, and with one rank that begins late by the time of one packet. Ranks
# come out of step because a link serves connections in turn by whole packets. Prints measured and simulated times of each
# point, with both errors in percent; --output also writes them as JSON lines. The exit code is 1 if an error of the
# second kind is above 15 %.
#
# Needs root, iproute2 and python3. All namespaces are removed at every exit.
set -euo pipefail
cd "$(dirname "$0")/../.."
source bench/network/namespaces.sh

program=build/bin/farandole
hosts=2,4,8
total=200
sizes=64K,256K,1M,4M,16M
algorithms=ring,recursive_doubling,halving_doubling,binomial_tree,direct
rounds=2
output=
while [ $# -gt 0 ]; do
  case "$1" in
    --program) program=$2 && shift 2 ;;
    --hosts) hosts=$2 && shift 2 ;;
    --total) total=$2 && shift 2 ;;
    --sizes) sizes=$2 && shift 2 ;;
    --algorithms) algorithms=$2 && shift 2 ;;
    --rounds) rounds=$2 && shift 2 ;;
    --output) output=$2 && shift 2 ;;
    -h | --help) sed -n '2,/^set/p' "$0" | sed '$d; s/^# \{0,1\}//' && exit 0 ;;
    *) echo "simulate.sh: unknown option $1; --help lists them" >&2 && exit 64 ;;
  esac
done
require_namespaces simulate.sh "$program"
program=$(realpath "$program")

tag=fdls$$
subnet=10.78.0
packet=3100 # bytes: two segments of TCP
work=$(mktemp -d)
tear_down() { end_namespaces "$tag-"; }
trap 'tear_down; rm -rf "$work"' EXIT
trap 'exit 130' INT TERM

# shape NAMESPACE INTERFACE src|dst COUNT: limits what the interface sends to the rate, and serves the hosts at the other
# ends in turn, as network cards and switches with a queue a connection do. Acknowledgements come first, else they would
# wait behind all the data of the other direction. The bucket holds a few packets, because a larger one lets a short
# message pass at the speed of memory.
shape() {
  local host class limits="burst 4kb cburst 4kb quantum $packet"
  ip -n "$1" link set "$2" gso_max_size "$packet"
  {
    echo "qdisc add dev $2 root handle 1: htb default 2"
    echo "class add dev $2 parent 1: classid 1:1 htb rate ${rate}mbit $limits"
    echo "class add dev $2 parent 1:1 classid 1:2 htb rate 1mbit ceil ${rate}mbit prio 0 $limits"
    echo "filter add dev $2 parent 1: protocol ip prio 1 u32 match u16 0 0xff80 at 2 flowid 1:2"
    for host in $(seq 0 $(($4 - 1))); do
      class=1:$((host + 10))
      echo "class add dev $2 parent 1:1 classid $class htb rate $((rate * 1000 / $4))kbit ceil ${rate}mbit prio 1 $limits"
      echo "filter add dev $2 parent 1: protocol ip prio 2 u32 match ip $3 $subnet.$((host + 1))/32 flowid $class"
    done
  } | ip netns exec "$1" tc -batch -
}

# shaped_links COUNT: bridged hosts. Both ends of a link are shaped, because each shapes only what it sends.
shaped_links() {
  local host
  bridged_hosts "$1"
  for host in $(seq 0 $(($1 - 1))); do
    ip -n "$tag-$host" route replace $subnet.0/24 dev eth0 congctl cubic
    shape "$tag-$host" eth0 dst "$1"
    shape "$tag-sw" "port$host" src "$1"
  done
}

# bench HOSTS OPTIONS...: the JSON lines of `farandole bench` with one rank on each of the first hosts.
bench() {
  local count=$1 pids=() host failed=0
  shift
  export FARANDOLE_JOB_KEY="simulate bench $tag $RANDOM"
  for host in $(seq 0 $((count - 1))); do
    ip netns exec "$tag-$host" timeout 300 "$program" run --nnodes "$count" --node-rank "$host" -np 1 --no-prefix \
      --rendezvous "$subnet.1:29400" -- "$program" bench --launched --json "$@" >"$work/out$host" 2>"$work/err$host" &
    pids+=($!)
  done
  for pid in "${pids[@]}"; do wait "$pid" || failed=1; done
  [ "$failed" -eq 0 ] || { cat "$work"/err* >&2 && return 1; }
  cat "$work/out0"
}

# measure_link: prints the link of the first two hosts as an argument of `farandole simulate --link`.
measure_link() {
  bench 2 --algorithm recursive_doubling --sizes 4 >"$work/ping"
  bench 2 --collective broadcast --algorithm chain --sizes 8M >"$work/transfer"
  python3 bench/network/simulate_error.py link "$work/ping" "$work/transfer"
}

: >"$work/rows"
for count in ${hosts//,/ }; do
  rate=$((total / count))
  shaped_links "$count"
  link=$(measure_link)
  one_packet=$(python3 bench/network/simulate_error.py packet "$packet" "$link")
  echo "$count hosts, links of $rate Mbit/s; measured: $link (bandwidth, latency, overhead)"
  for algorithm in ${algorithms//,/ }; do
    for _ in $(seq "$rounds"); do bench "$count" --algorithm "$algorithm" --sizes "$sizes"; done >"$work/measured"
    for late in 0us "$one_packet"; do
      "$program" simulate --hosts "$count" --link "$link" --algorithm "$algorithm" --bytes "$sizes" --json \
        --stragglers "1:$late"
    done >"$work/simulated"
    python3 bench/network/simulate_error.py "$count" "$work/measured" "$work/simulated" "$work/rows"
  done
  tear_down
done
[ -z "$output" ] || cp "$work/rows" "$output"
python3 bench/network/simulate_error.py summary "$work/rows"
