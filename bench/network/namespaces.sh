# Sourced by scripts that make network namespaces.

# end_namespaces TAG: ends what runs in the namespaces whose names begin with TAG, and removes them.
end_namespaces() {
  local name pid
  for name in $(ip netns list | awk -v tag="$1" 'index($1, tag) == 1 {print $1}'); do
    for pid in $(ip netns pids "$name"); do kill -9 "$pid" 2>/dev/null || true; done
    ip netns del "$name"
  done
}
