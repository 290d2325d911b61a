"""Budgets from the annotations of pods in a real API server: KAI-Scheduler's, HAMi's and the exporter's own, right and wrong ones.

Invariant: every limit and sum is compared to the byte, and no time is judged.
"""

from harness import Late
from server import until
from simulated import container_id, process

NAMESPACE = "budgets"
# Where KAI-Scheduler runs its reservation pods.
RESERVATIONS = "kai-resource-reservation"
GROUP, RESERVED_GPU = "runai-gpu-group", "run.ai/reserve_for_gpu_index"
OWN = "vram-exporter/gpu-memory-limit"
MIB, GIB = 1 << 20, 1 << 30
# GPU 0: HAMi's pods. GPU 1: KAI's pods with a size. GPU 2: KAI's pods with a fraction. GPU 3: our own and wrong annotations.
HAMI, SIZED, SHARED, PLAIN = (f"GPU-0{n}000000-1111-2222-3333-44445555666{n}" for n in range(4))
LIMIT, OVER, PROMISED = (
    "gpu_workload_memory_limit_bytes",
    "gpu_workload_memory_over_limit_seconds_total",
    "gpu_memory_promised_bytes",
)
# Annotations that declare nothing that can be read, from wrong use in the projects' issues and from guesses.
WRONG = {
    "word": {OWN: "much"},
    "negative": {OWN: "-1Gi"},
    "kai-unit": {"gpu-memory": "8000Mi"},
    "kai-whole": {"gpu-fraction": "1.5"},
    "kai-nan": {"gpu-fraction": "NaN"},
    "hami-size": {"hami.io/vgpu-devices-allocated": f"{PLAIN},NVIDIA,lots,0:;"},
    "hami-short": {"hami.io/vgpu-devices-allocated": f"{PLAIN},NVIDIA:;"},
}
# The processes' containers, by pod: their names, and the index of the GPU. Each process holds 1 GiB and a context of 520 MiB.
CONTAINERS = {
    "own": (("main", "sidecar"), 3),
    "hami": (("first", "second"), 0),
    "hami-requested": (("main",), 0),
    "kai-memory": (("main",), 1),
    "kai-fraction": (("sidecar", "gpu-workload"), 2),
    **{name: (("main",), 3) for name in WRONG},
}
# Ids that no other check of this cluster uses.
FIRST_ID = 1000
IDS = {
    (pod, container): FIRST_ID + n
    for n, (pod, container) in enumerate((pod, name) for pod, (names, _) in CONTAINERS.items() for name in names)
}


def scenario():
    """Four GPUs, and a process in each container."""
    gpus = "".join(f'[[gpu]]\nmodel = "H200"\nuuid = "{uuid}"\n' for uuid in (HAMI, SIZED, SHARED, PLAIN))
    processes = (process(n - FIRST_ID, container_id(n), CONTAINERS[pod][1]) for (pod, _), n in IDS.items())
    return gpus + "".join(processes)


class Pods:
    """Creates and deletes pods as the schedulers and a kubelet would."""

    def __init__(self, cluster):
        self.cluster, self.created = cluster, []

    def create(self, name, annotations, labels=None, names=None, namespace=NAMESPACE, running=True, limits=None):
        names = names or CONTAINERS[name][0]
        path = f"/api/v1/namespaces/{namespace}/pods"
        parts = [{"name": container, "image": "none", "resources": {"limits": limits or {}}} for container in names]
        spec = {"nodeName": "node-1", "containers": parts}
        metadata = {"name": name, "namespace": namespace, "annotations": annotations, "labels": labels or {}}
        self.cluster.ask("POST", path, {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
        self.created.append(f"{path}/{name}")
        if running:
            statuses = [
                {
                    "name": container, "image": "none", "imageID": "none", "ready": True, "restartCount": 0,
                    "containerID": f"containerd://{container_id(IDS[name, container])}", "state": {"running": {}},
                }
                for container in names
            ]  # fmt: skip
            self.patch(name, {"status": {"phase": "Running", "containerStatuses": statuses}}, namespace, "/status")

    def patch(self, name, change, namespace=NAMESPACE, part=""):
        path = f"/api/v1/namespaces/{namespace}/pods/{name}{part}"
        self.cluster.ask("PATCH", path, change, "application/strategic-merge-patch+json")

    def annotate(self, name, namespace=NAMESPACE, **annotations):
        self.patch(name, {"metadata": {"annotations": annotations}}, namespace)

    def delete_all(self):
        for path in self.created:
            self.cluster.ask("DELETE", f"{path}?gracePeriodSeconds=0")
        self.created = []


class Shown:
    """What the exporter shows about budgets."""

    def __init__(self, exporter):
        self.exporter = exporter

    def limits(self):
        """Bytes, by pod, container and source."""
        return {(l["pod"], l["container"], l["source"]): value for l, value in self.exporter.series(LIMIT)}

    def over(self):
        return {(l["pod"], l["container"], l["source"]): value for l, value in self.exporter.series(OVER)}

    def promised(self):
        """Bytes, by the GPU's UUID."""
        return {l["uuid"]: value for l, value in self.exporter.series(PROMISED)}

    def one(self, family, uuid):
        [value] = [value for l, value in self.exporter.series(family) if l["uuid"] == uuid]
        return value

    def faults(self):
        [count] = [value for l, value in self.exporter.series("vram_exporter_faults_total") if l["source"] == "budget"]
        return count

    def wait(self, what, ask, expected):
        """Waits until `ask` returns what is expected. Ends with an error that shows both otherwise."""
        last = None

        def equal():
            nonlocal last
            last = ask()
            return last == expected

        try:
            until(what, equal)
        except Late as late:
            raise Late(f"{late}: {last} instead of {expected}") from None


def kai(pods, shown):
    """A size in MiB and a fraction; the GPU of each is known from the group's reservation pod alone, and later than the pod."""
    total = shown.one("gpu_memory_total_bytes", SHARED)
    allocatable = total - shown.one("gpu_memory_reserved_bytes", SHARED)
    pods.create("kai-memory", {"gpu-memory": "2000"}, {GROUP: "one"})
    pods.create("kai-fraction", {"gpu-fraction": "0.5", "gpu-fraction-container-name": "gpu-workload"}, {GROUP: "two"})
    limits = {("kai-memory", "main", "kai"): 2000 * MIB, ("kai-fraction", "gpu-workload", "kai"): total / 2}
    shown.wait("KAI's limits", shown.limits, limits)
    for group, uuid in (("one", SIZED), ("two", SHARED)):
        name = f"gpu-reservation-{group}"
        pods.create(name, {}, {GROUP: group}, ("resource-reservation",), RESERVATIONS, running=False)
        pods.annotate(name, RESERVATIONS, **{RESERVED_GPU: uuid})
    shown.wait("KAI's promises", shown.promised, {SIZED: 2000 * MIB, SHARED: total / 2})
    print("ok  KAI-Scheduler: gpu-memory, gpu-fraction with a container's name, the GPU from the reservation pod", flush=True)
    # The second half. Its container never starts, so only the sum shows it: KAI-Scheduler#2212.
    pods.create("kai-waiting", {"gpu-fraction": "0.5"}, {GROUP: "two"}, ("main",), running=False)
    shown.wait("two halves of a GPU", lambda: shown.promised().get(SHARED), total)
    if total <= allocatable:
        yield "the simulated driver reserves nothing, so nothing was overcommitted"
    if set(shown.limits()) != set(limits):
        yield f"limits of a pod without a process: {shown.limits()}"
    print(f"ok  two fractions of 0.5, one not started: promised {total - allocatable:.0f} bytes too much", flush=True)


def hami(pods, shown):
    """Two containers with a size each on one GPU, as HAMi's documentation describes the annotation; and a requested percentage."""
    allocated = f"{HAMI},NVIDIA,3000,0:;{HAMI},NVIDIA,5000,0:;"
    pods.create("hami", {"hami.io/vgpu-devices-allocated": allocated})
    limits = {("hami", "first", "hami"): 3000 * MIB, ("hami", "second", "hami"): 5000 * MIB}
    shown.wait("HAMi's limits", lambda: {key: v for key, v in shown.limits().items() if key[2] == "hami"}, limits)
    shown.wait("HAMi's promises", lambda: shown.promised().get(HAMI), 8000 * MIB)
    half = shown.one("gpu_memory_total_bytes", HAMI) / 2
    pods.create("hami-requested", {}, limits={"nvidia.com/gpumem-percentage": "50", "nvidia.com/gpu": "1"})
    shown.wait("the limit of a percentage", lambda: shown.limits().get(("hami-requested", "main", "hami")), half)
    shown.wait("HAMi's promises with a percentage", lambda: shown.promised().get(HAMI), 8000 * MIB + half)
    print("ok  HAMi: a size for each container, and a requested percentage", flush=True)
    return ()


def own(pods, shown):
    """A limit for all containers, another one for one container, which is above it, and a changed limit."""
    pods.create("own", {OWN: "2Gi", f"{OWN}.sidecar": "512Mi"})

    def limits():
        return {key[1]: value for key, value in shown.limits().items() if key[2] == "annotation"}

    shown.wait("own limits", limits, {"main": 2 * GIB, "sidecar": 512 * MIB})
    until("the time above the limit", lambda: shown.over()["own", "sidecar", "annotation"] > 0)
    if seconds := shown.over()["own", "main", "annotation"]:
        yield f"{seconds} s above a limit of 2 GiB with 1.5 GiB"
    pods.annotate("own", **{OWN: "20G"})
    shown.wait("a changed limit", limits, {"main": 20e9, "sidecar": 512 * MIB})
    pods.annotate("own", **{f"{OWN}.sidecar": None})
    shown.wait("a removed limit", limits, {"main": 20e9, "sidecar": 20e9})
    print("ok  own annotations: for all containers and for one, above the limit, changed and removed", flush=True)


def wrong(pods, shown, relay):
    """Wrong annotations give no limit and one fault each, also if they are listed again."""
    before, limits = shown.faults(), shown.limits()
    for number, (name, annotations) in enumerate(WRONG.items(), start=1):
        pods.create(name, annotations)
        until(f"the name of {name}", lambda name=name: f'pod="{name}"' in shown.exporter.metrics())
        shown.wait(f"the fault of {name}", shown.faults, before + number)
        if shown.limits() != limits:
            yield f"{name}: {annotations} changes the limits: {shown.limits()}"
    connections = relay.connections
    relay.cut()
    until("the watch is opened again", lambda: relay.connections > connections and shown.exporter.is_up())
    pods.annotate("own", **{OWN: "3Gi"})
    until("a change after the cut", lambda: shown.limits().get(("own", "main", "annotation")) == 3 * GIB)
    if (counted := shown.faults() - before) != len(WRONG):
        yield f"{counted} faults for {len(WRONG)} wrong annotations after the watch was opened again"
    pods.annotate("word", **{OWN: "1Gi"})
    until("the limit of a corrected annotation", lambda: shown.limits().get(("word", "main", "annotation")) == GIB)
    print(f"ok  {len(WRONG)} wrong annotations: no limit, one fault each, and a corrected one gives a limit", flush=True)


def check(cluster, exporter, relay):
    """Yields every problem. It leaves no pods."""
    for namespace in (NAMESPACE, RESERVATIONS):
        cluster.create_namespace(namespace, enforce="privileged")
        cluster.create_account(namespace, "default")
    pods, shown = Pods(cluster), Shown(exporter)
    if shown.limits() or shown.promised() or shown.faults():
        yield f"without annotations: limits {shown.limits()}, promised {shown.promised()}, {shown.faults()} faults"
    yield from kai(pods, shown)
    yield from hami(pods, shown)
    yield from own(pods, shown)
    yield from wrong(pods, shown, relay)
    pods.delete_all()
    shown.wait("nothing is promised without pods", shown.promised, {})
