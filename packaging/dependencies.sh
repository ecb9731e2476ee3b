#!/usr/bin/env bash
# Builds the static libraries that a wheel contains, for one architecture, from the sources of Debian 12. libcrypto.a
# and the headers come from Debian's binary packages, because they need no newer glibc.
# packaging/wheels.sh calls it, with its tools in PATH:
#   bash packaging/dependencies.sh x86_64|aarch64      into build/packaging/ARCHITECTURE
set -euo pipefail
cd "$(dirname "$0")/.."
source packaging/debian.sh

export FARANDOLE_ARCHITECTURE=$1
export FARANDOLE_PREFIX=$PWD/build/packaging/$1
glibc=2.28
suite=bookworm
sources=$PWD/build/packaging/sources
jobs=$(nproc)
declare -A debian_names=([x86_64]=amd64 [aarch64]=arm64)
debian_architecture=${debian_names[$1]}
stamp=$FARANDOLE_PREFIX/dependencies
recipe=$(cat packaging/dependencies.sh packaging/debian.sh packaging/toolchain.cmake | sha256sum)
[[ ! -f $stamp || $(<"$stamp") != "$recipe" ]] || exit 0

say() { printf '   %4ds  %s\n' "$SECONDS" "$*"; }
mkdir -p "$FARANDOLE_PREFIX"/{bin,log,include,lib/{cmake,pkgconfig},tmp}

# The compiler's programs for this architecture.
zig=$(python -c 'import os, ziglang; print(os.path.join(os.path.dirname(ziglang.__file__), "zig"))')
# Highway 1.0 selects AVX-512 function by function; clang 18 and newer need evex512 for that, which enables nothing else.
machine=$([[ $1 != x86_64 ]] || echo -mevex512)
for name in cc c++; do
  cat >"$FARANDOLE_PREFIX/bin/$name" <<END
#!/bin/sh
[ "\$1" != -dumpmachine ] || { echo $1-linux-gnu; exit; }
exec "$zig" $name -target $1-linux-gnu.$glibc $machine "\$@"
END
done
for name in ar ranlib; do
  printf '#!/bin/sh\nexec "%s" %s "$@"\n' "$zig" "$name" >"$FARANDOLE_PREFIX/bin/$name"
done
chmod +x "$FARANDOLE_PREFIX"/bin/*
export PATH="$FARANDOLE_PREFIX/bin:$PATH"
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}  # the date that two builds have in common

# run NAME COMMAND...: logs the output, and prints it if the command fails.
run() {
  local log=$FARANDOLE_PREFIX/log/$1
  shift
  "$@" >>"$log" 2>&1 || { tail -n 40 "$log" >&2; echo "packaging: '$*' failed; see $log" >&2; exit 1; }
}

# with_cmake NAME FOLDER ARGUMENTS...: builds and installs a project into the prefix.
with_cmake() {
  local name=$1 folder=$2
  shift 2
  local done=$FARANDOLE_PREFIX/tmp/$name.done
  [[ ! -f $done || $(<"$done") != "$*" ]] || return 0
  say "$name"
  rm -rf "$FARANDOLE_PREFIX/tmp/$name"
  run "$name" cmake -G Ninja -S "$folder" -B "$FARANDOLE_PREFIX/tmp/$name" \
    -DCMAKE_TOOLCHAIN_FILE="$PWD/packaging/toolchain.cmake" -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF \
    -DCMAKE_INSTALL_PREFIX="$FARANDOLE_PREFIX" -DCMAKE_INSTALL_LIBDIR=lib -DBUILD_TESTING=OFF "$@"
  run "$name" cmake --build "$FARANDOLE_PREFIX/tmp/$name" -j "$jobs"
  run "$name" cmake --install "$FARANDOLE_PREFIX/tmp/$name"
  printf '%s' "$*" >"$done"
}

say "sources of Debian's $suite"
debian_source $suite "$sources" highway hwloc fmtlib spdlog prometheus-cpp civetweb
debian_fetch $suite "$debian_architecture" "$FARANDOLE_PREFIX/debian" libssl-dev libflatbuffers-dev libcli11-dev
mkdir -p "$FARANDOLE_PREFIX/include/openssl" "$FARANDOLE_PREFIX/licenses"
cp "$FARANDOLE_PREFIX/debian/usr/lib/$1-linux-gnu/libcrypto.a" "$FARANDOLE_PREFIX/lib/"
cp -r "$FARANDOLE_PREFIX"/debian/usr/include/{openssl,flatbuffers,CLI} "$FARANDOLE_PREFIX/include/"
cp "$FARANDOLE_PREFIX/debian/usr/include/$1-linux-gnu/openssl/"*.h "$FARANDOLE_PREFIX/include/openssl/"
cp -r "$FARANDOLE_PREFIX/debian/usr/share/cmake/CLI11" "$FARANDOLE_PREFIX/lib/cmake/"

with_cmake highway "$sources/highway" -DHWY_ENABLE_EXAMPLES=OFF -DHWY_ENABLE_CONTRIB=OFF
with_cmake fmt "$sources/fmtlib" -DFMT_TEST=OFF -DFMT_DOC=OFF
with_cmake spdlog "$sources/spdlog" -DSPDLOG_FMT_EXTERNAL=ON -DSPDLOG_BUILD_EXAMPLE=OFF
with_cmake civetweb "$sources/civetweb" -DCIVETWEB_ENABLE_CXX=ON -DCIVETWEB_ENABLE_SSL=OFF \
  -DCIVETWEB_BUILD_TESTING=OFF -DCIVETWEB_ENABLE_SERVER_EXECUTABLE=OFF -DCIVETWEB_ENABLE_ASAN=OFF \
  -DCIVETWEB_ALLOW_WARNINGS=ON -DCMAKE_C_FLAGS=-Wno-date-time
with_cmake prometheus-cpp "$sources/prometheus-cpp" -DUSE_THIRDPARTY_LIBRARIES=OFF -DENABLE_PUSH=OFF \
  -DENABLE_COMPRESSION=OFF -DENABLE_TESTING=OFF

say "hwloc"
rm -rf "$FARANDOLE_PREFIX/tmp/hwloc" && mkdir -p "$FARANDOLE_PREFIX/tmp/hwloc"
(
  cd "$FARANDOLE_PREFIX/tmp/hwloc"
  run hwloc "$sources/hwloc/configure" --host="$1-linux-gnu" --prefix="$FARANDOLE_PREFIX" --disable-shared \
    --enable-static --disable-libxml2 --disable-pci --disable-libudev --disable-opencl --disable-cuda --disable-nvml \
    --disable-rsmi --disable-levelzero --disable-gl --disable-cairo --disable-io --disable-plugins CFLAGS="-O2 -fPIC" \
    CC="$FARANDOLE_PREFIX/bin/cc" AR="$FARANDOLE_PREFIX/bin/ar" RANLIB="$FARANDOLE_PREFIX/bin/ranlib"
  run hwloc make -C include install
  run hwloc make -C hwloc -j "$jobs" install
  run hwloc install -m 644 hwloc.pc "$FARANDOLE_PREFIX/lib/pkgconfig/"
)

# What is inside, for the licences and the list of contents of the wheel.
# license NAME VERSION FILE...
license() {
  local folder=$FARANDOLE_PREFIX/licenses/$1
  mkdir -p "$folder"
  echo "$2" >"$folder/version"
  cat "${@:3}" >"$folder/copyright"
}
rm -rf "$FARANDOLE_PREFIX/licenses"
for name in highway hwloc fmtlib spdlog prometheus-cpp civetweb; do
  license $name "$(dpkg-parsechangelog -l "$sources/$name/debian/changelog" -S Version)" \
    "$sources/$name/debian/copyright"
done
for name in libssl-dev libflatbuffers-dev libcli11-dev; do
  archive=$(ls "$debian_state/$suite-$debian_architecture/packages/${name}"_*.deb)
  license $name "$(dpkg-deb -f "$archive" Version)" "$FARANDOLE_PREFIX/debian/usr/share/doc/$name/copyright"
done
license ziglang "$(python -m pip show ziglang | sed -n 's/^Version: //p')" \
  "$(dirname "$zig")"/lib/lib{cxx,cxxabi,unwind}/LICENSE.TXT "$(dirname "$zig")/LICENSE"
license pybind11 "$(python -m pip show pybind11 | sed -n 's/^Version: //p')" \
  "$(python -c 'import importlib.metadata as m; print(next(f.locate() for f in m.files("pybind11") if f.name == "LICENSE"))')"
printf '%s' "$recipe" >"$stamp"
say "dependencies for $1 are in build/packaging/$1"
