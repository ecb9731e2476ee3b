#!/usr/bin/env bash
# Runs the collectives over the hostile provider of libfabric with many seeds, and prints what it did to them.
#
#   bash tests/hostile_network.sh [--seeds 200] [--first 1] [--build build]
#
# A seed fixes what the provider decides: order, delays, refused calls. The scheduler's part differs from run to run. A
# seed that fails is named, and the run stops there.
set -euo pipefail
cd "$(dirname "$0")/.."

seeds=200
first=1
build=build
while [ $# -gt 0 ]; do
  case "$1" in
    --seeds) seeds=$2 && shift 2 ;;
    --first) first=$2 && shift 2 ;;
    --build) build=$2 && shift 2 ;;
    -h | --help) sed -n '2,/^set/p' "$0" | sed '$d; s/^# \{0,1\}//' && exit 0 ;;
    *) echo "hostile_network.sh: unknown option $1; --help lists them" >&2 && exit 64 ;;
  esac
done
program=$build/bin/hostile_network_test
[ -x "$program" ] || { echo "hostile_network.sh: $program is not built" >&2 && exit 64; }
HOSTILE_SEEDS=$seeds HOSTILE_FIRST_SEED=$first exec "$program" \
  --gtest_filter=HostileNetwork.CollectivesAreExactWhateverTheOrder
