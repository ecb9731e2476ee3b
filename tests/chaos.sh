#!/usr/bin/env bash
# Runs seeded jobs in which one process is killed, stopped or ends at a random moment, and prints what went wrong and how
# soon the survivors knew: bash tests/chaos.sh --trials 1000 --seed 1. See tests/python/support/chaos.py.
# With --network the jobs run on several hosts, which are network namespaces, and the network between them fails:
# bash tests/chaos.sh --network --trials 200. See tests/python/support/network_chaos.py.
# With --nodes the jobs are elastic, and their nodes come and go:
# bash tests/chaos.sh --nodes --trials 100. See tests/python/support/node_chaos.py.
set -euo pipefail
cd "$(dirname "$0")/.."
source tests/setup.sh
kind=chaos
case "${1:-}" in
  --network) kind=network_chaos; shift ;;
  --nodes) kind=node_chaos; shift ;;
esac
set_up_machine
install_python_package
exec python "tests/python/support/$kind.py" --program build/bin/farandole "$@"
