"""Workloads on the made fleet: who they are, what they hold and when, and the series that an exporter would have written about them."""

from dataclasses import dataclass, field

from backfill import STEP, Run
from fleet import DAY, MIB, SCRAPES

GIB = 1 << 30
# Scrapes for which an exporter still shows the peaks of an ended process.
LINGER = 6
# Nodes on whose GPUs only the cases are, and the one whose MIG devices have the workloads.
KEPT = ("east/h200-a", "east/mig")
# The characters of Kubernetes' random suffixes, and those of a ReplicaSet's hash.
SUFFIX, HASH = "bcdfghjklmnpqrstvwxz2456789", "456789bcdf"


@dataclass(frozen=True)
class Work:
    """A workload. `group` is its name in the advice, `job` that of its batch job; `user` is the name of the user of its processes."""

    name: str
    kind: str
    group: str
    labels: tuple = ()
    job: str = ""
    user: str = ""

    def named(self):
        return {"workload": self.name, "kind": self.kind, **dict(self.labels)}


def pod(namespace, name, container, base=None, user=""):
    """A container of a pod; `base` is the pod's name without its generated parts."""
    labels = (("namespace", namespace), ("pod", name), ("container", container))
    return Work(f"{namespace}/{name}/{container}", "kubernetes", f"{namespace}/{base or name}/{container}", labels, user=user)


def plain(name, kind, user="", job=""):
    return Work(name, kind, name, job=job, user=user)


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

    def series(self, begin):
        on, named = self.device, self.work.named()
        yield from on.series("gpu_workload_memory_window_peak_bytes", named, self.peaks, begin)
        yield from on.series("gpu_workload_processes", named, self.count, begin)
        for source, runs in self.limits.items():
            yield from on.series("gpu_workload_memory_limit_bytes", {**named, "source": source}, runs, begin)
        for at in self.short:
            runs = [Run(at, at + LINGER, begin + at * STEP)]
            yield from on.series("gpu_workload_memory_last_shortage_timestamp_seconds", named, runs, begin)
        for process in self.processes:
            yield from self.of_process(process, begin)

    def of_process(self, process, begin):
        on, used = self.device, process.used or self.peaks
        labels = {"pid": str(process.pid), "process": process.name, **dict(self.work.labels), "type": "compute"}
        info = {**self.work.named(), "pid": str(process.pid), "process": process.name, "user": self.work.user}
        yield from on.series("gpu_process_info", info, [Run(used[0].first, used[-1].last, 1)], begin)
        yield from on.series("gpu_process_memory_window_peak_bytes", labels, used, begin)
        for framework, runs in process.reported.items():
            yield from on.series("gpu_process_allocator_window_peak_bytes", {**labels, "framework": framework}, runs, begin)
        for framework, runs in process.failed.items():
            yield from on.series("gpu_process_allocator_out_of_memory_total", {**labels, "framework": framework}, runs, begin)
        if process.outside:
            yield from on.series("gpu_process_memory_outside_allocator_bytes", labels, process.outside, begin)


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


class Crowd:
    """Workloads of every kind that follow one another on the devices of the fleet."""

    def __init__(self, fleet):
        self.fleet, self.rng = fleet, fleet.rng
        self.number = 1000
        self.stays, self.groups = [], set()
        lanes = [(node, device) for node, devices in fleet.nodes.items() if node not in KEPT for device in devices for _ in range(self.share(device))]
        lanes += [("east/mig", device) for device in fleet.mig]
        # For each place: its node, its device, and the scrape from which it is free.
        self.lanes = [[node, device, min(part.first for part in device.parts) + self.rng.randrange(600)] for node, device in lanes]
        while self.lanes:
            self.next()

    @staticmethod
    def share(device):
        """How many workloads share the device."""
        return 3 if device.total > 100 * GIB else 2 if device.total > 30 * GIB else 1

    def next(self):
        """One more workload, on the lane that is free first; or one lane less, if there is no room."""
        lane = min(self.lanes, key=lambda lane: lane[2])
        node, device, first = lane
        end = max(part.last for part in device.parts)
        if first + 40 > end:
            self.lanes.remove(lane)
            return
        last = min(end, first + self.duration())
        if end - last < 300:
            last = end
        lane[2] = last + 7 + self.rng.randrange(120)
        others = [other for other in self.lanes if other[0] == node and other[1] is not device and other[2] < last - 20]
        self.number += 1
        work = self.work()
        self.groups.add((work.kind, work.group))
        self.place(work, device, first, last)
        if others and node != "east/mig" and self.rng.random() < 0.4:
            for other in {id(other[1]): other for other in others[:2]}.values():
                self.place(work, other[1], max(first, other[2]), last)
                other[2] = lane[2]

    def duration(self):
        kind = self.rng.random()
        if kind < 0.08:
            return self.rng.randrange(15, 99)
        if kind < 0.15:
            return self.rng.randrange(100, 190)
        if kind < 0.17:
            return 14 * DAY
        return self.rng.randrange(4 * 60, 4 * DAY)

    def work(self):
        rng, number = self.rng, self.number
        user = rng.choice(("ada", "bob", "nora", "o'hara", "zoë", ""))
        match rng.randrange(10):
            case 0:
                return plain(f"slurm:{number}", "slurm", user, f"slurm:{number}")
            case 1:
                return plain(f"slurm:{number}", "slurm", user, f"slurm:{number}")
            case 2:
                scheduler = rng.choice(("pbs:{}", "torque:{}", "htcondor:slot1_{}@node", "nomad:{}.web", "oar:{}"))
                return plain(scheduler.format(number), "job", user, scheduler.format(number))
            case 3:
                return plain(f"unit:render-{number}x.service", "systemd", "render")
            case 4:
                return plain(f"user:guest{number}", "user", f"guest{number}")
            case 5:
                return plain(f"container:{rng.getrandbits(48):012x}", "container", user)
            case _:
                return self.pod(rng.choice(("ml", "research", "prod")), user)

    def pod(self, namespace, user):
        rng, base = self.rng, f"{self.rng.choice(('bert', 'llama', 'diffusion', 'vit'))}{self.number}"
        suffix = "".join(rng.choices(SUFFIX, k=5))
        endings = ("", f"-{''.join(rng.choices(HASH, k=10))}-{suffix}", f"-{suffix}", f"-{29_000_000 + self.number}-{suffix}", f"-{rng.randrange(40)}")
        return pod(namespace, base + rng.choice(endings), rng.choice(("main", "trainer")), base, user)

    def place(self, work, device, first, last):
        rng, room = self.rng, device.allocatable // self.share(device)
        top = int(room * rng.choice((0.06, 0.12, 0.2, 0.35, 0.5, 0.7, 0.85)) * rng.uniform(0.9, 1.05))
        cuts = sorted({first, *(rng.randrange(first, last + 1) for _ in range(rng.randrange(1, 9)))})
        levels = [(low, high - 1, rng.randrange(top // 3, top)) for low, high in zip(cuts, cuts[1:] + [last + 1])]
        spikes = {rng.randrange(first, last + 1): top + rng.randrange(top // 6 + 1) for _ in range(rng.randrange(4))}
        made = stay(work, device, levels, spikes, limits=self.limits(device, room))
        made.processes = self.processes(made)
        if not made.processes[0].reported and rng.random() < 0.1:
            made.processes[0].name = rng.choice(("vllm.entrypoints.openai.api_server", "sglang.launch_server", "jax_train.py", "Tensorflow_serving"))
        self.stays.append(made)

    def limits(self, device, room):
        rng, budget = self.rng, lambda: int(room * rng.uniform(0.25, 1))
        if device.profile:
            return {"mig": device.total} if rng.random() < 0.7 else {"mig": device.total, "annotation": budget()}
        match rng.randrange(8):
            case 0 | 1:
                return {}
            case 2:
                return {"annotation": budget()}
            case 3:
                return {"environment": budget(), "time_slicing": device.total // 4}
            case 4:
                return {"hami": budget() // MIB * MIB, "annotation": budget()}
            case 5 | 6:
                return {"kai": device.total * rng.randrange(20, 90) // 100}
            case _:
                return {"time_slicing": device.total // 2}

    def processes(self, made):
        """Half of the workloads have one process without a client. Others report, and some of these have been started again."""
        rng, peaks = self.rng, made.peaks
        name = rng.choice(("train.py", "finetune.py", "serve.py", "python3"))
        middle = len(peaks) // 2
        pieces = [peaks] if rng.random() < 0.7 or not middle else [peaks[:middle], peaks[middle:]]
        framework = rng.choice(("", "", "", "pytorch", "pytorch", "jax"))
        made_of = []
        for piece in pieces:
            process = Process(rng.randrange(100, 4_000_000), name, piece)
            if framework:
                share, outside = rng.uniform(0.3, 0.97), rng.randrange(300 * MIB, 900 * MIB)
                process.reported = {framework: [Run(one.first, one.last, int(one.value * share)) for one in piece]}
                process.outside = [Run(piece[0].first, piece[-1].last, outside)]
                if framework == "pytorch":
                    first, last = piece[0].first, piece[-1].last
                    failed = rng.choice((0, 0, 0, 1, 7))
                    half = (first + last) // 2
                    process.failed = {framework: [Run(first, half, 0), Run(half + 1, last, failed)] if half < last else [Run(first, last, 0)]}
            made_of.append(process)
        return made_of
