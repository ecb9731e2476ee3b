#!/bin/bash
# The demonstration: sets up a fresh Debian 12 machine, trains the same model on one rank and on two, compares the results,
# and prints how fast two ranks move bytes through shared memory and TCP. Ends with "demo: ok".
set -euo pipefail
cd "$(dirname "$0")/.."

step() { printf '\n== %s\n' "$*"; }
fail() {
  printf 'demo: failed: %s\n' "$*" >&2
  exit 1
}

step "Setting up (packages, .venv, build)"
tests/setup.sh || fail "tests/setup.sh says above what is missing; do that and start the demo again"
python=$PWD/.venv/bin/python
farandole=$PWD/.venv/bin/farandole
results=$(mktemp -d)
trap 'rm -rf "$results"' EXIT
if (($(nproc) <= 2)); then export OMP_NUM_THREADS=1; fi # ranks as many as cores: one thread each

step "Training on one rank"
"$python" examples/04_train_digits.py --json "$results/1.json" ||
  fail "one rank could not train; run it by hand: $python examples/04_train_digits.py"

step "Training on two ranks, the same batches shared between them"
"$farandole" run -np 2 "$python" examples/04_train_digits.py --json "$results/2.json" ||
  fail "two ranks could not train; run it by hand: farandole run -np 2 $python examples/04_train_digits.py
(FARANDOLE_LOG_LEVEL=debug tells more; farandole env shows what each rank sees)"

step "Comparing"
"$python" - "$results" <<'PYTHON' || fail "the two runs differ more than rounding explains, or learned too little: see above"
import json, sys

one, two = (json.load(open(f"{sys.argv[1]}/{ranks}.json")) for ranks in (1, 2))
tolerance = 0.002
print(f"1 rank:  accuracy {one['accuracy']:.4f}  loss {one['loss']:.6f}")
print(f"2 ranks: accuracy {two['accuracy']:.4f}  loss {two['loss']:.6f}")
print(f"the losses differ by {abs(one['loss'] - two['loss']):.2e}; up to {tolerance} is the rounding of other sums")
assert one["ranks"] == 1 and two["ranks"] == 2, "the second run was not one of two ranks"
assert one["accuracy"] > 0.95 and two["accuracy"] > 0.95, "accuracy must be above 95 %"
assert abs(one["loss"] - two["loss"]) < tolerance, "the losses must agree"
PYTHON

for transport in shm tcp; do
  step "Allreduce between two ranks over $transport"
  "$farandole" bench --ranks 2 --transport "$transport" --sizes 4,1K,64K,1M,16M ||
    fail "the bench over $transport failed; farandole config shows what is set, FARANDOLE_LOG_LEVEL=debug tells more"
done

printf '\ndemo: ok\n'
