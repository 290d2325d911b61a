#!/usr/bin/env bash
# Makes systemd verify the unit and rate its confinement. The checked unit is a copy whose program exists here.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../../.."

# The unit's current exposure score from systemd, which ranges from 0 (fully confined) to 100.
limit=18
unit=deploy/systemd/vram-exporter.service
if ! command -v systemd-analyze >/dev/null; then
    echo "SKIPPED: systemd-analyze is not installed"
    [ -z "${VRAM_EXPORTER_TEST_REQUIRE_ALL:-}" ] || exit 1
    exit 0
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
sed -e 's|^\(Exec[A-Za-z]*\)=/usr/local/bin/vram-exporter.*|\1=/bin/true|' "$unit" >"$work/vram-exporter.service"
# systemd-analyze reports an unknown setting only in its output, and exits with 0.
said=$(systemd-analyze verify --man=no --recursive-errors=no "$work/vram-exporter.service" 2>&1) || said+=" (failed)"
[ -z "$said" ] || { echo "$said" >&2; exit 1; }
systemd-analyze security --offline=true --no-pager --threshold="$limit" "$work/vram-exporter.service" | tail -1

# Every variable in the sample file is a configuration key of the exporter.
while read -r name; do
    grep -qF "\`$name\`" docs/configuration.md || { echo "$name is not a key" >&2; exit 1; }
done < <(grep -oE '^#VRAM_EXPORTER_[A-Z_]+' deploy/systemd/vram-exporter.default | tr -d '#')
