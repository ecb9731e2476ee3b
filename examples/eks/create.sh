#!/usr/bin/env bash
# Creates a cluster from a file of eksctl/ and installs the device plugins:  create.sh FILE NAME=VALUE...
#   examples/eks/create.sh eks-g4dn.yaml REGION=us-west-2 AZ_1=us-west-2a AZ_2=us-west-2b
# PARTITION=aws-cn for China. DRY_RUN=1 prints the commands.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
[ $# -ge 1 ] || { echo "usage: create.sh FILE NAME=VALUE..." >&2; exit 64; }
file=$1
shift
for tool in eksctl kubectl helm python3; do
  command -v "$tool" >/dev/null || { echo "create.sh: $tool is not in PATH; install it first" >&2; exit 127; }
done
sets=()
for pair in "$@"; do sets+=(--set "$pair"); done
rendered=${RENDERED:-$(basename "$file" .yaml)-cluster.yaml}
python3 "$here/render.py" --partition "${PARTITION:-aws}" ${sets[@]+"${sets[@]}"} "$here/eksctl/$(basename "$file")" >"$rendered.new"
mv "$rendered.new" "$rendered"

run() {
  echo "+ $*"
  [ -n "${DRY_RUN:-}" ] || "$@"
}
devices=$(cd "$here/../kubernetes/devices" && pwd)
run eksctl create cluster -f "$rendered"
run helm upgrade -i nvdp nvidia-device-plugin --repo https://nvidia.github.io/k8s-device-plugin --version 0.17.1 \
  -n nvidia-device-plugin --create-namespace -f "$devices/nvidia-device-plugin-values.yaml"
run helm upgrade -i efa aws-efa-k8s-device-plugin --repo https://aws.github.io/eks-charts -n kube-system \
  -f "$devices/aws-efa-k8s-device-plugin-values.yaml"
echo "to delete it: examples/eks/delete.sh $rendered"
