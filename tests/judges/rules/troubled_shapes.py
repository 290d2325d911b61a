"""Histories of machines on which something goes wrong. Each shape takes a random generator, and returns a machine and its trouble.

Invariant: as in healthy_shapes.py, a seed always makes the same history.
"""

from dataclasses import dataclass

from gpu_history import FINE, GIB, Gpu, Process
from healthy_shapes import HOUR, MINUTE, constant, load, machine, noise, runners, spans

# What may raise the alarm about memory that is running out.
MEMORY = ("GpuMemoryCritical", "GpuMemoryExhaustionPredicted")
NEAR = (*MEMORY, "GpuMemoryPeakNearLimit", "GpuOutOfMemory")


@dataclass
class Trouble:
    """One of the alerts must fire after `begin` and by `deadline`. A leak has the time at which the memory is full. Until `healthy_until`, or
    until it begins, the machine is judged as a healthy one."""

    alerts: tuple
    begin: float
    deadline: float
    full: float = None
    healthy_until: float = None


def leak(rng, gib_per_hour, board, hours, mig=False, reported=False, wobble=0.0, period=180, restarts=0, neighbour=None, loads=0):
    """A process that fills the device in about `hours`; its growth is the same in every process after a restart. `neighbour` is the user who
    runs short jobs beside it."""
    gpu = Gpu(int(board * GIB), mig=mig)
    slope = gib_per_hour * GIB / HOUR
    begin = rng.uniform(0.3, 0.7) * HOUR
    level = gpu.allocatable - slope * hours * HOUR * rng.uniform(0.85, 1.0)
    others = 0.15 * gpu.allocatable if neighbour else 0.02 * loads * gpu.allocatable
    level -= others
    shake = noise(rng, period, -wobble * gpu.total, 0)
    length = begin + (hours + 0.5) * HOUR

    def grown(time, start):
        return max(GIB, level + slope * max(0, time - start) + shake(time))

    if restarts:
        # Each process ends when the memory is full, and the next begins from the same level; the first fills in half the time.
        until = begin + hours / 2 * HOUR
        gpu.processes.append(Process("serve.py", -HOUR, until, lambda t: max(GIB, level + slope * (t - begin + hours / 2 * HOUR))))
        gpu.processes.append(Process("serve.py", until + 60, 1e9, lambda t: grown(t, until + 60)))
        length += hours / 2 * HOUR
        begin, healthy = until + 60, 0
    else:
        healthy = begin
        need = (lambda t: grown(t, begin) - GIB // 2) if reported else None
        gpu.processes.append(Process("serve.py", -HOUR, 1e9, lambda t: grown(t, begin), need))
    if neighbour:
        for start, stop in spans(rng, 0, length, 2 * MINUTE, 12 * MINUTE):
            held = rng.uniform(0.05, 0.14) * gpu.allocatable
            gpu.processes.append(Process("pytest", start, stop - 20, load(start, 30, held), workload=neighbour))
    # Notebooks that start one after the other in the second half of the leak.
    for number in range(loads):
        start, held = begin + (0.5 + number * 0.4 / loads) * hours * HOUR, 0.02 * gpu.allocatable
        gpu.processes.append(Process("ipykernel", start, 1e9, load(start, 5 * MINUTE, held), workload=f"user:u{number}"))
    made = machine(rng, length / HOUR, gpu)
    full = next(t for t in range(int(begin), int(length + 6 * HOUR), FINE) if gpu.used(t) >= 0.995 * gpu.allocatable)
    made.length = int(full + 10 * MINUTE)
    if full - begin >= HOUR:
        return made, Trouble(MEMORY, begin, full - 15 * MINUTE, full, healthy)
    return made, Trouble(NEAR, begin, full + 2 * MINUTE, full, healthy)


def leaking(*arguments, **options):
    return lambda rng: leak(rng, *arguments, **options)


def memory_loop(reported):
    """A job that runs out of memory, is started again, and so on."""

    def made(rng):
        gpu, first = Gpu(80 * GIB), rng.uniform(0.5, 1) * HOUR
        ends = []
        for start, stop in spans(rng, first, first + 1.5 * HOUR, 3 * MINUTE, 6 * MINUTE):
            climb = load(start, stop - start - 30, 1.02 * gpu.allocatable)
            gpu.processes.append(Process("train.py", start, stop - 20, climb, climb if reported else None))
            ends.append(stop - 30)
        gpu.incidents = [("out_of_memory" if reported else "near_limit", ends)]
        gpu.out_of_memory = ends if reported else []
        alerts = ("GpuOutOfMemory",) if reported else NEAR
        return machine(rng, 2.6, gpu), Trouble(alerts, first, ends[0] + 2 * MINUTE)

    return made


def lost(rng):
    gpu = Gpu(80 * GIB, lost=rng.uniform(0.6, 1.2) * HOUR)
    gpu.processes.append(Process("train.py", -HOUR, 1e9, constant(40 * GIB)))
    return machine(rng, 1.6, gpu), Trouble(("GpuLost",), gpu.lost, gpu.lost + 2 * MINUTE)


def xid(alert, *codes):
    def made(rng):
        gpu, at = Gpu(80 * GIB), rng.uniform(0.6, 1.2) * HOUR
        gpu.xids = [(rng.choice(codes), [at])]
        return machine(rng, 1.6, gpu), Trouble((alert,), at, at + 2 * MINUTE)

    return made


def xid_after_start(rng):
    """The machine starts, and minutes later the driver reports the first error of a code."""
    gpu, at = Gpu(80 * GIB), rng.uniform(0.6, 1.2) * HOUR
    gpu.xids = [(rng.choice((121, 140, 143, 154)), [at])]
    made = machine(rng, 1.6, gpu)
    made.down = [(0, at - 4 * MINUTE)]
    return made, Trouble(("GpuXidError",), at, at + 2 * MINUTE)


def ecc(rng):
    gpu, at = Gpu(80 * GIB), rng.uniform(0.6, 1.2) * HOUR
    gpu.ecc = [at]
    return machine(rng, 1.6, gpu), Trouble(("GpuEccUncorrectable",), at, at + 2 * MINUTE)


def under_runners(alert, field, value=lambda at: at):
    """A machine with CI jobs whose `field` has the value of the moment of the trouble."""

    def made(rng):
        machine, at = runners(rng, 1.6), rng.uniform(0.6, 1.2) * HOUR
        setattr(machine, field, value(at))
        return machine, Trouble((alert,), at, at + 2 * MINUTE)

    return made


def missing(rng):
    """After a reboot the driver lists one GPU less."""
    at = rng.uniform(0.6, 1.0) * HOUR
    gone, other = (Gpu(80 * GIB, uuid=uuid, index=index) for uuid, index in (("GPU-a", 0), ("GPU-b", 1)))
    gone.listed = (0, at)
    back = at + 4 * MINUTE
    return machine(rng, 1.6, gone, other, down=[(at, back)]), Trouble(("GpuMissing",), at, back + 2 * MINUTE)


def leak_twice_scraped(rng):
    made, trouble = leak(rng, 20, 80, 2.5)
    made.targets = ('job="vram-exporter",prometheus_replica="a"', 'job="vram-exporter",prometheus_replica="b"')
    return made, trouble


def leak_between_scrapes(rng):
    """A process that needs more than there is, for less time than an alert takes."""
    gpu, at = Gpu(80 * GIB), rng.uniform(0.6, 1.2) * HOUR
    gpu.processes.append(Process("train.py", -HOUR, 1e9, lambda t: (0.99 if at <= t < at + 10 else 0.5) * gpu.allocatable))
    return machine(rng, 1.6, gpu), Trouble(NEAR, at, at + 2 * MINUTE)


def refused(rng):
    """A job asks for more than is free, is refused, and ends. Nothing reports."""
    gpu, at = Gpu(80 * GIB), rng.uniform(0.6, 1.2) * HOUR
    gpu.processes.append(Process("train.py", at - 20 * MINUTE, at, constant(0.7 * gpu.allocatable)))
    return machine(rng, 1.6, gpu), Trouble(NEAR, at, at + 2 * MINUTE)


def needed_at_once(rng):
    """A second job brings the GPU to 93 %, and both need what they hold. Nothing reports."""
    gpu, at = Gpu(80 * GIB), rng.uniform(0.6, 1.2) * HOUR
    gpu.processes.append(Process("train.py", -HOUR, 1e9, constant(0.5 * gpu.allocatable)))
    gpu.processes.append(Process("train.py", at, 1e9, load(at, 60, 0.43 * gpu.allocatable), workload="user:bo"))
    return machine(rng, 2.5, gpu), Trouble(("GpuMemoryHigh", "GpuMemoryCritical"), at, at + 13 * MINUTE)


def needed_and_reported(rng):
    """The same, and both report."""
    made, trouble = needed_at_once(rng)
    for process in made.gpus[0].processes:
        process.allocated = process.used
    return made, Trouble(("GpuMemoryCritical",), trouble.begin, trouble.deadline)


SHAPES = {
    "leak of 0.5 GiB/h in 24 GiB": leaking(0.5, 24, 7),
    "leak of 0.5 GiB/h in 141 GiB": leaking(0.5, 141, 6),
    "leak of 1 GiB/h in 80 GiB": leaking(1, 80, 7),
    "leak of 2 GiB/h in 141 GiB": leaking(2, 141, 7),
    "leak of 5 GiB/h in 141 GiB": leaking(5, 141, 6),
    "leak of 5 GiB/h in 141 GiB, at night restarted": leaking(5, 141, 5, restarts=1),
    "leak of 10 GiB/h in 80 GiB": leaking(10, 80, 4),
    "leak of 20 GiB/h in 141 GiB": leaking(20, 141, 4),
    "leak of 50 GiB/h in 141 GiB": leaking(50, 141, 2),
    "leak of 50 GiB/h in 80 GiB, restarted": leaking(50, 80, 1.5, restarts=1),
    "leak of 200 GiB/h in 80 GiB": leaking(200, 80, 0.35),
    "leak of 1 GiB/h in a MIG device": leaking(1, 39.25, 6, mig=True),
    "leak of 5 GiB/h in a MIG device": leaking(5, 39.25, 5, mig=True),
    "leak of 5 GiB/h that is reported": leaking(5, 80, 5, reported=True),
    "the same in a MIG device": leaking(5, 39.25, 4, mig=True, reported=True),
    "leak of 5 GiB/h below batches of 3 min": leaking(5, 141, 6, wobble=0.03),
    "leak of 5 GiB/h below batches of 45 min": leaking(5, 141, 6, wobble=0.1, period=2700),
    "leak of 0.5 GiB/h in 288 GiB": leaking(0.5, 288, 6),
    "leak of 5 GiB/h beside CI runners": leaking(5, 80, 5, neighbour="user:ci"),
    "leak of 5 GiB/h beside scripts of the same user": leaking(5, 80, 5, neighbour="user:ada"),
    "leak of 20 GiB/h while workloads load": leaking(20, 141, 4, loads=5),
    "leak of 20 GiB/h, scraped twice": leak_twice_scraped,
    "a job runs out of memory, again and again": memory_loop(True),
    "the same, and nothing reports": memory_loop(False),
    "a need of ten seconds": leak_between_scrapes,
    "a request is refused, and nothing reports": refused,
    "93 % at once, needed, and nothing reports": needed_at_once,
    "93 % at once, needed, and reported": needed_and_reported,
    "lost GPU": lost,
    "GPU missing after a reboot": missing,
    "Xid of the hardware": xid("GpuXidError", 48, 79, 95, 74),
    "Xid of memory that is replaced": xid("GpuXidError", 63, 64, 94),
    "Xid of the firmware": xid("GpuXidError", 61, 62, 119, 120),
    "Xid that has no series before": xid("GpuXidError", 121, 140, 143, 154),
    "the same, minutes after a start": xid_after_start,
    "Xid of a program": xid("GpuXidApplicationError", 13, 31, 43, 45),
    "uncorrectable ECC error": ecc,
    "silent exporter": under_runners("VramExporterDown", "down", lambda at: [(at, 1e9)]),
    # It was removed, or the discovery no longer finds it.
    "exporter that is no longer a target": under_runners("VramExporterDown", "gone"),
    "driver gone": under_runners("VramExporterNvmlDown", "driver_lost"),
    "the process lane hangs": under_runners("VramExporterStale", "stuck"),
}
