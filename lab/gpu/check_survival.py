"""Checks what the exporter shows after processes are killed, how soon the values of a new exporter are correct, and how it affects a
workload."""

import math
import random
import signal
import statistics
import time

from check_memory import MIB, process_memory, settle
from children import Child, Crowd
from exporter import Exporter

SOON = 1.0
ROUNDS = 60
# Student's t, two-sided 95 %, for this number of pairs.
T95 = 2.001
# A difference that counts as negligible: half a percent of a step.
UNSEEN = 0.005


def agrees(exporter, gpu):
    """Whether one scrape equals NVML's figures before and after it; None if the GPU's memory changed in between."""
    before = (gpu.memory(), gpu.processes())
    try:
        scrape = exporter.scrape()
    except (OSError, RuntimeError):
        return False
    if before != (gpu.memory(), gpu.processes()):
        return None
    memory, processes = before
    same = all(scrape.value(f"gpu_memory_{level}_bytes", gpu=0) == float(memory[level]) for level in ("total", "reserved", "used", "free"))
    shown = {pid: value for pid, (value, _) in process_memory(scrape).items()}
    return same and shown == {pid: float(used) for pid, used in processes.items() if used is not None}


def right_after(exporter, gpu, begun, limit=10.0):
    """Seconds from `begun` until the exporter agrees with NVML; infinity if it does not agree within the limit."""
    while time.monotonic() - begun < limit:
        if agrees(exporter, gpu):
            return time.monotonic() - begun
        time.sleep(0.01)
    return math.inf


def started(setup, gpu, name):
    """A new exporter, and the seconds from its start until its values were correct."""
    begun = time.monotonic()
    exporter = Exporter(setup, name)
    exporter.ready = "/healthz"
    exporter.__enter__()
    return exporter, right_after(exporter, gpu, begun)


def killed(setup, results):
    """kill -9 of a busy CUDA process and of the exporter, and SIGTERM during a burst of allocations."""
    gpu = setup.gpu()
    with Crowd(3, "context", "--mib", 300):
        victim_is_killed(setup, gpu, results)
        settle(gpu)
        exporter, first = started(setup, gpu, "killed-first")
        results.check("exporter correct after its start, 3 processes", f"{first:.2f} s", "<= 1 s", first <= SOON)
        exporter.process.kill()
        exporter.process.wait()
        exporter, again = started(setup, gpu, "killed-again")
        results.check("exporter correct after kill -9 and a restart", f"{again:.2f} s", "<= 1 s", again <= SOON)
        exporter.__exit__()
        ends_in_a_burst(setup, gpu, results)


def victim_is_killed(setup, gpu, results):
    with Exporter(setup, "killed-victim") as exporter:
        victim = Child("busy", "--mib", 4096)
        victim.hear()
        time.sleep(2.0)
        held = exporter.scrape().value("gpu_process_memory_used_bytes", gpu=0, pid=victim.pid)
        peak = exporter.scrape().value("gpu_process_memory_peak_bytes", gpu=0, pid=victim.pid)
        victim.process.kill()
        victim.process.wait()
        deadline = time.monotonic() + 20
        while victim.pid in gpu.processes() and time.monotonic() < deadline:
            time.sleep(0.005)
        took = right_after(exporter, gpu, time.monotonic())
        scrape = exporter.scrape()
        victim.process.stdin.close()
        victim.process.stdout.close()
    shown = "absent" if held is None else f"{held / MIB:.0f} MiB"
    results.check("kill -9 of a busy process: it was seen", shown, "> 4096 MiB", held is not None and held > 4096 * MIB)
    results.check("kill -9 of a busy process: correct after the driver released it", f"{took:.2f} s", "<= 1 s", took <= SOON)
    after = scrape.value("gpu_process_memory_used_bytes", gpu=0, pid=victim.pid)
    kept = scrape.value("gpu_process_memory_peak_bytes", gpu=0, pid=victim.pid)
    results.check("kill -9 of a busy process: its peak remains, its memory does not", f"peak {'kept' if kept == peak else kept}, used {after}", "peak kept, used None",
        kept == peak and peak is not None and after is None)  # fmt: skip


def ends_in_a_burst(setup, gpu, results):
    burst = Child("burst", "--mib", 1024)
    burst.hear()
    taken, statuses = [], []
    try:
        for turn in range(5):
            exporter = Exporter(setup, f"burst-{turn}")
            exporter.__enter__()
            time.sleep(random.Random(turn).uniform(0.5, 1.5))
            begun = time.monotonic()
            exporter.process.send_signal(signal.SIGTERM)
            statuses.append(exporter.process.wait(10))
            taken.append(time.monotonic() - begun)
        alive = burst.process.poll() is None
    finally:
        burst.end()
    settle(gpu)
    results.check("SIGTERM in a burst of allocations", f"{max(taken):.3f} s at most, status {sorted(set(statuses))}", "5 times 0 within 2 s", max(taken) <= 2 and set(statuses) == {0})
    results.check("the burst continues", "alive" if alive else "ended", "alive", alive)
    exporter, took = started(setup, gpu, "burst-after")
    exporter.__exit__()
    results.check("exporter correct after SIGTERM and a restart", f"{took:.2f} s", "<= 1 s", took <= SOON)


def pace(setup, results):
    """Training steps and allocations without an active exporter, with one at 100 Hz and with one at 1000 Hz, in a random order in each
    round. Both exporters run the whole time, and inactive ones are stopped (SIGSTOP), so that the blocks are close together and drift
    of the machine affects all three alike."""
    conditions = {"none": None, "100 Hz": "100", "1000 Hz": "1000"}
    chance = random.Random(7)
    medians = {name: {"steps": [], "allocations": []} for name in conditions}
    child = Child("paced")
    try:
        child.hear(180)
        with Exporter(setup, "pace-100", "--memory.rate=100") as slow, Exporter(setup, "pace-1000", "--memory.rate=1000") as fast:
            exporters = {"100 Hz": slow, "1000 Hz": fast}
            for exporter in exporters.values():
                exporter.process.send_signal(signal.SIGSTOP)
            try:
                for number in range(ROUNDS + 1):
                    order = list(conditions)
                    chance.shuffle(order)
                    for name in order:
                        block = one_block(child, exporters.get(name))
                        # The first round is only a warm-up.
                        for what, values in block.items() if number else ():
                            medians[name][what].append(statistics.median(values))
            finally:
                for exporter in exporters.values():
                    exporter.process.send_signal(signal.SIGCONT)
    finally:
        child.end()
    for what in ("steps", "allocations"):
        base = medians["none"][what]
        results.note(f"{what} without an exporter", f"median of {ROUNDS} rounds {statistics.median(base):.4f} ms, {min(base):.4f} to {max(base):.4f}")
        for name in ("100 Hz", "1000 Hz"):
            ratio, low, high = paired(medians[name][what], base)
            unseen = low <= 1.0 or ratio <= 1.0 + UNSEEN
            results.check(f"{what} with the exporter at {name}, against none", f"{ratio:.4f} times as long (95 %: {low:.4f} to {high:.4f}), {ROUNDS} pairs",
                "1 within the interval, or at most 0.5 % more", unseen)  # fmt: skip


def one_block(child, exporter):
    """One block of steps and allocations with only this exporter active, or with none; one scrape is made in the middle."""
    if exporter:
        exporter.process.send_signal(signal.SIGCONT)
    time.sleep(0.1)
    child.send(steps=20, allocations=1000)
    if exporter:
        exporter.timed_get()
    taken = child.hear()
    if exporter:
        exporter.process.send_signal(signal.SIGSTOP)
    return taken


def paired(values, base):
    """The geometric mean of the ratios of the pairs, with its 95 % confidence interval."""
    logs = [math.log(value / other) for value, other in zip(values, base)]
    mean, error = statistics.fmean(logs), statistics.stdev(logs) / math.sqrt(len(logs))
    reach = T95 * error
    return math.exp(mean), math.exp(mean - reach), math.exp(mean + reach)
