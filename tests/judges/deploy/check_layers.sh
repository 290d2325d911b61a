#!/usr/bin/env bash
# The Dockerfile's first layer builds the dependencies with empty crates in place of ours, so every target that a
# manifest declares must exist there. Creates that layer's files in a folder, with the Dockerfile's own commands, and
# makes cargo read the manifests.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../../.."

target=$(rustc -vV | sed -n "s/^host: //p")
layer=$(mktemp -d)
trap 'rm -rf "$layer"' EXIT
# What the build copies before its first RUN: files, and the folder that they go to.
while read -r -a words; do
    install -D -t "$layer/${words[-1]}" "${words[@]::${#words[@]}-1}"
done < <(sed -n '/ AS build$/,/^RUN/s/^COPY //p' Dockerfile)
# The commands of the first RUN up to `cargo build`, joined into one line.
commands=$(sed -n '/^RUN/,/cargo build/p; /cargo build/q' Dockerfile | sed -e 's/^RUN //' -e 's/\\$//' | tr -d '\n')
case $commands in
    *"&& cargo build --release --locked") commands=${commands%&& cargo build*} ;;
    *) echo "the Dockerfile's first RUN is not in the form that this check expects: $commands" >&2; exit 1 ;;
esac
(cd "$layer" && sh -euc "$commands" && cargo fetch --quiet --locked --offline --target "$target")
echo "the manifests find every target in the layer of the dependencies"
