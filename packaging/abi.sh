#!/usr/bin/env bash
# Describes the ABI of the library, and compares it with the description of the last release, packaging/abi/VERSION.abi.
# A removed function, another signature and another struct are differences; an added function is none.
#   bash packaging/abi.sh                         compares; status 1 and a report if there are differences
#   bash packaging/abi.sh --write FILE            writes the description; a release adds packaging/abi/VERSION.abi
#   bash packaging/abi.sh --against FILE          compares with this description
# --library FILE HEADERS, as first arguments, names another library and the folder of its headers. By default the
# library is compiled in build/abi with the debug information that names types.
set -euo pipefail
cd "$(dirname "$0")/.."

library=
headers=$PWD/include/farandole
if [[ ${1:-} == --library ]]; then
  library=$2 headers=$3
  shift 3
fi
against=
write=
case ${1:-} in
  --write) write=$2 ;;
  --against) against=$2 ;;
  '') against=$(compgen -G 'packaging/abi/*.abi' | sort -V | tail -n 1 || true)
    [[ $against ]] || { echo "abi: no release has been described yet; nothing to compare with"; exit 0; } ;;
  *) sed -n 's/^#   //p' "$0" >&2; exit 2 ;;
esac
if [[ $against && ! -r $against ]]; then
  echo "abi: cannot read $against; bash packaging/abi.sh --write FILE makes a description" >&2
  exit 2
fi

if [[ -z $library ]]; then
  # The ABI depends neither on transports nor on devices, nor on optimization.
  without=()
  for part in PROGRAM LOOPBACK SHM MPI CUDA NCCL METRICS; do without+=("-DFARANDOLE_$part=OFF"); done
  { cmake -G Ninja -S . -B build/abi -DCMAKE_BUILD_TYPE=Debug "${without[@]}" \
      -DCMAKE_CXX_FLAGS_DEBUG="-O0 -g -DHWY_COMPILE_ONLY_STATIC" &&
    cmake --build build/abi --target farandole; } >build/abi.log 2>&1 ||
    { tail -n 20 build/abi.log >&2; echo "abi: the build failed; see build/abi.log" >&2; exit 2; }
  library=build/abi/lib/libfarandole.so
fi

described=$(mktemp)
trap 'rm -f "$described"' EXIT
abidw --headers-dir "$headers" --exported-interfaces-only --drop-private-types --no-corpus-path \
  --no-comp-dir-path --no-show-locs --no-elf-needed --out-file "$described" "$(readlink -f "$library")"
if [[ $write ]]; then
  cp "$described" "$write"
  chmod 644 "$write"
  echo "abi: $(grep -c '<elf-symbol ' "$write") symbols are in $write"
  exit 0
fi
status=0
abidiff --no-added-syms "$against" "$described" || status=$?
if ((status)); then
  echo "abi: the library differs from $against (above); restore what programs use, or raise the soname (major version)"
  exit 1
fi
echo "abi: programs that were built with $against run with this library"
