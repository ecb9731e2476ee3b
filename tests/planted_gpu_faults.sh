#!/usr/bin/env bash
# Plants faults in a copy of the code for GPUs, one at a time, and runs the test that must see each of them, on the fakes
# of the driver and of NCCL. Prints a table: each fault, its test, and what the fake or the test reports.
#   bash tests/planted_gpu_faults.sh                 all faults
#   bash tests/planted_gpu_faults.sh --only WORDS    those whose description has these words
set -euo pipefail
cd "$(dirname "$0")/.."
source tests/setup.sh
set_up_machine
exec python tests/fakes/planted_gpu_faults.py "$@"
