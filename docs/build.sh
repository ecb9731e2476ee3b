#!/usr/bin/env bash
# Builds the site: all documents and the reference of the C, C++ and Python API, into build/docs/html.
#   bash docs/build.sh
# Needs python3 with venv and a package index that pip can reach. No compiled module is needed. Warnings are errors.
set -euo pipefail
cd "$(dirname "$0")/.."

requirements=("sphinx>=8,<10" "myst-parser>=4,<6" "furo>=2024.8.6")
venv=build/docs-venv
if [[ ! -f $venv/requirements || $(<"$venv/requirements") != "${requirements[*]}" ]]; then
  echo "docs: making $venv"
  rm -rf "$venv"
  python3 -m venv "$venv" || {
    echo "docs: python3 -m venv failed; as root: apt-get install python3-venv" >&2
    exit 1
  }
  "$venv/bin/pip" install --quiet --disable-pip-version-check --no-compile "${requirements[@]}"
  printf '%s' "${requirements[*]}" >"$venv/requirements"
fi
exec "$venv/bin/python" docs/tools/site.py "$@"
