#!/bin/sh
# A Slurm task prolog: what it prints as `export NAME=VALUE` becomes the environment of the task. Does nothing on a node
# without an exporter.
socket=${VRAM_EXPORTER_SOCKET:-/run/vram-exporter/allocator.sock}
if [ -S "$socket" ]; then
    echo "export VRAM_EXPORTER_ARM=1"
    echo "export VRAM_EXPORTER_SOCKET=$socket"
fi
