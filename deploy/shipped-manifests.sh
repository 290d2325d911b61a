#!/usr/bin/env bash
# Copies the manifests and the lock file into FOLDER, without the dependencies of tests and without the packages that only tests use, so
# that tools which list dependencies see only what is shipped. The sources of the crates in the copy are empty.
# usage: deploy/shipped-manifests.sh FOLDER
#        deploy/shipped-manifests.sh --check FOLDER   fails if a tool has added a package, or another version, to the copy's lock file
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
if [ "${1:-}" = --check ]; then
    locked() { awk '/^name = / { name = $3 } /^version = / && name { print name, $3; name = "" }' "$1" | sort; }
    added=$(comm -13 <(locked "$root/Cargo.lock") <(locked "${2:?}/Cargo.lock"))
    [ -z "$added" ] || { echo "not in Cargo.lock: $added" >&2; exit 1; }
    exit
fi
copy=$(realpath "${1:?usage: shipped-manifests.sh [--check] FOLDER}")
cd "$root"
for manifest in Cargo.toml crates/*/Cargo.toml; do
    folder=$copy/$(dirname "$manifest")
    mkdir -p "$folder/src"
    awk '/^\[/ { keep = !/^\[\[?(dev-dependencies|bench|test)/ } keep && !/^    "(tests|lab)\//' "$manifest" >"$copy/$manifest"
    touch "$folder/src/lib.rs"
done
for package in . crates/vram; do echo 'fn main() {}' >"$copy/$package/src/main.rs"; done
cp Cargo.lock "$copy/"
