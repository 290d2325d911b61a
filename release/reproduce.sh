#!/usr/bin/env bash
# Makes the release of the current commit twice, in two fresh clones with different paths, and compares every byte. The tools are shared;
# everything else is made twice, under different umasks, time zones and names of folders.
# usage: release/reproduce.sh WORK [--programs FOLDER]   (an empty folder; with --programs, the programs are not compiled twice)
set -euo pipefail

work=${1:?usage: reproduce.sh WORK [--programs FOLDER]}
shift
mkdir -p "$work"
work=$(realpath "$work")
cd "$(dirname "${BASH_SOURCE[0]}")/.."
version=$(release/set-version.py)
export RELEASE_TOOLS=${RELEASE_TOOLS:-$work/tools}

make() { # CLONE OUT UMASK ZONE [OPTION...]
    git clone --quiet --no-local . "$work/$1"
    (
        umask "$3"
        export TZ=$4 TMPDIR=$work/$1.tmp
        mkdir -p "$TMPDIR"
        unset CARGO_TARGET_DIR
        "$work/$1/release/build.sh" "${@:5}" "$version" "$work/$2"
    )
}
make first out 022 UTC "$@"
make a/second/clone/with-a-longer-path another/folder/for/the/result 077 Asia/Tokyo "$@"
cmp "$work/out/SHA256SUMS" "$work/another/folder/for/the/result/SHA256SUMS" ||
    { diff "$work/out/SHA256SUMS" "$work/another/folder/for/the/result/SHA256SUMS"; exit 1; }
(cd "$work/another/folder/for/the/result" && sha256sum --quiet --check "$work/out/SHA256SUMS")
echo "$(wc -l <"$work/out/SHA256SUMS") files, equal in both releases"
