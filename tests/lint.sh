#!/usr/bin/env bash
# Formatting and static analysis. Called by tests/run.sh; alone:
#   bash tests/lint.sh            formatters, ruff, and clang-tidy on the C++ files that the last commit changed
#   bash tests/lint.sh --all      clang-tidy on all C++ files of the library (some minutes)
# clang-tidy includes clang's thread-safety analysis. It uses build/lint, where each source is compiled alone.
set -euo pipefail
cd "$(dirname "$0")/.."
failed=0

# check NAME REMEDY COMMAND...: one line, and the command's output where it fails.
check() {
  local name=$1 remedy=$2 log
  shift 2
  log=$(mktemp)
  if "$@" >"$log" 2>&1; then
    printf '   %s: ok\n' "$name"
  else
    tail -n 30 "$log"
    printf '   %s: failed; run: %s\n' "$name" "$remedy"
    failed=1
  fi
  rm -f "$log"
}

cpp_files() { git ls-files '*.h' '*.hpp' '*.c' '*.cpp'; }
python_command() { if [ -x .venv/bin/ruff ]; then .venv/bin/ruff "$@"; else ruff "$@"; fi; }

run_clang_format() { cpp_files | xargs clang-format --dry-run --Werror; }
run_clang_tidy() {
  local files
  if [ "${1:-}" = --all ]; then
    files=$(git ls-files 'src/*.cpp' 'transports/*.cpp' 'cuda/*.cpp')
  else
    files=$(git diff --name-only --diff-filter=d HEAD~1 -- 'src/*.cpp' 'transports/*.cpp' 'cuda/*.cpp' 2>/dev/null || true)
  fi
  [ -n "$files" ] || return 0
  cmake -G Ninja -S . -B build/lint -DFARANDOLE_UNITY=OFF >/dev/null
  ninja -C build/lint generated/agree/agree/control_generated.h generated/bootstrap/bootstrap/coordinator_generated.h
  printf '%s\n' "$files" | xargs -P "$(nproc)" -n 4 clang-tidy --quiet -p build/lint
}

check clang-format "git ls-files '*.h' '*.hpp' '*.c' '*.cpp' | xargs clang-format -i" run_clang_format
check "ruff format" "ruff format ." python_command format --check .
check "ruff check" "ruff check --fix ." python_command check .
check clang-tidy "bash tests/lint.sh $*, and mend what it names" run_clang_tidy "$@"
exit "$failed"
