#!/usr/bin/env bash
# Writes the licences of all crates in the program, with their texts, to FILE. Fails if a crate has a licence that about.toml does not list.
# usage: release/licences.sh FILE
set -euo pipefail

file=$(realpath "${1:?usage: licences.sh FILE}")
cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=$PWD
cargo fetch --locked --quiet
work=$(mktemp -d)
trap 'rm -rf -- "$work"' EXIT
deploy/shipped-manifests.sh "$work"
cd "$work"
# Removes from the copy's lock file what is not needed any more.
cargo metadata --quiet --offline --format-version 1 >/dev/null
"$root/deploy/shipped-manifests.sh" --check "$work"
# Only the texts in the crates' packages are read, so the result does not depend on a service.
cargo about generate --frozen --fail --config "$root/release/about.toml" --output-file "$file" "$root/release/about.hbs"
