#!/bin/sh
# A purge also forgets whether the unit was enabled. The user stays: its number must not be given to another user that would then own its
# files.
set -e

if [ -d /run/systemd/system ]; then
    systemctl --system daemon-reload >/dev/null || true
fi
if [ "$1" = purge ] && command -v deb-systemd-helper >/dev/null; then
    deb-systemd-helper purge vram-exporter.service >/dev/null || true
fi
