#!/bin/sh
# Called by mmdebstrap before it unpacks the packages into ROOT: records the control data of each in var/lib/dpkg/status.d, except of the
# ones whose files the image leaves out.
# usage: release/image-packages.sh ROOT
set -eu

mkdir -p "$1/var/lib/dpkg/status.d"
for package in "$1"/var/cache/apt/archives/*.deb; do
    name=$(dpkg-deb --field "$package" Package)
    [ "$name" = mawk ] || dpkg-deb --field "$package" >"$1/var/lib/dpkg/status.d/$name"
done
