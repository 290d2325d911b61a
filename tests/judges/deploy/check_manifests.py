"""Checks every rendered Kubernetes manifest against Kubernetes' schemas and the promises in the documentation.

Invariants: every promise is checked for each scenario in scenarios.py; a manifest contains nothing that its scenario did not choose.
"""

import argparse
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import kubernetes_validate
import yaml
from kubernetes_validate.utils import all_versions, major_minor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import scenarios
from harness import finish

# Kinds that are not part of Kubernetes itself. Any other kind without a schema is a mistake.
CUSTOM = {"PodMonitor", "ServiceMonitor", "PrometheusRule"}


# The ports of additional listeners.
PORTS = {"dcgm": 9400}
# Files of this repository that stand for those that a cluster mounts, by their variables.
MOUNTED = {
    "VRAM_EXPORTER_OTLP_HEADERS_FILE": "deploy/otlp-headers",
    "VRAM_EXPORTER_DCGM_COLLECTORS_FILE": "dcgm/counters.csv",
    "VRAM_EXPORTER_WEB_CONFIG_FILE": "deploy/web-config.yml",
}


def newest_versions(count):
    minors = list(dict.fromkeys(major_minor(version) for version in all_versions()))
    return minors[-count:]


def schema_problems(scenario, versions):
    for item in scenario.objects:
        if item["kind"] in CUSTOM:
            continue
        for version in versions:
            try:
                kubernetes_validate.validate(item, version, strict=True)
            except kubernetes_validate.ValidationError as error:
                yield f"{item['kind']} in Kubernetes {version}: {'.'.join(map(str, error.path))}: {error.message}"
            except kubernetes_validate.SchemaNotFoundError as error:
                yield f"{item['kind']} in Kubernetes {version}: {error.message}"


def empty_lists(value, path=""):
    """The API server stores no empty list, so each client-side apply would find a difference and report "configured"."""
    if value == []:
        yield f"an empty list: {path}"
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from empty_lists(inner, f"{path}.{key}".lstrip("."))


def pod_problems(scenario, pod):
    """Beyond the level "baseline" of Kubernetes' Pod Security Standards there are only hostPID, without which no other container's process
    would be visible, the chosen host paths and, with memory.probes, three capabilities: each of the level's other controls is about a
    field that has exactly one permitted value here, in `container_problems` or in `annotation_problems`."""
    namespaces = {key for key in ("hostPID", "hostIPC", "hostNetwork") if pod.get(key)}
    if namespaces != {"hostPID"}:
        yield f"host namespaces {sorted(namespaces)}, allowed and needed: hostPID"
    paths = {volume["hostPath"]["path"] for volume in pod.get("volumes", []) if "hostPath" in volume}
    if paths != scenario.host_paths:
        yield f"host paths {sorted(paths)}, chosen {sorted(scenario.host_paths)}"
    # No other volume than the chosen ones is mounted.
    others = [{key: volume[key] for key in volume if key != "name"} for volume in pod.get("volumes", []) if "hostPath" not in volume]
    if others != scenario.volumes:
        yield f"volumes {others}, chosen {scenario.volumes}"
    if pod.get("automountServiceAccountToken") is not scenario.api:
        yield f"the token is mounted: {pod.get('automountServiceAccountToken')}, API access: {scenario.api}"
    user = 0 if scenario.root else 65534
    promised = {"runAsNonRoot": not scenario.root, "runAsUser": user, "runAsGroup": user, "seccompProfile": {"type": "RuntimeDefault"}}
    context = {key: text for key, text in pod.get("securityContext", {}).items() if key != "supplementalGroups"}
    if context != promised:
        yield f"security context of the pod: {context}, expected {promised}"
    for container in pod["containers"] + pod.get("initContainers", []):
        yield from container_problems(scenario, container)


def container_problems(scenario, container):
    context = container.get("securityContext", {})
    promised = {
        "privileged": False,
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]} | ({"add": ["BPF", "PERFMON", "SYS_PTRACE"]} if scenario.probes != "none" else {}),
    }
    if context != promised:
        yield f"security context of the container: {context}"
    writable = {mount["mountPath"] for mount in container.get("volumeMounts", []) if not mount.get("readOnly")}
    if writable != scenario.writable:
        yield f"mounts that can be written: {sorted(writable)}, expected {sorted(scenario.writable)}"
    if container["image"] != scenario.image:
        yield f"image {container['image']}, expected {scenario.image}"
    probed = {container[probe]["httpGet"]["port"] for probe in ("startupProbe", "livenessProbe")}
    if probed != ({"health"} if scenario.secret else {"metrics"}):
        yield f"probes use the ports {probed}; a web-config secret was chosen: {scenario.secret is not None}"
    if any(port.keys() != {"name", "containerPort"} for port in container["ports"]):
        yield f"ports with more than a name and a number: {container['ports']}"
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    expected = {"metrics": 9836} | ({"health": 9837} if scenario.secret else {}) | {name: PORTS[name] for name in scenario.ports}
    if ports != expected:
        yield f"ports {ports}, expected {expected}"
    names = {entry["name"] for entry in container.get("env", [])}
    if len(names) != len(container.get("env", [])):
        yield "a variable is set twice"
    if scenario.environment - names:
        yield f"configuration that was not passed on: {sorted(scenario.environment - names)}"
    probes = [entry["value"] for entry in container.get("env", []) if entry["name"] == "VRAM_EXPORTER_MEMORY_PROBES"]
    if probes != [scenario.probes] * (scenario.probes != "none"):
        yield f"memory.probes {probes}, chosen {scenario.probes}"
    access = "VRAM_EXPORTER_KUBERNETES_API_SERVER"
    if (access in names) is not scenario.api:
        yield f"{access} is set: {access in names}, API access: {scenario.api}"


# Pods for owners; slices and claims for the GPUs of claims.
ACCESS = [
    {"apiGroups": [group], "resources": [resource], "verbs": verbs}
    for group, resource, verbs in (
        ("", "pods", ["list", "watch"]),
        ("resource.k8s.io", "resourceslices", ["list", "watch"]),
        ("resource.k8s.io", "resourceclaims", ["get"]),
    )
]


def access_problems(scenario):
    rules = [rule for item in scenario.objects if item["kind"] in ("ClusterRole", "Role") for rule in item["rules"]]
    promised = ACCESS if scenario.api else []
    if rules != promised:
        yield f"access rules {rules}"
    bindings = [item for item in scenario.objects if item["kind"].endswith("RoleBinding")]
    if len(bindings) != int(scenario.api):
        yield f"{len(bindings)} bindings"
    for item in scenario.objects:
        if item["kind"] == "ServiceAccount" and item.get("automountServiceAccountToken") is not False:
            yield "the account's token is mounted into every pod"
    names = {item["kind"]: item["metadata"]["name"] for item in scenario.objects}
    for binding in bindings:
        if binding["roleRef"]["name"] != names.get("ClusterRole"):
            yield "the binding names another role"
        if [subject["name"] for subject in binding["subjects"]] != [names.get("ServiceAccount")]:
            yield "the binding names another account"


def selected(selector, labels):
    return selector.items() <= labels.items()


def monitor_problems(scenario):
    """The chosen monitors, each of which finds exactly one port: of the pods, or of one Service that selects the pods."""
    kinds = [item["kind"] for item in scenario.objects if item["kind"].endswith("Monitor")]
    if {kind: kinds.count(kind) for kind in kinds} != scenario.monitors:
        yield f"monitors {kinds}, chosen {scenario.monitors}"
    template = next(item for item in scenario.objects if item["kind"] == "DaemonSet")["spec"]["template"]
    container_ports = [port["name"] for port in template["spec"]["containers"][0]["ports"]]
    services = [item for item in scenario.objects if item["kind"] == "Service"]
    for service in services:
        if not selected(service["spec"]["selector"], template["metadata"]["labels"]):
            yield f"the Service {service['metadata']['name']} selects no pod"
        missing = {port["targetPort"] for port in service["spec"]["ports"]} - set(container_ports)
        if missing:
            yield f"the Service {service['metadata']['name']} names ports that no container has: {sorted(missing)}"
    for item in scenario.objects:
        selector = item.get("spec", {}).get("selector", {}).get("matchLabels", {})
        if item["kind"] == "PodMonitor":
            [endpoint] = item["spec"]["podMetricsEndpoints"]
            found = [endpoint["port"]] if selected(selector, template["metadata"]["labels"]) else []
            found = [port for port in found if port in container_ports]
        elif item["kind"] == "ServiceMonitor":
            [endpoint] = item["spec"]["endpoints"]
            found = [
                port["targetPort"]
                for service in services
                if selected(selector, service["metadata"]["labels"])
                for port in service["spec"]["ports"]
                if port["name"] == endpoint["port"]
            ]
        else:
            continue
        if found != ["dcgm" if item["metadata"]["name"].endswith("-dcgm") else "metrics"]:
            yield f"{item['kind']} {item['metadata']['name']} finds the ports {found}"


def milliseconds(duration):
    units = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000}
    return sum(int(number) * units[unit] for number, unit in re.findall(r"([0-9]+)(ms|s|m|h)", duration))


# The values of a monitor that are fields of its spec under the same names.
SPEC = ("podTargetLabels", "targetLabels", "attachMetadata")


def chosen_monitor_problems(scenario):
    """Each monitor has what its values choose, and no interval in which a peak would be lost."""
    chosen = scenario.monitor
    for item in scenario.objects:
        if not item["kind"].endswith("Monitor"):
            continue
        metadata, spec = item["metadata"], item["spec"]
        name, dcgm = f"{item['kind']} {metadata['name']}", metadata["name"].endswith("-dcgm")
        [endpoint] = spec.get("podMetricsEndpoints", []) + spec.get("endpoints", [])
        if milliseconds(endpoint["interval"]) > milliseconds(scenario.window):
            yield f"{name}: the interval {endpoint['interval']} is longer than the peak window, {scenario.window}"
        if milliseconds(endpoint["scrapeTimeout"]) > milliseconds(endpoint["interval"]):
            yield f"{name}: the timeout {endpoint['scrapeTimeout']} is longer than the interval"
        labels = chosen.get("labels", {}) | chosen.get("additionalLabels", {})
        if not selected(labels, metadata["labels"]) or metadata.get("annotations", {}) != chosen.get("annotations", {}):
            yield f"{name}: labels {metadata['labels']}, annotations {metadata.get('annotations')}"
        elsewhere = chosen.get("namespace", metadata["namespace"])
        if metadata["namespace"] != elsewhere or (spec.get("namespaceSelector") == {"matchNames": ["gpu"]}) is not (elsewhere == "monitoring"):
            yield f"{name}: namespace {metadata['namespace']}, selects {spec.get('namespaceSelector')}"
        relabelings = chosen.get("relabelings", [])
        if relabelings != endpoint["relabelings"][len(endpoint["relabelings"]) - len(relabelings) :]:
            yield f"{name}: relabelings {endpoint['relabelings']}"
        fields = {key: chosen.get(key) for key in SPEC} | {"jobLabel": None if dcgm else chosen.get("jobLabel")} | chosen.get("spec", {})
        fields = {key: (wanted, spec.get(key)) for key, wanted in fields.items()}
        fields["metricRelabelings"] = (chosen.get("metricRelabelings"), endpoint.get("metricRelabelings"))
        fields["scheme"] = (chosen.get("endpoint", {}).get("scheme", scenario.scheme), endpoint.get("scheme", "http"))
        if not dcgm:
            fields["honorLabels"] = (chosen.get("honorLabels", False), endpoint["honorLabels"])
        for key in set(chosen.get("endpoint", {})) - {"scheme"}:
            fields[key] = (chosen["endpoint"][key], endpoint.get(key))
        yield from (f"{name}: {key} is {found}, chosen {wanted}" for key, (wanted, found) in fields.items() if found != wanted)


KUBECTL = "kubectl.kubernetes.io/default-container"


def annotation_problems(scenario):
    """Annotations name the port and the scheme of each listener, and the user's own replace the chart's."""
    for annotations, _ in scenario.pods():
        wanted = {KUBECTL: "vram-exporter"} | scenario.annotations
        found = {name: text for name, text in annotations.items() if name in wanted or name.startswith(("prometheus.io/", "container.apparmor."))}
        if found != wanted:
            yield f"annotations of the pods {found}, chosen {wanted}"
    found = [item["metadata"].get("annotations", {}) for item in scenario.objects if item["kind"] == "Service"]
    if [each for each in found if each] != [each for each in [scenario.service_annotations] if each]:
        yield f"annotations of the Services {found}, chosen {scenario.service_annotations}"


# The API server accepts at most 1 MiB of data in a ConfigMap. A client-side apply copies the object into an annotation, and all
# annotations together may have at most 256 KiB.
LARGEST_DATA = 1 << 20
LARGEST_ANNOTATIONS = 256 << 10


def dashboard_problems(scenario):
    """The chosen dashboards are those of grafana/dashboards, with the sidecar's label, in ConfigMaps that a cluster accepts."""
    wanted = {path.name: json.loads(path.read_text()) for path in (scenarios.ROOT / "grafana/dashboards").glob("*.json")}
    found = {}
    for item in scenario.objects:
        if item["kind"] != "ConfigMap":
            continue
        name = item["metadata"]["name"]
        found |= {key.removeprefix("vram-exporter-"): json.loads(text) for key, text in item["data"].items()}
        size = sum(len(key.encode()) + len(text.encode()) for key, text in item["data"].items())
        if size > LARGEST_DATA:
            yield f"the ConfigMap {name} has {size} bytes of data"
        if len(json.dumps(item, ensure_ascii=False).encode()) > LARGEST_ANNOTATIONS:
            yield f"the ConfigMap {name} is too large for a client-side apply"
        # The scenario with its own labels shows that the chart's values replace the defaults.
        labels, annotations = item["metadata"]["labels"], item["metadata"].get("annotations", {})
        own = scenario.name.endswith("service-monitor-dcgm-values.yaml")
        if (labels.get("dashboards") == "gpu") is not own or (own and item["metadata"]["namespace"] != "monitoring"):
            yield f"the ConfigMap {name} ignores the chart's values"
        if not own and (labels.get("grafana_dashboard") != "1" or annotations.get("grafana_folder") != "GPU memory"):
            yield f"the ConfigMap {name} has no label or folder for the sidecar"
    if found != (wanted if scenario.dashboards else {}):
        yield f"dashboards {sorted(found)}, chosen: {scenario.dashboards}"


def environments(scenario):
    """The configuration of each container, with invented values for those that a cluster would fill in."""
    for _, pod in scenario.pods():
        for container in pod["containers"]:
            yield {entry["name"]: entry.get("value", "node-1") for entry in container.get("env", [])}


def configuration_problems(scenario, exporter):
    known = set(re.findall(r"`(VRAM_EXPORTER_[A-Z_]+)`", (scenarios.ROOT / "docs/configuration.md").read_text()))
    for environment in environments(scenario):
        for name in sorted(set(environment) - known):
            yield f"{name} is not a key of docs/configuration.md"
        if exporter:
            cluster = {
                "KUBERNETES_SERVICE_HOST": "10.0.0.1",
                "KUBERNETES_SERVICE_PORT": "443",
                "PATH": os.environ["PATH"],
            }
            # The system's certificates stand for those that the cluster has.
            cluster |= {name: text for name, text in environment.items() if name != "VRAM_EXPORTER_OTLP_CA_FILE"}
            cluster |= {name: str(scenarios.ROOT / "tests/judges" / file) for name, file in MOUNTED.items() if name in environment}
            done = subprocess.run([exporter, "--check-config"], env=cluster, capture_output=True, text=True, timeout=30)
            if done.returncode != 0:
                yield f"--check-config: {(done.stdout + done.stderr).strip()}"


def version_problems():
    manifest = (scenarios.ROOT / "Cargo.toml").read_text()
    version = re.search(r'^version = "(.+)"', manifest, re.MULTILINE).group(1)
    chart = yaml.safe_load((scenarios.CHART / "Chart.yaml").read_text())
    images = yaml.safe_load((scenarios.KUSTOMIZE / "base/kustomization.yaml").read_text())["images"]
    versions = {"Chart.yaml's appVersion": chart["appVersion"], "kustomize's newTag": images[0]["newTag"]}
    return [f"{what} is {said}, Cargo.toml says {version}" for what, said in versions.items() if said != version]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--exporter", help="also let this binary check each manifest's configuration")
    exporter = parser.parse_args().exporter
    versions = newest_versions(3)
    found = version_problems()
    kustomizations = scenarios.kustomizations()
    if kustomizations is None:
        print("SKIPPED: neither kubectl nor kustomize is in PATH: deploy/kubernetes was not rendered")
    for scenario in (kustomizations or []) + list(scenarios.releases()):
        problems = [
            *schema_problems(scenario, versions),
            *access_problems(scenario),
            *monitor_problems(scenario),
            *chosen_monitor_problems(scenario),
            *annotation_problems(scenario),
            *dashboard_problems(scenario),
            *(f"{item['kind']}: {problem}" for item in scenario.objects for problem in empty_lists(item)),
            *configuration_problems(scenario, exporter),
        ]
        pods = list(scenario.pods())
        if len(pods) != 1:
            problems.append(f"{len(pods)} DaemonSets")
        for _, pod in pods:
            problems += pod_problems(scenario, pod)
        print(
            f"{'ok' if not problems else 'BAD'}  {scenario.name}: {', '.join(item['kind'] for item in scenario.objects)}"
        )
        found += [f"{scenario.name}: {problem}" for problem in problems]
    print(f"against Kubernetes {', '.join(versions)}; kinds without a schema: {', '.join(sorted(CUSTOM))}")
    return finish(found)


if __name__ == "__main__":
    sys.exit(main())
