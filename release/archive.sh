#!/usr/bin/env bash
# Writes FOLDER as a .tar.gz whose bytes depend only on its content and on SOURCE_DATE_EPOCH. Modes are reduced to "everybody may read",
# with the execute bit of each file, so the umask has no effect.
# usage: release/archive.sh FOLDER FILE.tar.gz
set -euo pipefail

folder=${1:?usage: archive.sh FOLDER FILE.tar.gz} file=${2:?}
tar --create --directory "$(dirname "$folder")" --sort=name --format=ustar --mtime="@${SOURCE_DATE_EPOCH:?}" \
    --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX "$(basename "$folder")" | gzip --no-name --best >"$file"
