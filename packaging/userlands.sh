#!/usr/bin/env bash
# Installs the wheel of dist/ in bare userlands of Debian and Ubuntu, made by debootstrap, with nothing but Python and
# pip; runs two ranks and the quick part of the tests there. Needs root. Prints a table with a row for each userland;
# the exit status counts those that failed.
#   bash packaging/userlands.sh [SUITE[-aarch64]...]      such as bullseye bookworm-aarch64; default: all on x86-64
# Userlands of aarch64 run under qemu, which the kernel starts for their programs while this script runs.
set -euo pipefail
cd "$(dirname "$0")/.."
source tests/setup.sh
source packaging/settings.sh
source packaging/emulation.sh
setup_install_packages packaging/packages.txt

trap end_emulation EXIT
suites=("$@")
((${#suites[@]})) || suites=(bullseye bookworm trixie forky jammy noble)

# make_userland SUITE FOLDER ARCHITECTURE
make_userland() {
  [[ ! -e $2/ready ]] || return 0
  rm -rf "$2"
  local script=()  # debootstrap's, for a release that is newer than debootstrap
  [[ -e /usr/share/debootstrap/scripts/$1 ]] || script=("$(debian_is_ubuntu "$1" && echo gutsy || echo sid)")
  debootstrap --arch="$3" --variant=minbase --include=python3,python3-venv,ca-certificates --components=main,universe \
    --keyring="$(debian_keyring "$1")" "$1" "$2" "$(debian_mirror "$1")" ${script[@]+"${script[@]}"} || return 1
  touch "$2/ready"
}

# enter FOLDER COMMAND: in a mount namespace of its own, so that nothing stays mounted. pip uses this machine's
# settings.
enter() {
  unshare --mount --pid --fork bash -c '
    folder=$1
    mount -t proc proc "$folder/proc"
    mount --rbind /dev "$folder/dev"
    mkdir -p "$folder/opt" && mount --rbind /opt "$folder/opt"
    cp /etc/resolv.conf /etc/hosts "$folder/etc/"
    mkdir -p "$folder/etc/ssl/certs" && cp /etc/ssl/certs/ca-certificates.crt "$folder/etc/ssl/certs/"
    [[ ! -f /etc/pip.conf ]] || cp /etc/pip.conf "$folder/etc/"
    exec chroot "$folder" bash -c "$2"' bash "$1" "$2"
}

# What runs inside: its output has a line for each column of the table. Tests that import neither PyTorch nor the
# package horovod, and that need no build folder, are the quick part.
inside='set -e
cd /root
rm -rf v
python3 -m venv v
v/bin/pip install --quiet --disable-pip-version-check farandole-*.whl numpy pytest
ldd --version | head -n 1
v/bin/python --version
v/bin/farandole run --quiet -np 2 v/bin/python first_steps.py
v/bin/farandole doctor
cd tested
TEST_PROGRAM=/root/v/bin/farandole ../v/bin/python -m pytest -q -p no:cacheprovider $TESTS || echo "tests failed"'
all_tests=(core/test_core core/test_communicator_arguments core/test_failures core/test_loss elastic/test_termination
  run/test_doctor)
emulated_tests=(core/test_core core/test_communicator_arguments)  # the others have deadlines that emulation exceeds

# try_userland SUITE ARCHITECTURE WHEEL TESTS: makes it, runs in it what is above, and prints a row of the table.
try_userland() {
  local suite=$1 wheel=$3 folder=$PWD/build/packaging/userlands/$1 started=$SECONDS
  local log=$folder.log root=$folder/root
  mkdir -p "$(dirname "$folder")"
  make_userland "${suite%-aarch64}" "$folder" "${debian_architectures[$2]}" >"$log" 2>&1 || return 1
  rm -rf "$root/tested" "$root"/farandole-*.whl && mkdir "$root/tested"
  cp "$wheel" packaging/first_steps.py "$root/"
  cp -r --parents pyproject.toml tests/python "$root/tested/"
  enter "$folder" "TESTS='$4'; $inside" >>"$log" 2>&1 || return 1
  printf '| %-17s | %-7s | %-13s | %s of 2 | %-24s | %5d |\n' "$suite" "$(sed -n 's/^ldd .* //p' "$log")" \
    "$(grep -m 1 '^Python [0-9]' "$log")" "$(grep -c 'the sums are exact' "$log")" \
    "$(grep -oE '^[0-9]+ (passed|failed)[^i]*' "$log" | tail -n 1 | sed 's/ *$//')" $((SECONDS - started))
  ! grep -q '^tests failed' "$log" && [[ $(grep -c 'the sums are exact' "$log") -eq 2 ]]
}

printf '| %-17s | %-7s | %-13s | %s | %-24s | %5s |\n' userland glibc Python exact 'quick part of the tests' s
failed=0
for suite in "${suites[@]}"; do
  architecture=x86_64 tests=("${all_tests[@]}")
  if [[ $suite == *-aarch64 ]]; then
    architecture=aarch64 tests=("${emulated_tests[@]}")
    start_emulation
  fi
  wheel=$(compgen -G "dist/farandole-*_$architecture.whl") ||
    { echo "packaging: no wheel in dist/; run: bash packaging/wheels.sh $architecture" >&2; exit 2; }
  paths=("${tests[@]/#/tests/python/}")
  if ! try_userland "$suite" "$architecture" "$wheel" "${paths[*]/%/.py}"; then
    printf '%-17s failed; see build/packaging/userlands/%s.log\n' "$suite" "$suite"
    tail -n 8 "build/packaging/userlands/$suite.log"
    failed=$((failed + 1))
  fi
done
exit "$failed"
