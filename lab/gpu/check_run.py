"""Checks of `vram run`: its peaks compared with PyTorch and NVML, its process tree, its exit status, its effect on a workload."""

import json
import os
import random
import signal
import statistics
import subprocess
import sys
import time

from check_memory import MIB, settle
from check_survival import UNSEEN, paired
from children import CLIENT, HERE, Child, with_client

# The number of pairs for which check_survival.T95 is valid.
ROUNDS = 60
RANK_MIB = 1024
CHILD = os.path.join(HERE, "cuda_child.py")
# Its memory falls, rises again below its peak, and an allocation fails. The figures are PyTorch's own.
ALLOCATING = """
import json, os, torch
first = torch.empty(3 << 30, dtype=torch.uint8, device="cuda")
del first
torch.cuda.empty_cache()
second = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
try:
    torch.empty(1 << 40, dtype=torch.uint8, device="cuda")
except torch.OutOfMemoryError:
    pass
stats = torch.cuda.memory_stats()
print(json.dumps({"pid": os.getpid(), "allocated": torch.cuda.max_memory_allocated(), "reserved": torch.cuda.max_memory_reserved(),
    "retries": stats["num_alloc_retries"], "failed": stats["num_ooms"]}))
"""


class Measured:
    """A command under `vram run`, and its report."""

    def __init__(self, setup, name, *flags):
        self.report_file = os.path.join(setup.out, f"{name}.json")
        self.prefix = [setup.tool, "run", f"--nvml.library={setup.library}", "--format=json", f"--output={self.report_file}", *flags, "--"]

    def start(self, *command):
        return subprocess.Popen([*self.prefix, *map(str, command)])

    def report(self):
        with open(self.report_file) as file:
            return json.load(file)


def peaks(report):
    """pid to peak in bytes, over all GPUs; for a process on several GPUs, the largest of its peaks."""
    found = {}
    for gpu in report["gpus"]:
        for process in gpu["processes"]:
            found[process["pid"]] = max(found.get(process["pid"], 0), process.get("peak_bytes", 0))
    return found


def mib(value):
    return "absent" if value is None else f"{value / MIB:.2f} MiB"


def together(report):
    return report.get("together", {}).get("peak_bytes")


def await_holders(gpus, count, least, limit=120.0):
    """pid to bytes, once `count` processes hold at least `least` bytes each on these GPUs and nothing changes any longer."""
    deadline = time.monotonic() + limit
    while time.monotonic() < deadline:
        held = {pid: used or 0 for gpu in gpus for pid, used in gpu.processes().items()}
        if sum(used >= least for used in held.values()) >= count:
            for gpu in gpus:
                settle(gpu)
            return {pid: used for gpu in gpus for pid, used in gpu.processes().items()}
        time.sleep(0.05)
    raise RuntimeError(f"{count} processes with {least / MIB:.0f} MiB did not appear within {limit:.0f} s")


def training(setup, results):
    """The peak of a transformer's training compared with PyTorch's max_memory_reserved plus the context."""
    gpu = setup.gpu()
    measured = Measured(setup, "run-training")
    child = Child("training", "--steps", 200, prefix=measured.prefix)
    try:
        ready = child.hear(180)
        held = await_holders([gpu], 1, ready["reserved"])
        pid = max(held, key=held.get)
        context = held[pid] - ready["reserved"]
        child.send(go=True)
        done = child.hear(180)
    finally:
        child.end()
    report = measured.report()
    want = done["max_memory_reserved"] + context
    for name, peak in (("together", together(report)), ("process", peaks(report).get(pid))):
        apart = float("inf") if peak is None else (peak - want) / MIB
        results.check(f"run, training: peak {name} against max_memory_reserved + context", f"{apart:+.2f} MiB", "within 4 MiB", abs(apart) <= 4)
    sampling = report["sampling"]
    results.note("run, training", f"{report['duration_seconds']:.1f} s, {sampling['samples']} samples, longest gap {sampling['longest_gap_seconds'] * 1000:.1f} ms, "
        f"{sampling['lists']} lists, fits in {report['fits_in'].get('board', {}).get('name')}, notes {report['notes']}")  # fmt: skip


def equal_peaks(results, what, report, held):
    """The processes that NVML listed have the same peaks in the report, and the peak of all of them together is the sum of their peaks."""
    shown = {pid: peak for pid, peak in peaks(report).items() if pid in held}
    rows = ", ".join(mib(peak) for peak in shown.values())
    results.check(f"{what}: peaks equal NVML's list", rows or "none", "equal to the byte", shown == held)
    total = sum(held.values())
    results.check(f"{what}: peak together is their sum", f"{mib(together(report))}, NVML {mib(total)}", "equal to the byte", together(report) == total)


def ranks(setup, results):
    """Two processes of torchrun, each with a different amount of memory."""
    gpus = [setup.gpu()] if len(setup.gpus()) == 1 else setup.gpus()[:2]
    measured = Measured(setup, "run-ranks")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    process = measured.start(*torchrun, CHILD, "rank", "--mib", RANK_MIB, "--hold", 8)
    held = await_holders(gpus, 2, RANK_MIB * MIB)
    status = process.wait(120)
    report = measured.report()
    results.check("run, torchrun: exit status", status, "0", status == 0)
    equal_peaks(results, "run, torchrun", report, held)


def tree(setup, results):
    """A shell with a child, a grandchild and an orphan that outlives the shell."""
    gpu = setup.gpu()
    measured = Measured(setup, "run-tree")
    rank = f"{sys.executable} {CHILD} rank --mib {RANK_MIB} --hold"
    script = f"({rank} 25 &); sh -c '{rank} 12; exit 0' & {rank} 12; wait; exit 7"
    process = measured.start("sh", "-c", script)
    held = await_holders([gpu], 3, RANK_MIB * MIB)
    status = process.wait(180)
    report = measured.report()
    results.check("run, tree: exit status of the shell", status, "7", status == 7)
    equal_peaks(results, "run, tree", report, held)
    followed = report.get("followed_seconds")
    results.check("run, tree: the orphan is followed to its end", f"{followed} s; {report['notes']}", "> 1 s, until it ended",
        followed is not None and followed > 1 and any("until they ended" in note for note in report["notes"]))  # fmt: skip


def ends(setup, results):
    """The command's exit status, SIGTERM to `run`, SIGKILL to the CUDA process, and the command's open files."""
    gpu = setup.gpu()
    status = Measured(setup, "run-status").start("sh", "-c", "exit 7").wait(60)
    results.check("run: exit status of the command", status, "7", status == 7)
    for name, sent, want in (("SIGTERM to run", signal.SIGTERM, 143), ("SIGKILL of the command", signal.SIGKILL, 137)):
        measured = Measured(setup, f"run-{sent.name}")
        process = measured.start(sys.executable, CHILD, "rank", "--mib", RANK_MIB, "--hold", 60)
        held = await_holders([gpu], 1, RANK_MIB * MIB)
        pid = max(held, key=held.get)
        os.kill(process.pid if sent == signal.SIGTERM else pid, sent)
        status = process.wait(60)
        report = measured.report()
        results.check(f"run, {name}: exit status", status, str(want), status == want)
        results.check(f"run, {name}: peak", mib(peaks(report).get(pid)), f"NVML's {mib(held[pid])}", peaks(report).get(pid) == held[pid])
        settle(gpu)
    bare, measured = (open_files(setup, under) for under in (False, True))
    results.check("run: open files of the command", f"{measured}, without run {bare}", "equal", measured == bare)


def open_files(setup, under_run):
    """The number of open files that a command inherits. NVML's files must not be among them."""
    prefix = Measured(setup, "run-files").prefix if under_run else []
    done = subprocess.run([*prefix, "sh", "-c", "ls /proc/$$/fd | wc -l"], capture_output=True, text=True, check=True, timeout=60)
    return int(done.stdout)


def allocators(setup, results):
    """What the Python client reports to `run`, compared with PyTorch's own figures."""
    measured = Measured(setup, "run-allocators")
    # As vram-run does for a client that is not installed.
    environment = {**os.environ, **with_client(os.path.join(CLIENT, "vram_exporter/_bootstrap"))}
    done = subprocess.run([*measured.prefix, sys.executable, "-c", ALLOCATING], env=environment, capture_output=True, text=True, timeout=180)
    results.check("run, allocators: exit status", done.returncode, "0", done.returncode == 0)
    torch = json.loads(done.stdout.splitlines()[-1])
    shown = [used for used in measured.report().get("allocators", []) if used["pid"] == torch["pid"]]
    figures = [[used.get(key) for key in ("allocated_peak_bytes", "reserved_peak_bytes", "retries", "failed_allocations")] for used in shown]
    wanted = [torch["allocated"], torch["reserved"], torch["retries"], torch["failed"]]
    results.check("run, allocators: highest allocated and reserved, retries, failed allocations", figures, f"PyTorch's {wanted}", figures == [wanted])
    requested = [failure["requested_bytes"] for used in shown for failure in used.get("failures", [])]
    results.check("run, allocators: the failed allocation", requested, "1 TiB was requested", requested == [1 << 40])


def pace(setup, results):
    """Training steps under `run`, in pairs: once while `run` samples and once while it is stopped (SIGSTOP). The same process runs both,
    so that drift of the machine affects both alike."""
    chance = random.Random(11)
    medians = {"sampling": [], "stopped": []}
    child = Child("paced", prefix=Measured(setup, "run-pace").prefix)
    try:
        child.hear(180)
        try:
            for number in range(ROUNDS + 1):
                order = list(medians)
                chance.shuffle(order)
                for name in order:
                    child.process.send_signal(signal.SIGSTOP if name == "stopped" else signal.SIGCONT)
                    time.sleep(0.1)
                    child.send(steps=20, allocations=0)
                    taken = child.hear()
                    # The first round is only a warm-up.
                    if number:
                        medians[name].append(statistics.median(taken["steps"]))
        finally:
            child.process.send_signal(signal.SIGCONT)
    finally:
        child.end()
    ratio, low, high = paired(medians["sampling"], medians["stopped"])
    results.check("steps under run, against run stopped", f"{ratio:.4f} times as long (95 %: {low:.4f} to {high:.4f}), {ROUNDS} pairs",
        "1 within the interval, or at most 0.5 % more", low <= 1.0 or ratio <= 1.0 + UNSEEN)  # fmt: skip
