#!/usr/bin/env bash
# Compiles a release: OUT/vram-exporter and OUT/vram, both with the demo, and OUT/libnvml_sim.so. The same commit gives the same bytes in
# any folder and from either architecture's machine: the compiler is pinned, the environment is empty, and no path of the machine is in
# the files. The files need no glibc newer than the one in versions.sh; this script checks that.
# usage: release/compile.sh amd64|arm64 OUT
# RELEASE_TOOLS is the folder for the tools, CARGO_TARGET_DIR that for what is compiled; both are below target/ by default.
set -euo pipefail

usage() { echo "usage: compile.sh amd64|arm64 OUT" >&2; exit 2; }
[ $# -eq 2 ] || usage
case $1 in
amd64) triple=x86_64-unknown-linux-gnu machine='Advanced Micro Devices X86-64' interpreter=/lib64/ld-linux-x86-64.so.2 ;;
arm64) triple=aarch64-unknown-linux-gnu machine=AArch64 interpreter=/lib/ld-linux-aarch64.so.1 ;;
*) usage ;;
esac
mkdir -p "$2"
out=$(cd "$2" && pwd)
cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=$PWD
# shellcheck source=release/versions.sh
. release/versions.sh

absolute() { mkdir -p "$1" && (cd "$1" && pwd); }
target=$(absolute "${CARGO_TARGET_DIR:-target}")
tools=$(absolute "${RELEASE_TOOLS:-$target/release-tools}")
cargo_home=$(absolute "${CARGO_HOME:-$HOME/.cargo}")
release/tools.sh "$tools"
export RUSTUP_TOOLCHAIN=$RUST
epoch=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
# The label `revision`, only if git says that the files are those of the commit.
revision=$(git rev-parse HEAD 2>/dev/null) && git diff --quiet HEAD -- || revision=

# The last prefix that fits is replaced, so the more specific one comes later.
flags=(
    "--remap-path-prefix=$root=/vram-exporter"
    "--remap-path-prefix=$target=/target"
    "--remap-path-prefix=$cargo_home=/cargo"
    "--remap-path-prefix=$(rustc --print sysroot)/lib/rustlib/src/rust=/rustc"
    # A digest of the contents.
    "-Clink-arg=-Wl,--build-id=sha1"
)
c_flags="-ffile-prefix-map=$cargo_home=/cargo -ffile-prefix-map=$target=/target"

cargo fetch --quiet --locked --target "$triple"
environment=(
    "PATH=$tools/zig/bin:$PATH"
    "HOME=$HOME"
    "CARGO_HOME=$cargo_home"
    ${RUSTUP_HOME:+"RUSTUP_HOME=$RUSTUP_HOME"}
    ${CARGO_BUILD_JOBS:+"CARGO_BUILD_JOBS=$CARGO_BUILD_JOBS"}
    "RUSTUP_TOOLCHAIN=$RUST"
    "CARGO_TARGET_DIR=$target"
    "CARGO_ENCODED_RUSTFLAGS=$(IFS=$'\x1f' && printf '%s' "${flags[*]}")"
    "CFLAGS=$c_flags"
    "CARGO_ZIGBUILD_CACHE_DIR=$target/zig"
    "ZIG_GLOBAL_CACHE_DIR=$target/zig"
    "ZIG_LOCAL_CACHE_DIR=$target/zig"
    "SOURCE_DATE_EPOCH=$epoch"
    ${revision:+"VRAM_EXPORTER_REVISION=$revision"}
    LC_ALL=C.UTF-8
)
env -i "${environment[@]}" cargo zigbuild --release --frozen --target "$triple.$GLIBC" --package vram-exporter --package vram

built=$target/$triple/release
install -m 0755 "$built"/{vram-exporter,vram} "$out/"
install -m 0644 "$built/deps/libnvml_sim.so" "$out/libnvml_sim.so"
touch --date="@$epoch" "$out"/{vram-exporter,vram,libnvml_sim.so}

refuse() { echo "compile.sh: $file: $*" >&2; exit 1; }
for file in "$out"/{vram-exporter,vram,libnvml_sim.so}; do
    header=$(readelf --wide --file-header --program-headers "$file")
    dynamic=$(readelf --wide --dynamic "$file")
    versions=$(readelf --wide --version-info "$file" | grep -o 'GLIBC_[A-Z0-9.]*' | sort --version-sort --unique)
    libraries=$(sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' <<<"$dynamic" | sort | tr '\n' ' ')
    newest=$(tail -n 1 <<<"$versions")
    grep -qxE " *Machine: +$machine" <<<"$header" || refuse "is not for $1"
    grep -qE '^ *Type: +DYN ' <<<"$header" || refuse "cannot be loaded at any address"
    grep -qE '^ *GNU_STACK .* RW +0' <<<"$header" || refuse "has an executable stack"
    grep -q 'GNU_RELRO' <<<"$header" || refuse "has no read-only relocations"
    [ "$file" = "$out/libnvml_sim.so" ] || grep -qF "program interpreter: $interpreter]" <<<"$header" || refuse "has another interpreter"
    # A private version of glibc's symbols sorts last.
    [ "$(printf '%s\n' "$newest" "GLIBC_$GLIBC" | sort --version-sort | tail -n 1)" = "GLIBC_$GLIBC" ] || refuse "needs $newest"
    # Only what is part of glibc.
    strange=$(tr ' ' '\n' <<<"$libraries" | grep -vxE '(lib(c|dl|m|pthread|rt)|ld-linux-[a-z0-9_-]+)\.so\.[0-9]+|' || true)
    [ -z "$strange" ] || refuse "loads $strange"
    ! readelf --wide --sections "$file" | grep -qE '\.(symtab|debug_)' || refuse "is not stripped"
    for path in "$root" "$target" "$tools" "$cargo_home" "$(rustc --print sysroot)"; do
        ! grep -qaF "$path" "$file" || refuse "contains the path $path"
    done
    echo "$file: $1, $(stat --format=%s "$file") bytes, newest symbol version $newest, loads $libraries"
done
