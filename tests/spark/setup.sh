#!/usr/bin/env bash
# Makes build/spark, an environment with PySpark beside the packages of .venv, and installs a Java runtime if there is
# none. About 800 MiB.
set -euo pipefail
cd "$(dirname "$0")/../.."
source tests/setup.sh
command -v java >/dev/null || setup_install_packages tests/spark/packages.txt

stamp=build/spark/requirements
[[ ! -f $stamp ]] || ! cmp -s tests/spark/requirements.txt "$stamp" || exit 0
setup_say "installing PySpark into build/spark (minutes the first time)"
rm -rf build/spark
python -m venv build/spark
packages=$(python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
echo "$packages" >"$(build/spark/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/tests.pth"
setup_pip_install build/spark/bin/python -r tests/spark/requirements.txt ||
  setup_fail "pip could not install the packages of tests/spark/requirements.txt"
cp tests/spark/requirements.txt "$stamp"
