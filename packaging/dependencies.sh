#!/usr/bin/env bash
# Builds the static libraries that a wheel contains, for one architecture, from the sources of Debian 12. FlatBuffers
# and CLI11 are headers alone, of Debian's binary packages.
# packaging/wheels.sh calls it, with its tools in PATH:
#   bash packaging/dependencies.sh x86_64|aarch64      into build/packaging/ARCHITECTURE
set -euo pipefail
cd "$(dirname "$0")/.."
source packaging/settings.sh

export FARANDOLE_ARCHITECTURE=$1
export FARANDOLE_PREFIX=$PWD/build/packaging/$1
suite=bookworm
sources=$PWD/build/packaging/sources
jobs=$(nproc)
debian_architecture=${debian_architectures[$1]}
stamp=$FARANDOLE_PREFIX/dependencies
recipe=$(cat packaging/{dependencies,settings,debian}.sh packaging/toolchain.cmake | sha256sum)
[[ ! -f $stamp || $(<"$stamp") != "$recipe" ]] || exit 0

say() { printf '   %4ds  %s\n' "$SECONDS" "$*"; }
mkdir -p "$FARANDOLE_PREFIX"/{bin,log,include,lib/{cmake,pkgconfig},tmp}

# The compiler's programs for this architecture. What they write does not contain the path of this folder. Each function
# has a section of its own, so that the linker can drop those that are not used.
zig=$(python -c 'import os, ziglang; print(os.path.join(os.path.dirname(ziglang.__file__), "zig"))')
# Highway 1.0 selects AVX-512 function by function; clang 18 and newer need evex512 for that, which enables nothing
# else.
machine=$([[ $1 != x86_64 ]] || echo -mevex512)
for name in cc c++; do
  cat >"$FARANDOLE_PREFIX/bin/$name" <<END
#!/bin/sh
[ "\$1" != -dumpmachine ] || { echo $1-linux-gnu; exit; }
exec "$zig" $name -target $1-linux-gnu.$glibc $machine -ffile-prefix-map="$PWD"=. \\
  -ffunction-sections -fdata-sections "\$@"
END
done
for name in ar ranlib; do
  printf '#!/bin/sh\nexec "%s" %s "$@"\n' "$zig" "$name" >"$FARANDOLE_PREFIX/bin/$name"
done
chmod +x "$FARANDOLE_PREFIX"/bin/*
compiler=$(cat "$FARANDOLE_PREFIX"/bin/* | sha256sum)
export PATH="$FARANDOLE_PREFIX/bin:$PATH"

# run NAME COMMAND...: logs the output, and prints it if the command fails.
run() {
  local log=$FARANDOLE_PREFIX/log/$1
  shift
  "$@" >>"$log" 2>&1 || { tail -n 40 "$log" >&2; echo "packaging: '$*' failed; see $log" >&2; exit 1; }
}

# with_cmake NAME FOLDER ARGUMENTS...: builds and installs a project into the prefix, once for a compiler and arguments.
with_cmake() {
  local name=$1 folder=$2
  shift 2
  local done=$FARANDOLE_PREFIX/tmp/$name.done
  [[ ! -f $done || $(<"$done") != "$compiler $*" ]] || return 0
  say "$name"
  rm -rf "$FARANDOLE_PREFIX/tmp/$name"
  run "$name" cmake -G Ninja -S "$folder" -B "$FARANDOLE_PREFIX/tmp/$name" \
    -DCMAKE_TOOLCHAIN_FILE="$PWD/packaging/toolchain.cmake" -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF \
    -DCMAKE_INSTALL_PREFIX="$FARANDOLE_PREFIX" -DCMAKE_INSTALL_LIBDIR=lib -DBUILD_TESTING=OFF "$@"
  run "$name" cmake --build "$FARANDOLE_PREFIX/tmp/$name" -j "$jobs"
  run "$name" cmake --install "$FARANDOLE_PREFIX/tmp/$name"
  printf '%s' "$compiler $*" >"$done"
}

say "sources of Debian's $suite"
debian_source $suite "$sources" highway hwloc fmtlib spdlog prometheus-cpp openssl
debian_fetch $suite "$debian_architecture" "$FARANDOLE_PREFIX/debian" libflatbuffers-dev libcli11-dev
cp -r "$FARANDOLE_PREFIX"/debian/usr/include/{flatbuffers,CLI} "$FARANDOLE_PREFIX/include/"
cp -r "$FARANDOLE_PREFIX/debian/usr/share/cmake/CLI11" "$FARANDOLE_PREFIX/lib/cmake/"

with_cmake highway "$sources/highway" -DHWY_ENABLE_EXAMPLES=OFF -DHWY_ENABLE_CONTRIB=OFF
with_cmake fmt "$sources/fmtlib" -DFMT_TEST=OFF -DFMT_DOC=OFF
with_cmake spdlog "$sources/spdlog" -DSPDLOG_FMT_EXTERNAL=ON -DSPDLOG_BUILD_EXAMPLE=OFF
with_cmake prometheus-cpp "$sources/prometheus-cpp" -DUSE_THIRDPARTY_LIBRARIES=OFF -DENABLE_PUSH=OFF -DENABLE_PULL=OFF \
  -DENABLE_COMPRESSION=OFF -DENABLE_TESTING=OFF

say "hwloc"
rm -rf "$FARANDOLE_PREFIX/tmp/hwloc" && mkdir -p "$FARANDOLE_PREFIX/tmp/hwloc"
(
  cd "$FARANDOLE_PREFIX/tmp/hwloc"
  run hwloc "$sources/hwloc/configure" --host="$1-linux-gnu" --prefix="$FARANDOLE_PREFIX" --disable-shared \
    --enable-static --localstatedir=/var --disable-libxml2 --disable-pci --disable-libudev --disable-opencl \
    --disable-cuda --disable-nvml --disable-rsmi --disable-levelzero --disable-gl --disable-cairo --disable-io \
    --disable-plugins CFLAGS="-O2 -fPIC" \
    CC="$FARANDOLE_PREFIX/bin/cc" AR="$FARANDOLE_PREFIX/bin/ar" RANLIB="$FARANDOLE_PREFIX/bin/ranlib"
  run hwloc make -C include install
  run hwloc make -C hwloc -j "$jobs" install
  run hwloc install -m 644 hwloc.pc "$FARANDOLE_PREFIX/lib/pkgconfig/"
)

say "libcrypto"
# HMAC-SHA256 and random bytes are used, when connections are made. What can be left out of the rest is left out, and no
# configuration file of the system is read. The default provider would otherwise bring all of its algorithms.
crypto_without=(afalgeng aria asm async autoload-config bf blake2 camellia cast chacha cmac cmp cms comp ct
  deprecated des dgram dh dsa dso dtls ec engine err filenames gost idea legacy md4 mdc2 module multiblock ocb ocsp
  poly1305 psk rc2 rc4 rfc3779 rmd160 scrypt seed shared siphash siv sm2 sm3 sm4 sock srp srtp ssl tests tls ts
  ui-console whirlpool)
rm -rf "$FARANDOLE_PREFIX/tmp/openssl" && mkdir -p "$FARANDOLE_PREFIX/tmp/openssl"
(
  cd "$FARANDOLE_PREFIX/tmp/openssl"
  run openssl env CC=cc AR=ar RANLIB=ranlib perl "$sources/openssl/Configure" "linux-$1" --prefix=/usr \
    --openssldir=/etc/ssl "${crypto_without[@]/#/no-}" -Os -fPIC
  run openssl make -j "$jobs" build_generated libcrypto.a
)
rm -rf "$FARANDOLE_PREFIX/include/openssl"
cp -r "$sources/openssl/include/openssl" "$FARANDOLE_PREFIX/include/"
cp "$FARANDOLE_PREFIX/tmp/openssl/include/openssl/"*.h "$FARANDOLE_PREFIX/include/openssl/"
cp "$FARANDOLE_PREFIX/tmp/openssl/libcrypto.a" "$FARANDOLE_PREFIX/lib/"

# What is inside, for the licences and the list of contents of the wheel.
# license NAME VERSION FILE...
license() {
  local folder=$FARANDOLE_PREFIX/licenses/$1
  mkdir -p "$folder"
  echo "$2" >"$folder/version"
  cat "${@:3}" >"$folder/copyright"
}
rm -rf "$FARANDOLE_PREFIX/licenses"
for name in highway hwloc fmtlib spdlog prometheus-cpp openssl; do
  license $name "$(dpkg-parsechangelog -l "$sources/$name/debian/changelog" -S Version)" \
    "$sources/$name/debian/copyright"
done
for name in libflatbuffers-dev libcli11-dev; do
  archive=$(ls "$debian_state/$suite-$debian_architecture/packages/${name}"_*.deb)
  license $name "$(dpkg-deb -f "$archive" Version)" "$FARANDOLE_PREFIX/debian/usr/share/doc/$name/copyright"
done
license ziglang "$(python -m pip show ziglang | sed -n 's/^Version: //p')" \
  "$(dirname "$zig")"/lib/lib{cxx,cxxabi,unwind}/LICENSE.TXT "$(dirname "$zig")/LICENSE"
license pybind11 "$(python -m pip show pybind11 | sed -n 's/^Version: //p')" \
  "$(python -m pip show -f pybind11 | sed -n 's,^Location: ,,p')"/pybind11-*.dist-info/licenses/LICENSE
printf '%s' "$recipe" >"$stamp"
say "dependencies for $1 are in build/packaging/$1"
