"""Shows with Prometheus' own relabelling that no target label of the shipped scrape configurations collides with one of the
exporter's labels. The labels `namespace`, `pod` and `container` of its series therefore identify the pod that holds the memory."""

import json
import re
import sys
from pathlib import Path

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import scenarios
from harness import finish, names
from harness.promtool import problems, promtool, written

FOLDER = scenarios.ROOT / "deploy/prometheus"
# One pod of the DaemonSet, as Prometheus discovers it.
DISCOVERED = {
    "__meta_kubernetes_namespace": "vram-exporter",
    "__meta_kubernetes_pod_name": "vram-exporter-x2x4z",
    "__meta_kubernetes_pod_container_name": "vram-exporter",
    "__meta_kubernetes_pod_container_port_name": "metrics",
    "__meta_kubernetes_pod_node_name": "gpu-node-1",
    "__meta_kubernetes_pod_phase": "Running",
    "__meta_kubernetes_pod_label_app_kubernetes_io_name": "vram-exporter",
    "__meta_kubernetes_service_name": "vram-exporter",
}
# The relabelings that the Prometheus operator puts before those of a PodMonitor.
OPERATOR = [
    {"source_labels": ["__meta_kubernetes_namespace"], "target_label": "namespace"},
    {"source_labels": ["__meta_kubernetes_pod_container_name"], "target_label": "container"},
    {"source_labels": ["__meta_kubernetes_pod_name"], "target_label": "pod"},
    {"target_label": "job", "replacement": "vram-exporter/vram-exporter"},
    {"target_label": "endpoint", "replacement": "metrics"},
]
# Those that it puts before the relabelings of a ServiceMonitor without a jobLabel.
OPERATOR_SERVICE = [
    {"source_labels": ["__meta_kubernetes_namespace"], "target_label": "namespace"},
    {"source_labels": ["__meta_kubernetes_service_name"], "target_label": "service"},
    {"source_labels": ["__meta_kubernetes_pod_name"], "target_label": "pod"},
    {"source_labels": ["__meta_kubernetes_pod_container_name"], "target_label": "container"},
    {"source_labels": ["__meta_kubernetes_service_name"], "target_label": "job"},
    {"target_label": "endpoint", "replacement": "metrics"},
]
MONITORS = {"PodMonitor": ("podMetricsEndpoints", OPERATOR), "ServiceMonitor": ("endpoints", OPERATOR_SERVICE)}


def target_labels(job, relabelings):
    """The labels that Prometheus gives to the target, determined by promtool."""
    static = [{"targets": ["10.1.2.3:9836"], "labels": DISCOVERED}]
    text = {"scrape_configs": [{"job_name": job, "static_configs": static, "relabel_configs": relabelings}]}
    with written(text) as file:
        # promtool waits this long for discovery, which a static target does not need.
        found = json.loads(promtool("check", "service-discovery", file, job, "--timeout=1s")[1])
    if len(found) != 1 or not found[0].get("labels"):
        raise SystemExit(f"{job}: the pod is not a target: {found}")
    return {name: value for name, value in found[0]["labels"].items() if not name.startswith("__")}


def snake(relabeling):
    return {
        re.sub("[A-Z]", lambda letter: "_" + letter.group().lower(), key): value for key, value in relabeling.items()
    }


def jobs():
    """Name, target labels, honor_labels and what it must be, of each way to scrape the exporter in a cluster."""
    config = yaml.safe_load((FOLDER / "kubernetes.yml").read_text())
    [job] = config["scrape_configs"]
    [discovery] = job["kubernetes_sd_configs"]
    if discovery["role"] != "pod":
        raise SystemExit("kubernetes.yml: the labels below are those of the role pod")
    yield "kubernetes.yml", target_labels(job["job_name"], job["relabel_configs"]), job["honor_labels"], False
    everything = (scenarios.kustomizations() or []) + list(scenarios.releases())
    for scenario in everything:
        for item, endpoint, before in monitors(scenario):
            if not item["metadata"]["name"].endswith("-dcgm"):
                relabelings = before + [snake(entry) for entry in endpoint["relabelings"]]
                labels = target_labels("monitor", relabelings)
                yield f"{scenario.name}, {item['kind']}", labels, endpoint["honorLabels"], scenario.monitor.get("honorLabels", False)


def monitors(scenario):
    """Each monitor with its endpoint and the operator's own relabelings."""
    for item in scenario.objects:
        if item["kind"] in MONITORS:
            key, before = MONITORS[item["kind"]]
            [endpoint] = item["spec"][key]
            yield item, endpoint, before


def dcgm_problems():
    """The monitor of dcgm-exporter's families adds the labels of the scraped pod, so that Prometheus renames the exporter's labels as
    it does with dcgm-exporter's own monitor."""
    kinds = set()
    for scenario in scenarios.releases():
        for item, endpoint, before in monitors(scenario):
            if not item["metadata"]["name"].endswith("-dcgm"):
                continue
            kinds.add(item["kind"])
            labels = target_labels("dcgm", before + [snake(entry) for entry in endpoint["relabelings"]])
            print(f"{scenario.name}, {item['kind']} of dcgm-exporter's families: {labels}")
            if not {"namespace", "pod", "container"} <= set(labels) or labels.get("instance") != "gpu-node-1":
                yield f"{scenario.name}: labels of the monitor of dcgm-exporter's families: {labels}"
            named, honored = scenario.dcgm.get("job") == "dcgm-exporter", scenario.dcgm.get("honorLabels", False)
            if (labels["job"] == "dcgm-exporter") is not named or endpoint["honorLabels"] is not honored:
                yield f"{scenario.name}: job {labels['job']}, honorLabels {endpoint['honorLabels']}"
    if kinds != set(MONITORS):
        yield f"monitors of dcgm-exporter's families: only {sorted(kinds)}"


def static_problems():
    """Checks the plain files with promtool, without the block that Debian's promtool does not support."""
    for file in sorted([*FOLDER.glob("*.yml"), *FOLDER.glob("fleet/*.yml")]):
        config = yaml.safe_load(file.read_text())
        for job in config["scrape_configs"]:
            if job.pop("kubernetes_sd_configs", None):
                job["static_configs"] = [{"targets": ["10.1.2.3:9836"]}]
        with written(config) as checked:
            yield from problems("check", "config", checked)
    plain, demo, cluster = (
        yaml.safe_load((FOLDER / name).read_text())["scrape_configs"][0]
        for name in ("scrape.yml", "compose.yml", "kubernetes.yml")
    )
    for job in (plain, demo, cluster):
        for key in ("static_configs", "kubernetes_sd_configs", "relabel_configs"):
            job.pop(key, None)
    if not plain == demo == cluster:
        yield "the jobs of scrape.yml, compose.yml and kubernetes.yml differ in more than their targets"


def main():
    own = names.documented()[1] | {"gpu", "uuid", "process", "namespace", "pod", "container", "workload", "kind"}
    found = [*static_problems(), *dcgm_problems()]
    shapes = set()
    for name, labels, honor, wanted in jobs():
        print(f"{name}: {labels}")
        if "Monitor" in name:
            shapes.add(frozenset(labels))
        collisions = own & set(labels)
        if collisions:
            found.append(f"{name}: {sorted(collisions)} would be renamed to exported_…")
        if labels.get("instance") != "gpu-node-1" or labels.get("node") != "gpu-node-1":
            found.append(f"{name}: instance and node are not the node's name")
        if honor is not wanted:
            found.append(f"{name}: honor_labels is {honor}, not {wanted}")
    if len(shapes) != 1:
        found.append(f"PodMonitor and ServiceMonitor give different labels: {sorted(map(sorted, shapes))}")
    return finish(found)


if __name__ == "__main__":
    sys.exit(main())
