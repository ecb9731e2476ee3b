#!/usr/bin/env bash
# Runs seeded jobs in which one process is killed, stopped or ends at a random moment, and prints what went wrong and how
# soon the survivors knew: bash tests/chaos.sh --trials 1000 --seed 1. See tests/python/support/chaos.py.
set -euo pipefail
cd "$(dirname "$0")/.."
source tests/setup.sh
set_up_machine
install_python_package
exec python tests/python/support/chaos.py --program build/bin/farandole "$@"
