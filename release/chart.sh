#!/usr/bin/env bash
# Packages the Helm chart into OUT as vram-exporter-VERSION.tgz. `helm package` stores the current time for each file, so its archive
# is unpacked and written again.
# usage: release/chart.sh VERSION OUT
set -euo pipefail

version=${1:?usage: chart.sh VERSION OUT}
out=$(cd "${2:?}" && pwd)
cd "$(dirname "${BASH_SOURCE[0]}")/.."
work=$(mktemp -d)
trap 'rm -rf -- "$work"' EXIT
git archive HEAD deploy/helm/vram-exporter | tar --extract --directory "$work"
# shellcheck source=release/read-publisher.sh
. release/read-publisher.sh
{
    printf 'maintainers:\n  - name: "%s"\n' "$MAINTAINER_NAME"
    [ -z "$MAINTAINER_ADDRESS" ] || printf '    email: "%s"\n' "$MAINTAINER_ADDRESS"
    [ -z "$REPOSITORY" ] || printf 'home: "%s"\nsources:\n  - "%s"\n' "$REPOSITORY" "$REPOSITORY"
} >>"$work/deploy/helm/vram-exporter/Chart.yaml"
helm lint --strict --quiet "$work/deploy/helm/vram-exporter"
helm package --destination "$work" "$work/deploy/helm/vram-exporter" >/dev/null
# The version in the name comes from Chart.yaml.
file=vram-exporter-$version.tgz
mkdir "$work/packaged"
tar --extract --gzip --file "$work/$file" --directory "$work/packaged"
release/archive.sh "$work/packaged/vram-exporter" "$out/$file"
