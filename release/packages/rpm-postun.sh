#!/bin/sh
# Restarts the service after an upgrade if it is running.
if command -v systemctl >/dev/null; then
    systemctl daemon-reload >/dev/null 2>&1 || true
    if [ "$1" -ge 1 ]; then systemctl try-restart vram-exporter.service >/dev/null 2>&1 || true; fi
fi
