#!/usr/bin/env bash
# Counts the instructions and system calls of a 4-byte allreduce on each rank: a benchmark that needs no clock.
#   bash bench/instructions.sh [BUILD FOLDER]        needs valgrind; system calls need strace
# Each figure is the difference of two runs with different numbers of operations, divided by that difference and by the
# ranks. Waiting ranks sleep at once (spin_us 0), because spinning would be counted. The figures of one rank alone show
# the overhead of the library.
set -euo pipefail
cd "$(dirname "$0")/.."
program=${1:-build}/bin/small_operations
[[ -x $program ]] || { echo "bench: $program is not built; run: bash tests/run.sh cpp" >&2; exit 2; }

# The start differs by a million instructions from run to run, so the counts must be high.
instructions_few=200
instructions_many=20200
calls_few=200
calls_many=1200

instructions() { # RANKS WHAT COUNT
  valgrind --tool=callgrind --callgrind-out-file=/dev/null --fair-sched=yes "$program" "$1" "$2" "$3" 2>&1 |
    sed -n 's/.*Collected *: *\([0-9]*\).*/\1/p'
}
system_calls() { # RANKS WHAT COUNT
  strace -f -c -o /dev/stdout "$program" "$1" "$2" "$3" | awk '$NF == "total" { print $4 }'
}
each() { # instructions|system_calls FEW MANY RANKS WHAT
  local less more
  less=$("$1" "$4" "$5" "$2")
  more=$("$1" "$4" "$5" "$3")
  awk -v less="$less" -v more="$more" -v n=$((($3 - $2) * $4)) 'BEGIN { printf "%.1f", (more - less) / n }'
}

printf '%-34s %8s %16s %16s\n' 'one allreduce of 4 bytes' ranks instructions 'system calls'
for ranks in 1 2; do
  for what in ordered run submit; do
    case $what in
      ordered) text='ordered' ;;
      run) text='named, blocking' ;;
      submit) text='named, submitted and waited for' ;;
    esac
    calls=-
    command -v strace >/dev/null && calls=$(each system_calls $calls_few $calls_many $ranks $what)
    printf '%-34s %8d %16s %16s\n' "$text" $ranks "$(each instructions $instructions_few $instructions_many $ranks $what)" "$calls"
  done
done
