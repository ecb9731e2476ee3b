#!/usr/bin/env bash
# Tests the CDK app and the Pulumi program, each in a virtual environment of its own. These take 900 MiB, and two minutes
# the first time, so tests/run.sh does not run them.   bash tests/kubernetes/iac/run.sh [FOLDER FOR THE ENVIRONMENTS]
set -euo pipefail
cd "$(dirname "$0")/../../.."
place=${1:-build/iac}

environment() {
  local name=$1
  shift
  [ -x "$place/$name/bin/pytest" ] || { python3 -m venv "$place/$name" && "$place/$name/bin/pip" install -q pytest "$@"; }
}
environment cdk -r examples/eks/cdk/requirements.txt cfn-lint
environment pulumi pulumi pulumi-aws pulumi-eks pulumi-kubernetes PyYAML
# The generator needs nothing of the compiled package, so a stub of the package is enough.
mkdir -p "$place/stub/farandole"
touch "$place/stub/farandole/__init__.py"
ln -sfn "$PWD/bindings/python/farandole/integrations" "$place/stub/farandole/integrations"
failed=0
"$place/cdk/bin/python" -m pytest -q -p no:cacheprovider --noconftest tests/kubernetes/iac/test_cdk.py || failed=1
PYTHONPATH=$place/stub "$place/pulumi/bin/python" -m pytest -q -p no:cacheprovider --noconftest \
  tests/kubernetes/iac/test_pulumi.py || failed=1
exit "$failed"
