#!/usr/bin/env bash
# Runs in the namespace of try.sh: executes COMMANDS, which start the exporter and a Prometheus, in ROOT/release, and waits until the
# Prometheus has the metrics and has evaluated the rules.
# usage: prometheus.sh ROOT COMMANDS
set -euo pipefail

root=$1 commands=$2
get() { curl --silent --fail --max-time 20 --get "http://127.0.0.1:9090/api/v1/$1" "${@:2}"; }
chroot "$root" /usr/bin/env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin bash -euc "cd /release; $commands"$'\n''wait' &
pid=$!
end=$((SECONDS + 300))
until [ "$(get query --data-urlencode 'query=count(gpu_memory_window_peak_bytes)' | jq '.data.result | length')" = 1 ]; do
    kill -0 "$pid" 2>/dev/null || { echo "the commands have ended"; exit 1; }
    [ "$SECONDS" -lt "$end" ] || { echo "no metrics within five minutes"; exit 1; }
    sleep 0.5
done
gpus=$(get query --data-urlencode 'query=count(gpu_memory_window_peak_bytes)' | jq -r '.data.result[0].value[1]')
rules=$(get rules | jq '[.data.groups[].rules[]] | length')
bad=$(get rules | jq '[.data.groups[].rules[] | select(.health == "err")] | length')
[ "$rules" -gt 0 ] || { echo "no rules"; exit 1; }
[ "$bad" -eq 0 ] || { echo "$bad rules failed"; exit 1; }
kill -KILL "$pid"
# Otherwise the shell's message about the killed process follows the result.
wait "$pid" 2>/dev/null || true
echo "Prometheus has the peaks of $gpus simulated GPUs and $rules rules"
