#!/usr/bin/env bash
# Builds the .deb and the .rpm of one architecture into OUT, from FOLDER, the content of its .tar.gz. nfpm takes the times in the packages
# from SOURCE_DATE_EPOCH.
# usage: release/packages.sh VERSION ARCH FOLDER OUT
set -euo pipefail

version=${1:?usage: packages.sh VERSION ARCH FOLDER OUT} arch=${2:?}
folder=$(realpath "${3:?}") out=$(realpath "${4:?}")
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
: "${SOURCE_DATE_EPOCH:?}"
umask 022
work=$(mktemp -d)
trap 'rm -rf -- "$work"' EXIT

# The C library that the programs need becomes the packages' dependency: the newest version of a symbol, and libgcc if it is linked.
dynamic=$(readelf --wide --dynamic --version-info "$folder/vram-exporter" "$folder/vram")
VRAM_GLIBC=$(grep -oP '\bGLIBC_\K[0-9.]+' <<<"$dynamic" | sort --version-sort --unique | tail -n 1)
VRAM_LIBGCC_DEB='' VRAM_LIBGCC_RPM=''
if grep -q 'NEEDED.*libgcc_s' <<<"$dynamic"; then
    VRAM_LIBGCC_DEB='libgcc-s1 | libgcc1' VRAM_LIBGCC_RPM='libgcc_s.so.1()(64bit)'
fi
# shellcheck source=release/read-publisher.sh
. "$here/read-publisher.sh"
export VRAM_MAINTAINER=$MAINTAINER VRAM_HOMEPAGE=$REPOSITORY VRAM_VERSION=$version VRAM_ARCH=$arch VRAM_GLIBC VRAM_LIBGCC_DEB VRAM_LIBGCC_RPM

files() { # FORMAT ZSH ENVIRONMENT: the files that both formats install, at their places in ROOT
    local root=$work/$1/root zsh=$2 environment=$3 share documents page program
    share=$root/usr/share
    install -D -m 0755 --target-directory="$root/usr/bin" "$folder"/{vram-exporter,vram}
    # For other programs that use NVML; the exporter has its own copy built in.
    install -D -m 0644 "$folder/lib/libnvml_sim.so" "$root/usr/lib/vram-exporter/libnvml_sim.so"
    install -D -m 0644 "$folder/systemd/vram-exporter.default" "$root$environment"
    install -D -m 0644 "$folder/systemd/vram-exporter.sysusers" "$root/usr/lib/sysusers.d/vram-exporter.conf"
    install -d "$root/usr/lib/systemd/system"
    sed -e 's|^\(Exec[A-Za-z]*\)=/usr/local/bin/|\1=/usr/bin/|' -e "s|/etc/default/vram-exporter|$environment|" \
        "$folder/systemd/vram-exporter.service" >"$root/usr/lib/systemd/system/vram-exporter.service"
    sed -i "s|/etc/default/vram-exporter|$environment|" "$root$environment"
    install -d "$share/man/man1"
    for page in "$folder"/man/*.1; do gzip --no-name --best <"$page" >"$share/man/man1/${page##*/}.gz"; done
    for program in vram-exporter vram; do
        install -D -m 0644 "$folder/completions/$program.bash" "$share/bash-completion/completions/$program"
        install -D -m 0644 "$folder/completions/_$program" "$root$zsh/_$program"
        install -D -m 0644 "$folder/completions/$program.fish" "$share/fish/vendor_completions.d/$program.fish"
    done
    documents=$share/doc/vram-exporter
    install -d "$share/vram-exporter/grafana" "$documents"/{examples,grafana}
    cp -R "$folder/prometheus" "$share/vram-exporter/"
    cp -R "$folder"/grafana/{dashboards,provisioning} "$share/vram-exporter/grafana/"
    # In the folders of the repository, so that the pages' links lead somewhere.
    cp -R "$folder"/{docs,deploy,clients,README.md,SECURITY.md,CHANGELOG.md} "$documents/"
    cp "$folder/grafana/README.md" "$documents/grafana/"
    for page in dashboards provisioning; do ln -s "../../../vram-exporter/grafana/$page" "$documents/grafana/$page"; done
    install -m 0644 "$folder/config.example.toml" "$documents/examples/config.toml"
    install -m 0644 "$folder"/{THIRD-PARTY-LICENSES.md,sbom.cdx.json} "$documents/"
}
build() { # FORMAT
    local root=$work/$1/root
    cp "$here/packages/$1"-*.sh "$work/$1/"
    chmod -R u=rwX,go=rX "$root"
    find "$root" -exec touch --no-dereference --date="@$SOURCE_DATE_EPOCH" {} +
    (cd "$work/$1" && nfpm package --config "$here/packages/nfpm.yaml" --packager "$1" --target "$out/" >/dev/null)
}

files deb /usr/share/zsh/vendor-completions /etc/default/vram-exporter
documents=$work/deb/root/usr/share/doc/vram-exporter
gzip --no-name --best <"$folder/CHANGELOG.md" >"$documents/changelog.gz"
install -m 0644 "$here/packages/copyright" "$documents/copyright"
# Debian's own format for the changes of the packaging; the program's changes are in the other file.
gzip --no-name --best >"$documents/changelog.Debian.gz" <<END
vram-exporter ($version-1) unstable; urgency=medium

  * Version $version; see changelog.gz for the changes.

 -- $MAINTAINER_NAME <$MAINTAINER_ADDRESS>  $(LC_ALL=C date --utc --rfc-email --date="@$SOURCE_DATE_EPOCH")
END
build deb

files rpm /usr/share/zsh/site-functions /etc/sysconfig/vram-exporter
install -D -m 0644 "$folder/LICENSE" "$work/rpm/root/usr/share/licenses/vram-exporter/LICENSE"
build rpm
