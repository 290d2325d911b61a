#!/bin/sh
# Stops and disables the service before the last version is removed, but not during an upgrade.
if [ "$1" -eq 0 ] && command -v systemctl >/dev/null; then
    systemctl --no-reload disable --now vram-exporter.service >/dev/null 2>&1 || true
fi
