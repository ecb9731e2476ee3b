# Sourced by scripts that make network namespaces. The names of theirs begin with "$tag-".

# end_namespaces TAG: ends what runs in the namespaces whose names begin with TAG, and removes them.
end_namespaces() {
  local name pid
  for name in $(ip netns list | awk -v tag="$1" 'index($1, tag) == 1 {print $1}'); do
    for pid in $(ip netns pids "$name"); do kill -9 "$pid" 2>/dev/null || true; done
    ip netns del "$name"
  done
}

# require_namespaces SCRIPT PROGRAM: ends the script where it cannot make namespaces or the program is not built.
require_namespaces() {
  [ "$(id -u)" -eq 0 ] || { echo "$1: network namespaces need root" >&2 && exit 77; }
  [ -x "$2" ] || { echo "$1: $2 is not built; name it with --program" >&2 && exit 64; }
}

subnet=10.77.0 # of the hosts; a script may choose another one

# address HOST INTERFACE: gives the interface of a host the address SUBNET.(HOST + 1).
address() {
  ip -n "$tag-$1" link set lo up
  ip -n "$tag-$1" addr add "$subnet.$(($1 + 1))/24" dev "$2"
  ip -n "$tag-$1" link set "$2" up
}

# bridged_hosts COUNT: hosts with eth0, each joined to port HOST of a bridge in the namespace $tag-sw.
bridged_hosts() {
  local host
  ip netns add "$tag-sw"
  ip -n "$tag-sw" link add br0 type bridge
  ip -n "$tag-sw" link set br0 up
  for host in $(seq 0 $(($1 - 1))); do
    ip netns add "$tag-$host"
    ip -n "$tag-sw" link add "port$host" type veth peer name eth0 netns "$tag-$host"
    ip -n "$tag-sw" link set "port$host" master br0 up
    address "$host" eth0
  done
}

# shaped_links COUNT: bridged hosts at 1 Gbit/s; tbf on both ends, because each shapes only what it sends.
shaped_links() {
  local host
  bridged_hosts "$1"
  for host in $(seq 0 $(($1 - 1))); do
    ip netns exec "$tag-$host" tc qdisc add dev eth0 root tbf rate 1gbit burst 128kb latency 50ms
    ip netns exec "$tag-sw" tc qdisc add dev "port$host" root tbf rate 1gbit burst 128kb latency 50ms
  done
}
