"""The possible variants of the Kubernetes manifests, each rendered by the real tool, and what each may contain.

The allowed content is derived from the choice (the list of components, the values file) and never from the rendered result.
"""

import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[3]
KUSTOMIZE = ROOT / "deploy/kubernetes"
CHART = ROOT / "deploy/helm/vram-exporter"


@dataclass
class Scenario:
    name: str
    api: bool
    root: bool
    host_paths: set
    # The value of memory.probes.
    probes: str = "none"
    writable: set = field(default_factory=set)
    environment: set = field(default_factory=set)
    secret: str | None = None
    # TLS keys and passwords come from a Secret, the list of fields from a ConfigMap, and headers and certificates for a push from one of each.
    volumes: list = field(default_factory=list)
    # The names of the ports, except those of the metrics and of the probes.
    ports: set = field(default_factory=set)
    image: str | None = None
    # The kinds and numbers of the objects that the choice adds to those of every scenario.
    monitors: dict = field(default_factory=dict)
    # The chart's values of these monitors, and the exporter's scheme and peak window as the values have them.
    monitor: dict = field(default_factory=dict)
    # The chart's values of the DCGM port.
    dcgm: dict = field(default_factory=dict)
    scheme: str = "http"
    window: str = "60s"
    # The annotations of the pods, except that of kubectl, and of the Service of the DCGM port.
    annotations: dict = field(default_factory=dict)
    service_annotations: dict = field(default_factory=dict)
    dashboards: bool = False
    # The addresses to which the alerts link.
    runbook: str | None = None
    grafana: str | None = None
    objects: list = field(default_factory=list)

    def pods(self):
        """The pod specs with their metadata, as (annotations, spec)."""
        for item in self.objects:
            if item["kind"] == "DaemonSet":
                template = item["spec"]["template"]
                yield template["metadata"].get("annotations", {}), template["spec"]


# The host paths that each component of deploy/kubernetes/components mounts.
BRINGS = {
    "allocator-socket": {"/run/vram-exporter"},
    "default-runtime": set(),
    "driver-hostpath": {"/usr/lib/x86_64-linux-gnu"},
    "grafana-dashboards": set(),
    "gke-device-injector": {"/home/kubernetes/bin/nvidia/lib64"},
    "host-users": {"/etc/passwd"},
    "memory-probes": set(),
    "pod-monitor": set(),
    "pod-resources": {"/var/lib/kubelet/pod-resources"},
    "prometheus-annotations": set(),
    "prometheus-rules": set(),
    "service-monitor": set(),
    "without-api": set(),
}


def scrape_annotations(scheme, port):
    return {f"prometheus.io/{name}": text for name, text in (("scrape", "true"), ("scheme", scheme), ("port", port), ("path", "/metrics"))}


class UniqueKeys(yaml.SafeLoader):
    """Refuses a mapping that has a key twice, of which PyYAML would silently take the last."""

    def construct_mapping(self, node, deep=False):
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        twice = sorted({str(key) for key in keys if keys.count(key) > 1})
        if twice:
            raise SystemExit(f"keys that are in an object twice: {', '.join(twice)}, {node.start_mark}")
        return super().construct_mapping(node, deep)


OVERLAYS = {"with-operator": ["pod-monitor"], "without-api": ["without-api"], "without-operator": []}


def run(*command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command))}: {done.stderr.strip()}")
    return [item for item in yaml.load_all(done.stdout, UniqueKeys) if item]


def kustomizations():
    """Every overlay, every component alone, and all compatible components together. None if kustomize is not installed."""
    tool = ["kubectl", "kustomize"] if shutil.which("kubectl") else ["kustomize", "build"]
    if not shutil.which(tool[0]):
        return None
    there = {path.name for path in (KUSTOMIZE / "components").iterdir()}
    if there != set(BRINGS):
        raise SystemExit(f"components without a test, or tests without a component: {there ^ set(BRINGS)}")
    if {path.name for path in (KUSTOMIZE / "overlays").iterdir()} != set(OVERLAYS):
        raise SystemExit("the overlays are not those that are tested")
    version = yaml.safe_load((KUSTOMIZE / "base/kustomization.yaml").read_text())["images"][0]["newTag"]

    def scenario(name, folder, components):
        return Scenario(
            name=f"kustomize: {name}",
            api="without-api" not in components,
            root=bool({"pod-resources", "allocator-socket", "memory-probes"} & set(components)),
            probes="refusals" if "memory-probes" in components else "none",
            writable={"/run/vram-exporter"} if "allocator-socket" in components else set(),
            host_paths=set().union(*(BRINGS[component] for component in components)),
            image=f"vram-exporter:{version}",
            monitors={
                kind: 1
                for kind, component in {"PodMonitor": "pod-monitor", "ServiceMonitor": "service-monitor"}.items()
                if component in components
            },
            annotations=scrape_annotations("http", "9836") if "prometheus-annotations" in components else {},
            dashboards="grafana-dashboards" in components,
            objects=run(*tool, folder),
        )

    found = [scenario("base", KUSTOMIZE / "base", [])]
    found += [
        scenario(f"overlay {name}", KUSTOMIZE / "overlays" / name, parts) for name, parts in sorted(OVERLAYS.items())
    ]
    sets = {component: [component] for component in BRINGS}
    sets["all with a host driver"] = sorted(set(BRINGS) - {"gke-device-injector", "default-runtime", "service-monitor"})
    sets["all with an injector"] = sorted(set(BRINGS) - {"driver-hostpath", "default-runtime", "without-api", "pod-monitor"})
    with tempfile.TemporaryDirectory() as folder:
        for name, components in sets.items():
            # kustomize accepts only relative paths.
            relative = os.path.relpath(KUSTOMIZE, os.path.realpath(folder))
            text = {"resources": [f"{relative}/base"], "components": [f"{relative}/components/{c}" for c in components]}
            Path(folder, "kustomization.yaml").write_text(yaml.safe_dump(text))
            found.append(scenario(f"components {name}", folder, components))
    return found


def volumes(secret, config_map):
    found = [{"secret": {"secretName": secret}}] if secret else []
    return found + ([{"configMap": {"name": config_map}}] if config_map else [])


def releases():
    """The chart with each of its ci/*-values.yaml."""
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    defaults = yaml.safe_load((CHART / "values.yaml").read_text())

    def value(values, *path):
        for place in (values, defaults):
            for key in path:
                place = place.get(key) if isinstance(place, dict) else None
            if place is not None:
                return place
        return None

    files = sorted((CHART / "ci").glob("*-values.yaml"))
    if len(files) < 6:
        raise SystemExit("scenarios of the chart are missing")
    for file in files:
        values = yaml.safe_load(file.read_text()) or {}
        paths = {value(values, "driver", "hostPath")} - {""}
        if value(values, "kubernetes", "podResources", "enabled"):
            paths.add(value(values, "kubernetes", "podResources", "hostPath"))
        socket = value(values, "allocator", "enabled")
        if socket:
            paths.add(value(values, "allocator", "hostPath"))
        if value(values, "hostUsers"):
            paths.add("/etc/passwd")
        scheme, annotated = value(values, "web", "scheme"), value(values, "prometheusAnnotations")
        dcgm = value(values, "dcgm", "enabled")
        own = scrape_annotations(scheme, "9836") if annotated else {}
        # The effect of all other values is checked against the expected output.
        named = {"VRAM_EXPORTER_" + key.upper().replace(".", "_").replace("-", "_") for key in values.get("config", {})}
        yield Scenario(
            name=f"helm: {file.name}",
            api=value(values, "kubernetes", "apiAccess"),
            root=value(values, "kubernetes", "podResources", "enabled") or socket or value(values, "memory", "probes") != "none",
            probes=value(values, "memory", "probes"),
            writable={"/run/vram-exporter"} if socket else set(),
            host_paths=paths,
            environment=named,
            secret=value(values, "web", "configSecret") or None,
            volumes=volumes(value(values, "web", "configSecret"), value(values, "dcgm", "collectors", "configMap"))
            + volumes(value(values, "otlp", "headersSecret"), value(values, "otlp", "caConfigMap")),
            ports={"dcgm"} if value(values, "dcgm", "enabled") else set(),
            monitors={
                kind: 2 if value(values, "dcgm", "enabled") else 1
                for kind, key in {"PodMonitor": "podMonitor", "ServiceMonitor": "serviceMonitor"}.items()
                if value(values, key, "enabled")
            },
            monitor=next((values[key] for key in ("podMonitor", "serviceMonitor") if value(values, key, "enabled")), {}),
            dcgm=values.get("dcgm", {}),
            scheme=scheme,
            window=values.get("config", {}).get("memory.peak-window", "60s"),
            annotations=own | values.get("podAnnotations", {}),
            service_annotations=scrape_annotations(scheme, "9400") if annotated and dcgm else {},
            dashboards=value(values, "dashboards", "enabled"),
            runbook=value(values, "prometheusRule", "runbook") or None,
            grafana=value(values, "prometheusRule", "grafana") or None,
            image=f"{value(values, 'image', 'repository')}:{value(values, 'image', 'tag') or chart['appVersion']}",
            objects=run("helm", "template", "release", CHART, "--namespace", "gpu", "--values", file),
        )
