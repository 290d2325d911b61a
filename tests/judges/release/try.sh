#!/usr/bin/env bash
# Installs, starts, scrapes, upgrades, removes and purges what release/build.sh has made, each in a clean Debian without Rust, and follows
# the README of the release folder until a Prometheus has the metrics. Every exporter runs with --demo, in a network of its own.
#
# The .rpm is installed with Debian's rpm, which knows no package that provides the C library: its dependencies are only printed. The files
# for arm64 are started under qemu-user if it is installed. No systemd runs, so starting the unit is not part of this.
#
# Needs root, a Debian mirror, the commands below, and about 2 GiB in WORK, which keeps the clean systems for the next run.
# usage: tests/judges/release/try.sh RELEASE WORK [SUITE...]   (Debian releases for the .deb and the .tar.gz: trixie bullseye)
set -euo pipefail

[ $# -ge 2 ] || { echo "usage: try.sh RELEASE WORK [SUITE...]" >&2; exit 2; }
# Everything that is missing is named at once, before anything is made.
needed=(
    cmp:diffutils curl:curl debootstrap:debootstrap dpkg-deb:dpkg gzip:gzip ip:iproute2 jq:jq mount:mount python3:python3
    readelf:binutils rpm2archive:rpm setpriv:util-linux tar:tar unshare:util-linux
)
missing=() packages=() tools=()
for pair in "${needed[@]}"; do
    command -v "${pair%:*}" >/dev/null || { missing+=("${pair%:*} (package ${pair#*:})"); packages+=("${pair#*:}"); }
done
for command in nfpm umoci; do command -v "$command" >/dev/null || tools+=("$command (FOLDER/bin)"); done
command -v helm >/dev/null || tools+=("helm (FOLDER/packaging/bin)")
if [ "${#missing[@]}" -gt 0 ]; then
    printf 'try: not found: %s\n' "${missing[@]}" >&2
    echo "try: apt-get install ${packages[*]}" >&2
fi
if [ "${#tools[@]}" -gt 0 ]; then
    printf 'try: not in PATH: %s\n' "${tools[@]}" >&2
    echo "try: release/packaging-tools.sh FOLDER installs them; FOLDER is WORK/tools after release/reproduce.sh WORK" >&2
fi
[ "$(id -u)" -eq 0 ] || { echo "try: needs root" >&2; exit 1; }
[ "${#missing[@]}" -eq 0 ] && [ "${#tools[@]}" -eq 0 ] || exit 1

release=$(realpath "$1")
[ -f "$release/SHA256SUMS" ] || { echo "try: there is no $release/SHA256SUMS; $release is not a release" >&2; exit 1; }
mkdir -p "$2"
work=$(realpath "$2")
shift 2
suites=("$@")
[ $# -gt 0 ] || suites=(trixie bullseye)
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root_of_tree=$here/../../..

say() { printf '%5d s  %s\n' "$SECONDS" "$*"; }
fail() { echo "try: $*" >&2; exit 1; }

clean() { # SUITE: a clean Debian in WORK/base-SUITE
    local base=$work/base-$1
    [ ! -e "$base/.complete" ] || return 0
    rm -rf "$base"
    debootstrap --variant=minbase "$1" "$base" >"$work/debootstrap.log" 2>&1 || { tail -n 5 "$work/debootstrap.log" >&2; fail "debootstrap $1"; }
    touch "$base/.complete"
}
extend() { # NAME PACKAGE...: Debian 13 with these packages, in WORK/base-NAME
    local base=$work/base-$1
    [ ! -e "$base/.complete" ] || return 0
    clean trixie
    rm -rf "$base"
    cp -a "$work/base-trixie" "$base"
    rm "$base/.complete"
    cp /etc/resolv.conf "$base/etc/"
    # shellcheck disable=SC2016
    chroot "$base" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive sh -euc \
        'apt-get -q update; apt-get -q -y --no-install-recommends install "$@"' install "${@:2}" >"$work/apt.log" 2>&1 ||
        { tail -n 5 "$work/apt.log" >&2; fail "apt-get install ${*:2}"; }
    touch "$base/.complete"
}
fresh() { # NAME: a copy of that system, in $root
    root=$work/root
    rm -rf "$root"
    cp -a "$work/base-$1" "$root"
    [ ! -e "$root/usr/bin/cargo" ] && [ ! -e "$root/usr/bin/rustc" ] || fail "this system has Rust"
}
# The names of all files, without the package manager's own and those that belong to the list of users.
listing() { (cd "$root" && find . -path ./tmp -prune -o -path ./var -prune -o ! -name '*-' ! -name .pwd.lock -print | sort); }

# The namespace's script: a loopback interface and /proc, then the command. MODE is empty, tmpfs for an empty /tmp, or ro, with which
# everything else cannot be written to either.
# shellcheck disable=SC2016
namespace='ip link set lo up
    mount --bind "$1" "$1"
    mount -t proc proc "$1/proc"
    [ -z "$2" ] || mount -t tmpfs tmpfs "$1/tmp"
    [ "$2" != ro ] || mount -o remount,bind,ro "$1" "$1"
    shift 2
    "$@"'
# shellcheck disable=SC2016
isolated() { unshare --net --mount --pid --fork --kill-child sh -euc "$namespace" namespace "$root" "$@"; }
inside() { isolated "" chroot "$root" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive "$@"; }
scrape() { # WHAT MODE COMMAND...: starts it in the namespace, waits until it is ready, scrapes it, ends it
    local what=$1 mode=$2
    shift 2
    isolated "$mode" "$here/scrape.sh" "$@" >"$work/scrape" || { cat "$work/scrape" >&2; fail "$what"; }
    say "$what: $(tail -n 1 "$work/scrape")"
}
# As the unit does: the package's user, and the variables of its settings file.
serve() { # WHAT SETTINGS
    local variables
    mapfile -t variables < <(grep '^VRAM_EXPORTER_' "$root$2" || true)
    scrape "$1" tmpfs chroot --userspec=vram-exporter:vram-exporter "$root" /usr/bin/env -i "${variables[@]}" /usr/bin/vram-exporter --demo
}
customise() { echo 'VRAM_EXPORTER_LOG_FORMAT=json' >>"$root$1"; }
customised() { grep -qx 'VRAM_EXPORTER_LOG_FORMAT=json' "$root$1" || fail "the upgrade changed $1"; }
same_files() { # BEFORE [SHARED]: the package has left nothing behind, except the folders that match SHARED
    local left
    left=$(comm -13 "$1" <(listing) | grep -vxE "${2:-}" || true)
    [ -z "$left" ] || fail "left behind: $left"
}

(cd "$release" && sha256sum --quiet --check SHA256SUMS)
version=$(sed -n 's/^# vram-exporter //p' "$release/README.md")
newer=$version.999
say "checksums of $(wc -l <"$release/SHA256SUMS") files, version $version"

# The same programs are in every file of an architecture. The packages of a newer version are made from the same content, with another
# default in the settings file.
rm -rf "$work/unpacked" "$work/newer"
mkdir -p "$work/unpacked" "$work/newer"
for arch in amd64 arm64; do
    name=vram-exporter-$version-linux-$arch
    [ -e "$release/$name.tar.gz" ] || continue
    tar -xzf "$release/$name.tar.gz" -C "$work/unpacked"
    deb=$release/vram-exporter_$version-1_$arch.deb
    machine=x86_64
    [ "$arch" = amd64 ] || machine=aarch64
    mkdir -p "$work/unpacked/layout-$arch"
    tar -xf "$release/vram-exporter-$version-image-$arch.oci.tar" -C "$work/unpacked/layout-$arch"
    umoci unpack --image "$work/unpacked/layout-$arch:$version" "$work/unpacked/bundle-$arch" >/dev/null 2>&1
    # The exporter in it runs as another user.
    chmod go+rx "$work/unpacked/bundle-$arch"
    for program in vram-exporter vram; do
        packed=$work/unpacked/$name/$program
        dpkg-deb --fsys-tarfile "$deb" | tar -xO "./usr/bin/$program" | cmp - "$packed"
        rpm2archive --nocompression - <"$release/vram-exporter-$version-1.$machine.rpm" | tar -xO "./usr/bin/$program" | cmp - "$packed"
        cmp "$work/unpacked/bundle-$arch/rootfs/usr/bin/$program" "$packed"
    done
done
say "the .deb, the .rpm and the image of each architecture contain the programs of its .tar.gz"
content=$work/newer/content
cp -R "$work/unpacked/vram-exporter-$version-linux-amd64" "$content"
echo '#VRAM_EXPORTER_LOG_LEVEL=info' >>"$content/systemd/vram-exporter.default"
SOURCE_DATE_EPOCH=$(date +%s) "$root_of_tree/release/packages.sh" "$newer" amd64 "$content" "$work/newer"

for suite in "${suites[@]}"; do
    clean "$suite"
    fresh "$suite"
    settings=/etc/default/vram-exporter
    libc=$(inside ldd --version | sed -n '1s/.* //p')
    listing >"$work/before"
    cp "$release/vram-exporter_$version-1_amd64.deb" "$root/tmp/installed.deb"
    cp "$work/newer/vram-exporter_$newer-1_amd64.deb" "$root/tmp/newer.deb"
    inside dpkg --install /tmp/installed.deb >"$work/dpkg.log" 2>&1 || { cat "$work/dpkg.log" >&2; fail "dpkg --install"; }
    [ "$(inside id --name --user vram-exporter)" = vram-exporter ] || fail "no user"
    links=$("$here/check_links.py" "$root/usr/share/doc/vram-exporter") || fail "dead links in the installed pages: $links"
    serve "$suite, glibc $libc, .deb installed" "$settings"
    customise "$settings"
    inside dpkg --install --force-confdef --force-confold /tmp/newer.deb >"$work/dpkg.log" 2>&1 || fail "upgrade: $(cat "$work/dpkg.log")"
        # shellcheck disable=SC2016
    [ "$(inside dpkg-query --show --showformat '${Version}' vram-exporter)" = "$newer-1" ] || fail "not upgraded"
    customised "$settings"
    serve "$suite, .deb upgraded to $newer, changed settings kept" "$settings"
    inside dpkg --remove vram-exporter >"$work/dpkg.log" 2>&1 || fail "remove: $(cat "$work/dpkg.log")"
    [ ! -e "$root/usr/bin/vram-exporter" ] || fail "the program is still there"
    customised "$settings"
    inside dpkg --purge vram-exporter >"$work/dpkg.log" 2>&1 || fail "purge: $(cat "$work/dpkg.log")"
    same_files "$work/before"
    say "$suite, .deb removed (settings kept) and purged (no file left)"

    fresh "$suite"
    cp -R "$work/unpacked/vram-exporter-$version-linux-amd64" "$root/opt/vram-exporter"
    scrape "$suite, .tar.gz" tmpfs chroot --userspec=65534:65534 "$root" /opt/vram-exporter/vram-exporter --demo
done

extend rpm rpm
fresh rpm
settings=/etc/sysconfig/vram-exporter
listing >"$work/before"
cp "$release/vram-exporter-$version-1.x86_64.rpm" "$root/tmp/installed.rpm"
cp "$work/newer/vram-exporter-$newer-1.x86_64.rpm" "$root/tmp/newer.rpm"
say "the .rpm requires $(inside rpm --query --package --requires /tmp/installed.rpm | grep -v '^rpmlib' | tr '\n' ' ')"
inside rpm --install --nodeps /tmp/installed.rpm
inside rpm --verify --nodeps vram-exporter || fail "rpm --verify"
[ "$(inside id --name --user vram-exporter)" = vram-exporter ] || fail "no user"
serve ".rpm installed with Debian's rpm" "$settings"
customise "$settings"
inside rpm --upgrade --nodeps /tmp/newer.rpm 2>"$work/rpm.log" || fail "upgrade: $(cat "$work/rpm.log")"
[ "$(inside rpm --query --queryformat '%{version}' vram-exporter)" = "$newer" ] || fail "not upgraded"
customised "$settings"
[ -e "$root$settings.rpmnew" ] || fail "the new settings are not beside the changed ones"
serve ".rpm upgraded to $newer, changed settings kept" "$settings"
inside rpm --erase vram-exporter 2>"$work/rpm.log" || fail "erase: $(cat "$work/rpm.log")"
# rpm keeps a changed settings file under this name.
customised "$settings.rpmsave"
rm -f "$root$settings.rpmsave" "$root$settings.rpmnew"
# These folders are part of RHEL and Fedora, and not of Debian.
same_files "$work/before" '\./(etc/sysconfig|usr/lib/sysusers\.d|usr/share/(fish/vendor_completions\.d|licenses|zsh/site-functions))'
say ".rpm removed (changed settings kept as .rpmsave, no other file left)"

# The image, as its own configuration says: user, variables and program, on a read-only file system.
root=$work/unpacked/bundle-amd64/rootfs
manifest=$(jq -r '.manifests[0].digest' "$work/unpacked/layout-amd64/index.json")
blob() { cat "$work/unpacked/layout-amd64/blobs/${1/://}"; }
config=$(blob "$(blob "$manifest" | jq -r .config.digest)" | jq -c .config)
mapfile -t variables < <(jq -r '.Env[]' <<<"$config")
mapfile -t entrypoint < <(jq -r '.Entrypoint[]' <<<"$config")
user=$(jq -r .User <<<"$config")
scrape "image, as user $user, read-only" ro env -i "PATH=$PATH" "${variables[@]}" chroot --userspec="$user" "$root" "${entrypoint[@]}" --demo

qemu=$(command -v qemu-aarch64-static || command -v qemu-aarch64 || true)
if [ -n "$qemu" ] && [ -e "$work/unpacked/bundle-arm64" ]; then
    root=$work/unpacked/bundle-arm64/rootfs
    scrape "arm64 image's file system under qemu-user" ro setpriv --reuid=65534 --regid=65534 --clear-groups \
        "$qemu" -L "$root" "$root/usr/bin/vram-exporter" --demo
else
    echo "SKIPPED: the program for arm64 was not started; qemu-user is missing"
    [ -z "${VRAM_EXPORTER_TEST_REQUIRE_ALL:-}" ] || exit 1
fi

extend python python3-venv
fresh python
cp "$release"/vram_exporter-*.whl "$root/tmp/"
inside python3 -m venv /opt/client
inside sh -c '/opt/client/bin/pip install --quiet --no-index /tmp/vram_exporter-*.whl'
[ "$(inside /opt/client/bin/python -c 'import vram_exporter; print(vram_exporter.__version__)')" = "$version" ] || fail "the wheel's version"
[ "$(inside /opt/client/bin/vram-run /opt/client/bin/python -c 'print(6 * 7)')" = 42 ] || fail "vram-run"
inside /opt/client/bin/pip uninstall --quiet --yes vram-exporter
say "wheel installed, vram-run runs a program, wheel removed"

helm lint --strict --quiet "$release/vram-exporter-$version.tgz" >/dev/null
helm template try "$release/vram-exporter-$version.tgz" >"$work/rendered.yaml"
grep -q "image: .*vram-exporter:$version" "$work/rendered.yaml" || fail "the chart does not name the image of this version"
say "chart renders $(grep -c '^kind:' "$work/rendered.yaml") objects"

# The README's first commands, as they are, in the folder of the release. The one change: the demo, because there is no GPU.
extend prometheus prometheus curl
fresh prometheus
mkdir "$root/release"
# debootstrap makes no such file, and every installed system has one.
echo '127.0.0.1 localhost' >"$root/etc/hosts"
cp "$release"/* "$root/release/"
# shellcheck disable=SC2016
commands=$(sed -n '/^```sh$/,/^```$/p' "$release/README.md" | sed -e '/^```$/q' | sed -e '/^```/d' -e 's|^\./vram-exporter &|./vram-exporter --demo \&|')
begin=$SECONDS
isolated tmpfs "$here/prometheus.sh" "$root" "$commands" >"$work/prometheus" 2>&1 || { cat "$work/prometheus" >&2; fail "the README's commands"; }
say "the README's commands: $(tail -n 1 "$work/prometheus"), $((SECONDS - begin)) s after the first command"
rm -rf "$work/root"
