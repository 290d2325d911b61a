#!/usr/bin/env python3
"""Checks the exporter on a node with all of Kubernetes, whose GPUs are given out by dynamic resource allocation. See README.md."""

import json
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.append(str(Path(__file__).resolve().parents[1] / "deploy"))

import claims
import node
import scenarios
from claims import CASES, NAMESPACE, claiming, exactly
from harness import Late, arguments, finish, simulator_of, skipped, waited_seconds
from server import binaries, missing, until
from shipped import Api
from simulated import ACCOUNT, process

# kubernetes.pod-resources-interval in seconds, and how long a pod may be without its name, or keep it when it is gone. The time for which the
# programs waited for a processor, because the machine does other work, is added to the limit. For what this does not count, for example
# what a hypervisor takes, a case is late if it is late several times in sequence.
INTERVAL = 2
LIMIT = INTERVAL + 1
ATTEMPTS = 3
# The interval by default. A kubelet that restarts does not answer for seconds, and its last answer counts for three intervals.
PATIENT = 10
# For how many seconds pods must keep their names without a slice.
WITHOUT = 20
# Labels that say how a container has got its device. All others are the same in every way.
WAY = {"resource", *claims.Holding._fields[4:], *claims.DCGM_LABELS[3:]}


class Watch:
    """The time since the kubelet's answer, and the time for which the programs waited for a processor meanwhile."""

    def __init__(self, pids):
        self.pids, self.begin, self.waited = pids, time.monotonic(), sum(map(waited_seconds, pids))

    def stop(self):
        self.seconds, self.waited = time.monotonic() - self.begin, sum(map(waited_seconds, self.pids)) - self.waited
        self.late = self.seconds > LIMIT + self.waited
        return self

    def __str__(self):
        return f"{self.seconds:.2f} s ({self.waited:.2f} s without a processor)"


class Judge:
    """The node with its driver, and an exporter with a short interval. `exporter` makes another one."""

    def __init__(self, cluster, exporter, quick, mig):
        self.cluster, self.exporter, self.quick, self.api = cluster, exporter, quick, Api(cluster)
        self.sets = {"all": [*claims.whole(), *claims.static_mig(mig)], "shares": claims.shares()}
        # Every device that was published. A name is always the same GPU's.
        self.known = []
        self.published = None

    def publish(self, devices):
        """The driver publishes these devices, and is started if it does not run."""
        publish = self.cluster.publish if "dra-driver" in self.cluster.running else self.cluster.start_driver
        publish(claims.pools(devices))
        self.published, self.known = devices, self.known + devices
        until("the devices are published", self.is_published)

    def is_published(self):
        self.cluster.must_run()
        return self.in_slices() == self.published

    def in_slices(self):
        slices = self.cluster.ask("GET", "/apis/resource.k8s.io/v1/resourceslices")["items"]
        return [device for one in slices for device in one["spec"].get("devices", [])]

    def items(self, kind):
        prefix = "/api/v1" if kind == "pods" else "/apis/resource.k8s.io/v1"
        return self.cluster.ask("GET", f"{prefix}/namespaces/{NAMESPACE}/{kind}")["items"]

    def listed(self):
        """What the kubelet lists; None while it does not answer."""
        answer = self.cluster.pod_resources()
        return answer and set(claims.listed(answer, self.known))

    def run(self, objects):
        """Creates the objects, and waits until their pods run and are named. Returns what all pods hold, and the time between the kubelet's
        list and the exporter's."""
        for item in own(objects):
            self.api.apply(item)
        since = expected = None

        def named():
            nonlocal since, expected
            begin = self.watch()
            if not since and (expected := self.expected()):
                since = begin
            return since and self.quick.shows(expected)

        self.wait("the pods are named", named, lambda: expected)
        since.stop()
        until("the pods run", lambda: all(pod["status"]["phase"] == "Running" for pod in self.items("pods")))
        # A claim that has not been read holds nothing either.
        made = {claim["metadata"]["name"] for claim in self.items("resourceclaims")}
        until("the claims are read", lambda: made <= claims.read(self.cluster), pause=0.5)
        self.must_show(expected)
        return expected, since

    def expected(self):
        """What the pods hold, once the kubelet lists all that they have; None before that."""
        pods, listed = self.items("pods"), self.listed()
        every, monitored = claims.holdings(pods, self.items("resourceclaims"), self.known)
        complete = listed is not None and {one for one in listed if one.claim} == every
        if complete and {pod["metadata"]["name"] for pod in pods} == {one.pod for one in listed}:
            return listed - monitored

    def end(self, objects):
        """Deletes the objects. Returns the time between the end of their pods in the kubelet's list and in the exporter's."""
        for item in reversed(own(objects)):
            self.api.delete(item)
        ended = {item["metadata"]["name"] for item in objects if item["kind"] == "Pod"}
        since = None

        def gone():
            nonlocal since
            begin = self.watch()
            if not since and (listed := self.listed()) is not None and not ended & {one.pod for one in listed}:
                since = begin
            return since and not ended & {one.pod for one in self.quick.allocations() | self.quick.dcgm()}

        until("the pods are gone", gone)
        since.stop()
        until("their claims are deleted", self.is_clean)
        # The exporter's last answer from the kubelet may be older than the end.
        if again := ended & {one.pod for one in self.quick.allocations() | self.quick.dcgm()}:
            raise Late(f"{sorted(again)} are shown again after their end")
        return since

    def promises(self):
        """What the claims consume is promised, and nothing else."""
        promised = claims.promised(self.items("resourceclaims"), self.known)
        until(f"{promised} is promised", lambda: self.quick.promised() == promised)

    def watch(self):
        running = self.cluster.running
        return Watch([os.getpid(), self.quick.pid, *(running[name].pid for name in ("kubelet", "kube-apiserver", "etcd"))])

    def is_clean(self):
        """Whether there is no pod that ends, and no claim without a pod."""
        pods = self.items("pods")
        used = {claim for pod in pods for _, claim in claims.claims_of(pod)}
        left = {claim["metadata"]["name"] for claim in self.items("resourceclaims")}
        return left <= used and not any("deletionTimestamp" in pod["metadata"] for pod in pods)

    def wait(self, what, ask, expected):
        """Waits. The error says what is shown instead of what is expected."""
        try:
            until(what, ask)
        except Late as late:
            wanted = expected()
            raise Late(f"{late}: {self.quick.differences(wanted) if wanted else f'the kubelet lists {self.listed()}'}") from None

    def must_show(self, expected):
        if not self.quick.shows(expected):
            raise Late(self.quick.differences(expected))

    def record(self, file, expected):
        """Writes what recorded.py gives to another exporter: the answers of the kubelet and the API server, and what they mean."""
        def kept(item):
            metadata = {key: item["metadata"][key] for key in ("name", "namespace") if key in item["metadata"]}
            return {key: item[key] for key in ("spec", "status") if key in item} | {"metadata": metadata}

        slices = self.cluster.ask("GET", "/apis/resource.k8s.io/v1/resourceslices")["items"]
        recorded = {
            "kubelet": self.cluster.pod_resources(), "slices": list(map(kept, slices)), "claims": list(map(kept, self.items("resourceclaims"))),
            "held": sorted(expected),
        }  # fmt: skip
        file.write_text(json.dumps(recorded, indent=1) + "\n")


def own(objects):
    """The objects in the namespace of the cases."""
    return [item | {"metadata": item["metadata"] | {"namespace": NAMESPACE}} for item in objects]


def cases(judge, record):
    """Each case: its pods are named while they are idle, and no longer when they are gone."""
    for name, (objects, devices) in CASES.items():
        if judge.published is not judge.sets[devices]:
            judge.publish(judge.sets[devices])
        for _ in range(ATTEMPTS):
            expected, named = judge.run(objects)
            judge.promises()
            if record:
                judge.record(record / f"{name.replace(' ', '-')}.json", expected)
            gone = judge.end(objects)
            said = f"{name}: {len(expected)} devices of containers; named after {named}, gone after {gone}"
            if not (named.late or gone.late):
                print(f"ok  {said}", flush=True)
                break
        else:
            yield f"{said}; {LIMIT} s are allowed"


def users(judge):
    """Two pods have a claim, and a process of one of them is on the GPU: both are shown as holders, and the one where there is room for one."""
    objects, devices = CASES["shared"]
    judge.publish(judge.sets[devices])
    held, _ = judge.run(objects)
    user = min(held)
    [status] = next(pod["status"]["containerStatuses"] for pod in judge.items("pods") if pod["metadata"]["name"] == user.pod)
    container = status["containerID"].removeprefix("containerd://")
    with judge.exporter("users", INTERVAL, processes=process(0, container, claims.GPUS.index(user.uuid))) as exporter:
        until("only the pod with a process is shown for dcgm-exporter", lambda: exporter.dcgm() == {user})
        if exporter.allocations() != held:
            raise Late(exporter.differences(held))
    judge.end(objects)
    print("ok  a claim of two pods, and a process of one of them", flush=True)


class Patient:
    """An exporter with the interval by default that must show the same all the time."""

    def __init__(self, exporter, held):
        self.exporter, self.held = exporter, held

    def look(self):
        if not self.exporter.shows(self.held):
            raise Late(self.exporter.differences(self.held))
        return True

    def until(self, what, ask):
        """Waits, and looks meanwhile. Returns the seconds."""
        begin = time.monotonic()
        until(what, lambda: self.look() and ask())
        return time.monotonic() - begin

    def for_seconds(self, seconds):
        end = time.monotonic() + seconds
        return self.until(f"{seconds} s have passed", lambda: time.monotonic() >= end)


def without_slices(judge):
    """The slices vanish while a pod runs: it keeps its name, and the next pod gets one."""
    judge.publish(judge.sets["all"])
    first, second = claiming("first", exactly("gpu")), claiming("second", exactly("gpu"))
    held, _ = judge.run(first)
    with judge.exporter("patient", PATIENT) as exporter:
        until("the patient exporter names the pod", lambda: exporter.shows(held))
        patient = Patient(exporter, held)

        def next_pod(what, seconds):
            judge.run(second)
            judge.end(second)
            judge.must_show(held)
            until("the patient exporter shows only the first pod", lambda: exporter.shows(held))
            print(f"ok  {what}: {seconds:.0f} s, a pod keeps its name, and the next pod gets one", flush=True)

        judge.cluster.end("kubelet")
        judge.cluster.start_kubelet()
        seconds = patient.until("the slices vanish when the kubelet restarts", lambda: not judge.in_slices())
        seconds += patient.until("the slices are back", judge.is_published)
        next_pod("the kubelet restarted", seconds)

        judge.cluster.end("dra-driver")
        seconds = patient.until("the slices vanish when the driver has stopped", lambda: not judge.in_slices())
        seconds += patient.for_seconds(WITHOUT)
        judge.cluster.start_driver(claims.pools(judge.published))
        seconds += patient.until("the slices are back", judge.is_published)
        next_pod("the driver stopped and started", seconds)

        # In another order; without the device of the pod; and as before.
        used = {one.device for one in held}
        begin = time.monotonic()
        everything = judge.sets["all"]
        for devices in (everything[::-1], [device for device in everything if device["name"] not in used], everything):
            judge.publish(devices)
            patient.for_seconds(LIMIT)
        next_pod("the slices published three times, once without the pod's device", time.monotonic() - begin)
        unassigned = judge.quick.unassigned() + exporter.unassigned()
    judge.end(first)
    if unassigned:
        yield f"{unassigned:.0f} devices of claims were counted as assigned to no GPU"


def ways(judge):
    """A pod has the same labels whether a device plugin or a claim gives it its GPU; on a node with both, each pod has its own GPU."""
    def labels():
        """Of each series about the pod, without those that say in which way it has got its GPU."""
        samples = [*judge.quick.scrape(), *judge.quick.dcgm_series()]
        about = (one for one in samples if one[1].get("pod") == "same")
        return sorted((name, sorted(item for item in labels.items() if item[0] not in WAY)) for name, labels, _ in about)

    plugged, claimed = [claims.plugged("same")], claiming("same", exactly("gpu"))
    judge.publish([])
    judge.cluster.start_plugin(claims.GPUS[0])
    judge.run(plugged)
    by_plugin = labels()
    judge.end(plugged)
    judge.cluster.stop_plugin()
    judge.publish(claims.whole([0]))
    judge.run(claimed)
    by_claim = labels()
    if by_plugin != by_claim:
        yield f"labels: {by_plugin} with a device plugin, {by_claim} with a claim"
    judge.cluster.start_plugin(claims.GPUS[1])
    other = [claims.plugged("other")]
    held, _ = judge.run(other)
    if {(one.pod, one.uuid) for one in held} != {("same", claims.GPUS[0]), ("other", claims.GPUS[1])}:
        yield f"both on one node: {sorted(held)}"
    judge.end(other)
    judge.end(claimed)
    print(f"ok  a device plugin, a claim, and both on one node: {len(by_claim)} series with equal labels", flush=True)


def problems(cluster, options, folder):
    cluster.create_namespace(NAMESPACE, claims.FOR_MONITORING)
    api = Api(cluster)
    for item in scenarios.run("kubectl", "kustomize", scenarios.KUSTOMIZE / "base"):
        if item["kind"] != "DaemonSet":
            api.apply(item)
    for item in claims.classes():
        api.apply(item)
    token = cluster.token(ACCOUNT, ACCOUNT)

    def exporter(name, interval, **more):
        (folder / name).mkdir()
        made = claims.Exporter(options.exporter, simulator_of(options), folder / name, node.SOCKET, interval, **more)
        return made.follow(cluster, token)

    with exporter("quick", INTERVAL, shared=True) as quick:
        mig = until("the MIG devices are shown", quick.mig_uuids)
        judge = Judge(cluster, exporter, quick, mig)
        yield from cases(judge, options.record)
        users(judge)
        yield from without_slices(judge)
        yield from ways(judge)


def judged(options, tools):
    """In the namespaces: starts everything, and prints every problem."""
    os.environ["PATH"] = f"{tools['kubectl'].parent}{os.pathsep}{os.environ['PATH']}"
    begin, found = time.monotonic(), []
    server, machine = (node.FOLDER / name for name in ("server", "machine"))
    server.mkdir(), machine.mkdir()
    with node.Node(tools, server, options.cgroup) as cluster:
        print(f"Kubernetes {cluster.ask('GET', '/version')['gitVersion']} with a kubelet after {time.monotonic() - begin:.0f} s", flush=True)
        try:
            for problem in problems(cluster, options, machine):
                print(f"BAD {problem}", flush=True)
                found.append(problem)
        except (Late, SystemExit):
            for name in ("kubelet", "dra-driver", "containerd"):
                print(f"the end of {name}.log:\n{cluster.log(name)}", flush=True)
            raise
    print(f"{len(found)} problems, {time.monotonic() - begin:.0f} s")
    return finish(found)


def main():
    parser = arguments(__doc__, simulator=True)
    parser.add_argument("folder", type=Path, help="contains bin, as .ci/cluster-tools.sh provides it")
    parser.add_argument("--record", type=Path, help="a folder for the answers that recorded.py gives to an exporter")
    parser.add_argument("--cgroup", help="of the test, in the namespaces that it has made for itself")
    options = parser.parse_args()
    tools = binaries(options.folder, node.PROGRAMS)
    if options.cgroup:
        return judged(options, tools)
    if lacking := missing(tools, node.PROGRAMS) + node.missing():
        return skipped(f"a node with all of Kubernetes: missing: {', '.join(lacking)}")
    try:
        return node.apart(*sys.argv, "--cgroup")
    except node.Impossible as reason:
        return skipped(f"a node with all of Kubernetes needs {reason}")


if __name__ == "__main__":
    sys.exit(main())
