#!/usr/bin/env bash
# Runs fuzz targets under libFuzzer with the address and undefined-behaviour sanitizers, after installing clang. The last
# line is "N passed, N failed". An input that fails is kept in build/fuzz/findings/TARGET.
#   bash tests/fuzz/run.sh                       every target for 60 s
#   bash tests/fuzz/run.sh 600 plans requests    these targets for 600 s each
set -euo pipefail
cd "$(dirname "$0")/../.."
source tests/setup.sh
setup_install_packages
setup_install_packages tests/fuzz/packages.txt
seconds=${1:-60}
shift || true
cmake --preset fuzz >build/fuzz-configure.log 2>&1 || { tail -n 20 build/fuzz-configure.log; exit 1; }
targets=("$@")
if [ ${#targets[@]} -eq 0 ]; then
  mapfile -t targets < <(sed -n 's/^extern const Target \([a-z_]*\);.*/\1/p' tests/fuzz/targets.h)
fi
cmake --build build/fuzz -j "$(nproc)" --target "${targets[@]/#/fuzz_}"

passed=0 failed=0
for target in "${targets[@]}"; do
  corpus=build/fuzz/corpus/$target findings=build/fuzz/findings/$target log=build/fuzz/$target.log
  mkdir -p "$corpus" "$findings"
  build/fuzz/bin/fuzz_"$target" --write-seeds "$corpus"
  committed=()
  [ ! -d "tests/fuzz/findings/$target" ] || committed=("tests/fuzz/findings/$target")
  if build/fuzz/bin/fuzz_"$target" -max_total_time="$seconds" -max_len=4096 -timeout=10 -rss_limit_mb=2048 \
    -print_final_stats=1 -artifact_prefix="$findings/" "$corpus" "${committed[@]}" >"$log" 2>&1; then
    passed=$((passed + 1))
  else
    failed=$((failed + 1))
    grep -E 'ERROR|SUMMARY|check failed|runtime error|Test unit written' "$log" | head -n 5 || tail -n 20 "$log"
  fi
  printf '%s: %s executions in %s s, %s inputs in the corpus\n' "$target" \
    "$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")" "$seconds" "$(find "$corpus" -type f | wc -l)"
done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
