#!/usr/bin/env bash
# Measures the kernels on a machine with a GPU: checks them bit for bit, under compute-sanitizer too where there is one,
# then times them beside a copy within the device.
#   bash bench/gpu/run.sh build          here: builds, and lays what it needs side by side in build/gpu
#   bash bench/gpu/run.sh [--json FILE]  there: with build/gpu carried along (or built there), needs no registry
#   bash bench/gpu/run.sh --check        checks alone;  --folder F: another than build/gpu;  --library L: another driver
# Ends with 0 when all is right, 3 where there is no GPU, 4 when a result is wrong.
set -euo pipefail
cd "$(dirname "$0")/../.."
folder=build/gpu
words=()
library=()
build=no
check=no
while [ $# -gt 0 ]; do
  case "$1" in
    build) build=yes ;;
    --folder) folder=$2; shift ;;
    --library) library=(--library "$2"); shift ;;
    --check) check=yes ;;
    --json | --device) words+=("$1" "$2"); shift ;;
    *) echo "bench/gpu/run.sh: '$1' is none of build, --folder, --library, --check, --json, --device" >&2; exit 64 ;;
  esac
  shift
done

if [ "$build" = yes ] || [ ! -x "$folder/gpu_bench" ]; then
  cmake -G Ninja -S . -B build/gpu-build -DFARANDOLE_BENCH=ON -DFARANDOLE_PROGRAM=OFF >/dev/null
  cmake --build build/gpu-build --target gpu_bench nccl_bench
  mkdir -p "$folder/lib"
  cp build/gpu-build/bin/{gpu_bench,nccl_bench} "$folder/"
  # What a bare machine lacks; its own C library and loader stay.
  ldd "$folder/gpu_bench" | awk '/lib(fmt|spdlog|hwy|stdc\+\+|gcc_s|crypto)/ {print $3}' | xargs -r cp -Lt "$folder/lib"
  [ "$build" = no ] || exit 0
fi
export LD_LIBRARY_PATH="$folder/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"

if [ ${#library[@]} -eq 0 ] && sanitizer=$(command -v compute-sanitizer); then
  echo "== compute-sanitizer"
  "$sanitizer" --error-exitcode 4 "$folder/gpu_bench" --check
fi
[ "$check" = no ] || words+=(--check)
"$folder/gpu_bench" "${library[@]}" "${words[@]}"
[ "$check" = no ] || exit 0

# Ours beside a bare ncclAllReduce: one rank, calls as they are and calls that queue at once, then two ranks on the GPU.
# Without NCCL (FARANDOLE_NCCL_LIBRARY names one) it ends with 3, and what was measured above stands.
nccl=()
for ((i = 0; i < ${#words[@]}; ++i)); do [ "${words[i]}" != --json ] || nccl=(--json "${words[i + 1]}"); done
for way in "" --direct "--ranks 2"; do
  "$folder/nccl_bench" "${library[@]}" "${nccl[@]}" $way || echo "nccl_bench $way: ended with $?"
done
