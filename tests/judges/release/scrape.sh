#!/usr/bin/env bash
# Runs in the namespace of try.sh: starts COMMAND, an exporter with --demo, waits until it is ready, checks a scrape, and ends it.
# usage: scrape.sh COMMAND...
set -euo pipefail

log=$(mktemp)
"$@" >"$log" 2>&1 &
pid=$!
fail() { echo "$*"; cat "$log"; kill -KILL "$pid" 2>/dev/null || true; exit 1; }
get() { curl --silent --fail --max-time 20 "http://127.0.0.1:9836$1"; }

end=$((SECONDS + 120))
until get /readyz >/dev/null; do
    kill -0 "$pid" 2>/dev/null || fail "it ended before it was ready"
    [ "$SECONDS" -lt "$end" ] || fail "not ready within two minutes"
    sleep 0.2
done
metrics=$(get /metrics)
grep -q '^gpu_info{.*simulated="true"' <<<"$metrics" || fail "gpu_info does not say that the GPUs are simulated"
gpus=$(grep -c '^gpu_memory_used_bytes{' <<<"$metrics")
[ "$gpus" -gt 0 ] || fail "no GPU"
kill -TERM "$pid"
status=0
wait "$pid" || status=$?
[ "$status" -eq 0 ] || fail "exit code $status after SIGTERM"
rm -f "$log"
echo "$(grep -vc '^#' <<<"$metrics") series of $gpus simulated GPUs"
