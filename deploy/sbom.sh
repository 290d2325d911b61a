#!/usr/bin/env bash
# Writes the contents of the release as CycloneDX 1.5 (JSON): every crate that is linked into the exporter or its simulator, or runs as a
# procedural macro while they are built, but no crate that only tests use. The same commit gives identical output in any folder.
# Usage: deploy/sbom.sh [FILE]; without FILE it writes to standard output. Needs cargo-cyclonedx 0.5.9.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
target=x86_64-unknown-linux-gnu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

locked() { awk '/^name = / { name = $3 } /^version = / && name { print name, $3; name = "" }' "$1" | sort; }

# The tool writes its output next to the manifest, and includes the dependencies of tests when it determines the optional dependencies in
# use. So it runs on a copy of the manifests without these dependencies and without the test packages; the crates' sources are empty.
for manifest in Cargo.toml crates/*/Cargo.toml; do
    folder=$work/$(dirname "$manifest")
    mkdir -p "$folder/src"
    awk '/^\[/ { keep = !/^\[\[?(dev-dependencies|bench|test)/ } keep && !/^    "tests\//' "$root/$manifest" >"$work/$manifest"
    touch "$folder/src/lib.rs"
done
echo 'fn main() {}' >"$work/src/main.rs"
cp "$root/Cargo.lock" "$work/"

# Without this variable the output would contain a random number and the current time.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git -C "$root" log -1 --format=%ct)}
export SOURCE_DATE_EPOCH
(cd "$work" && cargo cyclonedx --quiet --format json --spec-version 1.5 --describe binaries --no-build-deps --target "$target")
# The copy's lock file may lack what was removed from the manifests, but must not contain a new package or a different version.
added=$(comm -13 <(locked "$root/Cargo.lock") <(locked "$work/Cargo.lock"))
[ -z "$added" ] || { echo "sbom: not in Cargo.lock: $added" >&2; exit 1; }
# The tool lists everything in the lock file; `cargo tree` omits optional crates that are not built (toml_writer, at the time of writing).
# The path of the temporary folder must not appear in the output.
cargo tree --manifest-path "$work/Cargo.toml" --edges normal --target "$target" --prefix none --format '{p}' >"$work/tree"
python3 - "$work" >"${1:-/dev/stdout}" <<'PYTHON'
import json
import sys

work = sys.argv[1]
with open(f"{work}/tree") as file:
    built = {tuple(line.split()[:2]) for line in file if line.strip()}
with open(f"{work}/vram-exporter_bin.cdx.json") as file:
    bill = json.loads(file.read().replace(f"path+file://{work}", "path+file://."))
absent = {part["bom-ref"] for part in bill["components"] if (part["name"], "v" + part["version"]) not in built}
bill["components"] = [part for part in bill["components"] if part["bom-ref"] not in absent]
bill["dependencies"] = [edge for edge in bill["dependencies"] if edge["ref"] not in absent]
for edge in bill["dependencies"]:
    if "dependsOn" in edge:
        edge["dependsOn"] = [ref for ref in edge["dependsOn"] if ref not in absent]
json.dump(bill, sys.stdout, indent=2)
print()
PYTHON
