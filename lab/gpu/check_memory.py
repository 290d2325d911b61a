"""Checks of the numbers: they equal those of NVML and nvidia-smi, and no peak is lost."""

import random
import subprocess
import time

from children import Child, Crowd
from exporter import Exporter

MIB = 1 << 20
SPIKE_MIB = 4096
LEVELS = ("total", "reserved", "used", "free")


def smi(*query):
    """The rows of an nvidia-smi query for GPU 0, with the spaces around each cell removed."""
    command = ["nvidia-smi", "-i", "0", *query, "--format=csv,noheader,nounits"]
    text = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout
    return [[cell.strip() for cell in line.split(",")] for line in text.splitlines() if line.strip()]


def settle(gpu, limit=20.0):
    """Wait until NVML's numbers have not changed for a second, and return them."""
    deadline = time.monotonic() + limit
    last, since = None, time.monotonic()
    while time.monotonic() < deadline:
        seen = (gpu.memory(), gpu.processes())
        if seen != last:
            last, since = seen, time.monotonic()
        elif time.monotonic() - since >= 1:
            return seen
        time.sleep(0.1)
    raise RuntimeError(f"the GPU's memory does not settle within {limit:.0f} s")


def process_memory(scrape):
    """pid to (bytes, name) of the compute processes that the exporter shows on GPU 0."""
    rows = scrape.rows("gpu_process_memory_used_bytes", gpu=0)
    return {int(row["pid"]): (value, row.get("process")) for row, value in rows if "compute" in row.get("type", "")}


def identity(setup, results):
    """With 0, 1 and 16 processes the exporter, NVML and nvidia-smi report the same."""
    gpu = setup.gpu()
    with Exporter(setup, "identity") as exporter:
        for count in (0, 1, 16):
            with Crowd(count, "context", "--mib", 300) as children:
                identity_at_rest(gpu, exporter, results, count, {child.pid for child in children})


def identity_at_rest(gpu, exporter, results, count, pids):
    memory, processes = settle(gpu)
    time.sleep(1.5)  # the process lane reads at least once a second
    scrape = exporter.scrape()
    smi_memory = [float(cell) for cell in smi("--query-gpu=" + ",".join(f"memory.{level}" for level in LEVELS))[0]]
    smi_processes = {int(row[0]): float(row[1]) for row in smi("--query-compute-apps=pid,used_memory")}
    if (memory, processes) != (gpu.memory(), gpu.processes()):
        raise RuntimeError("the GPU's memory changed during the comparison")

    shown = {level: scrape.value(f"gpu_memory_{level}_bytes", gpu=0) for level in LEVELS}
    equal = shown == {level: float(memory[level]) for level in LEVELS}
    figure = ", ".join(f"{level} {shown[level]:.0f}" if shown[level] is not None else f"{level} absent" for level in LEVELS)
    results.check(f"memory equals NVML's, {count} processes", figure, "equal to the byte", equal)
    apart = [abs(shown[level] / MIB - mib) if shown[level] is not None else float("inf") for level, mib in zip(LEVELS, smi_memory)]
    results.check(f"memory equals nvidia-smi's, {count} processes", f"difference at most {max(apart):.2f} MiB", "< 1 MiB (it rounds)", max(apart) < 1)

    ours = process_memory(scrape)
    same = {pid: value for pid, (value, _) in ours.items()} == {pid: float(used) for pid, used in processes.items() if used is not None}
    results.check(f"processes equal NVML's, {count} processes", f"{len(ours)} with pid and memory", "same pids, equal to the byte", same and pids <= ours.keys() and len(pids) == count)
    if not count:
        return
    apart = [abs(ours[pid][0] / MIB - mib) for pid, mib in smi_processes.items() if pid in ours]
    close = len(apart) == len(smi_processes) == len(ours) and max(apart) < 1
    results.check(f"processes equal nvidia-smi's, {count} processes", f"{len(apart)} of {len(smi_processes)}, difference at most {max(apart, default=0):.2f} MiB", "all, < 1 MiB", close)
    names = {ours[pid][1] for pid in pids if pid in ours}
    results.check(f"process names, {count} processes", ", ".join(sorted(map(str, names))), "cuda_child.py", names == {"cuda_child.py"})


def await_fall(exporter, base, pid, process_base, limit=6.0):
    """Wait until both window peaks are back at the base, so that the next peak is the only one."""
    deadline = time.monotonic() + limit
    while time.monotonic() < deadline:
        scrape = exporter.scrape()
        peak = scrape.value("gpu_memory_window_peak_bytes", gpu=0)
        own = scrape.value("gpu_process_memory_window_peak_bytes", gpu=0, pid=pid)
        if peak is not None and own is not None and abs(peak - base) <= MIB and abs(own - process_base) <= MIB:
            return True
        time.sleep(0.05)
    return False


def spikes(setup, results, hold_ms, rate, goals):
    """Twenty allocations of 4 GiB directly from the driver, each alone in a window of one second."""
    gpu = setup.gpu()
    chance = random.Random(hold_ms)
    seen = seen_process = alone = 0
    held = []
    flags = ["--memory.peak-window=1s"] + ([f"--memory.rate={rate}"] if rate else [])
    child = Child("spikes")
    try:
        child.hear()
        with Exporter(setup, f"spikes-{hold_ms}ms", *flags) as exporter:
            settle(gpu)
            for _ in range(20):
                base, process_base = gpu.memory()["used"], gpu.process_memory(child.pid)
                fell = await_fall(exporter, base, child.pid, process_base)
                alone += fell
                time.sleep(chance.uniform(0.05, 0.25))  # a random phase relative to the lane's clock
                child.send(mib=SPIKE_MIB, hold_ms=hold_ms)
                times = child.hear()
                held.append((times["held_to"] - times["held_from"]) * 1000)
                time.sleep(0.2)
                scrape = exporter.scrape()
                peak = scrape.value("gpu_memory_window_peak_bytes", gpu=0)
                own = scrape.value("gpu_process_memory_window_peak_bytes", gpu=0, pid=child.pid)
                want = SPIKE_MIB * MIB
                seen += fell and peak is not None and abs(peak - base - want) <= MIB
                seen_process += fell and own is not None and abs(own - process_base - want) <= MIB
    finally:
        child.end()
    what = f"spikes of {hold_ms} ms at {rate or 100} Hz"
    results.note(f"{what}: held", f"{min(held):.2f} to {max(held):.2f} ms; {alone}/20 began with the window back at its base")
    results.check(f"{what} in the GPU's window peak", f"{seen}/20", f">= {goals[0]}/20 within 1 MiB", seen >= goals[0])
    results.check(f"{what} in the process's window peak", f"{seen_process}/20", f">= {goals[1]}/20 within 1 MiB", seen_process >= goals[1])


def spikes20(setup, results):
    spikes(setup, results, 20, None, (19, 18))


def spikes2(setup, results):
    spikes(setup, results, 2, 1000, (18, 18))


def training(setup, results):
    """The training of a transformer: the process peak compared with PyTorch's max_memory_reserved."""
    gpu = setup.gpu()
    with Exporter(setup, "training") as exporter:
        child = Child("training", "--steps", 200)
        try:
            ready = child.hear(180)
            time.sleep(0.5)
            context = gpu.process_memory(child.pid) - ready["reserved"]
            child.send(go=True)
            done = child.hear(180)
            context_after = gpu.process_memory(child.pid) - done["reserved"]
            time.sleep(1.5)
            labels = {"gpu": 0, "pid": child.pid}
            peak = exporter.scrape().value("gpu_process_memory_peak_bytes", **labels)
        finally:
            child.end()
        time.sleep(3)
        scrape = exporter.scrape()
    want = done["max_memory_reserved"] + context
    apart = float("inf") if peak is None else (peak - want) / MIB
    results.note("training", f"200 steps in {done['seconds']:.1f} s, loss {done['first_loss']:.2f} to {done['last_loss']:.2f}, peak step {done['peak_step_ms']:.0f} ms, "
        f"max_memory_reserved {done['max_memory_reserved'] / MIB:.0f} MiB (warm-up {ready['warm_up_peak'] / MIB:.0f}), max_memory_allocated {done['max_memory_allocated'] / MIB:.0f} MiB, "
        f"context {context / MIB:.1f} MiB before, {context_after / MIB:.1f} MiB after")  # fmt: skip
    results.check("training: process peak against max_memory_reserved + context", f"{apart:+.2f} MiB", "within 4 MiB", abs(apart) <= 4)
    after = scrape.value("gpu_process_memory_peak_bytes", **labels)
    results.check("training: peak after the exit", "absent" if after is None else f"{after / MIB:.1f} MiB", "unchanged", after is not None and after == peak)
    used = scrape.value("gpu_process_memory_used_bytes", **labels)
    results.check("training: used after the exit", "absent" if used is None else f"{used / MIB:.1f} MiB", "absent", used is None)


def scrapers(setup, results):
    """One scraper every second and one every 15 s read the same peaks through 45 s of spikes."""
    gpu = setup.gpu()
    chance = random.Random(45)
    fast, slow = [], []
    child = Child("spikes")
    try:
        child.hear()
        with Exporter(setup, "scrapers") as exporter:
            settle(gpu)
            base = gpu.memory()["used"]

            def read():
                scrape = exporter.scrape()
                return (
                    scrape.value("gpu_memory_window_peak_bytes", gpu=0),
                    scrape.value("gpu_process_memory_window_peak_bytes", gpu=0, pid=child.pid),
                    scrape.value("gpu_process_memory_peak_bytes", gpu=0, pid=child.pid),
                )

            begun = time.monotonic()
            highest = 0
            together = []
            for second in range(46):
                time.sleep(max(0.0, begun + second - time.monotonic()))
                fast.append(read())
                if second % 15 == 0:
                    slow.append(read())
                    together.append(fast[-1] == slow[-1])
                # The highest spike comes early, so the slow scraper can see it only in the window peak.
                size = 4096 if second == 5 else chance.randrange(512, 3072, 64)
                if second % 2 == 1 and second < 45:
                    time.sleep(chance.uniform(0.1, 0.4))
                    child.send(mib=size, hold_ms=30)
                    child.hear()
                    highest = max(highest, size)
    finally:
        child.end()
    if None in [value for row in fast + slow for value in row]:
        results.check("two scrapers: every peak is there", "absent in some scrape", "present", False)
        return
    results.check("two scrapers: readings at the same instant", f"{sum(together)}/{len(together)} equal", "all equal", all(together))
    tops = [max(row[0] for row in rows) for rows in (fast, slow)]
    own = [max(row[1] for row in rows) for rows in (fast, slow)]
    results.check("two scrapers: highest GPU window peak over 45 s", f"1 s: {tops[0]:.0f}, 15 s: {tops[1]:.0f}", "equal", tops[0] == tops[1])
    results.check("two scrapers: highest process window peak over 45 s", f"1 s: {own[0]:.0f}, 15 s: {own[1]:.0f}", "equal", own[0] == own[1])
    apart = abs(tops[1] - base - highest * MIB) / MIB
    results.check("two scrapers: that peak is the true one", f"{apart:.2f} MiB apart", "within 1 MiB", apart <= 1)
