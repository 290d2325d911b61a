#!/usr/bin/env bash
# Builds the Python client's wheel into OUT. hatchling takes the times in it from SOURCE_DATE_EPOCH.
# usage: release/wheel.sh OUT
set -euo pipefail

out=$(cd "${1:?usage: wheel.sh OUT}" && pwd)
cd "$(dirname "${BASH_SOURCE[0]}")/.."
: "${SOURCE_DATE_EPOCH:?}"
work=$(mktemp -d)
trap 'rm -rf -- "$work"' EXIT
# Only files that git tracks. The modes in the wheel are those of the files.
git archive HEAD clients/python | tar --extract --directory "$work"
# shellcheck source=release/read-publisher.sh
. release/read-publisher.sh
[ -z "$REPOSITORY" ] || printf '\n[project.urls]\nRepository = "%s"\n' "$REPOSITORY" >>"$work/clients/python/pyproject.toml"
chmod -R u=rwX,go=rX "$work/clients/python"
python3 -m build --quiet --wheel --no-isolation --outdir "$out" "$work/clients/python"
