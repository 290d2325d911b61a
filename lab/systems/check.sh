#!/usr/bin/env bash
# Checks a program that release/compile.sh has made, where it is meant to run: a program for another architecture in qemu's user emulation,
# and with ROOT in the system below that folder, such as one that debootstrap has made. The integration tests that start the exporter run
# with it: its scrapes of the simulated machines must equal the golden ones, and the demo must serve.
#
# usage: lab/systems/check.sh BUILT [ROOT]
#   BUILT  the folder with vram-exporter, vram and libnvml_sim.so
#   ROOT   a system for the same architecture; needs root
# Needs promtool, Python with prometheus-client and curl; for another architecture qemu-user-static and, without ROOT, that architecture's C
# library (libc6-arm64-cross); to compare the structs of NVML for another architecture, NVML_H and release/tools.sh.
set -euo pipefail

[ $# -eq 1 ] || [ $# -eq 2 ] || { echo "usage: check.sh BUILT [ROOT]" >&2; exit 2; }
# The mounts end with the namespace.
if [ $# -eq 2 ] && [ -z "${CHECK_HAS_NAMESPACE:-}" ]; then
    CHECK_HAS_NAMESPACE=1 exec unshare --mount --propagation private "$0" "$@"
fi
built=$(realpath "$1")
root=${2:+$(realpath "$2")}
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
fail() { echo "systems: $*" >&2; exit 1; }

case $(readelf --file-header "$built/vram-exporter" | sed -n 's/^ *Machine: *//p') in
*X86-64) arch=x86_64 ;;
AArch64) arch=aarch64 ;;
*) fail "$built/vram-exporter is for an unknown architecture" ;;
esac
# The system sees /tmp at the same path, so that the tests' folders have the same names there.
work=$(mktemp -d /tmp/vram-exporter-systems.XXXXXX)
trap 'rm -rf -- "$work"' EXIT
mkdir "$work/deps"
for name in vram-exporter vram; do cp "$built/$name" "$work/program-$name"; done
cp "$built/libnvml_sim.so" "$work/deps/"
run=()
if [ -n "$root" ]; then
    for folder in dev proc tmp; do
        # debootstrap leaves a link to the folder of this system where it cannot mount.
        [ ! -L "$root/$folder" ] || { rm "$root/$folder" && mkdir "$root/$folder"; }
        mount --bind "/$folder" "$root/$folder"
    done
    run=("$(command -v chroot)" "$root")
fi
if [ "$arch" != "$(uname -m)" ]; then
    emulator=$(command -v "qemu-$arch-static") || fail "qemu-$arch-static is not installed"
    cp "$emulator" "$work/emulator"
    run+=("$work/emulator")
    [ -n "$root" ] || run+=(-L "/usr/$arch-linux-gnu")
fi
for name in vram-exporter vram; do
    printf '#!/bin/sh\nexec %s "$@"\n' "${run[*]@Q} $work/program-$name" >"$work/$name"
    chmod +x "$work/$name"
done

if [ -n "$root" ]; then
    glibc=$("${run[@]}" /usr/bin/getconf GNU_LIBC_VERSION)
    system="$(sed -n 's/^PRETTY_NAME="\(.*\)"/\1/p' "$root/etc/os-release"), $glibc"
    at_least() { [ "$(printf '%s\n' "$1" "${glibc#glibc }" | sort --version-sort | head -n 1)" = "$1" ]; }
else
    system="this system"
    at_least() { true; }
fi
echo "==> $arch on $system: $("$work/vram-exporter" --version)"

exported() { readelf --wide --dyn-syms "$1" | grep -cE ' nvml[A-Za-z0-9_]+$' || true; }
for name in vram-exporter vram; do
    [ "$(exported "$work/program-$name")" -eq 0 ] || fail "$name exports functions of a driver"
done
[ "$(exported "$work/deps/libnvml_sim.so")" -gt 100 ] || fail "the simulator exports no functions"

tests=(golden:: once:: config::)
export VRAM_EXPORTER_TEST_PROGRAM=$work/vram-exporter
if at_least 2.28; then
    # nm does not read the script that starts the program. What that test checks is checked above.
    tests+=(demo:: --skip demo::the_programs_export_no_function_of_a_driver)
    .ci/demo-smoke.sh "$work/vram-exporter"
else
    status=0
    "$work/vram-exporter" --demo --once >"$work/said" 2>&1 || status=$?
    grep -q 'the simulated GPUs need glibc 2.28 or newer' "$work/said" || fail "the demo on $glibc: $(cat "$work/said")"
    # A signal gives 128 or more.
    [ "$status" -gt 0 ] && [ "$status" -lt 128 ] || fail "the demo on $glibc ends with $status"
    echo "demo: refused"
fi
cargo test --locked --test it -- "${tests[@]}"

if [ "$arch" = "$(uname -m)" ] || [ -n "$root" ]; then
    exit 0
fi
# The structs of NVML, in the bindings and in NVIDIA's header, as compilers for that architecture lay them out.
if [ -z "${NVML_H:-}" ]; then
    [ -z "${VRAM_EXPORTER_TEST_REQUIRE_ALL:-}" ] || fail "NVML_H is not set"
    echo "SKIPPED: the structs of NVML, because NVML_H is not set"
    exit 0
fi
# shellcheck source=release/versions.sh
. release/versions.sh
target=${CARGO_TARGET_DIR:-$PWD/target}
tools=${RELEASE_TOOLS:-$target/release-tools}
release/tools.sh "$tools"
triple=$arch-unknown-linux-gnu
runner=CARGO_TARGET_$(tr 'a-z-' 'A-Z_' <<<"$triple")_RUNNER
env "$runner=${run[*]}" RUSTUP_TOOLCHAIN="$RUST" PATH="$tools/zig/bin:$PATH" \
    CARGO_ZIGBUILD_CACHE_DIR="$target/zig" ZIG_GLOBAL_CACHE_DIR="$target/zig" ZIG_LOCAL_CACHE_DIR="$target/zig" \
    CC="$tools/zig/bin/python -m ziglang cc -target $arch-linux-gnu" \
    cargo-zigbuild test --locked --package nvml-sim --test abi --test image --target "$triple"
