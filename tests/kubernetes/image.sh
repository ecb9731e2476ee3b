#!/usr/bin/env bash
# Builds docker/Dockerfile twice with buildah and compares the digests, trains two ranks in the image as its user and without
# a network, compares its bill of materials with what is in it, builds docker/Dockerfile.cuda with a stub of AWS's installer,
# and plays shipped manifests with podman (run_in_podman.py). Run it by hand: it needs root, a minute for a fresh Debian, and
#   apt-get install --no-install-recommends buildah runc debootstrap podman
#   bash tests/kubernetes/image.sh [FOLDER] [MIRROR]        FOLDER keeps the base (1 GiB) for the next time;
#                                                         MIRROR: of Debian; default: debootstrap's own
# WHEELS names a folder with wheels of farandole, numpy and PyYAML; without it they are built and downloaded. SUITE=trixie takes
# Debian 13, and needs wheels of packaging/wheels.sh there. ARCHITECTURE=arm64 builds and runs under qemu (qemu-user-static),
# where no manifest is played; CC must be a compiler for it, such as build/packaging/aarch64/bin/cc. CUDA_WHEELS names a folder with
# the wheels of Dockerfile.cuda's PyTorch and of all that it requires; without it the image for CUDA has no PyTorch.
set -euo pipefail
cd "$(dirname "$0")/../.."
source packaging/emulation.sh
architecture=${ARCHITECTURE:-amd64}
suite=${SUITE:-bookworm}
base=localhost/base:$suite-$architecture
place=$(realpath -m "${1:-build/image}")
context=$(mktemp -d)
trap 'rm -rf "$context"; end_emulation' EXIT
[ "$architecture" = amd64 ] || start_emulation
mirror=${2:-}
mkdir -p "$place"
printf '[engine]\nruntime="runc"\nevents_logger="file"\n[containers]\ndefault_ulimits=["nofile=20000:20000","nproc=4096:4096"]\n' >"$place/containers.conf"
export CONTAINERS_CONF=$place/containers.conf
build() { buildah --root "$place/storage" --runroot "$place/run" "$@"; }

if ! build inspect "$base" >/dev/null 2>&1; then
  packages=python3,python3-venv,curl,openmpi-bin,openssh-server,openssh-client,libfabric1
  [ "$suite" = bookworm ] && packages+=,libspdlog1.10,libfmt9,libhwy1,libhwloc15,libssl3 || packages+=,libfabric-bin
  debootstrap --arch="$architecture" --variant=minbase --include="$packages" \
    "$suite" "$place/root" ${mirror:+"$mirror"} >"$place/debootstrap.log"
  rm -rf "$place/root"/var/cache/apt/archives/*.deb
  tar -C "$place/root" -cf "$place/base.tar" .
  scratch=$(build from scratch)
  build add -q "$scratch" "$place/base.tar" /
  build config --arch "$architecture" --env PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$scratch"
  build commit -q "$scratch" "$base"
  build rm "$scratch" >/dev/null
  rm -rf "$place/root" "$place/base.tar"
fi

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
    --arch "$architecture" --no-cache --pull-never --timestamp "$made" --build-arg SOURCE_DATE_EPOCH="$made" \
    --build-arg BASE="$base" --build-arg INSTALL=0 -t "$1" "${@:3}" -f "examples/kubernetes/docker/$2" .) >"$place/build.log" 2>&1 ||
    { tail -n 20 "$place/build.log"; exit 1; }
}
# qemu is slow, and products of OpenBLAS's kernels for SVE are NaN under qemu 7.2.
emulated=()
[ "$architecture" = amd64 ] || emulated=(--env OPENBLAS_CORETYPE=ARMV8 --env FARANDOLE_START_TIMEOUT_S=900)
# in_image TAG SCRIPT [OPTIONS...]: as the image's user, without a network; prints the output of the script and keeps it.
in_image() {
  local pod status=0
  pod=$(build from --arch "$architecture" --pull-never "localhost/$1")
  output=$(unshare -n buildah --root "$place/storage" --runroot "$place/run" run --isolation=chroot "${emulated[@]}" \
    "${@:3}" "$pod" -- sh -c "$2") || status=$?
  echo "$output"
  build rm "$pod" >/dev/null
  [ "$status" = 0 ] || { echo "image.sh: the last command in $1 ended with code $status" >&2; exit 1; }
}
expect() {
  grep -qF -- "$1" <<<"$output" || { printf '%s\nimage.sh: it did not print "%s"\n' "$output" "$1" >&2; exit 1; }
}

# compare_builds NAME: of the images NAME:test and NAME:again.
compare_builds() {
  local digests sizes tag
  digests=$(for tag in test again; do
    build inspect --type image --format '{{.FromImageDigest}}' "localhost/$1:$tag"
    echo
  done | sort -u)
  [ "$(wc -l <<<"$digests")" = 1 ] || { printf '%s\nimage.sh: two builds of %s differ\n' "$digests" "$1" >&2; exit 1; }
  sizes=$(build images --format '{{.Name}} {{.Size}}' | sort -u | tr '\n' ';')
  echo "image.sh: two builds of $1 are $digests; sizes: $sizes"
}

for tag in farandole:test farandole:again; do make_image "$tag" Dockerfile; done
compare_builds farandole

in_image farandole:test '
  id -u && farandole run -np 2 -- python /app/train_numpy.py --steps 30 &&
  mkdir -p ~/.ssh && ssh-keygen -q -t rsa -N "" -f ~/.ssh/id_rsa && /usr/sbin/sshd -t -f ~/sshd_config && echo sshd: ok
  ls /etc/ssh/ssh_host_* 2>/dev/null || echo "host keys: none"
  farandole doctor >/tmp/doctor; echo "doctor: $? with $(grep -c "^good" /tmp/doctor) good, bad: $(grep "^bad" /tmp/doctor)"
  python /tests/check_sbom.py; python /tests/check_elf.py' --volume "$PWD/tests/kubernetes/support:/tests:ro"
declare -A machines=([amd64]=x86_64 [arm64]=aarch64)
for line in 1000 "[0] train_numpy: 2 ranks, from step 0" "[0] loss=0." "sshd: ok" "host keys: none" "missing: []" \
  "of ${machines[$architecture]} alone" \
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
echo 'int ncclNetPlugin_v8;' | "${CC:-gcc}" -shared -o "$place/efa/aws-efa-installer/libnccl-net.so" -xc -
chmod +x "$place/efa/aws-efa-installer/efa_installer.sh"
tar -C "$place/efa" -czf "$place/efa/aws-efa-installer-0.0.tar.gz" aws-efa-installer
# make_cuda_image TAG
make_cuda_image() {
  local torch=(--build-arg TORCH=)
  [ -z "${CUDA_WHEELS:-}" ] || torch=(--volume "$(realpath "$CUDA_WHEELS"):/wheels:ro" --build-arg WHEELS="dist /wheels")
  make_image "$1" Dockerfile.cuda --volume "$place/efa:/efa:ro" --build-arg EFA_SOURCE=file:///efa \
    --build-arg EFA_INSTALLER=0.0 "${torch[@]}"
}
for tag in farandole-cuda:test farandole-cuda:again; do make_cuda_image $tag; done
compare_builds farandole-cuda
rm -rf "$place/tree"
mkdir "$place/tree"
PYTHONPATH=tests/python/support "$python" -c "import sys, efa_devices, pathlib; efa_devices.make_tree(pathlib.Path(sys.argv[1]), 1)" \
  "$place/tree"
in_image farandole-cuda:test 'id -u; FARANDOLE_SYSFS_ROOT=/tree farandole doctor || true
  python /tests/check_sbom.py; python /tests/check_elf.py
  [ -z "$CUDA_WHEELS" ] || { python -c "import torch; print(\"torch\", torch.__version__, \"CUDA\", torch.version.cuda)"
    farandole run -np 2 -- python /app/train_torch.py --epochs 1; }' --env CUDA_WHEELS="${CUDA_WHEELS:-}" \
  --volume "$place/tree:/tree:ro" --volume "$PWD/tests/kubernetes/support:/tests:ro"
expect 1000
expect "missing: []"
expect "of ${machines[$architecture]} alone"
expect "/opt/nccl-plugin/libnccl-net.so"
[ -z "${CUDA_WHEELS:-}" ] || expect "CUDA 13.0"
echo "image.sh: Dockerfile.cuda: $(grep -F "NCCL's plugin" <<<"$output")"

# play MANIFEST LINE: runs its pods as containers of the image until they end, and expects LINE in their output.
play() {
  local folder
  folder=$(mktemp -d)
  output=$(unshare --net --mount "$python" tests/kubernetes/simulator/run_in_podman.py "examples/kubernetes/k8s/$1" \
    localhost/farandole:test "$folder" --root "$place/storage" --runroot "$place/run" 2>&1) || { echo "$output" >&2; rm -rf "$folder"; exit 1; }
  rm -rf "$folder"
  grep -qF "$2" <<<"$output" || { printf '%s\nimage.sh: %s: no pod printed "%s"\n' "$output" "$1" "$2" >&2; exit 1; }
  echo "image.sh: $1: $2"
}
if [ "$architecture" != amd64 ]; then
  echo "image.sh: ok; no manifest was played under qemu"
  exit 0
fi
if ! command -v podman >/dev/null; then
  echo "image.sh: no manifest was played: apt-get install --no-install-recommends podman" >&2
  exit 1
fi
play doctor.yaml "good     interface eth0"
play base/job.yaml "train-0: [0] train_numpy: 2 ranks, from step 0"
play job-elastic.yaml "generation 1 begins with"
echo "image.sh: ok"
