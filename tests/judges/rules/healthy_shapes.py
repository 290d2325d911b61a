"""Histories of machines on which nothing is wrong. Each shape takes a random generator and the number of hours, and returns a machine.

Invariant: a shape draws every parameter from the generator, so a seed always makes the same history.
"""

import math
from functools import partial

from gpu_history import FINE, GIB, Gpu, Machine, Process

HOUR, MINUTE = 3600, 60
BOARDS = (24, 80, 141)
SCRAPES = (15, 30, 60)


def board(rng, mig=False):
    return Gpu(int((39.25 if mig else rng.choice(BOARDS)) * GIB), mig=mig)


def machine(rng, hours, *gpus, **more):
    return Machine("gpu-host", rng.choice(SCRAPES), int(hours * HOUR), list(gpus), **more)


def constant(value):
    return lambda time: value


def load(start, seconds, level):
    """Rises to the level in a straight line, and stays there."""
    return lambda time: level * min(1, (time - start + FINE) / seconds)


def noise(rng, seconds, low, high):
    """A new value every `seconds`."""
    values = [rng.uniform(low, high) for _ in range(4000)]
    return lambda time: values[int(time // seconds) % len(values)]


def spans(rng, begin, end, low, high):
    """Periods of a random length that follow each other."""
    while begin < end:
        length = rng.uniform(low, high)
        yield begin, min(begin + length, end)
        begin += length


def server(gpu, rng, share, starts, end, **more):
    """A server that takes this share of the memory at each of its starts, and little more later."""
    for start, stop in zip(starts, [*starts[1:], end]):
        level, seconds = share * gpu.allocatable, rng.uniform(1.5, 14) * MINUTE
        grown, little = load(start, seconds, level), noise(rng, 30, 0, 0.002 * gpu.allocatable)
        gpu.processes.append(Process("vllm", start, stop - 20, lambda t, a=grown, b=little: a(t) + b(t), **more))


def starts(rng, hours, most):
    return sorted([-HOUR * 3, *(rng.uniform(0.5, hours - 1) * HOUR for _ in range(rng.randint(1, most)))])


def reservation(rng, hours, mig=False, least=0.6):
    gpu = board(rng, mig)
    server(gpu, rng, rng.uniform(least, 0.95), starts(rng, hours, 3), hours * HOUR)
    return machine(rng, hours, gpu)


full_reservation = partial(reservation, least=0.9)


def reporting_server(rng, hours, mig=False):
    """vLLM or JAX with the client: nearly all memory is reserved, half of it is needed."""
    gpu = board(rng, mig)
    need = noise(rng, 120, 0.3 * gpu.total, 0.7 * gpu.total)
    server(gpu, rng, rng.uniform(0.88, 0.95), starts(rng, hours, 2), hours * HOUR, allocated=need)
    return machine(rng, hours, gpu)


def reboot(rng, hours):
    """The machine restarts once, and its server with it."""
    gpu, at = board(rng), rng.uniform(1, hours - 2) * HOUR
    back = at + rng.uniform(3, 8) * MINUTE
    server(gpu, rng, rng.uniform(0.8, 0.95), [-HOUR * 3, back + 30], hours * HOUR)
    gpu.processes[0].end = at
    return machine(rng, hours, gpu, down=[(at, back)])


def batch_server(rng, hours, mig=False, low=0.8, shortest=1, longest=20):
    """Between 80 and 96 %, or from a higher use on: a model that stays, and batches of minutes."""
    gpu = board(rng, mig)
    levels = [(*span, rng.uniform(low, 0.96)) for span in spans(rng, 0, hours * HOUR, shortest * MINUTE, longest * MINUTE)]
    gpu.processes.append(Process("batch", -HOUR, 1e9, stairs(levels, low, gpu.allocatable)))
    return machine(rng, hours, gpu)


def stairs(levels, otherwise, memory):
    table = {}
    for begin, end, share in levels:
        for slot in range(int(begin // FINE), int(end // FINE)):
            table[slot] = share * memory
    return lambda time: table.get(int(time // FINE), otherwise * memory)


def growing_cache(rng, hours, mig=False):
    """PyTorch's cache grows above a constant need, in hours or in minutes, until it is full and is emptied."""
    gpu = board(rng, mig)
    need, slope = rng.uniform(0.3, 0.5) * gpu.total, rng.choice((0.05, 0.1, 0.4)) * gpu.total / HOUR
    room = 0.97 * gpu.allocatable - need * 1.1
    cache = lambda time: need * 1.1 + (time * slope) % room  # noqa: E731
    gpu.processes.append(Process("train.py", -HOUR, 1e9, cache, constant(need)))
    return machine(rng, hours, gpu)


def notebooks(rng, hours):
    """Up to four people, who hold memory for hours."""
    gpu = board(rng)
    for person in ("ada", "bo", "cy", "di"):
        for begin, end in spans(rng, -2 * HOUR, hours * HOUR, HOUR, 4 * HOUR):
            if rng.random() < 0.6:
                level = rng.uniform(0.03, 0.23) * gpu.allocatable
                gpu.processes.append(Process("ipykernel", begin, end, load(begin, rng.uniform(5, 600), level), workload=f"user:{person}"))
    return machine(rng, hours, gpu)


def runners(rng, hours):
    """CI jobs of minutes, one after the other."""
    gpu = board(rng)
    for begin, end in spans(rng, 0, hours * HOUR, MINUTE, 15 * MINUTE):
        level = rng.uniform(0.1, 0.96) * gpu.allocatable
        gpu.processes.append(Process("pytest", begin, end - rng.uniform(5, 60), load(begin, rng.uniform(5, 120), level), workload="user:ci"))
    return machine(rng, hours, gpu)


def training(rng, hours):
    """Steps of a second, evaluations every half hour or so, a checkpoint after each; it climbs once, in its first minutes."""
    gpu, share = board(rng), rng.uniform(0.8, 0.92)
    start, every = rng.uniform(0, HOUR), rng.uniform(20, 60) * MINUTE
    climb, step = load(start, rng.uniform(2, 12) * MINUTE, share * gpu.allocatable), noise(rng, FINE, -0.02 * gpu.total, 0)
    peak = lambda time: 0.02 * gpu.total if (time - start) % every < 3 * MINUTE else 0  # noqa: E731
    gpu.processes.append(Process("train.py", start, 1e9, lambda t: max(GIB, climb(t) + step(t) + peak(t))))
    return machine(rng, hours, gpu)


def exchange(rng, hours):
    """A GPU is replaced while the machine is off."""
    at = rng.uniform(1, 2) * HOUR
    back = at + rng.uniform(20, 60) * MINUTE
    old, new, other = (Gpu(80 * GIB, uuid=uuid, index=index) for uuid, index in (("GPU-a", 0), ("GPU-b", 0), ("GPU-c", 1)))
    old.listed, new.listed = (0, at), (back, 1e9)
    server(new, rng, 0.9, [back + HOUR], hours * HOUR)
    server(other, rng, 0.7, [-HOUR, back + HOUR], hours * HOUR)
    return machine(rng, hours, old, new, other, down=[(at, back)])


def replicas(rng, hours):
    """Two jobs scrape one exporter, and two Prometheus servers with a label of their own each store what the first job scrapes."""
    made = full_reservation(rng, hours)
    replica = 'job="vram-exporter",prometheus_replica="{}"'
    made.targets = (replica.format("a"), replica.format("b"), 'job="second-vram-exporter",prometheus_replica="a"')
    return made


def slow_leak_with_restarts(rng, hours):
    """A leak that a restart each night ends long before the memory is full. The history begins shortly before the restart."""
    gpu, night = Gpu(80 * GIB), rng.uniform(5, 20) * MINUTE
    for begin, end in ((-24 * HOUR, night - 30), (night, 1e9)):
        slope = rng.uniform(1, 2) * GIB / HOUR
        gpu.processes.append(Process("serve.py", begin, end, lambda t, b=begin, s=slope: 30 * GIB + s * (t - b)))
    return machine(rng, hours, gpu)


def idle(rng, hours):
    return machine(rng, hours, board(rng))


def models(rng, hours):
    """A server that loads another model every hour or two."""
    gpu = board(rng)
    for begin, end in spans(rng, -HOUR, hours * HOUR, HOUR, 2 * HOUR):
        level, little = load(begin, rng.uniform(1, 6) * MINUTE, rng.uniform(0.4, 0.94) * gpu.allocatable), noise(rng, 60, 0, 0.01 * gpu.total)
        gpu.processes.append(Process("ollama", begin, end, lambda t, a=level, b=little: a(t) + b(t)))
    return machine(rng, hours, gpu)


def rollouts(rng, hours):
    """The exporter is replaced several times while a server holds nearly all memory."""
    made = reservation(rng, hours)
    made.down = [(at, at + rng.uniform(15, 60)) for at in sorted(rng.uniform(0.2, hours - 0.2) * HOUR for _ in range(4))]
    return made


def tide(rng, hours):
    """Requests rise and fall with the hour of the day."""
    gpu, low, high = board(rng), rng.uniform(0.4, 0.6), rng.uniform(0.8, 0.9)
    wave, little = lambda t: (1 + math.sin(2 * math.pi * t / (24 * HOUR))) / 2, noise(rng, 60, -0.02, 0.02)
    gpu.processes.append(Process("triton", -HOUR, 1e9, lambda t: (low + (high - low) * wave(t) + little(t)) * gpu.allocatable))
    return machine(rng, hours, gpu)


def application_xids(rng, hours):
    """Programs with bugs, on a machine that works."""
    made = notebooks(rng, hours)
    made.gpus[0].xids = [(31, [rng.uniform(0.5, 2) * HOUR]), (13, [2.5 * HOUR]), (43, [2.5 * HOUR + 5])]
    return made


def counting_server(rng, hours):
    """vLLM with the client: its allocator counts the whole cache of keys and values as allocated."""
    gpu = board(rng)
    server(gpu, rng, rng.uniform(0.91, 0.95), starts(rng, hours, 1), hours * HOUR, allocated=lambda time: gpu.total)
    return machine(rng, hours, gpu)


def silent_cache(rng, hours):
    """PyTorch's cache grows above a constant need by 30 to 50 % of the memory in an hour, and no client reports the need."""
    gpu = board(rng)
    slope = rng.uniform(0.3, 0.5) * gpu.total / HOUR
    gpu.processes.append(Process("train.py", -HOUR, 1e9, lambda t: 0.4 * gpu.total + (t * slope) % (0.56 * gpu.total)))
    return machine(rng, hours, gpu)


def slow_load(rng, hours):
    """A job that loads for 35 to 50 minutes without a pause, to 90 % and more."""
    gpu = board(rng)
    start, level = rng.uniform(0.5, 2) * HOUR, rng.uniform(0.9, 0.95) * gpu.allocatable
    gpu.processes.append(Process("train.py", start, 1e9, load(start, rng.uniform(35, 50) * MINUTE, level)))
    return machine(rng, hours, gpu)


def one_after_the_other(rng, hours, mig=False):
    """Sixteen people start notebooks one after the other, until the device is nearly full; each loads for minutes, and then stays level."""
    gpu, share = board(rng, mig), rng.uniform(0.91, 0.95) / 16
    start = rng.uniform(0.2, 0.4) * HOUR
    for number in range(16):
        level, seconds = share * gpu.allocatable, rng.uniform(5, 9) * MINUTE
        gpu.processes.append(Process("ipykernel", start, 1e9, load(start, seconds, level), workload=f"user:u{number}"))
        start += rng.uniform(5, 8) * MINUTE
    return machine(rng, hours, gpu)


def sawtooth(rng, hours):
    """A cache that is filled in an hour or more and then emptied; nothing reports."""
    gpu, every = board(rng), rng.uniform(60, 90) * MINUTE
    gpu.processes.append(Process("cache", -HOUR, 1e9, lambda t: (0.4 + 0.55 * (t % every) / every) * gpu.allocatable))
    return machine(rng, hours, gpu)


SHAPES = {
    "server takes 60 to 95 %": reservation,
    "server takes 90 to 95 %": full_reservation,
    "server takes 60 to 95 % of a MIG device": partial(reservation, mig=True),
    "server takes 90 to 95 % of a MIG device": partial(full_reservation, mig=True),
    "server that reports, half is needed": reporting_server,
    "the same on a MIG device": partial(reporting_server, mig=True),
    "server and reboot": reboot,
    "batches between 80 and 96 %": batch_server,
    "batches on a MIG device": partial(batch_server, mig=True),
    "long batches between 88 and 96 %": partial(batch_server, low=0.88, shortest=10, longest=50),
    "cache grows above a constant need": growing_cache,
    "the same on a MIG device, cache": partial(growing_cache, mig=True),
    "notebooks": notebooks,
    "CI runners": runners,
    "training": training,
    "workloads load one after the other": one_after_the_other,
    "the same on a MIG device, loads": partial(one_after_the_other, mig=True),
    "planned exchange": exchange,
    "two jobs and two replicas": replicas,
    "slow leak, restarted in time": slow_leak_with_restarts,
    "idle": idle,
    "models come and go": models,
    "rollouts of the exporter": rollouts,
    "tide of a day": tide,
    "Xids of programs": application_xids,
    "vLLM that reports its cache as allocated": counting_server,
    "cache grows, and nothing reports": silent_cache,
    "a load of 35 to 50 minutes": slow_load,
    "sawtooth of an hour or more": sawtooth,
}
