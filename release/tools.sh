#!/usr/bin/env bash
# Installs what compile.sh needs: the linker and C compiler into FOLDER, and through rustup the compiler with the standard libraries of both
# architectures. What is already there is left alone.
# usage: release/tools.sh FOLDER
set -euo pipefail

tools=${1:?usage: tools.sh FOLDER}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=release/versions.sh
. "$here/versions.sh"

if ! cmp -s "$here/requirements.txt" "$tools/zig/requirements.txt"; then
    rm -rf "$tools/zig"
    mkdir -p "$tools"
    python3 -m venv "$tools/zig"
    "$tools/zig/bin/pip" install --quiet --disable-pip-version-check --require-hashes --only-binary :all: -r "$here/requirements.txt"
    cp "$here/requirements.txt" "$tools/zig/requirements.txt"
fi

command -v rustup >/dev/null || { echo "tools.sh: rustup is not installed; it provides the standard library for arm64" >&2; exit 1; }
for triple in x86_64-unknown-linux-gnu aarch64-unknown-linux-gnu; do
    # The folder exists only if the toolchain has the standard library.
    [ -d "$(rustc "+$RUST" --print target-libdir --target "$triple" 2>/dev/null)" ] ||
        rustup toolchain install "$RUST" --profile minimal --target "$triple" --no-self-update
done
