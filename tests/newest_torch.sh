#!/usr/bin/env bash
# Runs the tests of the PyTorch layer with the newest PyTorch that pip finds, beside the pinned one of tests/setup.sh:
#   bash tests/newest_torch.sh            the same as: bash tests/run.sh newest
#   bash tests/newest_torch.sh 2.9.1      with that release
# It is not among the parts that tests/run.sh runs by itself: the registry has builds with CUDA only, 2.1 GB to download,
# 5.5 GB on disk and 3 to 5 minutes before the first test, which load the CUDA libraries and do not work without them.
# tests/run.sh python compares the newest release with the tried range instead, which takes a second.
set -euo pipefail

# The newest release of PyTorch that pip finds: "2.15.0".
newest_torch() { python -m pip index versions torch 2>/dev/null | sed -n '1s/^torch (\([0-9][0-9.]*\)[^)]*)$/\1/p'; }

# One line if the registry has a release that packages.py does not name; nothing otherwise, or without a network.
compare_newest_torch() {
  local newest tried
  newest=$(newest_torch)
  tried=$(sed -n 's/^ *"PyTorch": .*(\([0-9]*\), \([0-9]*\))),$/\1.\2/p' bindings/python/farandole/doctor/packages.py)
  [[ -z $newest || $(printf '%s\n%s\n' "$tried" "${newest%.*}" | sort -V | tail -n 1) == "$tried" ]] ||
    echo "   note: PyTorch $newest is newer than $tried, the newest one tried; run: bash tests/newest_torch.sh"
}

# set_up_newest_torch [RELEASE]: an environment with that PyTorch in build/newest_torch/venv, and farandole as built for
# .venv in build/newest_torch/package.
set_up_newest_torch() {
  local release=${1:-$(newest_torch)} home=build/newest_torch
  [[ -n $release ]] || setup_fail "pip finds no release of PyTorch; check the network"
  if [[ ! -f $home/release || $(<"$home/release") != "$release" ]]; then
    setup_say "installing torch $release into $home/venv (some GB, minutes)"
    rm -rf "$home"
    python -m venv "$home/venv"
    setup_pip_install "$home/venv/bin/python" "torch==$release" "${setup_test_packages[@]}" ||
      setup_fail "pip could not install torch $release (above); NEWEST_TORCH=2.14.1, for example, tests another release"
    printf '%s' "$release" >"$home/release"
  fi
  local built
  built=$(python -c 'import farandole, os; print(os.path.dirname(os.path.dirname(farandole.__file__)))')
  rm -rf "$home/package"
  mkdir -p "$home/package"
  cp -r "$built"/farandole "$built"/farandole-*.dist-info "$built"/horovod "$home/package/"
}

if [[ ${BASH_SOURCE[0]} == "$0" ]]; then
  cd "$(dirname "$0")/.."
  NEWEST_TORCH=${1:-} exec bash tests/run.sh newest
fi
