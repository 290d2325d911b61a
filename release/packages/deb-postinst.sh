#!/bin/sh
# Creates the service's user. Starts the service after an installation, and restarts it after an upgrade; an administrator's decision to
# disable or mask it is kept.
set -e

unit=vram-exporter.service
case "$1" in
    configure | abort-upgrade | abort-remove | abort-deconfigure) ;;
    *) exit 0 ;;
esac

if ! getent passwd vram-exporter >/dev/null; then
    if command -v systemd-sysusers >/dev/null; then
        systemd-sysusers vram-exporter.conf
    else
        useradd --system --user-group --home-dir / --no-create-home --shell /usr/sbin/nologin vram-exporter
    fi
fi

if command -v deb-systemd-helper >/dev/null; then
    # The first installation, or an installation after a removal, enables the unit.
    if deb-systemd-helper --quiet was-enabled "$unit"; then
        deb-systemd-helper enable "$unit" >/dev/null || true
    else
        deb-systemd-helper update-state "$unit" >/dev/null || true
    fi
fi
if [ -d /run/systemd/system ]; then
    systemctl --system daemon-reload >/dev/null || true
    # Starts a service only if policy-rc.d and the unit's state permit it.
    if [ -n "$2" ]; then action=restart; else action=start; fi
    deb-systemd-invoke "$action" "$unit" >/dev/null || true
fi
