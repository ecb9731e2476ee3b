#!/usr/bin/env bash
# Builds the source distribution into dist/, installs it into a new virtual environment, and runs two ranks there. pip
# fetches what builds it, and the build takes minutes.
#   bash packaging/sdist.sh
set -euo pipefail
cd "$(dirname "$0")/.."
source tests/setup.sh
source packaging/settings.sh
setup_install_packages

work=$PWD/build/packaging/sdist
rm -rf "$work" && mkdir -p "$work"
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check build numpy
"$work/venv/bin/python" -m build --sdist --outdir "$work/dist" . >"$work/log" 2>&1 ||
  { tail -n 20 "$work/log" >&2; setup_fail "the source distribution was not built; see $work/log"; }
sdist=$(compgen -G "$work/dist/farandole-*.tar.gz")
mkdir -p dist && cp "$sdist" dist/
printf '%4ds  %s: %d KiB\n' "$SECONDS" "dist/$(basename "$sdist")" $(($(stat -c %s "$sdist") / 1024))
cp packaging/first_steps.py "$work/"
"$work/venv/bin/python" -m pip install --disable-pip-version-check "$sdist" >>"$work/log" 2>&1 ||
  { tail -n 20 "$work/log" >&2; setup_fail "the source distribution was not installed; see $work/log"; }
printf '%4ds  installed\n' "$SECONDS"
cd "$work"
venv/bin/farandole run --quiet -np 2 venv/bin/python first_steps.py
