#!/usr/bin/env bash
# Prints the one command in the README that begins with the given text, so that the tests run the command as documented.
set -euo pipefail

start=${1:?usage: readme-command.sh START}
readme=$(dirname "${BASH_SOURCE[0]}")/../README.md
mapfile -t found < <(grep -- "^$start" "$readme")
if [ "${#found[@]}" -ne 1 ]; then
    echo "README.md has ${#found[@]} commands that begin with '$start', one is expected" >&2
    exit 1
fi
echo "${found[0]}"
