#!/usr/bin/env bash
# Fills FOLDER with what the .tar.gz of one architecture contains. The packages and the image are made from the same folder.
#   BUILT    the folder with the exporter, the tool and the simulator's library, compiled for ARCH (release/compile.sh)
#   NATIVE   the folder with both programs, compiled for this machine: they print the completions and the example configuration
#   LICENCES the list of the crates' licences (release/licences.sh)
# usage: release/content.sh VERSION ARCH BUILT NATIVE LICENCES FOLDER
set -euo pipefail

version=${1:?usage: content.sh VERSION ARCH BUILT NATIVE LICENCES FOLDER} arch=${2:?}
built=$(realpath "${3:?}") native=$(realpath "${4:?}") licences=$(realpath "${5:?}")
mkdir -p "${6:?}"
folder=$(realpath "$6")
cd "$(dirname "${BASH_SOURCE[0]}")/.."

case $arch in
    amd64) machine='X86-64' target=x86_64-unknown-linux-gnu ;;
    arm64) machine='AArch64' target=aarch64-unknown-linux-gnu ;;
    *) echo "unknown architecture $arch" >&2; exit 1 ;;
esac
for file in "$built"/{vram-exporter,vram,libnvml_sim.so}; do
    header=$(readelf --file-header "$file")
    [[ $header == *Machine:*"$machine"* ]] || { echo "$file is not compiled for $arch" >&2; exit 1; }
done
# No variable of this machine may change what the program prints.
print() { env -i "$native/$1" "${@:2}"; }
for program in vram-exporter vram; do
    said=$(print "$program" --version)
    [ "${said%% (*}" = "$program $version" ] || { echo "$native/$program is '$said', not $version" >&2; exit 1; }
done

mkdir -p "$folder"/{lib,man,completions,systemd,prometheus/rules}
install -m 0755 "$built"/{vram-exporter,vram} "$folder/"
install -m 0644 "$built/libnvml_sim.so" "$folder/lib/libnvml_sim.so"
cp LICENSE "$folder/"
cp "$licences" "$folder/THIRD-PARTY-LICENSES.md"
SBOM_TARGET=$target deploy/sbom.sh "$folder/sbom.cdx.json"
print vram-exporter --print-config >"$folder/config.example.toml"
cp docs/man/*.1 "$folder/man/"
for program in vram-exporter vram; do
    print "$program" completions bash >"$folder/completions/$program.bash"
    print "$program" completions zsh >"$folder/completions/_$program"
    print "$program" completions fish >"$folder/completions/$program.fish"
done
cp deploy/systemd/vram-exporter.{service,default} release/packages/vram-exporter.sysusers "$folder/systemd/"
# The rules are in the folder next to it.
sed 's|^scrape_configs:$|rule_files:\n  - rules/*.yml\n\n&|' deploy/prometheus/scrape.yml >"$folder/prometheus/scrape.yml"
grep -qx 'rule_files:' "$folder/prometheus/scrape.yml"
cp deploy/prometheus/rules/*.yml "$folder/prometheus/rules/"
# docs, and what its pages link to: deploy, grafana, clients/python, SECURITY.md, CHANGELOG.md.
# shellcheck source=release/read-publisher.sh
. release/read-publisher.sh
REPOSITORY=$REPOSITORY release/documents.py "$version" "$folder"
sed "s/@VERSION@/$version/g" release/README.md.in >"$folder/README.md"
