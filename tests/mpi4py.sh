#!/usr/bin/env bash
# Runs mpi4py's own tests with and without farandole's library preloaded, and compares the outcome of each test.
#
#   bash tests/mpi4py.sh             all of them, on RANKS ("1 2"), under MPIS ("openmpi mpich"); half an hour
#   bash tests/mpi4py.sh --quick     its tests of collectives of buffers over the world on 2 ranks; half a minute
#   bash tests/mpi4py.sh MODULE...   these alone, such as test_cco_buf
#
# Needs .venv with farandole and mpi4py (tests/setup.sh), or PYTHON. The tests are in mpi4py's source package, which is
# downloaded, or the file SDIST. Each module runs in a job of its own with a limit of LIMIT_S (300) seconds: some hang or
# crash under Debian's MPIs by themselves, and must then do so in both ways. A module whose outcomes differ runs once
# more in both ways, because a few tests depend on time. If MPI alone had other outcomes then, nothing is compared and
# the module is named as unsteady.
set -euo pipefail
cd "$(dirname "$0")/.."

python=$(realpath -s "${PYTHON:-.venv/bin/python}")
ranks=${RANKS:-1 2}
modules=()
classes=""
case "${1:-}" in
  --quick) ranks=2 modules=(test_cco_buf) classes=World. ;;
  -*) sed -n '2,/^set/p' "$0" | sed '$d; s/^# \{0,1\}//' >&2 && exit 64 ;;
  *) modules=("$@") ;;
esac
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

version=$("$python" -c 'import mpi4py; print(mpi4py.__version__)')
if [ -n "${SDIST:-}" ]; then
  cp "$SDIST" "$work/mpi4py-$version.tar.gz"
else
  "$python" -m pip download --quiet --disable-pip-version-check --no-deps --no-binary mpi4py --dest "$work" "mpi4py==$version" 2>"$work/log" ||
    { cat "$work/log" >&2 && exit 77; }
fi
tar -xf "$work/mpi4py-$version.tar.gz" -C "$work"
tests=$work/mpi4py-$version/test
[ ${#modules[@]} -gt 0 ] || mapfile -t modules < <(cd "$tests" && ls test_*.py | sed 's/\.py$//')
library=$("$python" -c 'import farandole, os; print(os.path.dirname(farandole.__file__))')
# The name of Debian's MPICH is not the one of its ABI.
mkdir "$work/mpich"
ln -s "$(/sbin/ldconfig -p | sed -n 's/.*libmpich.so.12 .* => //p' | head -n 1)" "$work/mpich/libmpi.so.12"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 FARANDOLE_LOG_LEVEL=info
export FARANDOLE_MPI_PRELOAD_AFTER=2 FARANDOLE_MPI_PRELOAD_MEASURE=0

# run MPI RANKS MODULE [PRELOAD]: one line for each test of rank 0 with its outcome.
run() {
  local mpi=$1 count=$2 module=$3 preload=${4:-} launcher code=0
  # Each rank writes a file of its own.
  local command=(sh -c 'exec "$0" "$@" >"'"$work"'/output.${OMPI_COMM_WORLD_RANK:-$PMI_RANK}" 2>&1' "$python" "$tests/main.py" -v -i "^$module[.]" ${classes:+-k "$classes"})
  if [ "$mpi" = openmpi ]; then
    launcher=(mpirun.openmpi --oversubscribe -n "$count" -x MPI4PY_MPIABI=openmpi -x FARANDOLE_MPI_PRELOAD_AFTER
      -x FARANDOLE_MPI_PRELOAD_MEASURE -x FARANDOLE_LOG_LEVEL ${preload:+-x LD_PRELOAD="$preload"} "${command[@]}")
  else
    launcher=(mpiexec.hydra -n "$count" -genv MPI4PY_MPIABI mpich -genv LD_LIBRARY_PATH "$work/mpich"
      ${preload:+-genv LD_PRELOAD "$preload"} "${command[@]}")
  fi
  : >"$work/output.0"
  (cd "$work" && timeout "${LIMIT_S:-300}" "${launcher[@]}") >"$work/launcher" 2>&1 || code=$?
  case $code in 0) ;; 124) echo "does not end" ;; *) echo "fails" ;; esac
  grep -aoE '^.*test[A-Za-z0-9_]* \(.*\) \.\.\. (ok|skipped|FAIL|ERROR|expected failure)' "$work/output.0" | sort || true
  grep -aE '^(Ran|OK|FAILED)' "$work/output.0" | sed 's/ in [0-9.]*s//' | sort || true
}

failed=0
for mpi in ${MPIS:-openmpi mpich}; do
  for count in $ranks; do
    same=0 ran=0 differing=() unsteady=() stuck=()
    for module in "${modules[@]}"; do
      for attempt in 1 2; do
        run "$mpi" "$count" "$module" >"$work/alone"
        run "$mpi" "$count" "$module" "$library/libfarandole_mpi_preload_$mpi.so" >"$work/preloaded"
        ! cmp -s "$work/alone" "$work/preloaded" || break
        [ "$attempt" = 2 ] || cp "$work/alone" "$work/before"
      done
      number=$(sed -n 's/.*farandole ran \([0-9]*\) collectives.*/\1/p' "$work/output.0" | head -n 1)
      ran=$((ran + ${number:-0}))
      if cmp -s "$work/alone" "$work/preloaded"; then
        same=$((same + $(grep -cE ' (ok|skipped|expected failure|FAIL|ERROR)$' "$work/preloaded" || true)))
        ! grep -qE '^(does not end|fails)$' "$work/preloaded" || stuck+=("$module")
      elif ! cmp -s "$work/alone" "$work/before"; then
        unsteady+=("$module")
      else
        differing+=("$module")
        echo "mpi4py $version, $mpi, $count ranks: outcomes of $module differ (<: alone, >: preloaded)"
        diff "$work/alone" "$work/preloaded" | head -n 40 || true
        tail -n 5 "$work/output.0" "$work/launcher"
      fi
    done
    echo "mpi4py $version, $mpi, $count ranks: $same outcomes of $((${#modules[@]} - ${#differing[@]} - ${#unsteady[@]})) modules are the" \
      "same with and without, ${#differing[@]} modules differ; farandole ran $ran collectives"
    [ ${#unsteady[@]} -eq 0 ] || echo "   unsteady by themselves: ${unsteady[*]}"
    [ ${#stuck[@]} -eq 0 ] || echo "   not successful by themselves either: ${stuck[*]}"
    # On one rank farandole has nothing to do.
    if [ ${#differing[@]} -gt 0 ] || { [ "$count" -gt 1 ] && [ "$ran" -le 100 ]; }; then failed=1; fi
  done
done
exit "$failed"
