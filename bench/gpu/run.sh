#!/usr/bin/env bash
# Measures on a machine with a GPU. bench/gpu/pack.sh makes a folder to carry there, with this script in it; what else it
# needs is the machine's: the driver, Python and PyTorch. There is one command for each part; each ends within ten minutes:
#   bash run.sh A     the kernels, bit for bit against the CPU's and then beside a copy within the device; calls of 8 bytes
#                     (auto, deferred, direct, bare), groups and ResNet-50's gradients by name, beside NCCL in the same process
#   bash run.sh B     training steps with two ranks: DDP over NCCL, DDP over farandole, DistributedOptimizer, and alone
#   bash run.sh C     the kernels under compute-sanitizer, profiles, and collectives in CUDA graphs
#   bash run.sh D     operations of every kind on tensors of PyTorch and arrays of CuPy, and ranks that are lost
#   bash run.sh       A, then B;  in the source tree: bash bench/gpu/run.sh, with build/gpu
#   --check           results alone      --json FILE       appends each figure as a line      --folder F   another folder
#   --ranks N         of B, C and D (2)  --device cpu      B and D on the CPU, which shows that they work
#   --patience N      each program may take N times as long: on the fakes, on a machine that does other work
#   --mps             starts NVIDIA's MPS meanwhile: the kernels of ranks that share a GPU run side by side, not in turns
#   --library L, --nccl L   another driver, another NCCL (otherwise FARANDOLE_NCCL_LIBRARY, the carried one, that of
#                           PyTorch)     PYTHON            the interpreter (python3)
# Exits with 0 if all results are right, 3 if a GPU, NCCL, PyTorch or a tool is missing (what can be measured without it
# is measured), 4 if a result is wrong or a program does not end.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
folder=$here
[ -x "$here/gpu_bench" ] || folder=$here/../../build/gpu
library=() nccl=() json=() check=() device=()
parts='' mps='' ranks=2 patience=1 python=${PYTHON:-python3}
usage() { echo "run.sh: $*" >&2; exit 64; }
while [ $# -gt 0 ]; do
  case "$1" in
    A | B | C | D | sanitize) parts+=" $1" ;;
    --check) check=(--check) ;;
    --mps) mps=1 ;;
    --folder | --library | --nccl | --json | --device | --ranks | --patience)
      [ $# -gt 1 ] || usage "$1 needs a value"
      case "$1" in
        --folder) folder=$2 ;;
        --library) library=(--library "$2") ;;
        --nccl) nccl=(--nccl "$2") ;;
        --json) json=(--json "$2") ;;
        --device) device=(--device "$2") ;;
        --ranks) ranks=$2 ;;
        --patience) patience=$2 ;;
      esac
      shift
      ;;
    *) usage "'$1' is none of A, B, C, D, sanitize, --check, --mps, --json, --folder, --ranks, --device, --patience, --library, --nccl" ;;
  esac
  shift
done
[ -n "$parts" ] || parts='A B'
if [ ! -x "$folder/gpu_bench" ]; then
  echo "run.sh: there is no $folder/gpu_bench: bash bench/gpu/pack.sh makes the folder, where the sources are" >&2
  exit 3
fi
folder=$(cd "$folder" && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

worst=0
missing() {
  echo "missing: $*"
  [ "$worst" != 0 ] || worst=3
}
# try SECONDS COMMAND...: runs one program and keeps the worst code: a wrong result wins over something missing. A program
# that hangs, such as ranks that share a GPU whose kernels wait for each other, ends after its time.
try() {
  local code=0 limit=$(($1 * patience))
  shift
  timeout --kill-after=10 "$limit" "$@" || code=$?
  case "$code" in
    0) return 0 ;;
    3) [ "$worst" != 0 ] || worst=3 ;;
    *) worst=4 ;;
  esac
  [ "$code" != 124 ] || code="124 (not done within $limit s)"
  echo "ended with $code: ${*##*/}"
  return 1
}

# Chooses NCCL explicitly, so that a library elsewhere in the environment is not measured by accident.
choose_nccl() {
  if [ ${#nccl[@]} -gt 0 ] || [ -n "${FARANDOLE_NCCL_LIBRARY:-}" ]; then return; fi
  if [ -e "$folder/libnccl.so.2.gz" ]; then
    gunzip -c "$folder/libnccl.so.2.gz" >"$scratch/libnccl.so.2"
    nccl=(--nccl "$scratch/libnccl.so.2")
    return
  fi
  local found
  found=$("$python" -c 'import glob, sys
print(*(file for folder in sys.path for file in glob.glob(folder + "/nvidia/nccl/lib/libnccl.so.2")), sep="\n")' 2>/dev/null |
    head -n 1 || true)
  [ -z "$found" ] || nccl=(--nccl "$found")
}

# For each way of making NCCL's calls one rank, then two ranks on the available GPUs.
part_A() {
  local way what
  echo "== kernels"
  try 150 "$folder/gpu_bench" "${library[@]}" "${check[@]}" "${json[@]}" || true
  [ "$worst" != 3 ] || return 0 # no GPU: gpu_bench has printed it
  for way in auto deferred direct; do
    for what in nccl_bench "nccl_bench --ranks 2" calls_bench "calls_bench --ranks 2"; do
      echo "== $what, $way"
      # shellcheck disable=SC2086
      FARANDOLE_NCCL_CALLS=$way try 50 "$folder"/$what "${library[@]}" "${nccl[@]}" "${check[@]}" "${json[@]}" || true
    done
  done
  for what in "" "--ranks 4" "--ranks 8" "--processes --check"; do
    echo "== one_shot_bench $what"
    # shellcheck disable=SC2086
    try 150 "$folder/one_shot_bench" $what "${library[@]}" "${check[@]}" "${json[@]}" || true
  done
  # On one GPU this measures NCCL once more.
  echo "== calls_bench --ranks 2, one-shot kernels"
  FARANDOLE_ONE_SHOT_BYTES=256K try 50 "$folder"/calls_bench --ranks 2 "${library[@]}" "${nccl[@]}" "${check[@]}" \
    "${json[@]}" || true
}

# Unpacks the carried package and puts it first in Python's path. Where none is carried, an installed one is used.
python_ready=
prepare_python() {
  [ -z "$python_ready" ] || return 0
  if ! command -v "$python" >/dev/null; then
    missing "$python, the interpreter (PYTHON names another)"
    return 1
  fi
  local wheel
  wheel=$(echo "$folder"/farandole-*.whl)
  if [ -f "$wheel" ]; then
    "$python" -m zipfile -e "$wheel" "$scratch/package"
    export PYTHONPATH=$scratch/package${PYTHONPATH:+:$PYTHONPATH}
  fi
  # The same NCCL for PyTorch and farandole: its own may be too old for several ranks on one GPU.
  preload=()
  if [ ${#nccl[@]} -gt 0 ] && [ "${device[*]}" != "--device cpu" ]; then
    preload=(env LD_PRELOAD="${nccl[1]}" FARANDOLE_NCCL_LIBRARY="${nccl[1]}")
  fi
  [ ${#library[@]} -eq 0 ] || export FARANDOLE_CUDA_LIBRARY=${library[1]}
  "$python" - <<'PY' || true
import sys
print("Python", sys.version.split()[0], sys.executable)
for name in ("torch", "farandole"):
    try:
        module = __import__(name)
        print(name, module.__version__, module.__file__)
    except (ImportError, OSError) as error:
        print(name, "cannot be imported:", error)
PY
  python_ready=1
}

part_B() {
  local bench=("$python" "$here/ddp_bench.py" --ranks "$ranks" "${device[@]}" "${check[@]}" "${json[@]}")
  echo "== training steps, $ranks ranks"
  prepare_python || return 0
  # One way that fails must not hide the others: without DDP over NCCL the rest is measured once more.
  try 200 "${preload[@]}" "${bench[@]}" || [ "$worst" != 4 ] || {
    echo "== training steps, $ranks ranks, without DDP over NCCL"
    try 200 "${preload[@]}" "${bench[@]}" --without-peer || true
  }
  echo "== training steps, $ranks ranks, gradients in shared memory"
  try 200 "${preload[@]}" "${bench[@]}" --without-peer --shared-gradients || true
  [ ${#check[@]} -eq 0 ] || return 0
  echo "== overlap with the backward pass, $ranks ranks"
  try 150 "${preload[@]}" "${bench[@]}" --overlap || true
}

sanitizer() {
  local one
  for one in compute-sanitizer {"${CUDA_HOME:-/usr/local/cuda}",/usr/local/cuda-*,/opt/cuda}/{bin,compute-sanitizer}/compute-sanitizer; do
    if command -v "$one"; then return 0; fi
  done
  return 1
}
part_sanitize() {
  local tool program
  if ! program=$(sanitizer); then
    missing "compute-sanitizer: it comes with the CUDA toolkit, in its folder bin or compute-sanitizer"
    return 0
  fi
  for tool in memcheck racecheck initcheck synccheck; do
    echo "== compute-sanitizer, $tool"
    try 75 "$program" --tool "$tool" --error-exitcode 4 "$folder/gpu_bench" "${library[@]}" --check || true
  done
}

part_C() {
  part_sanitize
  echo "== profile of ResNet-50's gradients by name"
  if command -v nsys >/dev/null; then
    try 90 nsys profile --force-overwrite true --output profile-calls "$folder/calls_bench" "${library[@]}" "${nccl[@]}" || true
  else
    missing "nsys (Nsight Systems)"
  fi
  prepare_python || return 0
  echo "== profile of training steps, by PyTorch: profile-WAY.json"
  try 100 "${preload[@]}" "$python" "$here/ddp_bench.py" --ranks "$ranks" "${device[@]}" --profile profile || true
  echo "== collectives in CUDA graphs"
  try 60 "${preload[@]}" "$python" "$here/capture_check.py" --ranks "$ranks" || true
}

part_D() {
  echo "== operations of every kind, $ranks ranks"
  prepare_python || return 0
  try 550 "${preload[@]}" "$python" "$here/device_check.py" --ranks "$ranks" "${device[@]}" || true
}

start_mps() {
  if ! command -v nvidia-cuda-mps-control >/dev/null; then
    missing "nvidia-cuda-mps-control, which comes with the driver"
    return
  fi
  export CUDA_MPS_PIPE_DIRECTORY=$scratch/mps CUDA_MPS_LOG_DIRECTORY=$scratch/mps
  mkdir -p "$scratch/mps"
  # Kernels of ranks that wait for each other must run at once, so each rank gets its share of the multiprocessors.
  export CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=$((100 / ranks))
  nvidia-cuda-mps-control -d
  trap 'echo quit | nvidia-cuda-mps-control; rm -rf "$scratch"' EXIT
}

choose_nccl
[ -z "$mps" ] || start_mps
for part in $parts; do "part_$part"; done
exit "$worst"
