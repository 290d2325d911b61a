#!/bin/sh
# A Slurm task prolog: Slurm adds each variable that the script prints as `export NAME=VALUE` to the task's environment.
# On a node without an exporter, the script does nothing.
socket=${VRAM_EXPORTER_SOCKET:-/run/vram-exporter/allocator.sock}
if [ -S "$socket" ]; then
    echo "export VRAM_EXPORTER_ARM=1"
    echo "export VRAM_EXPORTER_SOCKET=$socket"
fi
