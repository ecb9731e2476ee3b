#!/usr/bin/env bash
# Shows without a GPU that a packed folder lacks nothing: runs A and B on the fakes of the driver and of NCCL, in an
# empty folder to which the packed files alone are copied, without network and without this environment's variables.
#   bash bench/gpu/dry_run.sh [--fakes D] [--folder F] [--python VERSION] [WORD...]
#   --fakes D         the folder of libfake_cuda.so and libfake_nccl.so (build/lib)
#   --folder F        what pack.sh has made (build/gpu)
#   --python VERSION  runs with another Python, such as 3.12, and PyTorch, in an environment that is made once, in
#                     build/gpu-python (5 GB: pip has PyTorch with CUDA alone). Otherwise PYTHON, an interpreter that has
#                     PyTorch (python3)
#   WORD...           of run.sh; without any --check, because times of the fakes say nothing and take long
# B runs on the CPU there, beside Gloo, because PyTorch does not use the fake driver.
set -euo pipefail
cd "$(dirname "$0")/../.."
fakes=build/lib folder=build/gpu version=''
fail() {
  echo "dry run: $2" >&2
  exit "$1"
}
while [ $# -gt 0 ]; do
  case "$1" in
    --fakes | --folder | --python) [ $# -gt 1 ] || fail 64 "$1 needs a value" ;;
  esac
  case "$1" in
    --fakes) fakes=$2 ;;
    --folder) folder=$2 ;;
    --python) version=$2 ;;
    *) break ;;
  esac
  shift 2
done
(($#)) || set -- --check
[ -e "$folder/run.sh" ] || fail 3 "there is no $folder/run.sh: bash bench/gpu/pack.sh makes the folder"
[ -e "$fakes/libfake_nccl.so" ] ||
  fail 3 "there are no fakes in $fakes: cmake -B build -DFARANDOLE_TESTS=ON, then build the targets fake_cuda and fake_nccl"
fakes=$(cd "$fakes" && pwd)

# The interpreter of this version: one in PATH, or one that pyenv has made.
interpreter() {
  local one
  for one in "python$version" "${PYENV_ROOT:-$HOME/.pyenv}"/versions/"$version"{,.*}/bin/python; do
    if "$one" -c '' 2>/dev/null; then
      command -v "$one"
      return
    fi
  done
  fail 3 "there is no python$version: install it, for example with pyenv install $version"
}

if [ -n "$version" ]; then
  made=build/gpu-python/$version
  if [ ! -e "$made/ready" ]; then
    found=$(interpreter)
    echo "dry run: installing PyTorch for $("$found" -V) (minutes)"
    rm -rf "$made"
    "$found" -m venv "$made"
    "$made/bin/python" -m pip install --quiet --disable-pip-version-check --no-compile torch numpy
    touch "$made/ready"
  fi
  PYTHON=$made/bin/python
fi
python=$(command -v "${PYTHON:-python3}")
[[ $python == /* ]] || python=$PWD/$python
bare=$(mktemp -d)
trap 'rm -rf "$bare"' EXIT
cp -r "$folder" "$bare/packed"
echo "dry run: $(du -sm --apparent-size "$bare/packed" | cut -f1) MiB in $(find "$bare/packed" -type f | wc -l) files"
# A network of its own, whose only interface is loopback.
# shellcheck disable=SC2016
env -i PATH=/usr/bin:/bin:/usr/sbin:/sbin HOME="$bare" PYTHON="$python" TMPDIR="$bare" FAKE_CUDA_IPC=1 \
  unshare --map-root-user --net bash -c 'ip link set lo up && cd "$1/packed" && shift && exec bash run.sh "$@"' run "$bare" \
  A B --device cpu --patience 4 --library "$fakes/libfake_cuda.so" --nccl "$fakes/libfake_nccl.so" "$@"
