#!/usr/bin/env bash
# Holds the release program, stripped, to 8 MiB. Every page of it that is used stays in memory on every machine.
# usage: .ci/size.sh target/release/vram-exporter
set -euo pipefail

most=$((8 * 1024 * 1024))
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
