#!/usr/bin/env bash
# Builds the Dockerfile on a machine without a container engine or access to an image registry, and shows that the image runs as documented:
# as its own user, on a read-only root file system, serving the demo. Prints the image sizes.
#
# The base images are made with debootstrap and committed under the names that the Dockerfile uses. This machine's toolchain and downloaded
# crates are mounted for the build and are in no image. Needs root, buildah, debootstrap, util-linux, curl, jq, a Rust toolchain,
# a Debian mirror, and about 3 GiB under WORK. WORK keeps the base images for the next run.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

work=${1:?usage: build_image.sh WORK}
image=localhost/vram-exporter:built
limit=${BUILD_LIMIT_SECONDS:-3000}
mkdir -p "$work"
work=$(cd "$work" && pwd)

export BUILDAH_ISOLATION=chroot
engine() { buildah --root "$work/storage" --runroot "$work/run" --storage-driver vfs "$@"; }
from() { sed -n "s/^ARG $1=//p" Dockerfile; }
say() { printf '==> %s\n' "$*"; }

base() { # NAME SUITE PACKAGES [ENV...]: a Debian file system, committed under NAME
    local name=docker.io/library/$1 suite=$2 packages=$3 root=$work/rootfs container entry
    shift 3
    if engine inspect --type image "$name" >/dev/null 2>&1; then
        say "base $name already exists"
        return
    fi
    say "base $name: debootstrap $suite with ${packages:-nothing more}"
    rm -rf "$root"
    debootstrap --variant=minbase ${packages:+--include="$packages"} "$suite" "$root" >"$work/debootstrap.log" 2>&1
    rm -rf "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/* "$root"/usr/share/doc "$root"/usr/share/man
    container=$(engine from scratch)
    engine add --quiet "$container" "$root" /
    for entry in "$@"; do engine config --env "$entry" "$container"; done
    engine commit --quiet "$container" "$name" >/dev/null
    engine rm "$container" >/dev/null
    rm -rf "$root"
}

toolchain=$(rustc --print sysroot)
crates=${CARGO_HOME:-$HOME/.cargo}
build_base=$(from BUILD_IMAGE)
runtime_base=$(from RUNTIME_IMAGE)
suite=$(sed -E 's/.*:([a-z]+)-slim(@.*)?$/\1/' <<<"$runtime_base")
# The build has no network, so the crates in the lock file are fetched beforehand.
cargo fetch --locked --quiet
base "$runtime_base" "$suite" ""
base "$build_base" "$suite" gcc,libc6-dev,ca-certificates \
    PATH=/usr/local/rust/bin:/usr/sbin:/usr/bin:/sbin:/bin CARGO_HOME=/usr/local/cargo CARGO_NET_OFFLINE=true

mounts=(--volume "$toolchain:/usr/local/rust:ro" --volume "$crates/registry:/usr/local/cargo/registry:rw")
[ ! -e "$crates/config.toml" ] || mounts+=(--volume "$crates/config.toml:/usr/local/cargo/config.toml:ro")
revision=$(git rev-parse HEAD 2>/dev/null || echo unknown)
version=$(release/set-version.py)
say "build with $(rustc --version)"
begin=$SECONDS
timeout "$limit" buildah --root "$work/storage" --runroot "$work/run" --storage-driver vfs bud \
    --pull-never --format docker "${mounts[@]}" \
    --build-arg VERSION="$version" --build-arg REVISION="$revision" --tag "$image" .
say "built in $((SECONDS - begin)) s"

container=$(engine from --pull-never "$image")
root=$(engine mount "$container")
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
pid=
finish() {
    # unshare ignores SIGTERM while it waits. Killing it ends everything in the pid namespace.
    [ -z "$pid" ] || kill -KILL "$pid" 2>/dev/null || true
    [ -z "$pid" ] || wait "$pid" 2>/dev/null || true
    engine rm "$container" >/dev/null
}
trap finish EXIT

# The image is run as specified by its own configuration.
config=$(engine inspect --type image "$image" | jq -c '.Docker.config')
user=$(jq -r '.User' <<<"$config")
mapfile -t environment < <(jq -r '.Env[]' <<<"$config")
mapfile -t entrypoint < <(jq -r '.Entrypoint[]' <<<"$config")
[ "${user%%:*}" -gt 0 ] || { echo "the image runs as root" >&2; exit 1; }

# The shell below expands its own arguments.
# shellcheck disable=SC2016
inside='
    set -eu
    root=$1 user=$2
    shift 2
    mount --bind "$root" "$root"
    mkdir -p "$root/proc" "$root/tmp"
    mount -t proc proc "$root/proc"
    mount -t tmpfs tmpfs "$root/tmp"
    mount -o remount,bind,ro "$root" "$root"
    ! touch "$root/written" 2>/dev/null || { echo "the root file system can be written" >&2; exit 1; }
    exec setpriv --no-new-privs chroot --userspec="$user" --groups="" "$root" /usr/bin/env -i "$@"'
unshare --mount --pid --fork --kill-child sh -c "$inside" inside "$root" "$user" \
    "${environment[@]}" "${entrypoint[@]}" --demo --web.listen-address="127.0.0.1:$port" >"$work/demo.log" 2>&1 &
pid=$!
end=$((SECONDS + 60))
until curl --silent --fail --max-time 5 "http://127.0.0.1:$port/readyz" >/dev/null; do
    kill -0 "$pid" 2>/dev/null && [ "$SECONDS" -lt "$end" ] || { cat "$work/demo.log" >&2; exit 1; }
    sleep 0.5
done
curl --silent --fail --max-time 5 "http://127.0.0.1:$port/metrics" >"$work/metrics"
grep -q '^gpu_memory_used_bytes{' "$work/metrics"
exporter=$(pgrep --parent "$pid")
say "runs as $(awk '/^Uid:|^Gid:|^CapEff:|^NoNewPrivs:/ { printf "%s %s  ", $1, $2 }' "/proc/$exporter/status")"
say "serves $(grep -vc '^#' "$work/metrics") series on a read-only root"
kill -TERM "$exporter"
status=0
wait "$pid" || status=$?
pid=
[ "$status" -eq 0 ] || { echo "exit code $status after SIGTERM" >&2; cat "$work/demo.log" >&2; exit 1; }
say "ends when asked to"

bytes() { engine inspect --type image "$1" >/dev/null && engine images --json "$1" | jq -r '.[0].size'; }
say "image $image: $(bytes "$image"), including the base $runtime_base: $(bytes "docker.io/library/$runtime_base")"
say "our file: $(cd "$root" && du --apparent-size --block-size=1 usr/bin/vram-exporter | awk '{ printf "%s %.1f MiB", $2, $1 / 1048576 }')"
