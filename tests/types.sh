#!/usr/bin/env bash
# Checks the stub of the package and a program that uses it with mypy and pyright, in an environment of their own.
#   bash tests/types.sh
set -euo pipefail
cd "$(dirname "$0")/.."
source tests/setup.sh
requirements=(mypy==1.18.2 basedpyright==1.31.4 numpy)
place=$PWD/build/types
if [[ ! -f $place/ready || $(<"$place/ready") != "${requirements[*]}" ]]; then
  setup_say "installing ${requirements[*]}"
  python3 -m venv "$place"
  setup_pip_install "$place/bin/python" "${requirements[@]}" ||
    setup_fail "pip could not install the packages above"
  printf '%s' "${requirements[*]}" >"$place/ready"
fi
export MYPYPATH=$PWD/bindings/python PYTHONPATH=$PWD/bindings/python
set -x
"$place/bin/python" -m mypy --strict --follow-imports=silent tests/python/package/typed_program.py \
  bindings/python/farandole/__init__.pyi
"$place/bin/basedpyright" --pythonpath "$place/bin/python" --project tests/python/package/pyright.json
