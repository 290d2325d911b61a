"""Workloads on the made fleet: their names, their memory by time, and the series that an exporter would have written about them."""

from dataclasses import dataclass, field

from backfill import STEP, Run
from fleet import BEGIN, SCRAPES

GIB = 1 << 30
# Scrapes for which an exporter still shows the peaks of an ended process.
LINGER = 6


@dataclass(frozen=True)
class Work:
    """A workload. `group` is its name in the advice; `user` is the name of the user of its processes."""

    name: str
    kind: str
    group: str
    labels: tuple = ()
    user: str = ""

    def named(self):
        # The sum of what is beyond the exporter's limit has no kind.
        return {"workload": self.name, **({"kind": self.kind} if self.kind else {}), **dict(self.labels)}


def pod(namespace, name, container, base=None):
    """A container of a pod; `base` is the pod's name without its generated parts."""
    labels = (("namespace", namespace), ("pod", name), ("container", container))
    return Work(f"{namespace}/{name}/{container}", "kubernetes", f"{namespace}/{base or name}/{container}", labels)


def plain(name, kind, user=""):
    return Work(name, kind, name, user=user)


@dataclass
class Process:
    """A process on one device. `used` are the runs of its window peak, those of the workload if not given. `reported` are the runs of the
    allocator's window peak by framework, `outside` those of the memory outside the allocators, `failed` those of the failed allocations."""

    pid: int
    name: str
    used: list | None = None
    reported: dict = field(default_factory=dict)
    outside: list | None = None
    failed: dict = field(default_factory=dict)


@dataclass
class Stay:
    """A workload on a device. `peaks` are the runs of its window peak, `count` those of the number of its processes, and `limits` those of
    its budget by source; `short` are the scrapes that first show that it was short of memory."""

    work: Work
    device: object
    peaks: list
    count: list
    processes: list
    limits: dict
    short: list = field(default_factory=list)

    def series(self):
        on, named = self.device, self.work.named()
        yield from on.series("gpu_workload_memory_window_peak_bytes", named, self.peaks)
        yield from on.series("gpu_workload_processes", named, self.count)
        for source, runs in self.limits.items():
            yield from on.series("gpu_workload_memory_limit_bytes", {**named, "source": source}, runs)
        for at in self.short:
            runs = [Run(at, at + LINGER, BEGIN + at * STEP)]
            yield from on.series("gpu_workload_memory_last_shortage_timestamp_seconds", named, runs)
        for process in self.processes:
            yield from self.of_process(process)

    def of_process(self, process):
        on, used = self.device, process.used or self.peaks
        labels = {"pid": str(process.pid), "process": process.name, **dict(self.work.labels), "type": "compute"}
        info = {**self.work.named(), "pid": str(process.pid), "process": process.name, "user": self.work.user}
        yield from on.series("gpu_process_info", info, [Run(used[0].first, used[-1].last, 1)])
        yield from on.series("gpu_process_memory_window_peak_bytes", labels, used)
        for framework, runs in process.reported.items():
            yield from on.series("gpu_process_allocator_window_peak_bytes", {**labels, "framework": framework}, runs)
        for framework, runs in process.failed.items():
            yield from on.series("gpu_process_allocator_out_of_memory_total", {**labels, "framework": framework}, runs)
        if process.outside:
            yield from on.series("gpu_process_memory_outside_allocator_bytes", labels, process.outside)


def spiked(levels, spikes):
    """The levels with `spikes`: value by scrape."""
    found = []
    for first, last, value in levels:
        for at in sorted(at for at in spikes if first <= at <= last):
            if first < at:
                found.append(Run(first, at - 1, value))
            found.append(Run(at, at, spikes[at]))
            first = at + 1
        if first <= last:
            found.append(Run(first, last, value))
    return found


def stay(work, device, levels, spikes=None, processes=(), limits=None, count=1):
    """`levels` are (first, last, bytes); `spikes` are the window peaks above them by scrape; `limits` bytes or runs by source."""
    levels = [Run(*level) for level in levels]
    first, last = levels[0].first, levels[-1].last
    peaks = spiked(levels, spikes or {})
    if last + LINGER < SCRAPES:
        peaks.append(Run(last + 1, last + LINGER, levels[-1].value))
    limits = {source: [Run(first, last, limit)] if isinstance(limit, int) else [Run(*one) for one in limit] for source, limit in (limits or {}).items()}
    return Stay(work, device, peaks, [Run(first, last, count)], list(processes), limits)
