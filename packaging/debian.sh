#!/usr/bin/env bash
# Fetches packages of any suite of Debian or Ubuntu, for any architecture, into a folder, without installing them and
# without root. Source this file. APT checks all signatures; its lists and caches lie in $debian_state, apart from the
# system's.
#
#   debian_fetch SUITE ARCHITECTURE FOLDER PACKAGE...    unpacks binary packages into FOLDER
#   debian_source SUITE FOLDER PACKAGE...                unpacks source packages into FOLDER/PACKAGE
set -euo pipefail

debian_state=${debian_state:-$PWD/build/packaging/apt}

# debian_mirror SUITE: for Debian the mirror that this machine is configured to use, for Ubuntu the one that debootstrap
# knows.
debian_mirror() {
  if debian_is_ubuntu "$1"; then
    sed -n 's|.*default_mirror *\(http://archive[^ ]*\)$|\1|p' /usr/share/debootstrap/scripts/gutsy | head -n 1
  else
    apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | grep -E '/debian/?$' | sort -u | head -n 1
  fi
}

debian_is_ubuntu() { [[ $1 == jammy || $1 == noble || $1 == resolute ]]; }

# debian_keyring SUITE: the keys that sign the suite. Those of Ubuntu are in a package of Debian.
debian_keyring() {
  debian_is_ubuntu "$1" || { echo /usr/share/keyrings/debian-archive-keyring.gpg; return; }
  local keys=$debian_state/keys
  [[ -d $keys ]] || debian_fetch trixie amd64 "$keys" ubuntu-keyring >&2
  echo "$keys/usr/share/keyrings/ubuntu-archive-keyring.gpg"
}

# debian_apt SUITE ARCHITECTURE ARGUMENTS...: apt-get with a state of its own.
debian_apt() {
  local suite=$1 architecture=$2 state=$debian_state/$1-$2
  shift 2
  apt-get -q -o "Dir::Etc::SourceList=$state/sources.list" -o Dir::Etc::SourceParts=/dev/null \
    -o "Dir::State=$state" -o "Dir::State::status=$state/status" -o "Dir::Cache=$state/cache" \
    -o "APT::Architecture=$architecture" -o "APT::Architectures=$architecture" -o APT::Sandbox::User= "$@"
}

debian_update() {
  local suite=$1 architecture=$2 state=$debian_state/$1-$2 mirror
  [[ ! -e $state/ready ]] || return 0
  mirror=$(debian_mirror "$suite")
  [[ -n $mirror ]] || { echo "packaging: no mirror for $suite; see apt-get indextargets, debootstrap" >&2; return 1; }
  mkdir -p "$state/lists/partial" "$state/cache/archives/partial"
  : >"$state/status"
  local kind keyring
  keyring=$(debian_keyring "$suite")
  for kind in deb deb-src; do
    echo "$kind [signed-by=$keyring] $mirror $suite main"
  done >"$state/sources.list"
  debian_apt "$suite" "$architecture" update >"$state/log" 2>&1 || { cat "$state/log" >&2; return 1; }
  touch "$state/ready"
}

debian_fetch() {
  local suite=$1 architecture=$2 folder=$3 archives package
  shift 3
  debian_update "$suite" "$architecture"
  archives=$debian_state/$suite-$architecture/packages
  mkdir -p "$archives" "$folder"
  for package in "$@"; do
    compgen -G "$archives/${package}_*.deb" >/dev/null ||
      (cd "$archives" && debian_apt "$suite" "$architecture" download "$package") >"$archives/log" 2>&1 ||
      { cat "$archives/log" >&2; return 1; }
    dpkg-deb -x "$archives/${package}"_*.deb "$folder"
  done
}

debian_source() {
  local suite=$1 folder=$2 package
  shift 2
  debian_update "$suite" amd64
  mkdir -p "$folder"
  for package in "$@"; do
    [[ ! -d $folder/$package ]] || continue
    rm -rf "$folder/.$package" && mkdir "$folder/.$package"
    (cd "$folder/.$package" && debian_apt "$suite" amd64 source "$package" && mv "$package"-*/ ../"$package") \
      >"$folder/.$package/log" 2>&1 || { cat "$folder/.$package/log" >&2; return 1; }
  done
}
