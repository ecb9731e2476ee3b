#!/usr/bin/env bash
# Deletes the cluster of a file that create.sh rendered:  delete.sh FILE
# `kubectl delete cluster`, which some tutorials use, does not exist.
set -euo pipefail
[ $# -eq 1 ] || { echo "usage: delete.sh FILE" >&2; exit 64; }
if grep -q PLACEHOLDER_ "$1"; then
  echo "delete.sh: $1 is not the rendered file: it has placeholders" >&2
  exit 64
fi
exec eksctl delete cluster -f "$1" --wait
