#!/usr/bin/env bash
# Builds wheels that run on any Linux with glibc 2.28 or newer (RHEL 8, Debian 10, Ubuntu 18.10, Amazon Linux 2023): one
# wheel for each architecture, for all versions of Python from 3.9 on whose headers Debian or Ubuntu has. A second run
# with the same sources gives the same bytes. The command and the C++ library are packed into an archive too.
#   bash packaging/wheels.sh [x86_64] [aarch64]      into dist/; without arguments both
set -euo pipefail
cd "$(dirname "$0")/.."
source tests/setup.sh
source packaging/settings.sh
setup_install_packages packaging/packages.txt

suites=(3.9=bullseye 3.10=jammy 3.11=bookworm 3.12=noble 3.13=trixie 3.14=forky)
architectures=("$@")
((${#architectures[@]})) || architectures=(x86_64 aarch64)
work=$PWD/build/packaging
say() { printf '%4ds  %s\n' "$SECONDS" "$*"; }

# The programs that build: in an environment of their own, so that the tests' one does not depend on them.
tools=$work/tools
requirements=(ziglang==0.15.2 pybind11==3.1.0 pyproject-metadata==0.12.1 auditwheel==6.8.2
  "scikit-build-core>=0.10")
if [[ ! -f $tools/ready || $(<"$tools/ready") != "${requirements[*]}" ]]; then
  say "installing ${requirements[*]}"
  python3 -m venv "$tools"
  "$tools/bin/python" -m pip install --quiet --disable-pip-version-check "${requirements[@]}"
  printf '%s' "${requirements[*]}" >"$tools/ready"
fi
export PATH="$tools/bin:$PATH"

# headers VERSION SUITE ARCHITECTURE: prints the folder of Python's headers. Ubuntu's archive has x86-64 alone; there
# the headers of aarch64 differ in two macros about x86's assembler, as those of Debian's versions do where they differ.
headers() {
  local version=$1 suite=$2 architecture=$3 debian folder
  debian=${debian_architectures[$architecture]}
  folder=$work/python/$version-$architecture
  if [[ ! -d $folder ]]; then
    if debian_is_ubuntu "$suite"; then debian=amd64; fi
    debian_fetch "$suite" "$debian" "$folder.part" "libpython$version-dev" >&2
    cp "$folder.part"/usr/include/*-linux-gnu/python"$version"/pyconfig.h "$folder.part/usr/include/python$version/"
    sed -i '/HAVE_CRYPT_H/d' "$folder.part/usr/include/python$version/pyconfig.h"  # crypt.h is in another package
    if debian_is_ubuntu "$suite" && [[ $architecture == aarch64 ]]; then
      sed -i -E 's,^#define (HAVE_GCC_ASM_FOR_X(64|87)) 1,/* #undef \1 */,' \
        "$folder.part/usr/include/python$version/pyconfig.h"
    fi
    mv "$folder.part" "$folder"
  fi
  echo "$folder/usr/include/python$version"
}

# check_clash WHEEL: installs the wheel, and runs it in processes that have loaded incompatible copies of its
# dependencies.
check_clash() {
  local folder=$work/clash
  rm -rf "$folder"
  python3 -m venv "$folder/venv"
  {
    "$folder/venv/bin/python" -m pip install --disable-pip-version-check "$1" numpy &&
      "$folder/venv/bin/python" packaging/clash.py "$folder/copies"
  } >"$folder/log" 2>&1 || { tail -n 20 "$folder/log"; echo "packaging: see $folder/log" >&2; exit 1; }
  printf '      %s ranks ran beside incompatible dependencies\n' "$(grep -c 'no clash' "$folder/log")"
}

for architecture in "${architectures[@]}"; do
  say "$architecture: dependencies"
  bash packaging/dependencies.sh "$architecture"
  export FARANDOLE_ARCHITECTURE=$architecture FARANDOLE_PREFIX=$work/$architecture
  export PKG_CONFIG_LIBDIR=$FARANDOLE_PREFIX/lib/pkgconfig
  python_headers=()
  python_options=()
  for entry in "${suites[@]}"; do
    python_headers+=("${entry%=*}=$(headers "${entry%=*}" "${entry#*=}" "$architecture")")
    python_options+=(--python "${entry%=*}")
  done
  # MPI and libfabric need their headers only. The libraries are those of the user.
  headers_of=$work/headers-$architecture
  [[ -d $headers_of ]] || { debian_fetch bookworm "${debian_architectures[$architecture]}" "$headers_of.part" libopenmpi-dev libmpich-dev libfabric-dev &&
    python -m pip download --quiet --disable-pip-version-check --no-deps --dest "$headers_of.part" "$(grep '^mpich==' tests/kubernetes/mpis.txt)" &&
    python -m zipfile -e "$headers_of.part"/mpich-*.whl "$headers_of.part/mpich" && mv "$headers_of.part" "$headers_of"; }
  setup_xla_headers "$work/xla"
  say "$architecture: compiling"
  build=$FARANDOLE_PREFIX/build
  log=$FARANDOLE_PREFIX/log/farandole
  flags="-g0 -Wno-date-time"
  link="-s -Wl,--gc-sections"  # removes what no code in the file uses from the static libraries
  {
    cmake -G Ninja -S . -B "$build" -DCMAKE_TOOLCHAIN_FILE="$PWD/packaging/toolchain.cmake" \
      -DCMAKE_BUILD_TYPE=Release -DFARANDOLE_PYTHON=ON -DCMAKE_C_FLAGS="$flags" -DCMAKE_CXX_FLAGS="$flags" \
      -DFARANDOLE_OPEN_MPI_INCLUDE="$(echo "$headers_of"/usr/lib/*/openmpi/include)" \
      -DFARANDOLE_STANDARD_MPI_INCLUDE="$(echo "$headers_of"/mpich/*.data/data/include)" \
      -DFARANDOLE_OFI_INCLUDE="$headers_of/usr/include" -DFARANDOLE_XLA_INCLUDE="$work/xla/include" \
      -DFARANDOLE_MPICH_INCLUDE="$(echo "$headers_of"/usr/include/*/mpich)" \
      -DFARANDOLE_PYTHON_HEADERS="$(IFS=';'; echo "${python_headers[*]}")" \
      -DPython_EXECUTABLE="$tools/bin/python" -DCMAKE_SKIP_BUILD_RPATH=ON \
      -DCMAKE_SHARED_LINKER_FLAGS="$link" -DCMAKE_MODULE_LINKER_FLAGS="$link" -DCMAKE_EXE_LINKER_FLAGS="$link" \
      -DCMAKE_PREFIX_PATH="$FARANDOLE_PREFIX" -DFARANDOLE_LICENSES="$FARANDOLE_PREFIX/licenses" &&
      cmake --build "$build" -j "$(nproc)" --target farandole_wheel &&
      rm -rf "$FARANDOLE_PREFIX/tree" &&
      cmake --install "$build" --component wheel --prefix "$FARANDOLE_PREFIX/tree" &&
      cpack --config "$build/CPackConfig.cmake" -G TGZ -B "$FARANDOLE_PREFIX/archive" -D CPACK_STRIP_FILES=OFF &&
      mkdir -p dist && cp "$FARANDOLE_PREFIX"/archive/*.tar.gz dist/
  } >"$log" 2>&1 || { grep -E 'error|FAILED|undefined' "$log" | head -n 40; echo "packaging: see $log" >&2; exit 1; }
  say "$architecture: the wheel"
  wheel=$(python packaging/wheel.py --tree "$FARANDOLE_PREFIX/tree" --prefix "$FARANDOLE_PREFIX" \
    --architecture "$architecture" --glibc $glibc "${python_options[@]}" --out dist)
  auditwheel show "$wheel" | tr -s '\n ' ' ' | fold -s -w 110 | sed 's/^/      /'
  printf '\n      %s: %d KiB\n' "$(basename "$wheel")" $(($(stat -c %s "$wheel") / 1024))
  [[ $architecture != "$(uname -m)" ]] || check_clash "$wheel"
done
python -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir dist bindings/horovod bindings/kubernetes
say "dist/ has: $(cd dist && echo *)"
