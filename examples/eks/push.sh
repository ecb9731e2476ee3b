#!/usr/bin/env bash
# Builds the image and pushes it to ECR:  ACCOUNT=111122223333 REGION=us-west-2 push.sh [TAG]
# DOCKERFILE=Dockerfile.cuda takes another recipe of ../kubernetes/docker, whose image is farandole-cuda.
# FARANDOLE_IMAGE names another image; in China the registry's name ends in .com.cn. The image is for nodes of x86-64, whatever
# this machine is; PLATFORM=linux/arm64 is for those of Graviton. Uses docker, or buildah if there is no docker. DRY_RUN=1
# prints the commands.
set -euo pipefail
sources=$(cd "$(dirname "$0")/../.." && pwd)
tag=${1:-0.1.0}
[[ ${ACCOUNT:-} =~ ^[0-9]{12}$ ]] || { echo "push.sh: ACCOUNT must have 12 digits" >&2; exit 64; }
[[ ${REGION:-} =~ ^[a-z]+(-[a-z]+)+-[0-9]$ ]] || { echo "push.sh: REGION must be one such as us-west-2" >&2; exit 64; }
domain=amazonaws.com
[[ $REGION != cn-* ]] || domain=amazonaws.com.cn
registry=$ACCOUNT.dkr.ecr.$REGION.$domain
recipe=$sources/examples/kubernetes/docker/${DOCKERFILE:-Dockerfile}
[ -f "$recipe" ] || { echo "push.sh: there is no $recipe; DOCKERFILE must be one such as Dockerfile.cuda" >&2; exit 64; }
variant=${recipe##*/Dockerfile}
image=${FARANDOLE_IMAGE:-$registry/farandole${variant/./-}:$tag}
builder=$(command -v docker || command -v buildah) || { echo "push.sh: neither docker nor buildah is in PATH" >&2; exit 127; }

run() {
  echo "+ $*"
  [ -n "${DRY_RUN:-}" ] || "$@"
}
login() {
  if [ -n "${DRY_RUN:-}" ]; then
    echo "+ aws ecr get-login-password --region $REGION | $builder login --username AWS --password-stdin $registry"
  else
    aws ecr get-login-password --region "$REGION" | "$builder" login --username AWS --password-stdin "$registry"
  fi
}
login
run "$builder" build --platform "${PLATFORM:-linux/amd64}" -t "$image" -f "$recipe" "$sources"
run "$builder" push "$image"
