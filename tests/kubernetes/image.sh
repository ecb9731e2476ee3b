#!/usr/bin/env bash
# Builds docker/Dockerfile with buildah, trains two ranks in the image as its user and without a network, and plays
# shipped manifests in it with podman (run_in_podman.py). Run it by hand: it needs root, a minute for a fresh Debian, and
#   apt-get install --no-install-recommends buildah runc debootstrap podman
#   bash tests/kubernetes/image.sh [FOLDER] [MIRROR]        FOLDER keeps the base (1 GiB) for the next time;
#                                                         MIRROR: of Debian; default: debootstrap's own
set -euo pipefail
cd "$(dirname "$0")/../.."
place=$(realpath -m "${1:-build/image}")
mirror=${2:-}
mkdir -p "$place"
printf '[engine]\nruntime="runc"\nevents_logger="file"\n[containers]\ndefault_ulimits=["nofile=20000:20000","nproc=4096:4096"]\n' >"$place/containers.conf"
export CONTAINERS_CONF=$place/containers.conf
build() { buildah --root "$place/storage" --runroot "$place/run" "$@"; }

if ! build inspect localhost/base:bookworm >/dev/null 2>&1; then
  packages=python3,python3-venv,openmpi-bin,openssh-server,openssh-client,libfabric1
  debootstrap --variant=minbase --include="$packages,libspdlog1.10,libfmt9,libhwy1,libhwloc15,libssl3" \
    bookworm "$place/root" ${mirror:+"$mirror"} >"$place/debootstrap.log"
  tar -C "$place/root" -cf "$place/base.tar" .
  base=$(build from scratch)
  build add -q "$base" "$place/base.tar" /
  build config --env PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$base"
  build commit -q "$base" localhost/base:bookworm
  build rm "$base" >/dev/null
  rm -rf "$place/root" "$place/base.tar"
fi

context=$(mktemp -d)
trap 'rm -rf "$context"' EXIT
git archive HEAD | tar -x -C "$context"
.venv/bin/python -m pip wheel -q --no-build-isolation --no-deps . -w "$context/dist"
.venv/bin/python -m pip download -q -d "$context/dist" numpy PyYAML
(cd "$context" && unshare -n buildah --root "$place/storage" --runroot "$place/run" bud --isolation=chroot --network=host \
  --pull-never --build-arg BASE=localhost/base:bookworm --build-arg INSTALL=0 -t farandole:test \
  -f examples/kubernetes/docker/Dockerfile .) >"$place/build.log" 2>&1 || { tail -n 20 "$place/build.log"; exit 1; }

pod=$(build from --pull-never localhost/farandole:test)
output=$(unshare -n buildah --root "$place/storage" --runroot "$place/run" run --isolation=chroot "$pod" -- sh -c '
  id -u && farandole run -np 2 -- python /app/train_numpy.py --steps 30 &&
  mkdir -p ~/.ssh && ssh-keygen -q -t rsa -N "" -f ~/.ssh/id_rsa && /usr/sbin/sshd -t -f ~/sshd_config && echo sshd: ok')
build rm "$pod" >/dev/null
echo "$output"
for line in 1000 "[0] train_numpy: 2 ranks, from step 0" "sshd: ok"; do
  grep -qxF "$line" <<<"$output" || { echo "image.sh: it did not print '$line'" >&2; exit 1; }
done

# play MANIFEST LINE: runs its pods as containers of the image until they end, and expects LINE in their output.
play() {
  local folder
  folder=$(mktemp -d)
  output=$(unshare --net --mount .venv/bin/python tests/kubernetes/simulator/run_in_podman.py "examples/kubernetes/k8s/$1" localhost/farandole:test \
    "$folder" --root "$place/storage" --runroot "$place/run" 2>&1) || { echo "$output" >&2; rm -rf "$folder"; exit 1; }
  rm -rf "$folder"
  grep -qF "$2" <<<"$output" || { printf '%s\nimage.sh: %s: no pod printed "%s"\n' "$output" "$1" "$2" >&2; exit 1; }
  echo "image.sh: $1: $2"
}
if ! command -v podman >/dev/null; then
  echo "image.sh: no manifest was played: apt-get install --no-install-recommends podman" >&2
  exit 1
fi
play doctor.yaml "good     interface eth0"
play base/job.yaml "train-0: [0] train_numpy: 2 ranks, from step 0"
play job-elastic.yaml "generation 1 begins with"
echo "image.sh: ok"
