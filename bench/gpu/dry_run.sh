#!/usr/bin/env bash
# Shows without a GPU that a packed folder lacks nothing: runs A and B on the fakes of the driver and of NCCL, in an
# empty folder to which the packed files alone are copied, without network and without this environment's variables.
#   bash bench/gpu/dry_run.sh [--fakes D] [--folder F] [WORD...]
#   --fakes D    the folder of libfake_cuda.so and libfake_nccl.so (build/lib)
#   --folder F   what pack.sh has made (build/gpu)
#   WORD...      of run.sh: --check checks results alone;  PYTHON: an interpreter that has PyTorch (python3)
# B runs on the CPU there, beside Gloo, because PyTorch does not use the fake driver.
set -euo pipefail
cd "$(dirname "$0")/../.."
fakes=build/lib folder=build/gpu
while [ $# -gt 0 ]; do
  case "$1" in
    --fakes) fakes=$2 ;;
    --folder) folder=$2 ;;
    *) break ;;
  esac
  shift 2
done
fakes=$(cd "$fakes" && pwd)
python=$(command -v "${PYTHON:-python3}")
bare=$(mktemp -d)
trap 'rm -rf "$bare"' EXIT
cp -r "$folder" "$bare/packed"
echo "dry run: $(du -sm --apparent-size "$bare/packed" | cut -f1) MiB in $(find "$bare/packed" -type f | wc -l) files"
# A network of its own, whose only interface is loopback.
# shellcheck disable=SC2016
env -i PATH=/usr/bin:/bin:/usr/sbin:/sbin HOME="$bare" PYTHON="$python" TMPDIR="$bare" FAKE_CUDA_IPC=1 \
  unshare --map-root-user --net bash -c 'ip link set lo up && cd "$1/packed" && shift && exec bash run.sh "$@"' run "$bare" \
  A B --device cpu --library "$fakes/libfake_cuda.so" --nccl "$fakes/libfake_nccl.so" "$@"
