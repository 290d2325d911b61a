#!/usr/bin/env bash
# Provides the command pythonX.Y in TOOLS/bin, unless the system already has it: a link to the one that pyenv has installed, or Debian's
# build from the given release, which is unpacked into TOOLS/pythonX.Y together with its libraries. The system itself is not changed.
# usage: cpython.sh TOOLS X.Y RELEASE
set -euo pipefail

tools=$(realpath "$1")
version=$2
release=$3
name=python$version
tree=$tools/$name

works() { "$1" -c 'import ctypes, socket, sys; sys.exit("%d.%d" % sys.version_info[:2] != sys.argv[1])' "$version" >/dev/null 2>&1; }
link() {
    mkdir -p "$tools/bin"
    ln -sf "$1" "$tools/bin/$name"
}

works "$tools/bin/$name" || works "$name" && exit
for found in "${PYENV_ROOT:-$HOME/.pyenv}/versions/$version".*/bin/"$name"; do
    if works "$found"; then
        link "$found"
        exit
    fi
done

# The repository that the system itself uses, in a source list of its own, with package lists and packages in a separate
# folder.
# shellcheck disable=SC1091
. /etc/os-release
# shellcheck disable=SC2016
uri=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' "Release: ${VERSION_CODENAME:-}" 'Component: main' 2>/dev/null | head -n 1)
[ "${ID:-}" = debian ] && [ -n "$uri" ] || {
    echo "$name is missing; install it, with pyenv for example" >&2
    exit 1
}
work=$(mktemp -d)
trap 'rm -rf -- "$work"' EXIT
mkdir -p "$work/lists/partial" "$work/cache/archives/partial"
: >"$work/status"
echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $uri $release main" >"$work/sources.list"
apt=(apt-get -q -q -o "Dir::Etc::sourcelist=$work/sources.list" -o Dir::Etc::sourceparts=- -o "Dir::State::Lists=$work/lists"
    -o "Dir::State::status=$work/status" -o "Dir::Cache=$work/cache" -o Acquire::Languages=none
    -o Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false -o APT::Sandbox::User= -o Debug::NoLocking=true)
"${apt[@]}" update
"${apt[@]}" install -y --no-install-recommends --download-only "$name" >/dev/null

rm -rf "$tree"
mkdir -p "$tree"
for package in "$work"/cache/archives/*.deb; do dpkg-deb --extract "$package" "$tree"; done
# The program then uses the release's own C library and other libraries, which may be newer or older than the system's.
libraries=$(find "$tree" -type d -path '*/lib/*-linux-gnu' -printf '%p:')
loader=$(find "$tree" -path '*/lib/*-linux-gnu/ld-linux*.so.*' -print -quit)
patchelf --set-interpreter "$loader" --force-rpath --set-rpath "${libraries%:}" "$tree/usr/bin/$name"
works "$tree/usr/bin/$name" || {
    echo "$tree/usr/bin/$name does not work" >&2
    exit 1
}
link "$tree/usr/bin/$name"
