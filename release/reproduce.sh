#!/usr/bin/env bash
# Makes the release of the current commit twice, in two fresh clones with different paths, and compares every byte. The tools are shared;
# everything else is made twice, under different umasks, time zones and names of folders.
# usage: release/reproduce.sh WORK [--programs FOLDER]   (an empty folder; with --programs, the programs are not compiled twice)
set -euo pipefail

usage() { echo "usage: release/reproduce.sh WORK [--programs FOLDER]" >&2; exit 2; }
fail() { echo "reproduce: $*" >&2; exit 1; }
[ $# -eq 1 ] || { [ $# -eq 3 ] && [ "$2" = --programs ]; } || usage
options=()
# The clones have other current folders, in which a relative path would mean something else.
if [ $# -eq 3 ]; then
    programs=$(realpath --canonicalize-missing "$3")
    [ -d "$programs" ] || fail "there is no folder $programs"
    options=(--programs "$programs")
fi
mkdir -p "$1"
work=$(realpath "$1")
[ -z "$(ls -A "$work")" ] || fail "$work is not empty"
cd "$(dirname "${BASH_SOURCE[0]}")/.."
version=$(release/set-version.py)
commit=$(git rev-parse HEAD)
tools=${RELEASE_TOOLS:-$work/tools}
mkdir -p "$tools"
RELEASE_TOOLS=$(realpath "$tools")
export RELEASE_TOOLS

make() { # CLONE OUT UMASK ZONE
    (
        # The clone's files get their modes from the umask, so it comes first.
        umask "$3"
        export TZ=$4 TMPDIR=$work/$1.tmp
        mkdir -p "$TMPDIR"
        unset CARGO_TARGET_DIR
        # A commit made in the meantime changes neither clone.
        git clone --quiet --no-local --no-checkout . "$work/$1"
        git -C "$work/$1" checkout --quiet --detach "$commit"
        "$work/$1/release/build.sh" "${options[@]}" "$version" "$work/$2"
    )
}
make first out 022 UTC
make a/second/clone/with-a-longer-path another/folder/for/the/result 077 Asia/Tokyo
cmp "$work/out/SHA256SUMS" "$work/another/folder/for/the/result/SHA256SUMS" ||
    { diff "$work/out/SHA256SUMS" "$work/another/folder/for/the/result/SHA256SUMS"; exit 1; }
(cd "$work/another/folder/for/the/result" && sha256sum --quiet --check "$work/out/SHA256SUMS")
echo "$(wc -l <"$work/out/SHA256SUMS") files, equal in both releases"
