#!/usr/bin/env bash
# Checks that the bill of materials of the release (deploy/sbom.sh) lists exactly the crates and versions from which cargo builds it,
# each with a licence, and that generating the file again gives the same bytes.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/../../.."
if ! cargo cyclonedx --version >/dev/null 2>&1; then
    echo "SKIPPED: cargo-cyclonedx is missing"
    [ -z "${VRAM_EXPORTER_TEST_REQUIRE_ALL:-}" ]
    exit
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

deploy/sbom.sh "$work/first.json"
deploy/sbom.sh >"$work/second.json"
cmp "$work/first.json" "$work/second.json"
cargo tree --locked --package vram-exporter --package vram --edges normal --target x86_64-unknown-linux-gnu --prefix none --format '{p}' >"$work/tree"

python3 - "$work/first.json" "$work/tree" <<'PYTHON'
import json
import sys

with open(sys.argv[1]) as file:
    bill = json.load(file)
with open(sys.argv[2]) as file:
    built = {tuple(line.split()[:2]) for line in file if line.strip()}
main = bill["metadata"]["component"]
parts = [main, *bill["components"]]
listed = {(part["name"], "v" + part["version"]) for part in parts}
wrong = [f"built and not listed: {' '.join(part)}" for part in sorted(built - listed)]
wrong += [f"listed and not built: {' '.join(part)}" for part in sorted(listed - built)]
wrong += [f"without a licence: {part['name']}" for part in parts if not part.get("licenses")]
references = {part["bom-ref"] for part in parts}
edges = [ref for edge in bill["dependencies"] for ref in [edge["ref"], *edge.get("dependsOn", [])]]
wrong += [f"a dependency on nothing: {ref}" for ref in sorted(set(edges) - references)]
if main["name"] != "vram-exporter" or "serialNumber" in bill or len(listed) != len(parts) or len(parts) < 50:
    wrong.append(f"not the list of this release: {main['name']}, {len(parts)} parts")
if wrong:
    sys.exit("\n".join(wrong))
print(f"{len(parts)} crates, the same ones that cargo builds from")
PYTHON
