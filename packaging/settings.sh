#!/usr/bin/env bash
# What the scripts that make packages have in common: the oldest glibc, Debian's names of architectures, and the date
# that two builds have in common. Source this file in the root folder; it sources debian.sh too.
source packaging/debian.sh

glibc=2.28
declare -A debian_architectures=([x86_64]=amd64 [aarch64]=arm64)
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
export CCACHE_BASEDIR=  # or ccache would write relative paths into the files, in some folders and not in others
