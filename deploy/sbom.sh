#!/usr/bin/env bash
# Writes the contents of the release as CycloneDX 1.5 (JSON): every crate that is linked into the exporter, the tool or the simulator, or
# runs as a procedural macro while they are built, but no crate that only tests use. The same commit gives identical output in any folder.
# Usage: deploy/sbom.sh [FILE]; without FILE it writes to standard output. SBOM_TARGET is the target that the exporter is compiled for,
# x86_64-unknown-linux-gnu by default. Needs cargo-cyclonedx 0.5.9.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
target=${SBOM_TARGET:-x86_64-unknown-linux-gnu}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$root/deploy/shipped-manifests.sh" "$work"

# Without this variable the output would contain a random number and the current time.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git -C "$root" log -1 --format=%ct)}
export SOURCE_DATE_EPOCH
(cd "$work" && cargo cyclonedx --quiet --format json --spec-version 1.5 --describe binaries --no-build-deps --target "$target")
"$root/deploy/shipped-manifests.sh" --check "$work"
# The tool lists everything in the lock file; `cargo tree` omits optional crates that are not built (toml_writer, at the time of writing).
# The path of the temporary folder must not appear in the output.
cargo tree --manifest-path "$work/Cargo.toml" --package vram-exporter --package vram --edges normal --target "$target" --prefix none --format '{p}' >"$work/tree"
python3 - "$work" >"${1:-/dev/stdout}" <<'PYTHON'
import json
import sys

work = sys.argv[1]
with open(f"{work}/tree") as file:
    built = {tuple(line.split()[:2]) for line in file if line.strip()}


def read(name):
    with open(f"{work}/{name}_bin.cdx.json") as file:
        return json.loads(file.read().replace(f"path+file://{work}", "path+file://."))


def key(part):
    return part["name"], part["version"]


# The bill of the exporter, with what only the tool is made of: the tool itself, at least.
bill, tool = read("vram-exporter"), read("crates/vram/vram")
known = {key(part): part["bom-ref"] for part in [bill["metadata"]["component"], *bill["components"]]}
parts = [tool["metadata"]["component"], *tool["components"]]
added = [part for part in parts if key(part) not in known]
bill["components"] += added
# The same package can have another reference in each bill.
same = {part["bom-ref"]: known.get(key(part), part["bom-ref"]) for part in parts}
references = {part["bom-ref"] for part in added}
bill["dependencies"] += [
    {"ref": edge["ref"], "dependsOn": sorted(same[ref] for ref in edge.get("dependsOn", []))}
    for edge in tool["dependencies"]
    if edge["ref"] in references
]
absent = {part["bom-ref"] for part in bill["components"] if (part["name"], "v" + part["version"]) not in built}
bill["components"] = [part for part in bill["components"] if part["bom-ref"] not in absent]
bill["dependencies"] = [edge for edge in bill["dependencies"] if edge["ref"] not in absent]
for edge in bill["dependencies"]:
    if "dependsOn" in edge:
        edge["dependsOn"] = [ref for ref in edge["dependsOn"] if ref not in absent]
json.dump(bill, sys.stdout, indent=2)
print()
PYTHON
