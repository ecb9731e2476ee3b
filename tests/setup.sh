#!/usr/bin/env bash
# Sets up a fresh Debian 12 for the tests and the demo. Sourced, it defines two functions; executed, it calls both:
#   set_up_machine           Debian's packages, and .venv with PyTorch, first in PATH
#   install_python_package   farandole, built into build/, and the package horovod, installed into .venv
# Finished steps are not repeated.
set -euo pipefail

# Images of containers set it. Each of hundreds of processes would compile what it imports again: 2 s for PyTorch, 8 s for
# TensorFlow.
unset PYTHONDONTWRITEBYTECODE

setup_say() { printf 'setup: %s\n' "$*"; }
setup_fail() {
  printf 'setup: %s\n' "$*" >&2
  exit 1
}

setup_install_packages() {
  local package missing=() as_root=()
  for package in $(grep -v '^#' "${1:-tests/packages.txt}"); do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || missing+=("$package")
  done
  ((${#missing[@]})) || return 0
  setup_say "installing ${missing[*]}"
  if ((EUID != 0)); then
    command -v sudo >/dev/null ||
      setup_fail "Debian packages are missing; as root: apt-get install --no-install-recommends ${missing[*]}"
    as_root=(sudo)
  fi
  local log
  log=$(mktemp)
  { ${as_root[@]+"${as_root[@]}"} apt-get update -q &&
    ${as_root[@]+"${as_root[@]}"} env DEBIAN_FRONTEND=noninteractive \
      apt-get install -q -y --no-install-recommends "${missing[@]}"; } >"$log" 2>&1 || {
    tail -n 20 "$log" >&2
    setup_fail "apt-get failed (above); check the network and /etc/apt/sources.list, then run this again"
  }
  rm -f "$log"
}

# setup_pip_install PYTHON PACKAGES...: without compiling them, which takes minutes for PyTorch and TensorFlow. Python
# compiles what it imports, the first time.
setup_pip_install() {
  "$1" -m pip install --quiet --disable-pip-version-check --no-compile "${@:2}"
}

# What each environment of Python tests has beside the frameworks.
setup_test_packages=(numpy pytest pytest-timeout pytest-xdist pyyaml scikit-learn)

setup_make_venv() {
  local requirements=(torch==2.13.0 "${setup_test_packages[@]}" distributed mpi4py ruff==0.17.6 "scikit-build-core>=0.10" "pybind11>=2.12"
    pyproject-metadata==0.12.1)
  local stamp=.venv/farandole-requirements
  if ! .venv/bin/python -c '' 2>/dev/null; then
    setup_say "making .venv"
    rm -rf .venv
    python3 -m venv .venv || setup_fail "python3 -m venv failed; as root: apt-get install python3-venv"
  fi
  export PATH="$PWD/.venv/bin:$PATH"
  [[ ! -f $stamp || $(<"$stamp") != "${requirements[*]}" ]] || return 0
  setup_say "installing ${requirements[*]} (minutes the first time)"
  setup_pip_install python "${requirements[@]}" ||
    setup_fail "pip could not install the packages above; see what it asks (pip config list) and run this again"
  printf '%s' "${requirements[*]}" >"$stamp"
}

set_up_machine() {
  setup_install_packages
  setup_make_venv
}

setup_sources() {
  local places=(CMakeLists.txt pyproject.toml include src transports bindings)
  [[ ! -d cuda ]] || places+=(cuda)
  find "${places[@]}" -type f -not -name '*.pyc' | LC_ALL=C sort
}

# setup_xla_headers FOLDER: the headers of XLA's FFI, of the release of jaxlib that pyproject.toml names, in FOLDER/include.
# They are copied out of jaxlib's wheel, so that the environment may have any release of jaxlib, or none.
setup_xla_headers() {
  local folder=$1 release
  release=$(grep -o 'jaxlib==[0-9.]*' pyproject.toml | head -n 1)
  [[ ! -f $folder/release || $(<"$folder/release") != "$release" ]] || return 0
  rm -rf "$folder"
  mkdir -p "$folder"
  python -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: --python-version 3.11 \
    --dest "$folder" "$release" || setup_fail "pip could not download $release, whose headers farandole.jax is built with"
  python -m zipfile -e "$folder"/jaxlib-*.whl "$folder/wheel"
  mv "$folder/wheel/jaxlib/include" "$folder/include"
  rm -rf "$folder/wheel" "$folder"/jaxlib-*.whl
  printf '%s' "$release" >"$folder/release"
}

# pip runs CMake in build/, the tree of `cmake -G Ninja -B build`, so that both share what has been built.
install_python_package() {
  local stamp=.venv/farandole-sources hash
  hash=$({ setup_sources | xargs sha256sum && python -V; } | sha256sum | cut -d' ' -f1)
  if [[ -f $stamp && $(<"$stamp") == "$hash" && -x build/bin/farandole ]] && python -c 'import farandole, horovod' 2>/dev/null; then
    return 0
  fi
  setup_say "building into build/ and installing into .venv (minutes the first time)"
  rm -f "$stamp"
  setup_xla_headers build/xla
  setup_pip_install python --no-build-isolation --no-deps --force-reinstall . bindings/horovod ||
    setup_fail "the build failed (above). If build/ was made with another generator than Ninja: rm -rf build, and again"
  printf '%s' "$hash" >"$stamp"
}

if [[ ${BASH_SOURCE[0]} == "$0" ]]; then
  cd "$(dirname "$0")/.."
  set_up_machine
  install_python_package
  setup_say "ready: farandole $(python -c 'import farandole; print(farandole.__version__)') in .venv, the program in build/bin"
fi
