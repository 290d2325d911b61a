#!/usr/bin/env bash
# Makes a whole release in the folder OUT: for each architecture a .tar.gz, a .deb, a .rpm, an image and a list of contents; the chart, the
# Python client's wheel, a README and SHA256SUMS. Needs Debian, root or user namespaces, and the programs that docs/releasing.md lists.
#
# The bytes are meant to depend on the commit, the versions of the tools (those of Debian, and the pinned ones) and, for the images, Debian's
# current packages: not on the folder, the user or the time. release/reproduce.sh compares two builds.
#
# usage: release/build.sh [--programs FOLDER] VERSION OUT
#   VERSION            must be the version in Cargo.toml
#   OUT                a new or empty folder
#   --programs FOLDER  takes FOLDER/amd64 and FOLDER/arm64, made by release/compile.sh, instead of compiling
# RELEASE_TOOLS is the folder for the tools, target/release-tools by default. RELEASE_ARCHITECTURES selects architectures ("amd64 arm64");
# this machine's must be one of them, or its program must be in FOLDER, because it prints the completions.
set -euo pipefail
umask 022

usage() { echo "usage: release/build.sh [--programs FOLDER] VERSION OUT" >&2; exit 2; }
programs=
if [ "${1:-}" = --programs ]; then
    [ $# -ge 2 ] || usage
    programs=$(realpath --canonicalize-missing "$2")
    shift 2
fi
[ $# -eq 2 ] || usage
version=$1

fail() { echo "release: $*" >&2; exit 1; }
say() { printf '%5d s  %s\n' "$SECONDS" "$*"; }
# What would fail only after the compilation is refused first.
read -r -a architectures <<<"${RELEASE_ARCHITECTURES-amd64 arm64}"
[ "${#architectures[@]}" -gt 0 ] || fail "RELEASE_ARCHITECTURES is empty; set amd64, or amd64 and arm64"
for arch in "${architectures[@]}"; do
    [[ $arch == amd64 || $arch == arm64 ]] || fail "RELEASE_ARCHITECTURES has $arch; known are amd64 and arm64"
done
native=$(dpkg --print-architecture)
if [ -z "$programs" ]; then
    [[ " ${architectures[*]} " == *" $native "* ]] ||
        fail "RELEASE_ARCHITECTURES is ${architectures[*]}; add $native, whose programs print the completions, or give it with --programs"
else
    for arch in "${architectures[@]}"; do
        for file in "$programs/$arch"/{vram-exporter,vram,libnvml_sim.so}; do
            [ -f "$file" ] || fail "there is no $file; release/compile.sh $arch $programs/$arch makes it"
        done
    done
    for file in "$programs/$native"/{vram-exporter,vram}; do
        [ -x "$file" ] || fail "there is no program $file, which prints its completions; release/compile.sh $native $programs/$native makes it"
    done
fi

[ -z "${RELEASE_PUBLISHER:-}" ] || { RELEASE_PUBLISHER=$(realpath "$RELEASE_PUBLISHER"); export RELEASE_PUBLISHER; }
mkdir -p "$2"
out=$(realpath "$2")
cd "$(dirname "${BASH_SOURCE[0]}")/.."
[ -z "$(ls -A "$out")" ] || fail "$out is not empty"
is=$(release/set-version.py)
[ "$version" = "$is" ] || fail "Cargo.toml has version $is, not $version"
release/set-version.py --check || fail "another file has another version"
grep -qF "## $version" CHANGELOG.md || fail "CHANGELOG.md has no section $version"
(. release/read-publisher.sh) || exit
changed=$(git status --porcelain)
[ -z "$changed" ] || fail "the working tree differs from the commit:"$'\n'"$changed"

revision=$(git rev-parse HEAD)
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH LC_ALL=C.UTF-8 TZ=UTC0
tools=${RELEASE_TOOLS:-${CARGO_TARGET_DIR:-$PWD/target}/release-tools}
mkdir -p "$tools"
RELEASE_TOOLS=$(realpath "$tools")
export RELEASE_TOOLS
release/packaging-tools.sh "$RELEASE_TOOLS"
export PATH="$RELEASE_TOOLS/packaging/bin:$RELEASE_TOOLS/bin:$PATH"
say "tools"

work=$(mktemp -d)
trap 'rm -rf -- "$work"' EXIT
if [ -z "$programs" ]; then
    programs=$work/programs
    for arch in "${architectures[@]}"; do
        release/compile.sh "$arch" "$programs/$arch"
        say "compiled for $arch"
    done
fi
native=$programs/$native

release/licences.sh "$work/licences.md"
say "licences"
for arch in "${architectures[@]}"; do
    name=vram-exporter-$version-linux-$arch
    release/content.sh "$version" "$arch" "$programs/$arch" "$native" "$work/licences.md" "$work/$name"
    release/archive.sh "$work/$name" "$out/$name.tar.gz"
    cp "$work/$name/sbom.cdx.json" "$out/$name.cdx.json"
    release/packages.sh "$version" "$arch" "$work/$name" "$out"
    say "archive and packages for $arch"
    release/image.sh "$version" "$revision" "$arch" "$work/$name" "$out/vram-exporter-$version-image-$arch.oci.tar"
    say "image for $arch"
done
release/chart.sh "$version" "$out"
release/wheel.sh "$out"
sed "s/@VERSION@/$version/g" release/README.md.in >"$out/README.md"
chmod -R u=rwX,go=rX "$out"
find "$out" -exec touch --date="@$SOURCE_DATE_EPOCH" {} +
(cd "$out" && find . -maxdepth 1 -type f -printf '%P\n' | sort | xargs sha256sum) >"$work/SHA256SUMS"
install -m 0644 "$work/SHA256SUMS" "$out/SHA256SUMS"
say "chart, wheel and checksums"
# shellcheck source=release/read-publisher.sh
. release/read-publisher.sh
[ -n "$MAINTAINER_ADDRESS" ] && [ -n "$REPOSITORY" ] || echo "note: release/publisher.sh has no address of the maintainers or of the repository"
(cd "$out" && du --apparent-size --block-size=1 -- *)
