#!/usr/bin/env bash
# Runs other exporters, unchanged, on the simulator and compares what they show with what the simulator reports.
#
#   peers.sh path/to/libnvml_sim.so
#
# Runs the peers found in PATH: nvitop-exporter, nvitop and all-smi. A missing one is reported as SKIPPED, or as a
# failure with VRAM_EXPORTER_TEST_REQUIRE_ALL=1. The simulated processes have the pids of real, sleeping ones, because
# peers look processes up in /proc.
set -euo pipefail

library=$(realpath -- "${1:?usage: peers.sh path/to/libnvml_sim.so}")
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
work=$(mktemp -d)
started=()

# Kills only what was started here; called by the trap.
# shellcheck disable=SC2329
finish() {
    for pid in "${started[@]}"; do
        kill "$pid" 2>/dev/null || true
        wait "$pid" 2>/dev/null || true
    done
    rm -rf -- "$work"
}
trap finish EXIT

sleepers=()
for _ in $(seq 16); do
    sleep 600 &
    started+=($!)
    sleepers+=($!)
done

mkdir "$work/lib" "$work/bin"
ln -s "$library" "$work/lib/libnvidia-ml.so.1"
# all-smi looks for GPUs on the PCI bus or with nvidia-smi before it opens NVML; the list of GPUs is all that it needs from nvidia-smi.
cat > "$work/bin/nvidia-smi" <<'SMI'
#!/bin/sh
echo "GPU 0: NVIDIA H200 (UUID: GPU-simulated)"
SMI
chmod +x "$work/bin/nvidia-smi"

compare() { python3 "$here/peers_compare.py" "$@"; }

compare scenario "$here/scenarios/busy-h200.toml" "${sleepers[@]}" > "$work/busy.toml"
NVML_SIM_SCENARIO="$work/busy.toml"
NVML_SIM_EPOCH=$(date +%s.%N)
export NVML_SIM_SCENARIO NVML_SIM_EPOCH
compare expect "$library" > "$work/expected.json"

result=0

missing() {
    if [[ "${VRAM_EXPORTER_TEST_REQUIRE_ALL:-}" == 1 ]]; then
        echo "FAILED: $1 is required and not in PATH"
        result=1
    else
        echo "SKIPPED: $1 is not in PATH"
    fi
}

# Scrapes the peer until it shows a GPU and its figures agree with the simulator's, for half a minute at most.
hold() {
    local peer=$1
    shift
    for _ in $(seq 60); do
        if curl -sf "$@" > "$work/$peer.prom" &&
            compare agree "$peer" "$work/expected.json" "$work/$peer.prom" > "$work/$peer.said" 2>&1; then
            cat "$work/$peer.said"
            return
        fi
        sleep 0.5
    done
    echo "FAILED: $peer does not show what the simulator reports"
    cat "$work/$peer.said" 2>/dev/null || echo "no scrape succeeded"
    tail -n 5 "$work/$peer.log"
    result=1
}

if command -v nvitop-exporter > /dev/null; then
    port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
    LD_LIBRARY_PATH="$work/lib" nvitop-exporter --bind-address 127.0.0.1 --port "$port" > "$work/nvitop.log" 2>&1 &
    started+=($!)
    hold nvitop "http://127.0.0.1:$port/metrics"
else
    missing nvitop-exporter
fi

if command -v all-smi > /dev/null; then
    # all-smi can listen only on all interfaces or on a socket file. The socket file is in this run's folder.
    PATH="$work/bin:$PATH" LD_LIBRARY_PATH="$work/lib" all-smi api --port 0 --socket "$work/all-smi.sock" \
        --processes --interval 1 > "$work/all-smi.log" 2>&1 &
    started+=($!)
    hold all-smi --unix-socket "$work/all-smi.sock" http://localhost/metrics
else
    missing all-smi
fi

# The output of nvitop for a GPU with MIG devices ends with an error if one of them lacks a value.
if command -v nvitop > /dev/null; then
    shown=$(LD_LIBRARY_PATH="$work/lib" NVML_SIM_SCENARIO=mig-h100 nvitop -1 2>&1) || true
    if [[ $(grep -c 'GI/CI.*BAR1: *[0-9]' <<< "$shown") == 7 ]]; then
        echo "nvitop: seven MIG devices with their BAR1"
    else
        echo "FAILED: nvitop does not show the MIG devices"
        tail -n 5 <<< "$shown"
        result=1
    fi
else
    missing nvitop
fi

exit "$result"
