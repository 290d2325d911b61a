#!/usr/bin/env bash
# Runs the README's demo command and checks it as a visitor and Prometheus would see it: it is ready within a minute, its numbers
# change, its exposition is well-formed, it reports that the GPUs are simulated, and it exits on SIGTERM.
# usage: demo-smoke.sh [PROGRAM]   (runs the demo of PROGRAM instead of the README's command)
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cd "$here/.."
work=$(mktemp -d)
pid=
finish() {
    [ -z "$pid" ] || kill -KILL "$pid" 2>/dev/null || true
    rm -rf "$work"
}
trap finish EXIT
fail() {
    echo "demo: $*" >&2
    cat "$work/log" >&2
    exit 1
}

port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
if [ $# -gt 0 ]; then
    demo=("$1" --demo)
else
    read -r -a demo <<<"$("$here/readme-command.sh" 'cargo run')"
    # Compiled here, so that the limits below do not depend on how long that takes.
    cargo build
fi
# Cargo replaces itself with the exporter, so the pid of the started process is that of the exporter.
VRAM_EXPORTER_WEB_LISTEN_ADDRESS="127.0.0.1:$port" "${demo[@]}" >"$work/log" 2>&1 &
pid=$!

# wait_for WHAT COMMAND...: waits until COMMAND succeeds; fails after a minute, or as soon as the exporter has exited.
wait_for() {
    local what=$1 end=$((SECONDS + 60))
    shift
    until "$@"; do
        kill -0 "$pid" 2>/dev/null || fail "it ended before $what"
        [ "$SECONDS" -lt "$end" ] || fail "not within a minute: $what"
        sleep 0.5
    done
}
get() { curl --silent --fail --max-time 5 "http://127.0.0.1:$port$1"; }
ready() { get /readyz >/dev/null; }
used() { get /metrics | grep '^gpu_memory_used_bytes{'; }
moved() {
    local now
    now=$(used) && [ "$now" != "$first" ]
}

wait_for "it was ready" ready
grep -q "demo: the page is at http://127.0.0.1:$port " "$work/log" || fail "the log does not say where to look"
first=$(used) || fail "no gpu_memory_used_bytes"
wait_for "the numbers moved" moved

get /metrics >"$work/metrics"
grep -q '^gpu_info{.*simulated="true"' "$work/metrics" || fail "gpu_info does not say that the GPUs are simulated"
said=$(promtool check metrics <"$work/metrics" 2>&1) || fail "promtool: $said"
[ -z "$said" ] || fail "promtool: $said"
python3 "$here/check_exposition.py" "$work/metrics" || fail "the exposition is not well-formed"
# Written to a file: grep -q exits at the first match, which would break curl's pipe and count as a failure here.
get / >"$work/page"
grep -qi simulated "$work/page" || fail "the page does not say that the GPUs are simulated"
get /healthz >/dev/null || fail "not healthy"

kill -TERM "$pid"
status=0
wait "$pid" || status=$?
pid=
[ "$status" -eq 0 ] || fail "exit code $status after SIGTERM"
echo "demo: $(grep -vc '^#' "$work/metrics") series, $(printf '%s\n' "$first" | wc -l) GPUs"
