#!/usr/bin/env bash
# Measures the transport over libfabric beside libfabric alone and farandole's own TCP, on this host.
#
#   bash bench/ofi.sh [--program build/bin/farandole] [--provider tcp] [--repeat 3] [--sizes "4 1024 ..."] [--quick]
#
# One way of a message between two ranks: fi_pingpong (Debian: libfabric-bin) over the provider, ping_pong over
# ofi:PROVIDER and over tcp. Then allreduce of 2 and of 4 ranks over both. At each size the candidates run in turns,
# because a virtual machine's memory can be 3 times slower for seconds; of the repetitions the least median counts. Two
# targets are printed with what was found: at most 1 us more than the provider at 4 bytes, and 0.9 of its bandwidth from
# 1 MiB on. The exit code is 1 if one is missed.
set -euo pipefail
cd "$(dirname "$0")/.."

program=build/bin/farandole
provider=tcp
repeat=3
sizes="4 64 1024 4096 16384 65536 262144 1048576 4194304 16777216 67108864"
allreduce=yes
while [ $# -gt 0 ]; do
  case "$1" in
    --program) program=$2 && shift 2 ;;
    --provider) provider=$2 && shift 2 ;;
    --repeat) repeat=$2 && shift 2 ;;
    --sizes) sizes=$2 && shift 2 ;;
    --quick) repeat=1 allreduce=no && shift ;;
    -h | --help) sed -n '2,/^set/p' "$0" | sed '$d; s/^# \{0,1\}//' && exit 0 ;;
    *) echo "ofi.sh: unknown option $1; --help lists them" >&2 && exit 64 ;;
  esac
done
command -v fi_pingpong >/dev/null || { echo "ofi.sh: fi_pingpong is missing (Debian: libfabric-bin)" >&2 && exit 77; }
ping_pong=$(dirname "$program")/ping_pong
for one in "$program" "$ping_pong"; do
  [ -x "$one" ] || { echo "ofi.sh: $one is not built (cmake -DFARANDOLE_BENCH=ON)" >&2 && exit 64; }
done

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
port=$((20000 + $$ % 20000))
address=$(hostname -I | awk '{print $1}')
full=$provider
[ "$provider" != tcp ] || full="tcp;ofi_rxm"

# alone BYTES: microseconds of one way by fi_pingpong, whose server and client are processes of this host.
alone() {
  local rounds=$((1073741824 / $1))
  ((rounds <= 5000)) || rounds=5000
  ((rounds >= 20)) || rounds=20
  port=$((port + 1))
  timeout 120 fi_pingpong -p "$full" -e rdm -B "$port" -S "$1" -I "$rounds" >/dev/null 2>&1 &
  local server=$!
  sleep 0.3
  timeout 120 fi_pingpong -p "$full" -e rdm -P "$port" -S "$1" -I "$rounds" "${address:-127.0.0.1}" 2>/dev/null |
    awk 'NR > 1 && NF >= 7 {print $(NF - 1)}'
  wait "$server" || true
}

# ours TRANSPORT BYTES: a line of bytes and microseconds.
ours() {
  FARANDOLE_TRANSPORT=$1 OMP_NUM_THREADS=1 "$program" run -np 2 --no-prefix -- "$ping_pong" "$2" | awk '{print $1, $2}'
}

# reduce TRANSPORT RANKS BYTES: a line of bytes and microseconds.
reduce() {
  "$program" bench --transport "$1" --ranks "$2" --json --sizes "$3" |
    python3 -c 'import json, sys
for line in sys.stdin:
    row = json.loads(line)
    if "bytes" in row and "time_us_median" in row: print(row["bytes"], row["time_us_median"])'
}

for size in $sizes; do
  for round in $(seq "$repeat"); do
    echo "alone $size $(alone "$size")"
    ours "ofi:$full" "$size" | sed 's/^/ofi /'
    ours tcp "$size" | sed 's/^/tcp /'
    [ "$allreduce" = yes ] || continue
    for ranks in 2 4; do
      reduce "ofi:$full" "$ranks" "$size" | sed "s/^/ofi$ranks /"
      reduce tcp "$ranks" "$size" | sed "s/^/tcp$ranks /"
    done
  done
done >"$work/times"

python3 - "$work/times" "$provider" <<'PY'
import sys

rows = {}
for line in open(sys.argv[1]):
    words = line.split()
    if len(words) == 3:
        key = (words[0], int(words[1]))
        rows[key] = min(float(words[2]), rows.get(key, float("inf")))
columns = ["alone", "ofi", "tcp", "ofi2", "tcp2", "ofi4", "tcp4"]
heads = ["fi_pingpong", f"ofi:{sys.argv[2]}", "tcp", "2 ranks ofi", "tcp", "4 ranks ofi", "tcp"]
print("microseconds: one way of a message, then allreduce\n")
print(f"{'bytes':>10} " + " ".join(f"{head:>12}" for head in heads) + "   of the provider")
missed = 0
for size in sorted({size for _, size in rows}):
    cells = [rows.get((column, size)) for column in columns]
    text = " ".join(f"{'-' if cell is None else format(cell, '.1f'):>12}" for cell in cells)
    alone, ofi = cells[0], cells[1]
    note = ""
    if alone and ofi:
        note = f"{alone / ofi:5.2f} of its bandwidth"
        wrong = (size == 4 and ofi > alone + 1) or (size >= 1 << 20 and alone / ofi < 0.9)
        missed += wrong
        note += "  MISSED" if wrong else ""
        note += f"  {ofi - alone:+.1f} us" if size == 4 else ""
    print(f"{size:>10} {text}   {note}")
print(f"\ntargets missed: {missed} (4 bytes: at most 1 us more than the provider; from 1 MiB: 0.9 of its bandwidth)")
sys.exit(1 if missed else 0)
PY
