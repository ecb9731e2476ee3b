#!/usr/bin/env bash
# Prints properties of the compiled kernels for each architecture: registers, how many blocks of 256 threads a processor
# runs at once, the bytes that they spill, and the widest accesses to the device's memory.
#   bash bench/gpu/inspect.sh [FOLDER]     of a build: build/generated/cuda, where nvcc was found
#   bash bench/gpu/inspect.sh --check ...  exits with 4 if a kernel spills, loads or stores less than 16 bytes at a time
#                                          where it could, or divides by calling a subroutine
# Accesses are read from the machine code if cuobjdump is installed (CUDA toolkit), else from the PTX.
set -euo pipefail
cd "$(dirname "$0")/../.."
check=0
if [ "${1:-}" = --check ]; then
  check=1
  shift
fi
folder=${1:-build/generated/cuda}
for file in kernels.report kernels.ptx kernels.fatbin; do
  if [ ! -s "$folder/$file" ]; then
    echo "bench/gpu/inspect.sh: there is no $folder/$file: build where nvcc is, or name the build's generated/cuda" >&2
    exit 3
  fi
done

# "ARCHITECTURE KERNEL WORD" for every access and call; those of the PTX ("text") apply to all architectures.
words() {
  if command -v cuobjdump >/dev/null; then
    cuobjdump -sass "$folder/kernels.fatbin" | awk '
      /^[ \t]*arch = sm_/ { arch = $3 }
      /Function : / { kernel = $3 }
      match($0, /(LDG|STG)[.A-Z0-9]*/) { print arch, kernel, substr($0, RSTART, RLENGTH) }'
  fi
  awk '
    /\.entry/ { match($0, /fdl_[a-z_0-9]+/); kernel = substr($0, RSTART, RLENGTH) }
    match($0, /(ld|st)\.global[.a-z0-9]*/) { print "text", kernel, substr($0, RSTART, RLENGTH) }
    match($0, /(div|rem)\.[su](32|64)/) { print "text", kernel, substr($0, RSTART, RLENGTH) }' "$folder/kernels.ptx"
}

{
  words
  echo "report"
  cat "$folder/kernels.report"
} | awk -v check="$check" '
  function bytes_of(word,   times, size) {
    if (word ~ /^(LDG|STG)/) return match(word, /\.(128|64|U16|S16|U8|S8)/) ? widths[substr(word, RSTART + 1, RLENGTH - 1)] : 4
    times = word ~ /\.v4\./ ? 4 : word ~ /\.v2\./ ? 2 : 1
    size = word
    sub(/.*[a-z]/, "", size)
    return times * size / 8
  }
  function widest(side, arch, kernel) {
    return side in any && (side, arch, kernel) in wide ? wide[side, arch, kernel] : wide[side, "text", kernel] + 0
  }
  function row() {
    blocks = int(65536 / (256 * int((registers + 7) / 8) * 8))
    if (blocks > 8) blocks = 8
    loads = widest("load", arch, kernel)
    stores = widest("store", arch, kernel)
    wrong = ""
    if (spilled || stack) wrong = wrong " spills"
    if (loads < 16 || stores < 16) wrong = wrong " narrow"
    if ((kernel) in divides) wrong = wrong " divides"
    printf "%-26s %-7s %9d %7d %8d %7d %7d %s\n", kernel, arch, registers, blocks, spilled, loads, stores, wrong
    bad += wrong != ""
    ++rows
  }
  BEGIN {
    split("128 16 64 8 U16 2 S16 2 U8 1 S8 1", pairs, " ")
    for (i = 1; i in pairs; i += 2) widths[pairs[i]] = pairs[i + 1]
    any["load"] = any["store"] = 1
    printf "%-26s %-7s %9s %7s %8s %7s %7s\n", "kernel", "", "registers", "blocks", "spilled", "loads", "stores"
  }
  $1 == "report" { reading = 1; next }
  !reading && $3 ~ /^(div|rem)/ { divides[$2] = 1; next }
  !reading {
    side = $3 ~ /^(LDG|ld)/ ? "load" : "store"
    if (bytes_of($3) > wide[side, $1, $2]) wide[side, $1, $2] = bytes_of($3)
    next
  }
  /Compiling entry function/ { split($0, quoted, "\047"); kernel = quoted[2]; arch = quoted[4] }
  /bytes stack frame/ { match($0, /[0-9]+ bytes stack/); stack = substr($0, RSTART) + 0
                        match($0, /[0-9]+ bytes spill stores/); spilled = substr($0, RSTART) + 0 }
  /Used [0-9]+ registers/ { match($0, /Used [0-9]+/); registers = substr($0, RSTART + 5) + 0; row() }
  END {
    if (rows == 0) { print "the report contains no kernel"; exit 4 }
    printf "%d of %d as they should be\n", rows - bad, rows
    exit check && bad ? 4 : 0
  }'
