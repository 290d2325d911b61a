#!/bin/sh
# Creates the service's user. The first installation enables the service if the system's presets say so.
if ! getent passwd vram-exporter >/dev/null; then
    if command -v systemd-sysusers >/dev/null; then
        systemd-sysusers vram-exporter.conf || true
    elif command -v useradd >/dev/null; then
        useradd --system --user-group --home-dir / --no-create-home --shell /usr/sbin/nologin vram-exporter || true
    fi
fi
if command -v systemctl >/dev/null; then
    systemctl daemon-reload >/dev/null 2>&1 || true
    if [ "$1" -eq 1 ]; then systemctl preset vram-exporter.service >/dev/null 2>&1 || true; fi
fi
