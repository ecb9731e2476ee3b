#!/usr/bin/env bash
# Runs whole jobs in simulated time, with collectives of communicators, with ranks that come late to them, and with named
# operations of groups: bash tests/simulate.sh --seeds 1000000 [--first 1]. A seed that fails prints its story; --seed N
# prints those of one seed, and --jobs ordered, late or named runs one kind. With --planted it plants faults in a copy of
# the protocol, one at a time, and prints how many jobs it takes to see each of them:
# bash tests/simulate.sh --planted [--seeds 30000].
set -euo pipefail
cd "$(dirname "$0")/.."
seeds=
first=1
planted=0
jobs=all
while [ $# -gt 0 ]; do
  case "$1" in
    --seeds) seeds=$2; shift 2 ;;
    --first) first=$2; shift 2 ;;
    --seed) export SIMULATION_SEED=$2; shift 2 ;;
    --jobs) jobs=$2; shift 2 ;;
    --planted) planted=1; shift ;;
    *)
      echo "usage: bash tests/simulate.sh [--seeds N] [--first N] [--seed N] [--jobs ordered|late|named] [--planted]" >&2
      exit 2
      ;;
  esac
done
cmake -G Ninja -S . -B build -DFARANDOLE_TESTS=ON -DFARANDOLE_WERROR=ON >/dev/null # it may have been configured without tests
cmake --build build --target simulation_test
if [ $planted = 1 ]; then exec python3 tests/simulation/planted_faults.py --seeds "${seeds:-30000}"; fi
case "$jobs" in
  all) tests='*WhateverHappens' ;;
  ordered) tests='SimulatedJobs.*WhateverHappens' ;;
  late) tests='SimulatedLateJobs.*WhateverHappens' ;;
  named) tests='SimulatedNamedJobs.*WhateverHappens' ;;
  *) echo "tests/simulate.sh: --jobs is ordered, late or named, not '$jobs'" >&2; exit 2 ;;
esac
SIMULATION_SEEDS=${seeds:-100000} SIMULATION_FIRST_SEED=$first exec build/bin/simulation_test "--gtest_filter=$tests"
