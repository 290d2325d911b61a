#!/usr/bin/env bash
# Installs what .ci/run needs into the system (apt) and into the given folder. What is already there is left alone.
set -euo pipefail

tools=${1:?usage: tools.sh FOLDER}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
mkdir -p "$tools"

as_root() {
    if [ "$(id -u)" -eq 0 ]; then "$@"; else sudo "$@"; fi
}

packages=()
need() { # COMMAND PACKAGE
    command -v "$1" >/dev/null || packages+=("$2")
}
need promtool prometheus
need prometheus prometheus
need amtool prometheus-alertmanager
need systemd-analyze systemd
need cc gcc
need curl curl
command -v google-chrome >/dev/null || need chromium chromium
need make make
need openssl openssl
need patchelf patchelf
need pkg-config pkg-config
need python3 python3
need protoc protobuf-compiler
need zsh zsh
need fish fish
need groff groff-base
need mandoc mandoc
need rpm2archive rpm
need readelf binutils
need valgrind valgrind
python3 -c 'import ensurepip' 2>/dev/null || packages+=(python3-venv)
[ -e /usr/include/libdrm/drm.h ] || packages+=(libdrm-dev)
[ -e /usr/include/google/protobuf/empty.proto ] || packages+=(libprotobuf-dev)
if [ "${#packages[@]}" -gt 0 ]; then
    as_root apt-get update -q
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${packages[@]}"
fi

for component in rustfmt clippy; do
    cargo "${component/rustfmt/fmt}" --version >/dev/null 2>&1 || rustup component add "$component"
done

"$here/environment.sh" "$tools" venv requirements.txt
# The frameworks have an environment of their own, so that a change to the other list does not install 2 GB again.
"$here/environment.sh" "$tools" frameworks frameworks.txt
# The oldest and the newest CPython that the client supports.
"$here/cpython.sh" "$tools" 3.9 bullseye
"$here/cpython.sh" "$tools" 3.14 forky

header=$(find "$tools/venv" -name nvml.h -print -quit)
[ -n "$header" ] || { echo "nvidia-nvml-dev contains no nvml.h" >&2; exit 1; }
ln -sf "$header" "$tools/nvml.h"

# Tools that cargo builds. Each takes minutes to build, so they are kept. RUSTFLAGS and the like are for this project, not for its tools.
build() { # VERSION COMMAND-THAT-PRINTS-IT... -- CRATE OPTION...
    local version=$1 says=()
    shift
    while [ "$1" != -- ]; do says+=("$1"); shift; done
    shift
    case "$("${says[@]}" 2>/dev/null)" in *" $version") return ;; esac
    env -u RUSTFLAGS CARGO_TARGET_DIR="$tools/build" CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_DEV_DEBUG=0 \
        cargo install --locked --quiet --root "$tools" "$1@$version" "${@:2}"
    rm -rf "$tools/build"
}
# A peer that reads the simulator through a different NVML binding.
build 0.22.0 "$tools/bin/all-smi" --version -- all-smi
# The tools that check and list the dependencies. Each runs for only a second, so an optimised build would cost more time than it saves.
build 0.20.2 "$tools/bin/cargo-deny" --version -- cargo-deny --debug
build 0.5.9 "$tools/bin/cargo-cyclonedx" cyclonedx --version -- cargo-cyclonedx --debug
# nfpm, which builds the packages of a release, and actionlint.
"$here/../release/packaging-tools.sh" --checks "$tools"
