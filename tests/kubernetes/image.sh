#!/usr/bin/env bash
# Builds docker/Dockerfile twice with buildah and compares the digests, trains two ranks in the image as its user and without
# a network, compares its bill of materials with what is in it, builds docker/Dockerfile.cuda with a stub of AWS's installer,
# and plays shipped manifests with podman (run_in_podman.py). Run it by hand: it needs root, a minute for a fresh Debian, and
#   apt-get install --no-install-recommends buildah runc debootstrap podman
#   bash tests/kubernetes/image.sh [FOLDER] [MIRROR]        FOLDER keeps the base (1 GiB) for the next time;
#                                                         MIRROR: of Debian; default: debootstrap's own
# WHEELS names a folder with wheels of farandole, numpy and PyYAML; without it they are built and downloaded.
set -euo pipefail
cd "$(dirname "$0")/../.."
place=$(realpath -m "${1:-build/image}")
mirror=${2:-}
mkdir -p "$place"
printf '[engine]\nruntime="runc"\nevents_logger="file"\n[containers]\ndefault_ulimits=["nofile=20000:20000","nproc=4096:4096"]\n' >"$place/containers.conf"
export CONTAINERS_CONF=$place/containers.conf
build() { buildah --root "$place/storage" --runroot "$place/run" "$@"; }

if ! build inspect localhost/base:bookworm >/dev/null 2>&1; then
  packages=python3,python3-venv,curl,openmpi-bin,openssh-server,openssh-client,libfabric1
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
python=$(realpath -s "${PYTHON:-.venv/bin/python}")
if [ -n "${WHEELS:-}" ]; then
  cp -r "$WHEELS" "$context/dist"
else
  "$python" -m pip wheel -q --no-build-isolation --no-deps . -w "$context/dist"
  "$python" -m pip download -q -d "$context/dist" numpy PyYAML
fi
made=$(git log -1 --format=%ct)

# make_image TAG DOCKERFILE [ARGUMENTS...]: without a network, and with the time of the commit.
make_image() {
  (cd "$context" && unshare -n buildah --root "$place/storage" --runroot "$place/run" bud --isolation=chroot --network=host \
    --no-cache --pull-never --timestamp "$made" --build-arg SOURCE_DATE_EPOCH="$made" --build-arg BASE=localhost/base:bookworm \
    --build-arg INSTALL=0 -t "$1" "${@:3}" -f "examples/kubernetes/docker/$2" .) >"$place/build.log" 2>&1 ||
    { tail -n 20 "$place/build.log"; exit 1; }
}
# in_image TAG SCRIPT [OPTIONS...]: as the image's user, without a network.
in_image() {
  local pod
  pod=$(build from --pull-never "localhost/$1")
  unshare -n buildah --root "$place/storage" --runroot "$place/run" run --isolation=chroot "${@:3}" "$pod" -- sh -c "$2"
  build rm "$pod" >/dev/null
}
expect() {
  grep -qF -- "$1" <<<"$output" || { printf '%s\nimage.sh: it did not print "%s"\n' "$output" "$1" >&2; exit 1; }
}

for tag in farandole:test farandole:again; do make_image "$tag" Dockerfile; done
digests=$(for tag in test again; do build inspect --type image --format '{{.FromImageDigest}}' "localhost/farandole:$tag"; echo; done | sort -u)
[ "$(wc -l <<<"$digests")" = 1 ] || { printf '%s\nimage.sh: two builds differ\n' "$digests" >&2; exit 1; }
sizes=$(build images --format '{{.Name}} {{.Size}}' | sort -u | tr '\n' ';')
echo "image.sh: two builds are $digests; sizes: $sizes"

output=$(in_image farandole:test '
  id -u && farandole run -np 2 -- python /app/train_numpy.py --steps 30 &&
  mkdir -p ~/.ssh && ssh-keygen -q -t rsa -N "" -f ~/.ssh/id_rsa && /usr/sbin/sshd -t -f ~/sshd_config && echo sshd: ok
  ls /etc/ssh/ssh_host_* 2>/dev/null || echo "host keys: none"
  farandole doctor >/tmp/doctor; echo "doctor: $? with $(grep -c "^good" /tmp/doctor) good, bad: $(grep "^bad" /tmp/doctor)"
  python /tests/check_sbom.py' --volume "$PWD/tests/kubernetes/support:/tests:ro")
echo "$output"
for line in 1000 "[0] train_numpy: 2 ranks, from step 0" "sshd: ok" "host keys: none" "missing: []" \
  "good, bad: bad      interfaces         interfaces: none of"; do  # it has no network
  expect "$line"
done

# The image for GPUs, with an installer that has the layout of AWS's. Devices are files, and the plugin has one symbol.
mkdir -p "$place/efa/aws-efa-installer"
cat >"$place/efa/aws-efa-installer/efa_installer.sh" <<'INSTALLER'
#!/bin/sh
mkdir -p /opt/amazon/efa/lib /opt/amazon/ofi-nccl/lib
cp libnccl-net.so /opt/amazon/ofi-nccl/lib/
INSTALLER
echo 'int ncclNetPlugin_v8;' | gcc -shared -o "$place/efa/aws-efa-installer/libnccl-net.so" -xc -
chmod +x "$place/efa/aws-efa-installer/efa_installer.sh"
tar -C "$place/efa" -czf "$place/efa/aws-efa-installer-0.0.tar.gz" aws-efa-installer
make_image farandole-cuda:test Dockerfile.cuda --volume "$place/efa:/efa:ro" --build-arg EFA_SOURCE=file:///efa \
  --build-arg EFA_INSTALLER=0.0
rm -rf "$place/tree"
mkdir "$place/tree"
PYTHONPATH=tests/python/support "$python" -c "import sys, efa_devices, pathlib; efa_devices.make_tree(pathlib.Path(sys.argv[1]), 1)" \
  "$place/tree"
output=$(in_image farandole-cuda:test 'id -u; FARANDOLE_SYSFS_ROOT=/tree farandole doctor || true' --volume "$place/tree:/tree:ro")
expect 1000
expect "/opt/nccl-plugin/libnccl-net.so"
echo "image.sh: Dockerfile.cuda: $(grep -F "NCCL's plugin" <<<"$output")"

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
