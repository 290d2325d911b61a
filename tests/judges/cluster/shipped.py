"""Applies everything that is shipped for Kubernetes to a real API server, server-side and with strict validation.

Invariants: the expected Pod Security findings follow from the choice of a scenario, and never from the rendered manifests. A scenario leaves
nothing but its namespace behind.
"""

import re
import sys

import yaml

from server import Refused, until

import scenarios  # in ../deploy; check.py extends the path

AUTOSCALING = scenarios.ROOT / "deploy/autoscaling"
MANAGER = "fieldManager=shipped&fieldValidation=Strict&force=true"
PATCH = "application/apply-patch+yaml"
LEVELS = ("baseline", "restricted")
# The kinds of other projects for which something is shipped.
CUSTOM = {"PodMonitor", "PrometheusRule", "ScaledObject", "ServiceMonitor"}


class Api:
    """Applies and deletes objects of every kind."""

    def __init__(self, cluster):
        self.cluster, self.kinds = cluster, {}

    def path(self, item):
        version, kind = item["apiVersion"], item["kind"]
        prefix = f"/apis/{version}" if "/" in version else f"/api/{version}"
        if (version, kind) not in self.kinds:
            for resource in self.cluster.ask("GET", prefix)["resources"]:
                if "/" not in resource["name"]:
                    self.kinds[version, resource["kind"]] = resource["name"], resource["namespaced"]
        plural, namespaced = self.kinds[version, kind]
        namespace = f"/namespaces/{item['metadata']['namespace']}" if namespaced else ""
        return f"{prefix}{namespace}/{plural}/{item['metadata']['name']}"

    def apply(self, item, dry=False):
        """The stored object, and the warnings."""
        return self.cluster.send("PATCH", f"{self.path(item)}?{MANAGER}{'&dryRun=All' if dry else ''}", item, PATCH)

    def delete(self, item):
        self.cluster.ask("DELETE", f"{self.path(item)}?propagationPolicy=Background")

    def exists(self, item):
        try:
            return bool(self.cluster.ask("GET", self.path(item)))
        except Refused as refused:
            if refused.code != 404:
                raise
            return False


def level_of(mode, level):
    return f"{mode}-{level}"


def findings(text):
    """The findings in a warning or a refusal of Pod Security, without their details, and the volumes that it names."""
    text = text.replace('\\"', '"')
    found = re.search(r'violates? PodSecurity "[a-z]+:latest": ((?:[^",(]|\([^()]*\)|, )*)', text)
    if not found:
        return None
    volumes = re.search(r"(?:hostPath volumes|restricted volume types) \(([^()]*)\)", found[1])
    named = set(re.findall('"([^"]+)"', volumes[1])) - {"hostPath"} if volumes else set()
    return set(re.sub(r" \([^()]*\)", "", found[1]).split(", ")), named


def expected_findings(scenario, level):
    """What docs/deploy/kubernetes.md documents: hostPID always, hostPath with a host folder, uid 0 with three of the components, and
    capabilities with one."""
    found = {"host namespaces"}
    if scenario.host_paths:
        found.add("hostPath volumes" if level == "baseline" else "restricted volume types")
    if level == "restricted" and scenario.root:
        found |= {"runAsNonRoot != true", "runAsUser=0"}
    if scenario.probes != "none":
        found.add("non-default capabilities" if level == "baseline" else "unrestricted capabilities")
    return found


def prepare(cluster, crds):
    """Creates the custom resource definitions, the namespaces, and what a pod refers to."""
    api = Api(cluster)
    created = []
    for file in sorted(crds.glob("*.yaml")):
        for item in yaml.safe_load_all(file.read_text()):
            api.apply(item)
            created.append(item)

    def established(item):
        conditions = cluster.ask("GET", api.path(item)).get("status", {}).get("conditions", [])
        return any(condition["type"] == "Established" and condition["status"] == "True" for condition in conditions)

    for item in created:
        until(f"{item['metadata']['name']} is established", lambda item=item: established(item))
    known = {item["spec"]["names"]["kind"] for item in created}
    if CUSTOM - known:
        raise SystemExit(f"no definition of {sorted(CUSTOM - known)} in {crds}")
    metadata = {"name": "nvidia"}
    cluster.ask("POST", "/apis/node.k8s.io/v1/runtimeclasses", {"metadata": metadata, "handler": "nvidia"})
    for level in LEVELS:
        cluster.create_namespace(level_of("warn", level), enforce="privileged", warn=level)
        cluster.create_namespace(level_of("enforce", level), enforce=level)
    return api


def pod_of(daemon_set, namespace):
    template = daemon_set["spec"]["template"]
    metadata = {"name": "one", "namespace": namespace} | {
        key: template["metadata"][key] for key in ("labels", "annotations") if key in template["metadata"]
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}


def pod_security_problems(api, scenario, daemon_set):
    """The warnings about the DaemonSet, and which pods of it are admitted, at each level."""
    cluster = api.cluster
    volumes = {volume["name"] for volume in daemon_set["spec"]["template"]["spec"].get("volumes", []) if "hostPath" in volume}
    account = daemon_set["spec"]["template"]["spec"]["serviceAccountName"]
    for level in LEVELS:
        expected = expected_findings(scenario, level), volumes
        namespace = level_of("warn", level)
        moved = daemon_set | {"metadata": daemon_set["metadata"] | {"namespace": namespace}}
        warnings = api.apply(moved, dry=True)[1]
        if [findings(warning) for warning in warnings] != [expected]:
            yield f"warnings at the level {level}: {warnings}, expected {expected}"
        namespace = level_of("enforce", level)
        ensure_account(api, namespace, account)
        try:
            create(cluster, pod_of(daemon_set, namespace))
            yield f"a pod is admitted at the level {level}"
        except Refused as refused:
            if refused.code != 403 or findings(refused.text) != expected:
                yield f"refused at the level {level}: {refused}, expected {expected}"
    try:
        create(cluster, pod_of(daemon_set, daemon_set["metadata"]["namespace"]))
    except Refused as refused:
        yield f"a pod is not admitted in the labelled namespace: {refused}"


def ensure_account(api, namespace, name):
    item = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": namespace}}
    if not api.exists(item):
        api.apply(item)


def create(cluster, pod):
    return cluster.ask("POST", f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods?dryRun=All&fieldValidation=Strict", pod)


def apply_twice(api, objects):
    """Applies the objects, and again. Yields what is refused, warned about or changed by the second time."""
    versions = []
    for again in (False, True):
        for n, item in enumerate(objects):
            name = f"{item['kind']} {item['metadata']['name']}"
            try:
                stored, warnings = api.apply(item)
            except Refused as refused:
                yield f"{name}: {refused}"
                return
            for warning in warnings:
                yield f"{name}: warning: {warning}"
            if not again:
                versions.append(stored["metadata"]["resourceVersion"])
            elif stored["metadata"]["resourceVersion"] != versions[n]:
                yield f"{name}: changed when it was applied again"


def remove(api, objects):
    for item in objects:
        # What the server refused, which is a problem of its own, is not there.
        if item["kind"] != "Namespace" and api.exists(item):
            api.delete(item)


def scenario_problems(api, scenario):
    yield from apply_twice(api, scenario.objects)
    daemon_sets = [item for item in scenario.objects if item["kind"] == "DaemonSet"]
    if len(daemon_sets) != 1:
        yield f"{len(daemon_sets)} DaemonSets"
    for daemon_set in daemon_sets:
        yield from pod_security_problems(api, scenario, daemon_set)
    remove(api, scenario.objects)


def autoscaling():
    for file in sorted(AUTOSCALING.glob("*.yaml")):
        for item in yaml.safe_load_all(file.read_text()):
            # The values for the chart of prometheus-adapter are not a manifest.
            if item and "kind" in item:
                yield item


def self_test(api, all_objects):
    """Shows that each check can fail: an unknown field is refused in every kind, and a host port is found."""
    seen = set()
    for item in all_objects:
        if item["kind"] in seen:
            continue
        seen.add(item["kind"])
        wrong = item | ({"spec": item["spec"] | {"wrong": 1}} if "spec" in item else {"wrong": 1})
        try:
            api.apply(wrong, dry=True)
        except Refused as refused:
            if "wrong" not in refused.text:
                yield f"{item['kind']} with an unknown field: {refused}"
        else:
            yield f"{item['kind']} with an unknown field is accepted"
    daemon_set = next(item for item in all_objects if item["kind"] == "DaemonSet")
    template = daemon_set["spec"]["template"]
    changed = template | {"spec": template["spec"] | {"hostNetwork": True}}
    metadata = {"name": "changed", "namespace": level_of("warn", "baseline")}
    item = daemon_set | {"metadata": metadata, "spec": daemon_set["spec"] | {"template": changed}}
    if not any("hostNetwork=true" in warning for warning in api.apply(item, dry=True)[1]):
        yield "no warning about hostNetwork"


def client_side(api):
    """Applies base and overlays as `kubectl apply -k` does by default, which compares other fields than the server does."""
    cluster = api.cluster
    folders = [scenarios.KUSTOMIZE / "base", *sorted((scenarios.KUSTOMIZE / "overlays").iterdir())]
    for folder in folders:
        cluster.kubectl("apply", "--validate=strict", "-k", folder)
        again = cluster.kubectl("apply", "--validate=strict", "-k", folder).strip().splitlines()
        for line in again:
            if not line.endswith(" unchanged"):
                yield f"kubectl apply -k {folder.name}, again: {line}"
        objects = scenarios.run("kubectl", "kustomize", folder)
        if len(again) != len(objects):
            yield f"kubectl apply -k {folder.name}: {len(again)} lines for {len(objects)} objects"
        remove(api, objects)
    print(f"ok  kubectl apply -k, twice: {', '.join(folder.name for folder in folders)}")


def installed(api, releases):
    """Installs the chart, upgrades it with the same values, and uninstalls it."""
    cluster = api.cluster
    for release in releases:
        values = scenarios.CHART / "ci" / release.name.removeprefix("helm: ")
        arguments = ["release", scenarios.CHART, "--namespace=gpu", f"--values={values}"]
        daemon_set = next(item for item in release.objects if item["kind"] == "DaemonSet")
        cluster.run("helm", "install", *arguments)
        before = cluster.ask("GET", api.path(daemon_set))["metadata"]["generation"]
        cluster.run("helm", "upgrade", *arguments)
        after = cluster.ask("GET", api.path(daemon_set))["metadata"]["generation"]
        if before != after:
            yield f"{release.name}: an upgrade with the same values changes the DaemonSet"
        cluster.run("helm", "uninstall", "release", "--namespace=gpu", "--cascade=background")
        left = [item["kind"] for item in release.objects if api.exists(item)]
        if left:
            yield f"{release.name}: {left} are left after the release is uninstalled"
    print(f"ok  helm install, upgrade, uninstall: {', '.join(release.name.removeprefix('helm: ') for release in releases)}")


def check(cluster, crds):
    """Yields every problem."""
    api = prepare(cluster, crds)
    releases = list(scenarios.releases())
    everything = (scenarios.kustomizations() or sys.exit("kubectl kustomize is missing")) + releases
    examples = list(autoscaling())
    objects = [item for scenario in everything for item in scenario.objects] + examples
    made = {item["metadata"]["name"] for item in objects if item["kind"] == "Namespace"}
    for name in sorted({item["metadata"]["namespace"] for item in objects if "namespace" in item["metadata"]} - made):
        cluster.create_namespace(name, enforce="privileged")
    for scenario in everything:
        problems = list(scenario_problems(api, scenario))
        print(f"{'BAD' if problems else 'ok'}  {scenario.name}: {len(scenario.objects)} objects", flush=True)
        yield from (f"{scenario.name}: {problem}" for problem in problems)
    yield from apply_twice(api, examples)
    print(f"ok  autoscaling: {', '.join(item['kind'] for item in examples)}")
    remove(api, examples)
    rendered = {item["kind"] for item in objects}
    # Every kind that a template contains must be rendered by a scenario.
    templates = "".join(file.read_text() for file in scenarios.CHART.glob("templates/*.yaml"))
    unused = (set(re.findall(r"^kind: (\w+)$", templates, re.MULTILINE)) | {"ScaledObject"}) - rendered
    if unused:
        yield f"no scenario renders {sorted(unused)}"
    yield from self_test(api, objects)
    yield from client_side(api)
    yield from installed(api, releases)
