#!/usr/bin/env bash
# Measures on a machine with a GPU: the kernels, bit for bit against the CPU's and then beside a copy within the device;
# the library's calls beside NCCL's own in the same process; and, where PyTorch and farandole are installed (PYTHON names
# the interpreter), training steps beside DDP over NCCL.
#   bash bench/gpu/run.sh build [--sm N]  here: builds, and lays what it needs side by side in build/gpu; with NCCL for
#                                         one architecture alone (90: H100, H200), where a Python environment has it
#   bash bench/gpu/run.sh [--json FILE]   there: with build/gpu carried along (or built there), needs no registry
#   bash bench/gpu/run.sh --check         results alone;  --folder F: another than build/gpu
#   bash bench/gpu/run.sh sanitize        the kernels under compute-sanitizer, of the CUDA toolkit
#   --library L, --nccl L                 another driver, another NCCL (otherwise FARANDOLE_NCCL_LIBRARY, the one in
#                                         the folder, a Python environment's, the system's)
# Exits with 0 if all results are right, 3 if a GPU, NCCL, PyTorch or the sanitizer is missing (what can be measured
# without it is measured), 4 if a result is wrong.
set -euo pipefail
cd "$(dirname "$0")/../.."
folder=build/gpu
library=()
nccl=()
json=()
device=()
check=()
word=all
sm=
while [ $# -gt 0 ]; do
  case "$1" in
    build | sanitize) word=$1 ;;
    --check) check=(--check) ;;
    --folder | --library | --nccl | --json | --device | --sm)
      [ $# -gt 1 ] || { echo "bench/gpu/run.sh: $1 needs a value" >&2; exit 64; }
      case "$1" in
        --folder) folder=$2 ;;
        --library) library=(--library "$2") ;;
        --nccl) nccl=(--nccl "$2") ;;
        --json) json=(--json "$2") ;;
        --device) device=(--device "$2") ;;
        --sm) sm=$2 ;;
      esac
      shift
      ;;
    *)
      echo "bench/gpu/run.sh: '$1' is none of build, sanitize, --check, --folder, --library, --nccl, --json, --device, --sm" >&2
      exit 64
      ;;
  esac
  shift
done

# NCCL of a Python environment, or nothing.
python_nccl() {
  python3 - <<'PY' 2>/dev/null || true
import glob, sys
found = [file for folder in sys.path for file in glob.glob(folder + "/nvidia/nccl/lib/libnccl.so.2")]
print(found[0] if found else "")
PY
}

build() {
  cmake -G Ninja -S . -B build/gpu-build -DFARANDOLE_BENCH=ON -DFARANDOLE_PROGRAM=OFF >/dev/null
  cmake --build build/gpu-build --target gpu_bench nccl_bench calls_bench
  mkdir -p "$folder/lib"
  cp build/gpu-build/bin/{gpu_bench,nccl_bench,calls_bench} "$folder/"
  strip "$folder"/{gpu_bench,nccl_bench,calls_bench}
  # Shared libraries that a bare machine lacks; its own C library and loader are used.
  ldd "$folder"/{gpu_bench,nccl_bench,calls_bench} | awk '$2 == "=>" && $1 !~ /^(libc|libm|libdl|librt|libpthread)\.so/ {print $3}' |
    sort -u | xargs cp -Lt "$folder/lib"
  strip --strip-unneeded "$folder"/lib/*.so*
  local here
  here=$(python_nccl)
  if [ -z "$here" ]; then
    echo "NCCL is not carried along: no Python environment here has it (nvidia-nccl-cu12 or nvidia-nccl-cu13)"
  elif [ -z "$sm" ]; then
    echo "NCCL is not carried along: $here is of $(du -mL "$here" | cut -f1) MiB; --sm N lays the part for one architecture"
  else
    python3 bench/gpu/slim_nccl.py "$here" "$sm" | gzip >"$folder/lib/libnccl.so.2.gz"
    echo "NCCL for sm_$sm: $(du -m "$folder/lib/libnccl.so.2.gz" | cut -f1) MiB of the $(du -mL "$here" | cut -f1) MiB of $here"
  fi
  echo "$folder: $(du -sm "$folder" | cut -f1) MiB to carry along"
}

if [ "$word" = build ] || [ ! -x "$folder/gpu_bench" ]; then build; fi
[ "$word" != build ] || exit 0

export LD_LIBRARY_PATH="$folder/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
worst=0
# Runs one program and keeps the worst code: a wrong result wins over something missing.
try() {
  local code=0
  "$@" || code=$?
  [ "$code" = 0 ] || echo "ended with $code: ${*##*/}"
  if [ "$code" = 3 ] && [ "$worst" = 0 ]; then worst=3; fi
  if [ "$code" != 0 ] && [ "$code" != 3 ]; then worst=4; fi
}

sanitize() {
  local tool
  for tool in memcheck racecheck initcheck synccheck; do
    echo "== compute-sanitizer, $tool"
    try compute-sanitizer --tool "$tool" --error-exitcode 4 "$folder/gpu_bench" "${library[@]}" "${device[@]}" --check
  done
}
if [ "$word" = sanitize ]; then
  if ! command -v compute-sanitizer >/dev/null; then
    echo "bench/gpu/run.sh: compute-sanitizer is not here: it comes with the CUDA toolkit, in its folder bin or compute-sanitizer" >&2
    exit 3
  fi
  sanitize
  exit "$worst"
fi

# Chooses NCCL explicitly, so that a library elsewhere in the environment is not measured by accident.
if [ ${#nccl[@]} -eq 0 ] && [ -z "${FARANDOLE_NCCL_LIBRARY:-}" ]; then
  if [ -e "$folder/lib/libnccl.so.2.gz" ]; then
    unpacked=$(mktemp -d)
    trap 'rm -rf "$unpacked"' EXIT
    gunzip -c "$folder/lib/libnccl.so.2.gz" >"$unpacked/libnccl.so.2"
    nccl=(--nccl "$unpacked/libnccl.so.2")
  elif [ ! -e "$folder/lib/libnccl.so.2" ] && here=$(python_nccl) && [ -n "$here" ]; then
    nccl=(--nccl "$here")
  fi
fi

echo "== kernels"
try "$folder/gpu_bench" "${library[@]}" "${device[@]}" "${check[@]}" "${json[@]}"
[ "$worst" != 3 ] || exit 3 # no GPU: gpu_bench has printed it
# One rank with calls that never block and with calls that queue at once; then two ranks on the available GPUs.
for way in "nccl_bench" "nccl_bench --direct" "nccl_bench --ranks 2" "calls_bench" "calls_bench --ranks 2"; do
  echo "== $way"
  # shellcheck disable=SC2086
  try "$folder"/$way "${library[@]}" "${nccl[@]}" "${check[@]}" "${json[@]}"
done
if [ ${#check[@]} -eq 0 ]; then
  echo "== ddp_bench"
  try "${PYTHON:-python3}" bench/gpu/ddp_bench.py "${json[@]}"
fi
exit "$worst"
