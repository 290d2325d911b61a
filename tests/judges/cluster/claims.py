"""Dynamic resource allocation: the node's GPUs, what its driver publishes, the cases, and who holds what.

Invariant: what is expected comes from the API server and from what the driver publishes, never from the exporter.
"""

import collections
from typing import NamedTuple

import simulated
from harness import exporter, free_port, get

NODE = "node-1"
DRIVER = "gpu.nvidia.com"
NAMESPACE = "claims"
# The label of a namespace in which claims may ask for adminAccess.
FOR_MONITORING = {"resource.kubernetes.io/admin-access": "true"}
RESOURCE = "nvidia.com/gpu"
WHOLE, MIG = "gpu.nvidia.com", "mig.nvidia.com"
IMAGE = "localhost/pause:1"
GPUS = [f"GPU-0{n}000000-1111-2222-3333-44445555666{n}" for n in range(4)]
DIVIDED = "GPU-04000000-1111-2222-3333-444455556664"
PROFILES = ["1g.10gb", "2g.20gb"]
SIZE = "143771Mi"
SHARE = "20Gi"


# The labels of a holding on the listener for dcgm-exporter's families, in the order of its fields.
DCGM_LABELS = (
    "namespace", "pod", "container", "dra_claim_name", "dra_claim_namespace", "dra_driver_name", "dra_pool_name", "dra_device_name",
)  # fmt: skip


class Holding(NamedTuple):
    """A device that a container may use: of a claim, or, without one, of the device plugin."""

    # Of the GPU, or of the MIG device.
    uuid: str
    namespace: str
    pod: str
    container: str
    claim: str = ""
    claim_namespace: str = ""
    driver: str = ""
    pool: str = ""
    device: str = ""


def scenario():
    """Whole GPUs, and one divided into MIG devices."""
    whole = "".join(f'[[gpu]]\nmodel = "H200"\nuuid = "{uuid}"\n' for uuid in GPUS)
    return f'{whole}[[gpu]]\nmodel = "H100"\nuuid = "{DIVIDED}"\nmig = {PROFILES}\n'.replace("'", '"')


def pools(devices):
    """What a driver publishes: the devices in one pool and one slice, in the form of Kubernetes' library for drivers."""
    return {"pools": {NODE: {"slices": [{"devices": devices}]}}}


def attributes(kind, model, **more):
    texts = {"type": kind, "productName": f"NVIDIA {model}", "brand": "Nvidia", "architecture": "Hopper"} | more
    versions = {"cudaComputeCapability": "9.0.0", "driverVersion": "580.159.4", "cudaDriverVersion": "13.0.0"}
    return {name: {"string": text} for name, text in texts.items()} | {name: {"version": text} for name, text in versions.items()}


def whole(numbers=range(len(GPUS))):
    """The GPUs as devices, in the form of NVIDIA's driver."""
    return [
        {"name": f"gpu-{n}", "attributes": attributes("gpu", "H200", uuid=GPUS[n]), "capacity": {"memory": {"value": SIZE}}}
        for n in numbers
    ]


def static_mig(uuids):
    """The MIG devices, by profile, as devices. The divided GPU itself is not one."""
    return [
        {
            "name": f"gpu-4-mig-{profile.replace('.', '')}-{n}",
            "attributes": attributes("mig", "H100", uuid=uuid, parentUUID=DIVIDED, profile=profile),
            "capacity": {"memory": {"value": f"{profile[3:5]}Gi"}},
        }
        for n, (profile, uuid) in enumerate(uuids.items())
    ]  # fmt: skip


def shares():
    """Two GPUs that several claims may share, each with a part of the memory."""
    policy = {"default": SIZE, "validRange": {"min": "1Mi", "max": SIZE, "step": "1Mi"}}
    shared = {"allowMultipleAllocations": True, "capacity": {"memory": {"value": SIZE, "requestPolicy": policy}}}
    return [device | shared for device in whole(range(2))]


def device_class(name, kind, **more):
    select = f"device.driver == '{DRIVER}' && device.attributes['{DRIVER}'].type == '{kind}'"
    spec = {"selectors": [{"cel": {"expression": select}}]} | more
    return {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": name}, "spec": spec}


def classes():
    return [device_class(WHOLE, "gpu", extendedResourceName=RESOURCE), device_class(MIG, "mig")]


def exactly(name, device_class=WHOLE, **more):
    return {"name": name, "exactly": {"deviceClassName": device_class, **more}}


def claim(name, *requests):
    spec = {"devices": {"requests": list(requests)}}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": name}, "spec": spec}


def template(name, *requests):
    spec = {"spec": claim(name, *requests)["spec"]}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": {"name": name}, "spec": spec}


def pod(name, source, **containers):
    """A pod with the claim "c" of this source, if it is not None; for each container its resources."""
    spec = {
        "hostNetwork": True, "terminationGracePeriodSeconds": 1, "automountServiceAccountToken": False,
        "containers": [
            {"name": container, "image": IMAGE, "imagePullPolicy": "Never", "resources": resources}
            for container, resources in containers.items()
        ],
    }  # fmt: skip
    if source:
        spec["resourceClaims"] = [{"name": "c", **source}]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def uses(**more):
    """The resources of a container that names the claim."""
    return {"claims": [{"name": "c", **more}]}


def plugged(name):
    """A pod with a device of an extended resource."""
    return pod(name, None, main={"limits": {RESOURCE: 1}})


def claiming(name, *requests):
    """A pod with one container that has a claim of its own."""
    return [template(name, *requests), pod(name, {"resourceClaimTemplateName": name}, main=uses())]


def profile_is(profile):
    return {"cel": {"expression": f"device.attributes['{DRIVER}'].profile == '{profile}'"}}


def first_available():
    """The first of the alternatives fits no device."""
    small = {"name": "small", "deviceClassName": MIG, "selectors": [profile_is("none")]}
    return claiming("first", {"name": "any", "firstAvailable": [small, {"name": "large", "deviceClassName": WHOLE}]})


def split():
    """A claim of two requests, of which two containers use one each, and one none."""
    one = pod(
        "split", {"resourceClaimTemplateName": "split"}, first=uses(request="a"), second=uses(request="b"), none={}
    )
    return [template("split", exactly("a"), exactly("b")), one]


def shared():
    """A claim of two pods."""
    source = {"resourceClaimName": "shared"}
    return [claim("shared", exactly("gpu")), *(pod(f"shared-{n}", source, main=uses()) for n in range(2))]


def admin():
    """A pod with a GPU, and a monitoring pod that may look at all GPUs."""
    everything = exactly("all", allocationMode="All", adminAccess=True)
    return [*claiming("watched", exactly("gpu")), *claiming("monitor", everything)]


def extended():
    """No claim is written: the scheduler makes one for the extended resource of the device class."""
    limits = {"limits": {RESOURCE: 1}}
    return [pod("extended", None, main=limits, other=limits)]


def memory():
    """Two claims of a part of the memory each."""
    request = exactly("gpu", capacity={"requests": {"memory": SHARE}})
    source = {"resourceClaimTemplateName": "memory"}
    return [template("memory", request), *(pod(f"memory-{n}", source, main=uses()) for n in range(2))]


# The cases, with what the driver publishes for them.
CASES = {
    "whole": (claiming("whole", exactly("gpu")), "all"),
    "two": (claiming("two", exactly("gpu", count=2)), "all"),
    "split": (split(), "all"),
    "shared": (shared(), "all"),
    "first available": (first_available(), "all"),
    "admin": (admin(), "all"),
    "extended resource": (extended(), "all"),
    "static MIG": (claiming("mig", exactly("mig", MIG, selectors=[profile_is(PROFILES[1])])), "all"),
    "shares with memory": (memory(), "shares"),
}


def uuids(devices):
    """The UUID of each device that a driver publishes."""
    return {device["name"]: device["attributes"]["uuid"]["string"] for device in devices}


def claims_of(pod):
    """The name of the claim that each container of a pod has."""
    status = pod["status"]
    made = {made["name"]: made.get("resourceClaimName") for made in status.get("resourceClaimStatuses", [])}
    named = {source["name"]: source.get("resourceClaimName") or made.get(source["name"]) for source in pod["spec"].get("resourceClaims", [])}
    for container in pod["spec"]["containers"]:
        resources = container["resources"]
        for used in resources.get("claims", []):
            yield container["name"], named[used["name"]]
        if RESOURCE in resources.get("limits", {}) and "extendedResourceClaimStatus" in status:
            yield container["name"], status["extendedResourceClaimStatus"]["resourceClaimName"]


def holdings(pods, claims, devices):
    """What the containers of the pods may use, and, of that, what is for monitoring only."""
    known, by_name = uuids(devices), {claim["metadata"]["name"]: claim for claim in claims}
    every, monitored = set(), set()
    for pod in pods:
        own = pod["metadata"]
        for container, name in claims_of(pod):
            allocation = by_name.get(name, {}).get("status", {}).get("allocation", {})
            for result in allocation.get("devices", {}).get("results", []):
                place = result["driver"], result["pool"], result["device"]
                one = Holding(known[result["device"]], own["namespace"], own["name"], container, name, own["namespace"], *place)
                every.add(one)
                if result.get("adminAccess"):
                    monitored.add(one)
    return every, monitored


def promised(claims, devices):
    """How many bytes of each GPU the claims consume, which have a part of its memory."""
    known, sums = uuids(devices), collections.Counter()
    for claim in claims:
        for result in claim["status"]["allocation"]["devices"]["results"]:
            if consumed := result.get("consumedCapacity"):
                sums[known[result["device"]]] += int(consumed["memory"].removesuffix("Gi")) << 30
    return dict(sums)


def listed(answer, devices):
    """What the kubelet lists: each device of each container's claims, and of the device plugin, which has no claim."""
    known = uuids(devices)
    for pod in answer["list"].get("pod_resources", []):
        for container in pod.get("containers", []):
            holder = pod["namespace"], pod["name"], container["name"]
            for plugged in container.get("devices", []):
                yield from (Holding(uuid, *holder) for uuid in plugged["device_ids"])
            for claim in container.get("dynamic_resources", []):
                own = claim["claim_name"], claim["claim_namespace"]
                for device in claim.get("claim_resources", []):
                    place = device["driver_name"], device["pool_name"], device["device_name"]
                    yield Holding(known[device["device_name"]], *holder, *own, *place)


def read(cluster):
    """The names of the claims that exporters have read, from the audit log."""
    events = cluster.audit("vram-exporter/")
    return {event["objectRef"]["name"] for event in events if event["objectRef"]["resource"] == "resourceclaims"}


class Exporter(simulated.Exporter):
    """The exporter on a machine with these GPUs and processes. It asks the kubelet at the socket, and has a listener for dcgm-exporter's
    families; `shared` says whether a container that shares a device has series of its own there."""

    def __init__(self, program, library, folder, socket, interval, shared=False, processes=""):
        self.dcgm_port, self.shared = free_port(), shared
        super().__init__(
            program, library, folder, scenario() + processes, f"--kubernetes.pod-resources={socket}",
            f"--kubernetes.pod-resources-interval={interval}s", f"--dcgm.listen-address=127.0.0.1:{self.dcgm_port}",
            f"--dcgm.virtual-gpus={'true' if shared else 'false'}",
        )  # fmt: skip

    def mig_uuids(self):
        """The UUID of the MIG device of each profile."""
        return {labels["profile"]: labels["mig_uuid"] for labels, _ in self.series("gpu_mig_memory_total_bytes")}

    def allocations(self):
        """What the exporter's own listener shows."""
        return {
            Holding(labels.get("mig_uuid") or labels["uuid"], *(labels.get(name, "") for name in Holding._fields[1:]))
            for labels, _ in self.series("gpu_allocation_info")
        }

    def dcgm_series(self):
        """All series of the listener for dcgm-exporter's families: the family, the labels, the value."""
        return exporter.samples(get(f"http://127.0.0.1:{self.dcgm_port}/metrics"))

    def dcgm(self):
        """What that listener shows."""
        return {
            Holding(labels.get("dra_mig_device_uuid") or labels["UUID"], *(labels.get(name, "") for name in DCGM_LABELS))
            for name, labels, _ in self.dcgm_series()
            if name == "DCGM_FI_DEV_FB_USED" and "pod" in labels
        }

    def expected_dcgm(self, held):
        """What that listener must show if the containers hold this, and have no processes."""
        users = collections.Counter(one.uuid for one in held)
        return {one for one in held if self.shared or users[one.uuid] == 1}

    def shows(self, held):
        return self.allocations() == held and self.dcgm() == self.expected_dcgm(held)

    def promised(self):
        """How many bytes of each GPU are promised."""
        return {labels["uuid"]: value for labels, value in self.series("gpu_memory_promised_bytes")}

    def unassigned(self):
        """How many devices of claims were assigned to no GPU."""
        return exporter.value(self.scrape(), "vram_exporter_faults_total", source="resource_claims")

    def differences(self, held):
        """For the text of a problem."""
        compared = (("gpu_allocation_info", self.allocations(), held), ("dcgm", self.dcgm(), self.expected_dcgm(held)))
        return "; ".join(f"{place}: {sorted(found)} instead of {sorted(wanted)}" for place, found, wanted in compared if found != wanted)
