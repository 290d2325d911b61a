#!/usr/bin/env bash
# Builds the .deb and the .rpm of both architectures from given files in place of the compiled ones, and checks what can be checked without
# installing them: their names, architectures, dependencies, configuration files, scripts and modes, that the unit names the installed files,
# that the installed pages have no dead link, that both architectures have the same files, and that building them again gives the same bytes.
# Needs nfpm (release/packaging-tools.sh --checks), dpkg-deb and readelf.
# usage: tests/judges/release/check_packages.sh PROGRAMS SIMULATOR [FOLDER]
#   PROGRAMS SIMULATOR  the folder with vram-exporter and vram, and the simulator, compiled for this machine
#   FOLDER              vram-exporter, vram and libnvml_sim.so, compiled for the other architecture (release/compile.sh); without it,
#                       copies of the files for this machine whose headers name the other architecture
set -euo pipefail

programs=$(realpath "${1:?usage: check_packages.sh PROGRAMS SIMULATOR [FOLDER]}") simulator=$(realpath "${2:?}")
other_folder=${3:+$(realpath "$3")}
cd "$(dirname "${BASH_SOURCE[0]}")/../../.."
work=$(mktemp -d)
trap 'rm -rf -- "$work"' EXIT
fail() { echo "packages: $*" >&2; exit 1; }
version=$(release/set-version.py)
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH
native=$(dpkg --print-architecture)
# How each architecture is called in an .rpm and by readelf, and its number in the header of a program.
case $native in
amd64) other=arm64 other_number='\xb7\x00' ;;
arm64) other=amd64 other_number='\x3e\x00' ;;
*) fail "there are no packages for $native" ;;
esac
declare -A machine=([amd64]=x86_64 [arm64]=aarch64) elf=([amd64]=X86-64 [arm64]=AArch64)

mkdir -p "$work"/{"$native","$other"}/built
for program in vram-exporter vram; do strip --strip-all -o "$work/$native/built/$program" "$programs/$program"; done
cp "$simulator" "$work/$native/built/libnvml_sim.so"
for file in vram-exporter vram libnvml_sim.so; do
    if [ -n "$other_folder" ]; then
        cp "$other_folder/$file" "$work/$other/built/$file"
    else
        cp "$work/$native/built/$file" "$work/$other/built/$file"
        # shellcheck disable=SC2059
        printf "$other_number" | dd of="$work/$other/built/$file" bs=1 seek=18 conv=notrunc status=none
    fi
done
licences=$work/licences
echo "not the licences" >"$licences"

check() { # ARCH: the packages of one architecture, in WORK/ARCH
    local arch=$1 work=$work/$1 out file deb newest script writable unit named wanted page rpm
    release/content.sh "$version" "$arch" "$work/built" "$programs" "$licences" "$work/content"
    for out in first second; do
        mkdir "$work/$out"
        release/packages.sh "$version" "$arch" "$work/content" "$work/$out"
        release/archive.sh "$work/content" "$work/$out/content.tar.gz"
        # The second time, the files have other times and modes.
        find "$work/content" -exec touch --date=2001-01-01 {} +
        chmod -R g+w "$work/content"
    done
    for file in "$work/first"/*; do cmp "$file" "$work/second/${file##*/}" || fail "${file##*/} differs when it is built again"; done

    deb=$work/first/vram-exporter_$version-1_$arch.deb
    [ "$(dpkg-deb --field "$deb" Version)" = "$version-1" ] || fail "wrong version"
    [ "$(dpkg-deb --field "$deb" Architecture)" = "$arch" ] || fail "the .deb for $arch has Architecture: $(dpkg-deb --field "$deb" Architecture)"
    newest=$(readelf --wide --version-info "$work/built"/{vram-exporter,vram} | grep -o 'GLIBC_[0-9.]*' | sort --version-sort --unique | tail -n 1)
    [[ "$(dpkg-deb --field "$deb" Depends)" == *"libc6 (>= ${newest#GLIBC_})"* ]] || fail "the dependency on the C library is not $newest"
    dpkg-deb --raw-extract "$deb" "$work/deb"
    [ "$(cat "$work/deb/DEBIAN/conffiles")" = /etc/default/vram-exporter ] || fail "the configuration files are $(cat "$work/deb/DEBIAN/conffiles")"
    for script in postinst prerm postrm; do sh -n "$work/deb/DEBIAN/$script"; done
    writable=$(find "$work/deb" -perm /022 ! -type l)
    [ -z "$writable" ] || fail "can be written to: $writable"
    for file in usr/bin/vram-exporter usr/bin/vram usr/lib/vram-exporter/libnvml_sim.so; do
        [[ "$(readelf --file-header "$work/deb/$file")" == *Machine:*"${elf[$arch]}"* ]] || fail "the .deb for $arch has a $file for another architecture"
    done
    (cd "$work/deb" && find usr etc | sort) >"$work/files"
    unit=$work/deb/usr/lib/systemd/system/vram-exporter.service
    # A command without a path could be another installed program of that name. The shell is the system's.
    while read -r named _; do
        [[ $named == /* ]] || fail "the unit's command $named has no absolute path"
        [ "$named" = /bin/sh ] || [ -f "$work/deb$named" ] || fail "the unit names $named, which is not in the package"
    done < <(sed -n -e 's/^Exec[A-Za-z]*=//p' -e 's/^EnvironmentFile=-//p' "$unit")
    [ "$(grep -c '^Exec[A-Za-z]*=/usr/bin/vram-exporter' "$unit")" -eq 2 ] || fail "the unit does not start and check /usr/bin/vram-exporter"
    for wanted in usr/lib/sysusers.d/vram-exporter.conf usr/lib/vram-exporter/libnvml_sim.so usr/share/man/man1/{vram-exporter,vram,vram-run}.1.gz \
        usr/share/bash-completion/completions/{vram-exporter,vram} usr/share/vram-exporter/prometheus/rules/memory.yml \
        usr/share/vram-exporter/grafana/dashboards/fleet.json usr/share/doc/vram-exporter/{copyright,changelog.gz,sbom.cdx.json,deploy/systemd/probes.conf}; do
        [ -s "$work/deb/$wanted" ] || fail "no $wanted"
    done
    for page in "$work/deb"/usr/share/man/man1/*; do
        grep -q '^\.TH' <(zcat "$page") || fail "$page is not a man page"
    done

    tests/judges/release/check_links.py "$work/content" "$work/deb/usr/share/doc/vram-exporter"

    if command -v rpm2archive >/dev/null; then
        rpm=$work/first/vram-exporter-$version-1.${machine[$arch]}.rpm
        [ "$(rpm --query --package --queryformat '%{arch}' "$rpm")" = "${machine[$arch]}" ] || fail "the .rpm for $arch is for another architecture"
        [ "$(rpm --query --package --configfiles "$rpm")" = /etc/sysconfig/vram-exporter ] || fail "the .rpm's configuration files"
        rpm --query --package --requires "$rpm" | grep -qxF "libc.so.6($newest)(64bit)" || fail "the .rpm's dependency on the C library"
        mkdir "$work/rpm"
        rpm2archive --nocompression - <"$rpm" | tar -x -C "$work/rpm"
        grep -qx 'EnvironmentFile=-/etc/sysconfig/vram-exporter' "$work/rpm/usr/lib/systemd/system/vram-exporter.service" || fail "the .rpm's unit"
        for file in vram-exporter vram; do
            cmp "$work/rpm/usr/bin/$file" "$work/deb/usr/bin/$file" || fail "the .rpm for $arch has another $file than the .deb"
        done
        tests/judges/release/check_links.py "$work/rpm/usr/share/doc/vram-exporter"
    else
        echo "SKIPPED: rpm is not installed"
        [ -z "${VRAM_EXPORTER_TEST_REQUIRE_ALL:-}" ] || exit 1
    fi
    echo "$(find "$work/deb" -type f | wc -l) files in the .deb for $arch, equal when built again"
}
check "$native"
check "$other"
diff "$work/$native/files" "$work/$other/files" || fail "the packages of the two architectures have different files"

arch=$native content=$work/$native/content installed=$work/$native/deb/usr/share/doc/vram-exporter
deb=$work/$native/first/vram-exporter_$version-1_$native.deb
# The check finds a page that is missing, and a link out of the folder.
mv "$installed/docs/runbook.md" "$work/"
said=$(tests/judges/release/check_links.py "$installed") && fail "a missing page is not found"
[[ $said == *"docs/README.md: runbook.md leads nowhere"* ]] || fail "a missing page: $said"
mv "$work/runbook.md" "$installed/docs/"
said=$(tests/judges/release/check_links.py "$installed/docs") && fail "links out of the folder are not found"
[[ $said == *"install.md: ../README.md leads out of the folder"* ]] || fail "a link out of the folder: $said"

# Without an address the packages have only a name; with another publisher.sh they have what it says, and so has the documentation.
[ "$(dpkg-deb --field "$deb" Maintainer)" = "$(. release/publisher.sh && echo "$MAINTAINER_NAME${MAINTAINER_ADDRESS:+ <$MAINTAINER_ADDRESS>}")" ] ||
    fail "the maintainer is $(dpkg-deb --field "$deb" Maintainer)"
address=https://host.example/owner/name
printf '%s\n' 'MAINTAINER_NAME="A Name"' MAINTAINER_ADDRESS=a@host.example "REPOSITORY=$address" >"$work/publisher.sh"
mkdir "$work/published"
RELEASE_PUBLISHER=$work/publisher.sh release/packages.sh "$version" "$arch" "$content" "$work/published"
published=$work/published/${deb##*/}
[ "$(dpkg-deb --field "$published" Maintainer)" = "A Name <a@host.example>" ] || fail "the maintainer is $(dpkg-deb --field "$published" Maintainer)"
[ "$(dpkg-deb --field "$published" Homepage)" = "$address" ] || fail "the address is '$(dpkg-deb --field "$published" Homepage)'"
dpkg-deb --fsys-tarfile "$published" | tar -xO ./usr/share/doc/vram-exporter/changelog.Debian.gz | zcat | grep -q '^ -- A Name <a@host.example>  ' ||
    fail "the maintainer in changelog.Debian.gz"
REPOSITORY=$address release/documents.py "$version" "$work/documents"
grep -qF "]($address/blob/v$version/deny.toml)" "$work/documents/docs/releasing.md" || fail "no link to the repository"
for wrong in 'MAINTAINER_NAME=' 'MAINTAINER_ADDRESS=nobody' 'REPOSITORY=host.example' "REPOSITORY=$address/"; do
    { cat "$work/publisher.sh" && echo "$wrong"; } >"$work/wrong.sh"
    ! RELEASE_PUBLISHER=$work/wrong.sh release/packages.sh "$version" "$arch" "$content" "$work/published" 2>"$work/said" ||
        fail "accepts $wrong"
    grep -qF "wrong.sh: ${wrong%%=*}" "$work/said" || fail "$wrong: $(cat "$work/said")"
done
