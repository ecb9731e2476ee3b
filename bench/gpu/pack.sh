#!/usr/bin/env bash
# Builds the GPU benchmarks and lays everything that they need side by side in one folder, to be carried to a machine
# with a GPU that has Python and PyTorch of its own, and no network.
#   bash bench/gpu/pack.sh [--sm N] [--nccl L] [--wheel W] [--folder F] [--most MIB]
#   --sm N      carries NCCL too, with the machine code of one architecture alone (90: H100, H200)
#   --nccl L    that libnccl; otherwise the one of the Python environment (nvidia-nccl-cu12 or -cu13), if it has one
#   --wheel W   the Python package; otherwise the newest of dist/ for this machine (packaging/wheels.sh), which fits all
#               versions of Python, or else one that is built here and fits this version alone
#   --programs D  takes the programs of a build, its bin, instead of building them
#   --folder F  another than build/gpu
#   --most MIB  fails if the folder is larger (64)
# Where packaging/wheels.sh has run, the programs too are built for its old glibc, otherwise for this machine's.
set -euo pipefail
cd "$(dirname "$0")/../.."
source packaging/settings.sh
folder=build/gpu
sm='' nccl='' wheel='' programs='' most=64
while [ $# -gt 0 ]; do
  case "$1" in
    --sm | --nccl | --wheel | --programs | --folder | --most)
      [ $# -gt 1 ] || { echo "bench/gpu/pack.sh: $1 needs a value" >&2; exit 64; }
      declare "${1#--}=$2"
      shift 2
      ;;
    *) echo "bench/gpu/pack.sh: '$1' is none of --sm, --nccl, --wheel, --programs, --folder, --most" >&2; exit 64 ;;
  esac
done
machine=$(uname -m)
names=(gpu_bench nccl_bench calls_bench one_shot_bench)
say() { echo "pack: $*"; }
mib() { du -mL "$1" | cut -f1; }

# An empty folder each time, so that nothing old is carried.
rm -rf "$folder"
mkdir -p "$folder/lib"

build_programs() {
  local build=build/gpu-build prefix=$PWD/build/packaging/$machine
  if [ -f "$prefix/build/build.ninja" ]; then
    build=$prefix/build # with the options and the compiler of the wheel
    export FARANDOLE_ARCHITECTURE=$machine FARANDOLE_PREFIX=$prefix PKG_CONFIG_LIBDIR=$prefix/lib/pkgconfig
    cmake -S . -B "$build" -DFARANDOLE_BENCH=gpu >/dev/null
    say "programs for glibc $glibc and newer"
  else
    cmake -G Ninja -S . -B "$build" -DFARANDOLE_BENCH=gpu -DFARANDOLE_PROGRAM=OFF >/dev/null
    say "programs for $(getconf GNU_LIBC_VERSION) and newer, as on this machine: packaging/wheels.sh has not run here"
  fi
  cmake --build "$build" --target "${names[@]}"
  programs=$build/bin
}

pack_programs() {
  local name
  for name in "${names[@]}"; do
    cp "$programs/$name" "$folder/"
    strip "$folder/$name"
  done
  # Shared libraries that a bare machine lacks; its own C library and loader are used.
  ldd "${names[@]/#/$programs/}" |
    awk '$2 == "=>" && $1 !~ /^(libc|libm|libdl|librt|libpthread)\.so/ {print $3}' |
    sort -u | xargs --no-run-if-empty cp -Lt "$folder/lib"
  strip --strip-unneeded "$folder"/lib/*.so*
}

# NCCL of a Python environment, or nothing.
python_nccl() {
  python3 - <<'PY' 2>/dev/null || true
import glob, sys
found = [file for folder in sys.path for file in glob.glob(folder + "/nvidia/nccl/lib/libnccl.so.2")]
print(found[0] if found else "")
PY
}

pack_nccl() {
  [ -n "$nccl" ] || nccl=$(python_nccl)
  if [ -z "$nccl" ]; then
    say "without NCCL: no Python environment here has it (nvidia-nccl-cu12 or nvidia-nccl-cu13)"
  elif [ -z "$sm" ]; then
    say "without NCCL: $nccl has $(mib "$nccl") MiB; --sm N carries the part for one architecture"
  else
    python3 bench/gpu/slim_nccl.py "$nccl" "$sm" | gzip -n9 >"$folder/libnccl.so.2.gz"
    say "NCCL for sm_$sm: $(mib "$folder/libnccl.so.2.gz") MiB of the $(mib "$nccl") MiB of $nccl"
  fi
}

pack_package() {
  if [ -z "$wheel" ]; then
    wheel=$(find dist -name "farandole-*-manylinux_*_$machine.whl" -printf '%T@ %p\n' 2>/dev/null | sort -n | tail -n 1 | cut -d' ' -f2-)
  fi
  if [ -z "$wheel" ]; then
    say "the Python package for $(python3 -V) alone: dist/ has no wheel of packaging/wheels.sh"
    local made
    made=$(mktemp -d)
    python3 -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir "$made" .
    wheel=$(echo "$made"/farandole-*.whl)
  fi
  if [ -n "$(find src include cuda transports bindings -newer "$wheel" -type f -not -name '*.pyc' -print -quit)" ]; then
    say "the Python package is older than the sources: $wheel"
  fi
  cp "$wheel" "$folder/"
  say "the Python package: $(basename "$wheel")"
}

[ -n "$programs" ] || build_programs
pack_programs
pack_nccl
pack_package
cp bench/gpu/{run.sh,ddp_bench.py,capture_check.py,device_check.py} bench/compare/models.py "$folder/"
size=$(du -sm --apparent-size "$folder" | cut -f1)
say "$size MiB to carry: $folder; there: bash run.sh A, B, C, D"
if [ "$size" -gt "$most" ]; then
  say "more than the $most MiB that were asked for" >&2
  exit 1
fi
