#!/usr/bin/env bash
# Builds the collectors that compare.py runs, from their published Go modules, into FOLDER.
# usage: build.sh FOLDER [PROGRAM…]   (prometheus promtool otelcol victoria-metrics vmagent telegraf; default: these. Also: vmalert thanos,
# which the judge `fleet` runs)
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
out=$(mkdir -p "${1:?usage: build.sh FOLDER [COLLECTOR…]}" && cd "$1" && pwd)
shift
[ $# -gt 0 ] || set -- prometheus promtool otelcol victoria-metrics vmagent telegraf
export CGO_ENABLED=0 GOFLAGS="-buildvcs=false ${GOFLAGS:-}" GOWORK=off

prometheus=0.315.1 victoria=1.151.0 telegraf=1.37.2 otelcol=0.165.0 thanos=0.42.4

# The sources of MODULE@VERSION in a folder of their own: `go install MODULE@VERSION` refuses a module that replaces or excludes others.
sources() { # NAME MODULE VERSION
    local folder=$out/src/$1-$3
    if [ ! -d "$folder" ]; then
        local from
        from=$(go mod download -json "$2@v$3" | python3 -c 'import json, sys; print(json.load(sys.stdin)["Dir"])')
        mkdir -p "$out/src"
        cp -r "$from" "$folder.new"
        chmod -R u+w "$folder.new"
        mv "$folder.new" "$folder"
    fi
    cd "$folder"
}

for name in "$@"; do
    case $name in
    prometheus | promtool)
        sources prometheus github.com/prometheus/prometheus "$prometheus"
        go build -mod=mod -trimpath -tags remove_all_sd,enable_kubernetes_sd -o "$out/$([ "$name" = promtool ] && echo promtool3 || echo prometheus3)" \
            -ldflags "-s -w -X github.com/prometheus/common/version.Version=3.${prometheus:3}" "./cmd/$name"
        ;;
    victoria-metrics | vmagent | vmalert)
        sources victoriametrics github.com/VictoriaMetrics/VictoriaMetrics "$victoria"
        go build -mod=mod -trimpath -o "$out/$name" -ldflags "-s -w -X github.com/VictoriaMetrics/VictoriaMetrics/lib/buildinfo.Version=$name-v$victoria" "./app/$name"
        ;;
    telegraf)
        sources telegraf github.com/influxdata/telegraf "$telegraf"
        go build -mod=mod -trimpath -tags custom,inputs.prometheus,outputs.file,parsers.prometheus,serializers.influx,serializers.prometheus \
            -ldflags "-s -w -X github.com/influxdata/telegraf/internal.Version=$telegraf" -o "$out/telegraf" ./cmd/telegraf
        ;;
    thanos)
        sources thanos github.com/thanos-io/thanos "$thanos"
        # Its labels are slices in memory, on which its gRPC messages rely; without the tag, the receiver panics at the first request.
        go build -mod=mod -trimpath -tags slicelabels -ldflags "-s -w -X github.com/prometheus/common/version.Version=$thanos" -o "$out/thanos" ./cmd/thanos
        ;;
    otelcol)
        GOBIN=$out/bin go install "go.opentelemetry.io/collector/cmd/builder@v$otelcol"
        mkdir -p "$out/src/otelcol"
        cd "$out/src/otelcol"
        sed "s#^  version: .*#&\n  output_path: $out/src/otelcol#" "$here/otelcol.yaml" >"$out/src/otelcol.yaml"
        "$out/bin/builder" --config "$out/src/otelcol.yaml" --skip-compilation
        go build -trimpath -tags remove_all_sd -ldflags "-s -w" -o "$out/otelcol" .
        ;;
    *)
        echo "unknown collector: $name" >&2
        exit 2
        ;;
    esac
done
