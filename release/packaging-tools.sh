#!/usr/bin/env bash
# Installs the programs that assemble a release into FOLDER: nfpm, umoci, helm, Python's build tools, cargo-about and cargo-cyclonedx. With
# --checks, installs only what .ci/run needs to check the packages and the workflows: nfpm and actionlint. What is already there in the right
# version is kept.
# usage: release/packaging-tools.sh [--checks] FOLDER
set -euo pipefail

checks=
if [ "${1:-}" = --checks ]; then checks=only && shift; fi
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
mkdir -p "${1:?usage: packaging-tools.sh [--checks] FOLDER}"
tools=$(cd "$1" && pwd)

missing=()
needed=(python3 git readelf gzip)
[ -n "$checks" ] || needed+=(cargo dpkg-deb mmdebstrap)
for command in "${needed[@]}"; do command -v "$command" >/dev/null || missing+=("$command"); done
python3 -c 'import ensurepip' 2>/dev/null || missing+=(python3-venv)
[ "${#missing[@]}" -eq 0 ] || { echo "install these first: ${missing[*]}" >&2; exit 1; }

# The Go compiler is a package for Python, so that the system's, which may be too old, is not used.
if ! cmp -s "$here/packaging.txt" "$tools/packaging/packaging.txt"; then
    rm -rf "$tools/packaging"
    python3 -m venv "$tools/packaging"
    "$tools/packaging/bin/pip" install --quiet --disable-pip-version-check --require-hashes --only-binary :all: \
        -r "$here/packaging.txt"
    cp "$here/packaging.txt" "$tools/packaging/packaging.txt"
fi
go=$tools/packaging/bin/go

# The version of a program that `go install` has built is recorded in the program itself.
go_program() { # PACKAGE MODULE VERSION
    local name=${1##*/}
    "$go" version -m "$tools/bin/$name" 2>/dev/null | grep -qP "^\tmod\t\Q$2\E\t\Q$3\E(\t|$)" && return
    GOTOOLCHAIN=local GOBIN="$tools/bin" GOFLAGS=-buildvcs=false CGO_ENABLED=0 "$go" install -trimpath "$1@$3"
}
# Newer versions of these two cannot be installed this way: that of nfpm has modules that the module proxy does not serve, and that of umoci
# replaces modules.
go_program github.com/goreleaser/nfpm/v2/cmd/nfpm github.com/goreleaser/nfpm/v2 v2.43.0
if [ -n "$checks" ]; then
    go_program github.com/rhysd/actionlint/cmd/actionlint github.com/rhysd/actionlint v1.7.7
    exit
fi
go_program github.com/opencontainers/umoci/cmd/umoci github.com/opencontainers/umoci v0.5.0

cargo_program() { # NAME VERSION OPTION...
    grep -qF "\"$1 $2 (" "$tools/.crates2.json" 2>/dev/null && return
    env -u RUSTFLAGS CARGO_TARGET_DIR="$tools/build" CARGO_PROFILE_DEV_DEBUG=0 CARGO_PROFILE_RELEASE_LTO=off \
        cargo install --locked --quiet --root "$tools" "$1@$2" "${@:3}"
    rm -rf "$tools/build"
}
# The first runs for a second, so an optimised build would cost more time than it saves. The second compares texts for many minutes if it
# is not optimised.
cargo_program cargo-cyclonedx 0.5.9 --debug
cargo_program cargo-about 0.9.3 --features cli
