#!/bin/bash
# Sets up what the tests and the demo need, from a fresh Debian 12: packages, .venv with PyTorch, and farandole built into
# build/ and installed into .venv. Does in seconds what was done before; run it as often as you like.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf 'setup: %s\n' "$*"; }
fail() {
  printf 'setup: %s\n' "$*" >&2
  exit 1
}

# ---- Debian's packages, only when one is missing ----
packages() { grep -v '^#' tests/packages.txt; }
is_installed() { dpkg-query -W -f='${Status}' "$1" 2>/dev/null | grep -q 'install ok installed'; }

missing=()
for package in $(packages); do
  is_installed "$package" || missing+=("$package")
done
if ((${#missing[@]})); then
  say "installing ${missing[*]}"
  as_root=()
  if ((EUID != 0)); then
    command -v sudo >/dev/null || fail "these packages are missing: ${missing[*]}. Install them as root: apt-get install ${missing[*]}"
    as_root=(sudo)
  fi
  { "${as_root[@]}" apt-get update -q && "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -q -y --no-install-recommends "${missing[@]}"; } >setup.log 2>&1 || {
    tail -20 setup.log >&2
    fail "apt-get failed (above); check the network and /etc/apt/sources.list, then run this again"
  }
  rm -f setup.log
fi

# ---- Python's packages, in .venv ----
requirements=(torch==2.13.0 numpy scikit-learn pytest "scikit-build-core>=0.10" "pybind11>=2.12")
python=$PWD/.venv/bin/python
stamp=.venv/farandole-requirements
if [[ ! -x $python ]] || ! "$python" -c '' 2>/dev/null; then
  say "making .venv"
  rm -rf .venv
  python3 -m venv .venv || fail "python3 -m venv failed; install python3-venv (apt-get install python3-venv) and run this again"
fi
if [[ ! -f $stamp || $(<"$stamp") != "${requirements[*]}" ]]; then
  say "installing ${requirements[*]} (some minutes the first time)"
  "$python" -m pip install --quiet --disable-pip-version-check "${requirements[@]}" ||
    fail "pip could not install the packages above; check its index (pip config list) and run this again"
  printf '%s' "${requirements[*]}" >"$stamp"
fi

# ---- farandole itself, rebuilt when a source has changed ----
sources() { find CMakeLists.txt pyproject.toml include src cuda transports bindings -type f -not -name '*.pyc' 2>/dev/null | LC_ALL=C sort; }
hash=$({ sources | xargs sha256sum; "$python" -V; } | sha256sum | cut -d' ' -f1)
stamp=.venv/farandole-sources
if [[ ! -f $stamp || $(<"$stamp") != "$hash" ]] || ! "$python" -c 'import farandole' 2>/dev/null; then
  say "building into build/ with $(nproc) cores (minutes the first time) and installing into .venv"
  # pip runs CMake in build/, so that `cmake --build build` afterwards finds its work done.
  SKBUILD_BUILD_TOOL_ARGS="-j$(nproc)" "$python" -m pip install --quiet --disable-pip-version-check --no-build-isolation \
    --no-deps --force-reinstall . ||
    fail "the build failed (above). If build/ was made in another way, remove it (rm -rf build) and run this again"
  printf '%s' "$hash" >"$stamp"
fi
say "ready: $("$python" -c 'import farandole; print("farandole", farandole.__version__, "in .venv")'), build/bin has the program"
