"""Checks of advice and of promised memory: what is advised is enough, less is not, and what was promised twice does not fit."""

import json
import os
import subprocess
import time

from cgroups import Cgroup
from check_memory import MIB, settle
from check_reports import ended
from children import Child
from exporter import Exporter
from pod_server import PodServer, pod
from harness import until
from prometheus import Prometheus

# The share of the GPU that a training step allocates: so large that two advised fractions fill most of the GPU, and fit.
SHARE = 0.36
# Steps before the loss of a run is compared with that of another.
STEPS = 5
# Seconds of training that are measured: more than an interval of `advise`, so that its history has a length wherever the intervals begin.
MEASURED = 65
TOGETHER = 300
JOB = "system.slice/slurmstepd.scope/job_{}/step_0/user/task_0"
RULES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../deploy/prometheus/rules")

NODE, TEAM, GROUP = "gpu-node", "team", "8f8d0c8e-6f7c-4b41-9a55-0a5a3a4e6f10"
CONTAINERS = ["11" * 32, "22" * 32]
PODS = [f"kubepods.slice/kubepods-pod1d5c7a0e_52f1_4b55_9f0e_6a2b8c3d4e{n:02x}.slice/cri-containerd-{container}.scope" for n, container in enumerate(CONTAINERS)]


def missing(setup, results, name):
    """Whether the check cannot run, because no Prometheus was given."""
    if not setup.prometheus:
        results.note(name, "SKIPPED: no --prometheus")
    return not setup.prometheus


def within(group, mode, *args):
    """A child in this control group, before it uses CUDA. Its first message has not been read."""
    child = Child(mode, *args)
    try:
        group.take(child.pid)
    except BaseException:
        child.end()
        raise
    return child


def begun(job, batch, fraction=0.0):
    """A training run in the group of a Slurm job."""
    return within(job, "limited", "--batch", batch, "--steps", STEPS, "--fraction", fraction)


def finished(child):
    """Asks the run to end, and returns its last message."""
    child.process.stdin.close()
    return child.hear(60)


def advised(setup, url, workload):
    """What `advise` says about the workload, and its exit status."""
    command = [setup.tool, "advise", f"--prometheus.url={url}", "--range=10m", "--min-samples=100", "--min-span=1s", "--format=json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    with open(os.path.join(setup.out, "advice.json"), "w") as out:
        out.write(done.stdout)
    if done.returncode not in (0, 2):
        raise RuntimeError(f"advise ended with status {done.returncode}: {done.stderr[-1000:]}")
    found = [one for one in json.loads(done.stdout)["workloads"] if one["workload"] == workload]
    if len(found) != 1:
        raise RuntimeError(f"advise does not say anything about {workload}: {done.stdout[:1000]}")
    return found[0], done.returncode


def advice(setup, results):
    """A training run is measured, advised, and run again: under the advice, below its peak, and twice at once."""
    if missing(setup, results, "advice"):
        return
    gpu = setup.gpu()
    settle(gpu)
    with ended(Child("batch-size", "--share", SHARE)) as child:
        batch = child.hear(180)["batch"]
    settle(gpu)
    with Exporter(setup, "advice") as exporter, Prometheus(setup, "advice", exporter.port) as prometheus, Cgroup(JOB.format(4801)) as job:
        with ended(begun(job, batch)) as child:
            first = child.hear(180)
            time.sleep(MEASURED)
            held = gpu.process_memory(child.pid)
            measured = finished(child)
        time.sleep(2)
        peak = exporter.scrape().value("gpu_workload_memory_peak_bytes", gpu=0, workload="slurm:4801")
        said, status = advised(setup, prometheus.url, "slurm:4801")
        units = said.get("units", {})
        results.note("advice: the training run", f"{batch} samples in a step, {measured['steps']} steps, max_memory_reserved {measured['max_memory_reserved'] / MIB:.0f} MiB, "
            f"max_memory_allocated {measured['max_memory_allocated'] / MIB:.0f} MiB, process {held / MIB:.0f} MiB by NVML")  # fmt: skip
        results.check("advice: peak against gpu_workload_memory_peak_bytes", f"{said['peak_bytes']} and {peak:.0f}", "equal", said["peak_bytes"] == peak)
        context = held - measured["reserved"]
        apart = (said["peak_bytes"] - measured["max_memory_reserved"] - context) / MIB
        results.check("advice: peak against max_memory_reserved + context", f"{apart:+.2f} MiB", "within 4 MiB", abs(apart) <= 4)
        want = -(-said["peak_bytes"] * 115 // 100)
        results.check("advice: bytes", f"{said['advice_bytes']}, {said['reason']}, {said['samples']} samples in {said['span_seconds']} s", f"{want}: the peak + 15 %", said["advice_bytes"] == want)
        results.check("advice: exit status", f"{status}, action {said['action']}", "2: of the whole GPU more than half can be given back", (status, said["action"]) == (2, "lower"))
        apart = (units["device_allocatable_bytes"] - measured["total"]) / MIB
        results.note("advice: what can be allocated, against PyTorch's total_memory", f"{apart:+.2f} MiB")
        fraction = units["torch_memory_fraction"]
        bound = fraction * measured["total"] + units["outside_bytes"]
        figure = f"fraction {fraction}: {bound / MIB:.0f} MiB with {units['outside_bytes'] / MIB:.0f} MiB outside the allocator, advice {said['advice_bytes'] / MIB:.0f} MiB"
        results.check("advice: the fraction", figure, "not more than the advice, at most 0.01 % of the GPU less", 0 <= said["advice_bytes"] - bound <= measured["total"] / 10_000 + abs(apart) * MIB)

        settle(gpu)
        again(results, batch, fraction, first, measured)
        settle(gpu)
        below(results, batch, said, units)
        settle(gpu)
        together(exporter, gpu, results, batch, said, fraction)


def again(results, batch, fraction, first, measured):
    """The same training run under the advised fraction: it has the same loss and takes the same memory."""
    with Cgroup(JOB.format(4802)) as job, ended(begun(job, batch, fraction)) as child:
        second = child.hear(180)
        time.sleep(5)
        done = finished(child) if "ready" in second else second
    passed = "out_of_memory" not in done
    results.check("advice: again under the advised fraction", f"{done['steps']} steps, {done['retries']} retries" if passed else done, "does not run out of memory", passed)
    if not passed:
        return
    apart = abs(second["loss"] / first["loss"] - 1)
    results.check(f"advice: loss after {STEPS} steps", f"{first['loss']:.4f} and {second['loss']:.4f}", "within 1 %", apart <= 0.01)
    apart = abs(done["max_memory_reserved"] / measured["max_memory_reserved"] - 1)
    figure = f"{measured['max_memory_reserved'] / MIB:.0f} and {done['max_memory_reserved'] / MIB:.0f} MiB"
    results.check("advice: max_memory_reserved without and with the fraction", figure, "within 1 %", apart <= 0.01)


def below(results, batch, said, units):
    """10 % below the measured peak, converted to a fraction as the advice is."""
    fraction = int((said["peak_bytes"] * 0.9 - units["outside_bytes"]) / units["device_allocatable_bytes"] * 10_000) / 10_000
    with Cgroup(JOB.format(4803)) as job, ended(begun(job, batch, fraction)) as child:
        told = child.hear(180)
        status = None if "ready" in told else child.process.wait(60)
    figure = f"fraction {fraction}: {told.get('out_of_memory', 'trains')} after {told.get('steps', STEPS)} steps, status {status}"
    results.check("advice: 10 % below the measured peak", figure, "OutOfMemoryError, status 1", (told.get("out_of_memory"), status) == ("OutOfMemoryError", 1))
    results.note("advice: PyTorch said", told.get("said", "nothing"))


def together(exporter, gpu, results, batch, said, fraction):
    """Two of them at once, each under the advised fraction."""
    memory = gpu.memory()
    share = 2 * said["advice_bytes"] / (memory["total"] - memory["reserved"])
    results.check("advice: two of them", f"{100 * share:.1f} % of what can be allocated", "85 % to 100 %", 0.85 <= share <= 1)
    with Cgroup(JOB.format(4804)) as one, Cgroup(JOB.format(4805)) as other:
        with ended(begun(one, batch, fraction)) as left, ended(begun(other, batch, fraction)) as right:
            ready = [child.hear(180) for child in (left, right)]
            started = time.monotonic()
            while time.monotonic() - started < TOGETHER and all(child.process.poll() is None for child in (left, right)):
                time.sleep(0.5)
            lasted = time.monotonic() - started
            used = gpu.memory()["used"]
            running = [child.process.poll() is None for child in (left, right)]
            done = [finished(child) for child in (left, right)]
        time.sleep(1.5)
        scrape = exporter.scrape()
    peaks = [scrape.value("gpu_workload_memory_peak_bytes", gpu=0, workload=f"slurm:{job}") for job in (4804, 4805)]
    passed = all(running) and not any("out_of_memory" in told for told in ready + done)
    figure = f"{lasted:.0f} s, {done[0]['steps']} and {done[1]['steps']} steps, {used / MIB:.0f} of {(memory['total'] - memory['reserved']) / MIB:.0f} MiB in use"
    results.check("advice: two at once under the advised fractions", figure, f"{TOGETHER} s, neither runs out of memory", passed and lasted >= TOGETHER)
    kept = all(peak is not None and peak <= said["advice_bytes"] for peak in peaks)
    shown = " and ".join("absent" if peak is None else f"{peak / MIB:.0f}" for peak in peaks)
    results.check("advice: peaks of both", f"{shown} MiB, advice {said['advice_bytes'] / MIB:.0f} MiB", "not above the advice", kept)


def pods(uuid):
    """A GPU that KAI-Scheduler shares: its reservation pod, and two pods that are promised a half each."""
    group = {"runai-gpu-group": GROUP}
    yield pod(NODE, "kai-resource-reservation", "gpu-reservation-gpu-node-x7k2p", labels=group, annotations={"run.ai/reserve_for_gpu_index": uuid})
    for number, container in enumerate(CONTAINERS):
        yield pod(NODE, TEAM, f"half-{number}", container, labels=group, annotations={"gpu-fraction": "0.5"})


def promised(setup, results):
    """Fractions that add up to 1 are flagged before a process is started; then the second of two processes cannot have its half."""
    if missing(setup, results, "promised"):
        return
    gpu = setup.gpu()
    settle(gpu)
    memory, uuid = gpu.memory(), gpu.text("nvmlDeviceGetUUID")
    allocatable, half = memory["total"] - memory["reserved"], memory["total"] // 2
    rules = [os.path.join(RULES, name) for name in ("recording.yml", "budget.yml")]
    with PodServer(NODE, list(pods(uuid))) as server:
        flags = (f"--kubernetes.api-server={server.url}", f"--kubernetes.node-name={NODE}")
        with Exporter(setup, "promised", *flags) as exporter, Prometheus(setup, "promised", exporter.port, rules) as prometheus:
            begun_at = time.monotonic()
            shown = until("gpu_memory_promised_bytes", lambda: exporter.scrape().value("gpu_memory_promised_bytes", gpu=0), 30)
            seen = time.monotonic() - begun_at
            results.check("promised: two halves", f"{shown:.0f} bytes after {seen:.1f} s, without a process", f"{2 * half}: the GPU's total", shown == 2 * half and not gpu.processes())
            results.check("promised: against what can be allocated", f"{(shown - allocatable) / MIB:+.0f} MiB", "above it", shown > allocatable)
            flagged(prometheus, gpu, results, shown - allocatable)
            halves(exporter, gpu, results, half)
    results.check("promised: requests to the API server", ", ".join(server.strange) or "only the list and the watch of the node's pods", "nothing else", not server.strange)


def flagged(prometheus, gpu, results, excess):
    """The alert of the shipped rules, as Prometheus evaluates it; its groups have an interval of a minute."""
    begun_at = time.monotonic()
    rule = prometheus.alert("GpuMemoryOverpromised")
    found = until("GpuMemoryOverpromised's expression", lambda: prometheus.query(rule["query"]), 150)
    [(labels, value)] = found
    figure = f"{value / MIB:+.0f} MiB on GPU {labels.get('gpu')} after {time.monotonic() - begun_at:.0f} s"
    results.check("promised: the expression of GpuMemoryOverpromised", figure, f"{excess / MIB:+.0f} MiB, no process", value == excess and not gpu.processes())
    alerts = until("GpuMemoryOverpromised", lambda: prometheus.alert("GpuMemoryOverpromised")["alerts"], 150)
    states = [alert["state"] for alert in alerts]
    figure = f"{', '.join(states)} after {time.monotonic() - begun_at:.0f} s, fires after {rule['duration']:.0f} s"
    results.check("promised: GpuMemoryOverpromised in Prometheus", figure, "one, pending or firing; no process", len(states) == 1 and not gpu.processes())


def halves(exporter, gpu, results, half):
    """Each of two processes takes what it was promised, its context included."""
    piece = 16
    with Cgroup(PODS[0]) as one, Cgroup(PODS[1]) as other, ended(within(one, "grower")) as first, ended(within(other, "grower")) as second:
        for child in (first, second):
            child.hear()
        got = []
        for child in (first, second):
            context = gpu.process_memory(child.pid)
            mib = (half - context) // MIB // piece * piece
            child.send(mib=mib, piece=piece)
            told = child.hear(120)
            got.append((context, mib, told))
        time.sleep(1.5)
        limits = exporter.scrape().rows("gpu_workload_memory_limit_bytes", gpu=0, source="kai")
    (context, mib, told), (_, asked, refused) = got
    results.check("promised: the first process", f"{told.get('mib')} MiB and {context / MIB:.0f} MiB of context, of {half / MIB:.0f} MiB", "gets its half", told.get("held") is True and told["mib"] == mib)
    figure = f"{refused.get('mib')} of {asked} MiB, then {refused.get('refused', 'nothing')}"
    results.check("promised: the second process", figure, "cannot have its half", "refused" in refused and refused["mib"] < asked)
    shown = {labels["workload"]: value for labels, value in limits}
    want = {f"{TEAM}/half-{number}/main": float(half) for number in range(2)}
    results.check("promised: limits of the running pods", ", ".join(f"{name}: {value:.0f}" for name, value in sorted(shown.items())) or "none",
        f"{half} of those that still run", bool(shown) and shown.items() <= want.items() and f"{TEAM}/half-0/main" in shown)  # fmt: skip
