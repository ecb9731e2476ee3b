#!/usr/bin/env bash
# Sets up the machine and runs all tests: C++ (threads and processes), Python, sanitizers, format. The last line is
# "N passed, N failed".
#   bash tests/run.sh            everything
#   bash tests/run.sh cpp        one part: cpp, python, frameworks, kubernetes, address, thread or format
# Not parts of everything, because they install gigabytes:
#   bash tests/run.sh newest     the tests of the PyTorch layer with the newest PyTorch
#   bash tests/run.sh spark      farandole.spark on a Spark cluster of two executors
#   bash tests/frameworks/run.sh older releases of the frameworks too
set -euo pipefail
cd "$(dirname "$0")/.."
source tests/setup.sh
source tests/newest_torch.sh
source tests/frameworks/run.sh

parts=("$@")
[ ${#parts[@]} -gt 0 ] || parts=(format cpp python frameworks kubernetes address thread)
jobs=$(nproc)
logs=build/test-logs
mkdir -p "$logs"
# A table that the user has measured with `farandole tune` would change what tests choose. pip looks for its settings in
# the same folder.
config=${XDG_CONFIG_HOME:-$HOME/.config}
[ ! -e "$config/pip/pip.conf" ] || export PIP_CONFIG_FILE="${PIP_CONFIG_FILE:-$config/pip/pip.conf}"
export XDG_CONFIG_HOME="$PWD/build/config"
passed=0
failed=0
started=$(date +%s)

# say WORDS...: prints how the cores were used since the last title, and then the title of the next part. Builds that
# start_ahead() runs have a low priority.
say() {
  use_of_cores
  printf '\n== %4ds  %s\n' "$(($(date +%s) - started))" "$*"
}

cores_before=()
use_of_cores() {
  local now spent total=0 i
  read -ra now </proc/stat # "cpu", then the time of all cores: user, low priority, system, idle, waiting for a disk, ...
  if [ ${#cores_before[@]} -gt 0 ]; then
    for i in {1..8}; do
      spent[i]=$((now[i] - cores_before[i]))
      total=$((total + spent[i]))
    done
    [ "$total" -eq 0 ] ||
      printf '   cores: %d %% idle, %d %% at low priority\n' $((100 * (spent[4] + spent[5]) / total)) $((100 * spent[2] / total))
  fi
  cores_before=("${now[@]}")
}

# count NAME PASSED FAILED
count() {
  printf '   %s: %d passed, %d failed\n' "$1" "$2" "$3"
  passed=$((passed + $2))
  failed=$((failed + $3))
}

# run_ctest NAME FOLDER [ARGUMENTS...]: every GoogleTest of the build in FOLDER; a run without any test is a failure. One
# test more than cores at a time: with as many, the cores were idle for a fifth of the time.
run_ctest() {
  local name=$1 folder=$2 log="$logs/$1.log"
  shift 2
  ctest --test-dir "$folder" -j $((jobs + 1)) --output-on-failure "$@" >"$log" 2>&1 || true
  local total bad
  total=$(sed -n 's/.*tests failed out of \([0-9]*\)$/\1/p' "$log" | tail -n 1)
  bad=$(sed -n 's/.*, \([0-9]*\) tests failed out of [0-9]*$/\1/p' "$log" | tail -n 1)
  if [ -z "$total" ] || [ "$total" -eq 0 ] || grep -qE '\(Skipped\)|\*\*\*Not Run|DISABLED' "$log"; then
    echo "   $name: tests were skipped or none ran; see $log"
    tail -n 20 "$log"
    count "$name" 0 1
    return
  fi
  [ "$bad" -eq 0 ] || grep -vE '^ *[0-9]+/[0-9]+ Test .*Passed|^ +Start +[0-9]+: |^$' "$log" | tail -n 200
  grep -hE '^(verifier|agreement|mutations|fuzz|choose)[: ]' "$log" | sort -u | sed 's/^/   /' || true
  count "$name" $((total - bad)) "$bad"
}

# build_tests FOLDER TARGETS... [-- CMAKE ARGUMENTS...]
build_tests() {
  local folder=$1 log="$logs/build-$(basename "$1").log"
  shift
  local targets=()
  while [ $# -gt 0 ] && [ "$1" != -- ]; do
    targets+=("$1")
    shift
  done
  [ $# -eq 0 ] || shift
  if ! { cmake -G Ninja -S . -B "$folder" -DFARANDOLE_TESTS=ON -DFARANDOLE_WERROR=ON "$@" &&
    cmake --build "$folder" -j "$jobs" ${targets[@]+--target "${targets[@]}"}; } >"$log" 2>&1; then
    grep -E 'error|warning|FAILED|undefined' "$log" | head -n 40 || tail -n 40 "$log"
    echo "   the build in $folder failed; see $log"
    count "build $folder" 0 1
    return 1
  fi
}

declare -A ahead=() # processes that prepare later parts, by name

# start_ahead NAME COMMAND...: runs a function in the background, in a process group that ends with this script.
start_ahead() {
  set -m
  ("${@:2}") >"$logs/ahead-$1.log" 2>&1 &
  ahead[$1]=$!
  set +m
  trap 'for name in "${!ahead[@]}"; do kill -- "-${ahead[$name]}" 2>/dev/null || true; done' EXIT
}

# wait_ahead NAME: what failed there runs again in its part, where its errors are shown.
wait_ahead() {
  [ -n "${ahead[$1]:-}" ] || return 0
  if kill -0 "${ahead[$1]}" 2>/dev/null; then
    setup_say "waiting for what was started ahead: $1 ($logs/ahead-$1.log)"
    renice -n 0 -g "${ahead[$1]}" >/dev/null 2>&1 || true # only root may; nothing else of this run needs the cores now
  fi
  wait "${ahead[$1]}" || true
}

# Packages of later parts are downloaded while the compiler works. Those of part kubernetes go into .venv, so they are
# there before the first test imports from it.
install_ahead() {
  [[ " ${parts[*]} " != *" kubernetes "* ]] || start_ahead kubernetes set_up_kubernetes
  [[ " ${parts[*]} " != *" frameworks "* ]] || start_ahead frameworks install_frameworks
}

set_up_kubernetes() { PYTHON=python bash tests/kubernetes/setup.sh; }

# The frameworks of part frameworks: FRAMEWORKS, or the newest releases.
wanted_frameworks() { echo "${FRAMEWORKS:-$(names_of_frameworks newest | xargs)}"; }

install_frameworks() {
  local name
  for name in $(wanted_frameworks); do install_framework "$name"; done
}

part_format() {
  say "format and static analysis"
  local bad=0
  bash tests/lint.sh || bad=1
  count format $((1 - bad)) "$bad"
  # It uses one core, so it runs beside the build of part cpp, and is counted after that.
  bash docs/build.sh >"$logs/documents.log" 2>&1 &
  documents=$!
  [[ " ${parts[*]} " == *" cpp "* ]] || count_documents
}

documents="" # the process that builds the site
count_documents() {
  [ -n "$documents" ] || return 0
  say "documents: the site without warnings, broken links or undocumented functions"
  local bad=0
  wait "$documents" || bad=1
  documents=""
  [ "$bad" -eq 0 ] || tail -n 40 "$logs/documents.log"
  count documents $((1 - bad)) "$bad"
}

part_cpp() {
  say "C++: build, warnings are errors"
  local built=1
  build_tests build -- -DFARANDOLE_BENCH=ON -DFARANDOLE_EXAMPLES=ON || built=0
  count_documents
  [ "$built" -eq 1 ] || return 0
  build_ahead
  say "C++: tests"
  run_ctest cpp build
}

# run_pytest NAME PLACE [may-skip [VARIABLE=VALUE...]]: a skipped test is a failure unless may-skip is given; the reasons of
# skipped tests are printed. The variables are those of the test process. Each of $jobs workers runs files of its own. A
# test that has not ended after 30 minutes prints the stacks of its threads and fails, so that the others still run.
run_pytest() {
  install_python_package
  local name=$1 log="$logs/$1.log"
  # faulthandler prints the stacks also where no Python code runs any more.
  env "${@:4}" python -m pytest -q -rs --timeout 1800 -o faulthandler_timeout=1800 --junitxml="$logs/$name.xml" \
    -n "$jobs" --dist loadfile --no-loadscope-reorder "$2" >"$log" 2>&1 || true
  local total bad skipped
  read -r total bad skipped < <(python - "$logs/$name.xml" <<'PY'
import sys, xml.etree.ElementTree as tree
try:
    suites = list(tree.parse(sys.argv[1]).getroot().iter("testsuite"))
except (OSError, tree.ParseError):
    suites = []
add = lambda key: sum(int(s.get(key, 0)) for s in suites)
print(add("tests"), add("failures") + add("errors"), add("skipped"))
PY
  )
  total=$((total - skipped))
  if [ "$skipped" -ne 0 ]; then
    echo "   $name: $skipped skipped"
    grep '^SKIPPED' "$log" | sed 's/^/   /' || true
  fi
  if [ $((total + skipped)) -eq 0 ] || { [ "$skipped" -ne 0 ] && [ "${3:-}" != may-skip ]; }; then
    echo "   tests were skipped or none ran; see $log"
    bad=$((bad + 1))
    total=$((total + 1))
  fi
  [ "$bad" -eq 0 ] || tail -n 150 "$log"
  count "$name" $((total - bad)) "$bad"
}

part_python() {
  say "Python"
  wait_ahead kubernetes
  build_tests build fake_cuda fake_nccl efa_over_tcp || return 0
  build_ahead
  # Part frameworks has Keras's tests with PyTorch too.
  local without=()
  [[ " ${parts[*]} " != *" frameworks "* ]] || without=(PYTEST_ADDOPTS="${PYTEST_ADDOPTS:-} --ignore=tests/python/keras")
  # One worker more than cores: most tests wait for time-outs and for programs that start.
  jobs=$((jobs + 1)) run_pytest python tests/python "" "${without[@]}"
  compare_newest_torch
}

part_newest() {
  say "Python: the newest PyTorch"
  install_python_package
  set_up_newest_torch "${NEWEST_TORCH:-}"
  say "Python: the newest PyTorch, $(<build/newest_torch/release): tests"
  local folder
  for folder in distributed torch; do
    run_pytest "newest-$folder" "tests/python/$folder" "" \
      PATH="$PWD/build/newest_torch/venv/bin:$PATH" PYTHONPATH="$PWD/build/newest_torch/package"
  done
}

# XLA compiles each function once for a few calls here, and its optimisations take longer than they save.
xla_flags="--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"

# The bindings whose frameworks are not in .venv, each in an environment of its own.
part_frameworks() {
  wait_ahead kubernetes
  install_python_package
  wait_ahead frameworks
  local name begin before may_skip table=()
  for name in $(wanted_frameworks); do
    say "Frameworks: $name"
    set_up_framework "$name"
    begin=$(date +%s) before="$passed $failed"
    may_skip=""
    [[ $framework_tests != tests/kubernetes/* ]] || may_skip=may-skip # without root or namespaces, with a reason
    run_pytest "$name" "$framework_tests" "$may_skip" PATH="$PWD/$framework_home/venv/bin:$PATH" \
      PYTHONPATH="$PWD/$framework_home/package" TF_CPP_MIN_LOG_LEVEL=3 XLA_FLAGS="$xla_flags"
    table+=("| $framework_module $(version_of_framework "$name") | $((passed - ${before% *})) | $((failed - ${before#* })) | $(($(date +%s) - begin)) s |")
  done
  printf '   %s\n' "| release | passed | failed | time |" "|---|---|---|---|" "${table[@]}"
}

part_spark() {
  install_python_package
  say "Spark: tests"
  bash tests/spark/setup.sh || { count spark 0 1; return; }
  jobs=0 PATH="$PWD/build/spark/bin:$PATH" run_pytest spark tests/spark
}

part_kubernetes() {
  say "Kubernetes: manifests, and pods in namespaces of this machine"
  build_tests build fake_cuda fake_nccl efa_over_tcp || return 0
  wait_ahead kubernetes
  set_up_kubernetes
  install_python_package
  build_ahead
  # One worker more than cores, because pods wait for each other. Tests without root, namespaces or schemas are skipped
  # with a reason.
  jobs=$((jobs + 1)) run_pytest kubernetes tests/kubernetes may-skip
}

# Tests of threads and raw memory, which run again under a sanitizer. Pure modules are deterministic and left out.
sanitized_tests=(elastic_workers_test coordinator_loss_test coordinator_memory_test transport_contract_test
  hostile_network_test shm_test progress_token_test shm_transport_test shm_doorbells_test shm_lives_test
  shm_readiness_flags_test shm_arena_test set_up_wait_test memory_group_test memory_group_losses_test engine_test
  adasum_test capi_test capi_sizes_test capi_progress_test capi_submitted_test capi_waits_test capi_lifetime_test
  capi_timeline_test timeline_test timeline_memory_test channel_test cuda_test capi_devices_test
  capi_device_watch_test capi_group_launch_test capi_launch_turns_test capi_busy_device_test device_scratch_test
  symmetric_memory_test tcp_connector_test connector_memory_test on_demand_test capi_random_test nccl_calls_test
  nccl_failure_test)
address_tests=("${sanitized_tests[@]}" farandole_wheel link_probe_test system_test node_port_test coordinator_strangers_test tcp_test)
thread_tests=("${sanitized_tests[@]}" coordinator_test history_test)

# The address build has the undefined-behaviour sanitizer too, but for its checks of pointers: those cost a third more
# compile time, the others nothing that can be measured.
declare -A sanitizers=([address]=address,undefined [thread]=thread)

# build_sanitized KIND: the tests of KIND_tests. Each module is compiled as one source (batch 0), because nothing is built
# here a second time; faults that this hides have already failed the build of part cpp. With -Og the compiler takes 30 %
# less time than with -O1, and the tests about as long.
build_sanitized() {
  local kind=$1 only
  local -n tests="$1_tests"
  only=$(IFS=';'; echo "${tests[*]}")
  build_tests "build/$kind" "${tests[@]}" -- -DFARANDOLE_SANITIZE="${sanitizers[$kind]}" -DFARANDOLE_SANITIZE_ACCESSES=OFF \
    -DCMAKE_BUILD_TYPE=RelWithDebInfo -DFARANDOLE_WERROR=OFF -DFARANDOLE_PROGRAM=OFF \
    -DFARANDOLE_MPI_PRELOAD=OFF -DCMAKE_UNITY_BUILD_BATCH_SIZE=0 -DFARANDOLE_PYTHON=$([ "$kind" = address ] && echo ON || echo OFF) \
    "-DFARANDOLE_TESTS_ONLY=$only" "-DCMAKE_CXX_FLAGS_RELWITHDEBINFO=-Og -g1 -UNDEBUG"
}

# The sanitizers that are among the parts are built while the tests of other parts wait, one after the other: at the lowest
# priority they take no core from those. sanitized() builds again, so that errors of the build are shown and counted.
build_ahead() {
  local kind before=
  for kind in address thread; do
    [[ " ${parts[*]} " == *" $kind "* && -z ${ahead[$kind]:-} ]] || continue
    start_ahead "$kind" build_after "$before" "$kind"
    before=${ahead[$kind]}
  done
}

# build_after PROCESS KIND: waits for the end of PROCESS, if one is given.
build_after() {
  renice -n 19 -p "$BASHPID"
  [ -z "$1" ] || tail --pid="$1" -f /dev/null
  build_sanitized "$2" || true
}

sanitized() {
  local kind=$1
  say "$kind sanitizer: build"
  wait_ahead "$kind"
  build_sanitized "$kind" || return 0
  say "$kind sanitizer: tests"
  RANDOM_CALLS_SEEDS=10 UBSAN_OPTIONS=print_stacktrace=1 TSAN_OPTIONS="halt_on_error=1 second_deadlock_stack=1" \
    run_ctest "$kind" "build/$kind"
}

# Tests the Python package with the libraries of build/address, in a tree of its own that comes first in PYTHONPATH.
run_python_under_address() {
  local tree="$PWD/build/address/wheel"
  rm -rf "$tree"
  cmake --install build/address --component wheel --prefix "$tree" >"$logs/address-wheel.log" 2>&1 || {
    echo "   the package under the address sanitizer could not be installed; see $logs/address-wheel.log"
    count address-python 0 1
    return
  }
  cp -r bindings/python/farandole bindings/torch/farandole bindings/keras/farandole "$tree/"
  say "address sanitizer: random sizes from Python"
  run_pytest address-python tests/python/core/test_sizes.py "" \
    LD_PRELOAD="$(gcc -print-file-name=libasan.so) $(gcc -print-file-name=libstdc++.so)" \
    PYTHONPATH="$tree" PYTHONMALLOC=malloc ASAN_OPTIONS=detect_leaks=0
}

part_address() {
  sanitized address
  run_python_under_address
}
part_thread() { sanitized thread; }

set_up_machine
install_ahead
for part in "${parts[@]}"; do
  case "$part" in
    cpp | python | frameworks | newest | spark | kubernetes | address | thread | format) "part_$part" ;;
    *) echo "tests/run.sh: '$part' is none of cpp, python, frameworks, newest, spark, kubernetes, address, thread, format" >&2; exit 64 ;;
  esac
done

count_documents
say "done"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
