"""Checks of the probes on the driver's memory calls: spikes of 50 µs, refused requests, how far calls are from readings, and the cost."""

import glob
import math
import os
import random
import signal
import statistics
import sys
import time
from contextlib import ExitStack

from call_child import SHORT
from check_cost import build
from check_incidents import await_incident, get
from check_memory import MIB, settle
from check_sharing import Mps
from children import Child
from cuda_child import LIBRARIES
from exporter import Exporter
from harness import cpu_seconds, resident_kib

GIB = 1 << 30
SPIKES = 20
# Without a module of its own, Child runs cuda_child.py.
SCRIPT = "call_child.py"
CUDA = next(filter(os.path.exists, LIBRARIES), LIBRARIES[0])
SHORT_ROUNDS = int(os.environ.get("CALLS_SHORT_ROUNDS", "600"))


def child(mode, *args, user=None, program=None, **environment):
    return Child(mode, *args, user=user, environment=environment, script=SCRIPT, program=program)


def cuda_runtime():
    """The CUDA runtime that PyTorch brings; None if there is none."""
    runtimes = [path for folder in sys.path for path in glob.glob(f"{folder}/nvidia/**/libcudart.so.1*", recursive=True)]
    return min(runtimes, default=None)


def probed(setup, name, mode="all"):
    return Exporter(setup, name, f"--memory.probes={mode}", "--process.interval=1s")


def peaks(scrape, pid):
    """The window peaks of the process, of its workload and of the GPUs."""
    gpus = {labels["gpu"]: value for labels, value in scrape.rows("gpu_memory_window_peak_bytes")}
    of_process = {labels["gpu"]: value for labels, value in scrape.rows("gpu_process_memory_window_peak_bytes", pid=pid)}
    of_workload = {labels["gpu"]: value for labels, value in scrape.rows("gpu_workload_memory_window_peak_bytes")}
    return gpus, of_process, of_workload


def lost(scrape):
    return sum(value for _, value in scrape.rows("vram_exporter_probe_events_lost_total"))


# What no process holds counts for the GPU with its lowest value of the last 30 to 60 s (docs/probes.md).
SETTLED = 62


def spikes_of(exporter, job, results, what, device=0, gpu="0"):
    """Spikes that grow, so that each one is the highest of its window, and what is seen of each."""
    before = exporter.scrape()
    used = before.value("gpu_memory_used_bytes", gpu=gpu)
    own = before.value("gpu_process_memory_used_bytes", pid=job.pid, gpu=gpu)
    # Of all its processes: a server of MPS may belong to it.
    workload = before.value("gpu_workload_memory_used_bytes", gpu=gpu)
    seen = {"gpu": 0, "process": 0, "workload": 0}
    missed = []
    for number in range(SPIKES):
        mib = 1024 + 150 * number
        job.send(mib=mib, device=device)
        if job.hear()["result"] != "ok":
            raise RuntimeError("the spike was refused")
        wanted = {"gpu": used + mib * MIB, "process": own + mib * MIB, "workload": workload + mib * MIB}
        for _ in range(20):
            time.sleep(0.1)
            told = dict(zip(("gpu", "process", "workload"), (values.get(gpu) for values in peaks(exporter.scrape(), job.pid))))
            if told == wanted:
                break
        for who, bytes_ in wanted.items():
            seen[who] += told[who] == bytes_
            if told[who] != bytes_:
                missed.append((number, who, (told[who] or 0) - bytes_))
    results.check(f"{what}: spikes of 50 µs seen with their sizes", seen, f"{SPIKES} of {SPIKES} each", set(seen.values()) == {SPIKES})
    if missed:
        results.note(f"{what}: what was told instead, bytes more", missed[:6])
    results.check(f"{what}: calls lost", lost(exporter.scrape()), "0", lost(exporter.scrape()) == 0)


def spikes(setup, results):
    with probed(setup, "calls-spikes") as exporter, child("driver") as job:
        settle(setup.gpu())
        time.sleep(SETTLED)
        spikes_of(exporter, job, results, "one process")


def mps(setup, results):
    daemon = Mps()
    if daemon.control is None:
        return results.note("a client of MPS", "left out: no MPS")
    with daemon, probed(setup, "calls-mps") as exporter, child("driver", **daemon.environment) as job:
        settle(setup.gpu())
        time.sleep(SETTLED)
        spikes_of(exporter, job, results, "a client of MPS")


def two_gpus(setup, results):
    if len(setup.gpus()) < 2:
        return results.note("two GPUs", "this machine has one")
    with probed(setup, "calls-two") as exporter, child("driver", "--devices", 2) as job:
        for device in (0, 1):
            job.send(mib=512, keep=True, device=device)
            job.hear()
            time.sleep(2.5)
        time.sleep(SETTLED)
        for device in (0, 1):
            spikes_of(exporter, job, results, f"one process on two GPUs, device {device}", device, str(device))


def corrections(scrape):
    """How many corrections there were, their mean, and the bounds below which half and all of them are."""
    buckets = sorted((float(labels["le"]), value) for labels, value in scrape.rows("gpu_memory_call_correction_bytes_bucket"))
    count = buckets[-1][1]
    mean = scrape.value("gpu_memory_call_correction_bytes_sum") / max(count, 1)
    bound = lambda share: next(limit for limit, below in buckets if below >= share * count)
    return count, mean, bound(0.5), bound(1)


FRAMEWORKS = {
    "PyTorch, native": ("random", {}),
    "PyTorch, expandable segments": ("random", {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}),
    "PyTorch, cudaMallocAsync": ("random", {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"}),
    "JAX, preallocating": ("jax", {}),
    "JAX, not preallocating": ("jax", {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}),
}


def frameworks(setup, results):
    for what, (mode, environment) in FRAMEWORKS.items():
        count, seconds = (1000, 60) if what == "PyTorch, native" else (200, 10)
        with probed(setup, "calls-" + what.replace(", ", "-").replace(" ", "-")) as exporter, child(mode, **environment) as job:
            time.sleep(2)
            job.send(count=count, seconds=seconds)
            peak = job.hear(seconds * 4 + 60)["peak"]
            time.sleep(1.5)
            scrape = exporter.scrape()
            number, mean, half, most = corrections(scrape)
            figure = f"{number:.0f} readings: half within {half / MIB:g} MiB, all within {most / MIB:g} MiB, mean {mean / MIB:.1f} MiB"
            results.note(f"{what}: {count} random allocations in {seconds} s, corrections", figure)
            calls = sum(value for _, value in scrape.rows("gpu_workload_memory_calls_total"))
            spent = sum(value for _, value in scrape.rows("gpu_workload_memory_call_seconds_total"))
            results.note(f"{what}: calls, and the time in them", f"{calls:.0f}, {spent * 1e3:.0f} ms")
            results.check(f"{what}: calls lost", lost(scrape), "0", lost(scrape) == 0)
            highest = scrape.value("gpu_process_memory_peak_bytes", pid=job.pid)
            total = scrape.value("gpu_memory_total_bytes")
            if mode == "random":
                used = scrape.value("gpu_process_memory_used_bytes", pid=job.pid)
                off = (highest - peak - (used or 0)) / MIB
                # What remains after the cache has been given back is the context, and the first tensor's segment. Of a pool, calls
                # tell only what lives in it, so that what lived for less than a reading can be missing.
                lowest = -512 if "Async" in what else -64
                results.check(f"{what}: process peak minus max_memory_reserved and what stays", f"{off:+.1f} MiB", f"{lowest} to 4 MiB", lowest <= off <= 4)
            results.check(f"{what}: no peak above the GPU", f"{highest / GIB:.1f} GiB", f"at most {total / GIB:.1f}", highest <= total)


def refusals(setup, results):
    """A nearly full GPU, and programs that ask for more than is left."""
    with ExitStack() as stack:
        exporter = stack.enter_context(probed(setup, "calls-refusals", "refusals"))
        neighbour = stack.enter_context(child("driver"))
        gpu = setup.gpu()
        memory = gpu.memory()
        left = 12 * 1024
        neighbour.send(mib=(memory["free"]) // MIB - left, keep=True)
        neighbour.hear()
        asks = 30 * 1024
        program, runtime = build(setup, "ask"), cuda_runtime()
        programs = {
            "a C program, cuMemAlloc": (["driver", CUDA], {"program": program}, "mib"),
            "PyTorch": (["random"], {}, "ask_mib"),
            "JAX, not preallocating": (["jax"], {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}, "ask_mib"),
        }
        if runtime:
            programs["a C program, cudaMalloc"] = (["runtime", runtime], {"program": program}, "mib")
        else:
            results.note("a C program, cudaMalloc", "left out: no libcudart")
        for number, (what, (arguments, options, ask)) in enumerate(programs.items()):
            # Each is a workload of its own, whose incident is no repeat of the one before.
            job = child(*arguments, user=20011 + number, HOME="/tmp", **options)
            try:
                job.hear(180)
                time.sleep(2.5)
                free = gpu.memory()["free"]
                job.send(**{ask: asks})
                answer = job.hear(120)["result"]
            finally:
                job.end()
            found, took = await_incident(exporter, "out_of_memory", number + 1)
            failed = found["out_of_memory"]
            told = f"{failed['requested_bytes'] / GIB:.2f} GiB, {failed.get('free_bytes', 0) / GIB:.2f} GiB free, after {took:.1f} s"
            exact = failed["pid"] == job.pid and failed["requested_bytes"] >= asks * MIB
            near = abs((failed.get("free_bytes") or 0) - free) <= 64 * MIB
            results.check(f"{what}, which got {answer}: the incident has the request and what was left", told, f"{asks / 1024:.0f} GiB, {free / GIB:.2f} GiB", exact and near)
            holders = [process["pid"] for process in found["processes"]]
            results.check(f"{what}: who held what", len(holders), "the neighbour first, and the program", holders[:1] == [neighbour.pid] and job.pid in holders)
            results.note(f"{what}: summary", found["summary"])
        scrape = exporter.scrape()
        refused, count = scrape.value("gpu_memory_refused_requests_total"), len(programs)
        results.check("refused requests", refused, f"at least {count}", refused >= count)
        found = [incident for incident in get(exporter, "/api/v1/incidents")["incidents"] if incident["kind"] == "out_of_memory"]
        results.check("incidents of the kind out_of_memory", len(found), count, len(found) == count)


ARMS = {"none": "none", "none again": "none", "refusals": "refusals", "all": "all"}


def cost(setup, results, rounds=18, seconds=2):
    """Training steps, single calls, and what the exporter itself uses, with a new exporter for each arm of each round."""
    took, used = {arm: [] for arm in ARMS}, {arm: [] for arm in ARMS}
    rng = random.Random(3)
    with child("steps") as job:
        for _ in range(rounds):
            for arm in rng.sample(list(ARMS), len(ARMS)):
                with probed(setup, "calls-cost", ARMS[arm]) as exporter:
                    time.sleep(0.7)
                    cpu = cpu_seconds(exporter.process.pid)
                    begun = time.monotonic()
                    job.send(seconds=seconds)
                    took[arm].append(job.hear(seconds * 5 + 30))
                    share = (cpu_seconds(exporter.process.pid) - cpu) / (time.monotonic() - begun)
                    used[arm].append((share * 100, resident_kib(exporter.process.pid) / 1024))
    for work in took["none"][0]:
        if work in SHORT:
            continue
        if not work.startswith(("cuMem", "a pair")):
            compare_steps(results, took, work)
            continue
        base = statistics.median(figures[work] for figures in took["none"])
        for arm in list(ARMS)[1:]:
            more = statistics.median(figures[work] for figures in took[arm]) - base
            results.check(f"{work}, {arm}: µs more", f"{more:+.2f} (from {base:.2f})", "at most 5", more <= 5)
    for arm, figures in used.items():
        cpu, resident = (statistics.median(values) for values in zip(*figures))
        results.note(f"the exporter, {arm}: CPU and resident memory", f"{cpu:.2f} % of a core, {resident:.1f} MiB")


def cost_short(setup, results, rounds=SHORT_ROUNDS, seconds=0.1, arms=ARMS, only=SHORT):
    """Steps that are bound by the processor that launches them. The speed of a virtual machine's processors drifts by more in a second than
    what is looked for, so the arms follow each other within a fifth of a second: all exporters stay, and those that are not measured are
    stopped (SIGSTOP). The probes of `all` are in place the whole time, and the steps make none of the calls that they watch, which is
    checked: what is compared is an exporter that works beside the steps. The job has processors of its own."""
    all_cores = os.sched_getaffinity(0)
    own = sorted(all_cores)[-4:]
    os.sched_setaffinity(0, all_cores - set(own))
    took = {arm: [] for arm in arms}
    rng = random.Random(3)
    try:
        with child("steps", "--cores", *own) as job, ExitStack() as stack:
            exporters = {arm: stack.enter_context(probed(setup, "calls-short", mode)) for arm, mode in arms.items()}
            time.sleep(3)
            seen = {arm: calls_seen(exporter) for arm, exporter in exporters.items()}
            for exporter in exporters.values():
                stack.callback(exporter.process.send_signal, signal.SIGCONT)
                exporter.process.send_signal(signal.SIGSTOP)
            for _ in range(rounds):
                for arm in rng.sample(list(arms), len(arms)):
                    exporters[arm].process.send_signal(signal.SIGCONT)
                    time.sleep(0.01)
                    job.send(seconds=seconds, only=only)
                    took[arm].append(job.hear())
                    exporters[arm].process.send_signal(signal.SIGSTOP)
            for exporter in exporters.values():
                exporter.process.send_signal(signal.SIGCONT)
            time.sleep(1)
            more = {arm: calls_seen(exporter) - seen[arm] for arm, exporter in exporters.items()}
    finally:
        os.sched_setaffinity(0, all_cores)
    if "all" in more:
        results.check("watched calls that these steps made", more["all"], "0", more["all"] == 0)
    for work in took["none"][0]:
        compare_steps(results, took, work)


def cost_refusals(setup, results):
    """More rounds of the only pair that a run of `cost_short` left undecided."""
    chosen = {arm: ARMS[arm] for arm in ("none", "none again", "refusals")}
    cost_short(setup, results, SHORT_ROUNDS // 2, arms=chosen, only=SHORT[:1])


def calls_seen(exporter):
    return sum(value for _, value in exporter.scrape().rows("gpu_workload_memory_calls_total"))


def interval(ratios):
    """The 95 % interval of their median, from their order: it holds however they are spread."""
    ordered, count = sorted(ratios), len(ratios)
    reach = 0.98 * math.sqrt(count)
    low, high = math.floor(count / 2 - reach), math.ceil(count / 2 + reach)
    return ordered[max(low, 0)], ordered[min(high, count - 1)]


def compare_steps(results, took, work):
    base = [figures[work] for figures in took["none"]]
    for arm in list(took)[1:]:
        low, high = interval([figures[work] / other for figures, other in zip(took[arm], base)])
        name, figure = f"{work}, {arm} against none: time of a step of {statistics.median(base):.2f} ms, 95 %", f"{low:.4f} to {high:.4f}"
        if arm == "none again":
            results.note(name, figure)
        else:
            results.check(name, figure, "0.99 to 1.01", 0.99 <= low and high <= 1.01)
