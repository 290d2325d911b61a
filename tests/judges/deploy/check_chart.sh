#!/usr/bin/env bash
# Lints the chart strictly with each scenario's values, and shows that invalid values are refused with a message
# that gives the reason, and what memory.probes changes.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../../.."

chart=deploy/helm/vram-exporter
for values in "$chart"/ci/*-values.yaml; do
    helm lint --strict --quiet --values "$values" "$chart" || { echo "$values: helm lint" >&2; exit 1; }
done
echo "lint: $(find "$chart/ci" -name '*-values.yaml' | wc -l) scenarios"

refused() { # WORDS VALUE...: helm refuses the values with a message that contains WORDS
    local words=$1 said
    shift
    if said=$(helm template release "$chart" "$@" 2>&1); then
        echo "helm accepted $*" >&2
        exit 1
    fi
    if ! grep -qF -- "$words" <<<"$said"; then
        printf 'helm refused %s without mentioning "%s":\n%s\n' "$*" "$words" "$said" >&2
        exit 1
    fi
    echo "refused: $*"
}
refused "Additional property privileged is not allowed" --set privileged=true
refused "Additional property securityContext is not allowed" --set securityContext.privileged=true
refused "Additional property imagePullPolcy is not allowed" --set imagePullPolcy=Always
refused "image.pullPolicy" --set image.pullPolicy=Sometimes
refused "runtimeClassName: Invalid type" --set runtimeClassName=3
refused "kubernetes.apiAccess: Invalid type" --set-string kubernetes.apiAccess=yes
refused "kubernetes.podLabels.0: Does not match pattern" --set 'kubernetes.podLabels={a b}'
refused "needs kubernetes.apiAccess" --set 'kubernetes.podLabels={team}' --set kubernetes.apiAccess=false
refused "kubernetes.podResources.hostPath: Does not match pattern" --set kubernetes.podResources.hostPath=kubelet
refused 'set runtimeClassName to ""' --set driver.hostPath=/usr/lib/x86_64-linux-gnu
refused 'Property name of "web.listen-address" does not match' --set 'config.web\.listen-address=:1'
refused 'Property name of "kubernetes.api-server" does not match' --set 'config.kubernetes\.api-server=in-cluster'
refused "web.configSecret: Does not match pattern" --set web.configSecret=Not_A_Name
refused 'Property name of "port" does not match' --set podMonitor.endpoint.port=health
refused "otlp.endpoint: Does not match pattern" --set otlp.endpoint=otel-collector:4318
refused "otlp.headersSecret: Does not match pattern" --set otlp.endpoint=http://a:4318 --set otlp.headersSecret=Not_A_Name
refused "dcgm.names" --set dcgm.names=4.8
refused "dcgm.collectors.key: Does not match pattern" --set dcgm.collectors.key=../key
refused "config.memory: Invalid type" --set config.memory.rate=200
refused 'memory.probes must be one of the following: "none", "refusals", "all"' --set memory.probes=some
refused "memory.probes must be one of the following" --set memory.probes=true
refused "Additional property probe is not allowed" --set memory.probe=all
refused "set the value memory.probes" --set 'config.memory\.probes=all'
refused "maxUnavailable" --set maxUnavailable=0
refused "podMonitor.interval: Does not match pattern" --set podMonitor.interval=fast
refused "prometheusRule.runbook: Does not match pattern" --set prometheusRule.runbook=wiki
refused "prometheusRule.runbook: Does not match pattern" --set "prometheusRule.runbook=https://wiki.example.com/gpu#runbook"
refused "enable one of them" --set podMonitor.enabled=true --set serviceMonitor.enabled=true
refused "serviceMonitor.interval: Does not match pattern" --set serviceMonitor.interval=fast
refused "Additional property honourLabels is not allowed" --set serviceMonitor.honourLabels=true
refused "serviceMonitor.honorLabels: Invalid type" --set-string serviceMonitor.honorLabels=yes
refused 'Property name of "sampleLimit" does not match' --set podMonitor.spec.sampleLimit=1
for monitor in podMonitor serviceMonitor; do
    refused "$monitor.interval is 61s, longer than the peak window of 60s" --set $monitor.enabled=true --set $monitor.interval=61s
    refused "$monitor.interval is 1m, longer than the peak window of 30s" \
        --set $monitor.enabled=true --set $monitor.interval=1m --set 'config.memory\.peak-window=30s'
    refused "$monitor.scrapeTimeout is 20s, longer than $monitor.interval (15s)" --set $monitor.enabled=true --set $monitor.scrapeTimeout=20s
done
refused "config.otlp.interval is 2min, longer than the peak window of 90sec" --set otlp.endpoint=http://a:4318 \
    --set 'config.otlp\.interval=2min' --set 'config.memory\.peak-window=90sec'
refused "config.otlp.interval is 30s, longer than the peak window of 20s" --set otlp.endpoint=http://a:4318 --set 'config.memory\.peak-window=20s'
refused "web.scheme=https needs web.configSecret" --set web.scheme=https
refused "web.scheme" --set web.scheme=tls
refused "podLabels must not set app.kubernetes.io/name" --set 'podLabels.app\.kubernetes\.io/name=x'
refused "dashboards.labels" --set dashboards.enabled=true --set dashboards.labels.grafana_dashboard=1
refused "dashboards.namespace: Does not match pattern" --set dashboards.namespace=Grafana

# memory.probes changes the user, the variable and the capabilities, and nothing else.
rendered() { helm template release "$chart" "$@"; }
changed() { # VALUE...: the lines that the values remove and add
    diff <(rendered) <(rendered "$@") | sed -n 's/^\([<>]\) *\(- \)\?/\1 /p' || true
}
[ -z "$(changed --set memory.probes=none)" ] || { echo "memory.probes=none is not the default" >&2; exit 1; }
for value in refusals all; do
    expected="< runAsNonRoot: true
< runAsUser: 65534
< runAsGroup: 65534
> runAsNonRoot: false
> runAsUser: 0
> runAsGroup: 0
> name: VRAM_EXPORTER_MEMORY_PROBES
> value: $value
> add: [BPF, PERFMON, SYS_PTRACE]"
    diff <(echo "$expected") <(changed --set memory.probes=$value) || { echo "memory.probes=$value changes something else" >&2; exit 1; }
done
echo "memory.probes: nothing for none; uid 0, the variable and three capabilities for refusals and all"
