#!/usr/bin/env bash
# Writes the image of one architecture as an OCI archive, FILE, without a container engine, from FOLDER, the content of its .tar.gz:
# a layer with Debian's C library, and a layer with the program. Nothing of the image is executed, so each architecture can be built on any
# machine. The bytes depend on FOLDER, on SOURCE_DATE_EPOCH and on the packages that Debian has at the time; DEBIAN_MIRROR can name a mirror
# with the packages of a certain day.
# usage: release/image.sh VERSION REVISION ARCH FOLDER FILE
set -euo pipefail

version=${1:?usage: image.sh VERSION REVISION ARCH FOLDER FILE} revision=${2:?} arch=${3:?}
folder=$(realpath "${4:?}") file=$(realpath "${5:?}")
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
suite=trixie
created=$(date --utc --date="@${SOURCE_DATE_EPOCH:?}" +%Y-%m-%dT%H:%M:%SZ)
umask 022
work=$(mktemp -d)
trap 'rm -rf -- "$work"' EXIT

# apt verifies the packages. What the program and the driver's library do not need is left out, and so are the files that describe this
# machine. Scanners find the versions of the packages in /var/lib/dpkg/status.d.
mmdebstrap --quiet --mode="$([ "$(id -u)" -eq 0 ] && echo root || echo unshare)" --variant=extract --architectures="$arch" \
    --include=base-files,libc6,libgcc-s1 --extract-hook="$here/image-packages.sh \"\$1\"" \
    "$suite" "$work/debian.tar" ${DEBIAN_MIRROR:+"$DEBIAN_MIRROR"}
mmtarfilter --path-exclude='/dev/*' --path-exclude='/etc/*' --path-include='/etc/debian_version' --path-include='/etc/os-release' \
    --path-include='/etc/ld.so.conf.d/*' --path-exclude='/boot' --path-exclude='/home' --path-exclude='/media' --path-exclude='/mnt' \
    --path-exclude='/srv' --path-exclude='/opt' --path-exclude='/root' --path-exclude='/usr/bin/*' --path-exclude='/usr/games' \
    --path-exclude='/usr/include' --path-exclude='/usr/src' --path-exclude='/usr/local/*' --path-exclude='/usr/lib/*/gconv*' \
    --path-exclude='/usr/share/*' --path-include='/usr/share/doc/*/copyright' --path-include='/usr/share/common-licenses*' \
    --path-exclude='/var/*' --path-include='/var/lib/dpkg/status.d*' <"$work/debian.tar" >"$work/base.tar"

root=$work/program
install -D -m 0755 --target-directory="$root/usr/bin" "$folder"/{vram-exporter,vram}
install -d "$root/etc" "$root/usr/share/doc/vram-exporter"
install -m 0644 "$folder"/{LICENSE,THIRD-PARTY-LICENSES.md,sbom.cdx.json} "$root/usr/share/doc/vram-exporter/"
printf 'root:x:0:0:root:/:/usr/sbin/nologin\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n' >"$root/etc/passwd"
printf 'root:x:0:\nnogroup:x:65534:\n' >"$root/etc/group"
tar --create --file "$work/program.tar" --directory "$root" --sort=name --format=ustar --mtime="@$SOURCE_DATE_EPOCH" \
    --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX .

layout=$work/layout
image=$layout:$version
umoci init --layout "$layout"
umoci new --image "$image"
umoci config --image "$image" --no-history --created "$created" --os linux --architecture "$arch"
history=(--history.created "$created" --history.author vram-exporter)
umoci raw add-layer --image "$image" "${history[@]}" --history.created_by "Debian $suite: base-files, libc6, libgcc-s1" "$work/base.tar"
umoci raw add-layer --image "$image" "${history[@]}" --history.created_by "vram-exporter $version" "$work/program.tar"
# shellcheck source=release/read-publisher.sh
. "$here/read-publisher.sh"
# The same settings as in the Dockerfile.
settings=()
[ -z "$REPOSITORY" ] || settings+=(--config.label "org.opencontainers.image.source=$REPOSITORY")
while IFS= read -r label; do settings+=(--config.label "$label"); done <<EOL
org.opencontainers.image.title=vram-exporter
org.opencontainers.image.description=$(sed -n 's/^description = "\(.*\)"$/\1/p' "$here/../Cargo.toml" | head -n 1)
org.opencontainers.image.licenses=Apache-2.0
org.opencontainers.image.version=$version
org.opencontainers.image.revision=$revision
EOL
umoci config --image "$image" --no-history --created "$created" "${settings[@]}" \
    --config.env NVIDIA_VISIBLE_DEVICES=all --config.env NVIDIA_DRIVER_CAPABILITIES=utility \
    --config.user 65534:65534 --config.exposedports 9836/tcp --config.entrypoint /usr/bin/vram-exporter
umoci gc --layout "$layout" >/dev/null
tar --create --file "$file" --directory "$layout" --sort=name --format=ustar --mtime="@$SOURCE_DATE_EPOCH" \
    --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX oci-layout index.json blobs
