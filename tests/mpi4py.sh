#!/usr/bin/env bash
# Runs mpi4py's own tests with and without farandole's library preloaded, and compares the outcome of each test.
#
#   bash tests/mpi4py.sh             all of them, on RANKS ("2 3"), under MPIS ("openmpi mpich"); some minutes
#   bash tests/mpi4py.sh --quick     its tests of collectives on 2 ranks
#
# Needs .venv with farandole and mpi4py (tests/setup.sh), or PYTHON. The tests are in mpi4py's source package, which is
# downloaded, or the file SDIST. Left out: tests that start processes (spawn, dynproc, pools), which Debian's MPIs
# do not do everywhere, and tests of files.
set -euo pipefail
cd "$(dirname "$0")/.."

python=$(realpath -s "${PYTHON:-.venv/bin/python}")
ranks=${RANKS:-2 3}
only=()
if [ "${1:-}" = --quick ]; then
  ranks=2
  only=(-i test_cco_buf -i test_cco_vec -i test_cco_obj -i test_cco_nb -i test_op -i test_comm)
elif [ $# -gt 0 ]; then
  sed -n '2,/^set/p' "$0" | sed '$d; s/^# \{0,1\}//' >&2 && exit 64
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

version=$("$python" -c 'import mpi4py; print(mpi4py.__version__)')
if [ -n "${SDIST:-}" ]; then
  cp "$SDIST" "$work/mpi4py-$version.tar.gz"
else
  "$python" -m pip download --quiet --disable-pip-version-check --no-deps --no-binary :all: --dest "$work" "mpi4py==$version" 2>"$work/log" ||
    { cat "$work/log" >&2 && exit 77; }
fi
tar -xf "$work/mpi4py-$version.tar.gz" -C "$work"
library=$("$python" -c 'import farandole, os; print(os.path.dirname(farandole.__file__))')
# The name of Debian's MPICH is not the one of its ABI.
mkdir "$work/mpich"
ln -s "$(/sbin/ldconfig -p | sed -n 's/.*libmpich.so.12 .* => //p' | head -n 1)" "$work/mpich/libmpi.so.12"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 FARANDOLE_MPI_PRELOAD_AFTER=2 FARANDOLE_LOG_LEVEL=info

# run MPI RANKS [PRELOAD]: one line for each test of rank 0 with its outcome.
run() {
  local mpi=$1 count=$2 preload=${3:-} launcher
  # Each rank writes a file of its own.
  local tests=(sh -c 'exec "$0" "$@" >"'"$work"'/output.${OMPI_COMM_WORLD_RANK:-$PMI_RANK}" 2>&1' "$python" test/main.py -v -e spawn -e dynproc -e pool -e test_io -e test_file ${only[@]+"${only[@]}"})
  if [ "$mpi" = openmpi ]; then
    launcher=(mpirun.openmpi --oversubscribe -n "$count" -x MPI4PY_MPIABI=openmpi -x FARANDOLE_MPI_PRELOAD_AFTER
      -x FARANDOLE_LOG_LEVEL ${preload:+-x LD_PRELOAD="$preload"} "${tests[@]}")
  else
    launcher=(mpiexec.hydra -n "$count" -genv MPI4PY_MPIABI mpich -genv LD_LIBRARY_PATH "$work/mpich"
      ${preload:+-genv LD_PRELOAD "$preload"} "${tests[@]}")
  fi
  (cd "$work/mpi4py-$version" && timeout 1500 "${launcher[@]}") >"$work/launcher" 2>&1 || echo "exit code $?"
  grep -oE '^.*test[A-Za-z0-9_]* \(.*\) \.\.\. (ok|skipped|FAIL|ERROR|expected failure)' "$work/output.0" | sort
  grep -E '^(Ran|OK|FAILED)' "$work/output.0" | sed 's/ in [0-9.]*s//' | sort
}

failed=0
for mpi in ${MPIS:-openmpi mpich}; do
  for count in $ranks; do
    run "$mpi" "$count" >"$work/alone"
    run "$mpi" "$count" "$library/libfarandole_mpi_preload_$mpi.so" >"$work/preloaded"
    ran=$(sed -n 's/.*farandole ran \([0-9]*\) collectives.*/\1/p' "$work/output.0" | head -n 1)
    summary=$(grep -cE ' (ok|skipped|expected failure)$' "$work/preloaded" || true)
    if cmp -s "$work/alone" "$work/preloaded" && [ "${ran:-0}" -gt 100 ]; then
      echo "mpi4py $version, $mpi, $count ranks: $summary outcomes are the same with and without; farandole ran $ran collectives"
    else
      failed=1
      echo "mpi4py $version, $mpi, $count ranks: outcomes differ (alone, then preloaded); farandole ran ${ran:-0} collectives"
      diff "$work/alone" "$work/preloaded" | head -n 40 || true
      tail -n 5 "$work/output.0" "$work/launcher"
    fi
  done
done
exit "$failed"
