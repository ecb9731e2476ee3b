#!/usr/bin/env bash
# Measures how much of the communication a training step hides behind its backward pass, on hosts joined by 1 Gbit/s.
#
#   bash bench/overlap.sh [--program build/bin/farandole] [--hosts 2] [--model resnet50|bert_base] [--backward-ms 600]
#     [--forward-ms 200] [--steps 6] [--compute core|accelerator] [--only "CANDIDATE;CANDIDATE"] [--waits]
#
# Each host is a network namespace with one rank. The model has the gradients of ResNet-50 (161 tensors, 102 MB) or of
# BERT-base (199 tensors, 438 MB). It computes for the given times, evenly over its layers, on the core of its rank. With
# --compute accelerator the rank sleeps instead, so that its core is free. Candidates take turns:
#
#   alone               no reduction
#   after backward      farandole reduces all gradients when the backward pass has ended: nothing is hidden
#   optimizer           farandole.torch.DistributedOptimizer
#   optimizer, int8     the same, gradients compressed to int8
#   overlap             the same with overlap_forward: the next forward pass begins while gradients are reduced
#   overlap, no priorities  the same, but no gradient overtakes another one
#   DDP, farandole      DistributedDataParallel over farandole
#   DDP, Gloo           DistributedDataParallel over Gloo
#
# Prints the median step, what the reduction adds to the step alone, and the share of the step's communication (after
# backward, less alone) that is hidden. --waits also prints in which parts of the step rank 0 waits. Needs root,
# iproute2 and Python with farandole and PyTorch (bash tests/setup.sh).
set -euo pipefail
cd "$(dirname "$0")/.."
source bench/network/namespaces.sh

program=build/bin/farandole
hosts=2
model=resnet50
backward=600
forward=200
steps=6
compute=core
only=
waits=()
while [ $# -gt 0 ]; do
  case "$1" in
    --program) program=$2 && shift 2 ;;
    --model) model=$2 && shift 2 ;;
    --hosts) hosts=$2 && shift 2 ;;
    --backward-ms) backward=$2 && shift 2 ;;
    --forward-ms) forward=$2 && shift 2 ;;
    --compute) compute=$2 && shift 2 ;;
    --only) only=$2 && shift 2 ;;
    --steps) steps=$2 && shift 2 ;;
    --waits) waits=(--waits) && shift ;;
    -h | --help) sed -n '2,/^set/p' "$0" | sed '$d; s/^# \{0,1\}//' && exit 0 ;;
    *) echo "overlap.sh: unknown option $1; --help lists them" >&2 && exit 64 ;;
  esac
done
require_namespaces overlap.sh "$program"
python=${PYTHON:-.venv/bin/python}
[ -x "$python" ] || { echo "overlap.sh: $python is missing: bash tests/setup.sh, or name it in PYTHON" >&2 && exit 64; }

tag=fdlo$$
work=$(mktemp -d)
trap 'end_namespaces "$tag-"; rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
shaped_links "$hosts"
export FARANDOLE_JOB_KEY="overlap bench $tag $RANDOM" FARANDOLE_LOG_LEVEL=error OMP_NUM_THREADS=1

# step HOW: the median step of rank 0 in milliseconds.
step() {
  local pids=() host
  for host in $(seq 0 $((hosts - 1))); do
    ip netns exec "$tag-$host" timeout 300 "$program" run --nnodes "$hosts" --node-rank "$host" -np 1 --no-prefix \
      --rendezvous 10.77.0.1:29400 -- "$python" bench/network/training_step.py "$1" --model "$model" \
      --compute "$compute" --backward-ms "$backward" --forward-ms "$forward" --steps "$steps" \
      ${waits[@]+"${waits[@]}"} >"$work/out$host" 2>"$work/err$host" &
    pids+=($!)
  done
  for pid in "${pids[@]}"; do wait "$pid" || { cat "$work"/err* >&2 && return 1; }; done
  grep -h '^waits' "$work/err0" >&2 || true
  cat "$work/out0"
}

# Others are compared with the first two.
candidates=("alone" "after backward" "optimizer" "optimizer, int8" "overlap" "overlap, no priorities" "DDP, farandole" "DDP, Gloo")
[ -z "$only" ] || IFS=";" read -ra candidates <<<"alone;after backward;$only"
declare -A took
for candidate in "${candidates[@]}"; do
  took[$candidate]=$(step "$candidate")
  echo "$candidate: ${took[$candidate]} ms" >&2
done
printf '%d hosts, 1 Gbit/s, %s, forward %d ms, backward %d ms\n\n' "$hosts" "$model" "$forward" "$backward"
printf '%-24s %12s %12s %12s\n' "" "step, ms" "added, ms" "hidden"
for candidate in "${candidates[@]}"; do
  awk -v name="$candidate" -v took="${took[$candidate]}" -v alone="${took[alone]}" -v after="${took[after backward]}" \
    'BEGIN {printf "%-24s %12.0f %12.0f %11.0f%%\n", name, took, took - alone, 100 * (1 - (took - alone) / (after - alone))}'
done
awk -v alone="${took[alone]}" -v after="${took[after backward]}" -v backward="$backward" \
  'BEGIN {printf "\nof %.0f ms of communication, a backward pass of %d ms can hide %.0f%% at most\n",
          after - alone, backward, 100 * (backward < after - alone ? backward / (after - alone) : 1)}'
