#!/usr/bin/env bash
# Provides TOOLS/FOLDER, an environment for Python with the packages in LIST. It is rebuilt if the list has changed.
# usage: environment.sh TOOLS FOLDER LIST
set -euo pipefail

tools=$1 folder=$2 list=$3
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cmp -s "$here/$list" "$tools/$folder/$list" && exit
rm -rf "${tools:?}/$folder"
python3 -m venv "$tools/$folder"
"$tools/$folder/bin/pip" install --quiet --disable-pip-version-check -r "$here/$list"
cp "$here/$list" "$tools/$folder/$list"
