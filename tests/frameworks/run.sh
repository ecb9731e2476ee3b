#!/usr/bin/env bash
# Runs the tests of the bindings with several releases of their frameworks, all against the same build of the package:
#   bash tests/frameworks/run.sh                       all rows of tests/frameworks/versions.txt
#   bash tests/frameworks/run.sh tensorflow-2.13 ...   these rows
# Each row has a virtual environment of its own in build/frameworks (1 to 2 GB each, minutes the first time), with the
# Python of tests/setup.sh. It ends with a table of the releases and "N passed, N failed".
#
# tests/run.sh frameworks runs the rows that are marked as newest, in the same way.
set -euo pipefail

framework_rows() { grep -v '^ *\(#\|$\)' tests/frameworks/versions.txt; }

# names_of_frameworks [newest]: the names of all rows, or of those that are marked.
names_of_frameworks() { framework_rows | awk -v kind="${1:-}" 'kind == "" || $2 == kind { print $1 }'; }

# read_framework NAME: sets framework_module, framework_packages and framework_tests from its row, and framework_home, the
# folder of its environment. That is named like the first row with the same packages.
read_framework() {
  read -r _ _ framework_module framework_packages framework_tests < <(framework_rows | awk -v name="$1" '$1 == name') ||
    setup_fail "tests/frameworks/versions.txt has no row '$1'; it has: $(names_of_frameworks | xargs)"
  framework_home=build/frameworks/$(framework_rows | awk -v packages="$framework_packages" '$4 == packages { print $1; exit }')
}

# wanted_release PACKAGES: the packages with the newest release of the first if none names a release, if pip finds it.
wanted_release() {
  local newest first=${1%%,*}
  [[ $first == *==* ]] || newest=$(python -m pip index versions "$first" 2>/dev/null | sed -n '1s/^[^(]*(\(.*\))$/\1/p')
  printf '%s' "$first${newest:+==$newest}${1#"$first"}"
}

# install_framework NAME: its environment in venv in framework_home.
install_framework() {
  local home wanted
  read_framework "$1"
  home=$framework_home
  wanted=$(wanted_release "$framework_packages")
  # Without a release of the first package, pip did not find it, and the environment stays.
  local packages="$wanted ${setup_test_packages[*]}"
  if [[ ! -f $home/packages || ($(<"$home/packages") != "$packages" && ${wanted%%,*} == *==*) ]]; then
    setup_say "installing $wanted into $home/venv (minutes)"
    rm -rf "$home"
    mkdir -p "$home"
    python -m venv "$home/venv"
    # shellcheck disable=SC2086  # several packages
    setup_pip_install "$home/venv/bin/python" ${wanted//,/ } "${setup_test_packages[@]}" ||
      setup_fail "pip could not install $wanted"
    printf '%s' "$packages" >"$home/packages"
  fi
}

# set_up_framework NAME: installs it, and copies farandole as built for .venv into package in framework_home.
set_up_framework() {
  local built
  install_framework "$1"
  built=$(python -c 'import farandole, os; print(os.path.dirname(os.path.dirname(farandole.__file__)))')
  rm -rf "$framework_home/package"
  mkdir -p "$framework_home/package"
  cp -r "$built"/farandole "$built"/farandole-*.dist-info "$built"/horovod "$framework_home/package/"
}

# version_of_framework NAME: the release of the module that its environment has.
version_of_framework() {
  read_framework "$1"
  "$framework_home/venv/bin/python" -c "from importlib import metadata
for package in '$framework_module', '$framework_module-cpu':
    try:
        print(metadata.version(package))
        break
    except metadata.PackageNotFoundError:
        pass"
}

if [[ ${BASH_SOURCE[0]} == "$0" ]]; then
  cd "$(dirname "$0")/../.."
  FRAMEWORKS=${*:-$(names_of_frameworks | xargs)} exec bash tests/run.sh frameworks
fi
