#!/usr/bin/env bash
# Checks that the stripped release program is at most 9.75 MiB and loads only the libraries that every program loads. Every used page of the
# program and of the libraries stays in memory on every machine. Half a MiB of the program is the simulator, which a run without --demo does
# not use.
# usage: .ci/size.sh target/release/vram-exporter
set -euo pipefail

most=$((39 * 256 * 1024))
program=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

strip --strip-all -o "$work/stripped" "$program"
bytes=$(stat --format=%s "$work/stripped")
echo "$program: $bytes bytes stripped, at most $most"
[ "$bytes" -le "$most" ] || {
    size --format=sysv "$work/stripped" | sort -k2 -n | tail -9
    exit 1
}

libraries=$(readelf --dynamic --wide "$program" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' | sort | tr '\n' ' ')
echo "$program: loads $libraries"
strange=$(tr ' ' '\n' <<<"$libraries" | grep -vxE '(libc|libgcc_s|ld-linux-[a-z0-9_-]+)\.so\.[0-9]+|' || true)
[ -z "$strange" ] || { echo "unexpected libraries: $strange" >&2; exit 1; }
