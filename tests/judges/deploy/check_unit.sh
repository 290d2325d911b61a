#!/usr/bin/env bash
# Makes systemd verify the unit and rate its confinement, alone and with the drop-in of the probes. The checked unit is a copy whose program
# exists here.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../../.."

# The unit's current exposure score from systemd, which ranges from 0 (fully confined) to 100, and that with the drop-in.
limit=18
limit_with_probes=24
unit=deploy/systemd/vram-exporter.service
if ! command -v systemd-analyze >/dev/null; then
    echo "SKIPPED: systemd-analyze is not installed"
    [ -z "${VRAM_EXPORTER_TEST_REQUIRE_ALL:-}" ] || exit 1
    exit 0
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
sed -e 's|^\(Exec[A-Za-z]*\)=/usr/local/bin/vram-exporter.*|\1=/bin/true|' "$unit" >"$work/vram-exporter.service"
rated() { # LIMIT
    local said
    # systemd-analyze reports an unknown setting only in its output, and exits with 0.
    said=$(systemd-analyze verify --man=no --recursive-errors=no "$work/vram-exporter.service" 2>&1) || said+=" (failed)"
    [ -z "$said" ] || { echo "$said" >&2; exit 1; }
    systemd-analyze security --offline=true --no-pager --threshold="$1" "$work/vram-exporter.service" | tail -1
}
rated "$limit"
mkdir "$work/vram-exporter.service.d"
cp deploy/systemd/probes.conf "$work/vram-exporter.service.d/"
rated "$limit_with_probes"

# Every variable in the sample file and in the drop-in is a configuration key of the exporter.
while read -r name; do
    grep -qF "\`$name\`" docs/configuration.md || { echo "$name is not a key" >&2; exit 1; }
done < <(grep -hoE '^(#|Environment=)VRAM_EXPORTER_[A-Z_]+' deploy/systemd/vram-exporter.default deploy/systemd/probes.conf | grep -o 'VRAM.*')
