#!/bin/sh
# Stops the service before its program is removed. During an upgrade it keeps running until the new version is there.
set -e

if [ "$1" = remove ] && [ -d /run/systemd/system ]; then
    deb-systemd-invoke stop vram-exporter.service >/dev/null || true
fi
