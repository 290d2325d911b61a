"""The soak's simulated machine: eight GPUs with 64 processes each, processes that continuously start and end, and
faults that come and go.

The faults and their times are in the scenario and not in the control file, because each change to that file leaves the previous
machine in memory (a call that hangs may still be reading it). For the same reason the simulator stays loaded when the exporter
closes it: unloading would leave its machine in memory, half a MiB each time. Either would look like a leak in the exporter.
This judge cannot detect memory that a real driver's library would leave behind."""

import json
from pathlib import Path

from harness import exporter

GPUS = 8
PROCESSES = 64
BIRTHS = 20
# Each of these processes starts again after this many seconds, and is absent for part of that time.
ROUND = 8.0
# One in five of the short-lived processes keeps its previous pid.
SAME_PID = 5

MEMORY = "nvmlDeviceGetMemoryInfo_v2"
LIST = "nvmlDeviceGetComputeRunningProcesses_v3"


def scenario(gpus=GPUS, processes=PROCESSES, births=BIRTHS):
    """`births` process starts a second across all GPUs, and as many exits."""
    come_and_go = round(births * ROUND)
    parts = ["seed = 60\n", f'[[gpu]]\nmodel = "H200"\ncount = {gpus}\n']
    for gpu in range(gpus):
        moving = len(range(gpu, come_and_go, gpus))
        parts.append(staying(gpu, processes - moving))
    parts += [passing(number, number % gpus, number * ROUND / come_and_go) for number in range(come_and_go)]
    parts += [f'[[xid]]\ngpu = {gpu}\ncode = 31\nat = "{5 + gpu}s"\nevery = "20s"\n' for gpu in range(gpus)]
    return "\n".join(parts)


def staying(gpu, count):
    return f"""[[process]]
gpu = {gpu}
count = {count}
command = ["/usr/bin/python3", "serve.py", "--replica={{n}}", "--gpu={gpu}"]
user = "serve"
cgroup = "0::/system.slice/slurmstepd.scope/job_{900 + gpu}/step_0/user/task_{{n}}"
memory = [{{ kind = "noise", low = "512MiB", high = "1GiB", every = "{600 + 40 * gpu}ms" }}]
utilization = [{{ kind = "noise", low = 0.0, high = 0.03, every = "2s" }}]
"""


def passing(number, gpu, start):
    """A process that runs for part of each round. One in three of these processes is in its own container."""
    life = (0.15, 1.5, 4.0, 7.4)[number % 4]
    pid = f"pid = {50000 + number}\n" if number % SAME_PID == 0 else ""
    container = f"{number:064x}"
    cgroup = (
        f"0::/system.slice/docker-{container}.scope" if number % 3 == 0 else f"0::/system.slice/job{number % 40}.service"
    )
    return f"""[[process]]
{pid}gpu = {gpu}
start = "{round(start * 1000)}ms"
end = "{round((start + life) * 1000)}ms"
repeat = "{round(ROUND * 1000)}ms"
command = ["/usr/bin/python3", "trial_{number % 40}.py"]
user = "user{number % 12}"
cgroup = "{cgroup}"
memory = "{64 + number}MiB"
utilization = 0.02
"""


def fault(kind, calls=None, gpu=None, **keys):
    where = {"call": calls, "gpu": gpu, "kind": kind} | keys
    lines = (f"{key} = {json.dumps(value)}" for key, value in where.items() if value is not None)
    return "\n".join(("[[fault]]", *lines))


def episodes(gpu):
    """(name, its fault, whether the exporter must count an error). If possible, only one GPU is affected."""
    return [
        ("memory call hangs", fault("hang", MEMORY, gpu), True),
        ("GPU lost", fault("error", "*", gpu, code="GPU_IS_LOST"), True),
        ("processes refused", fault("error", LIST, gpu, code="NO_PERMISSION"), True),
        ("memory calls slow", fault("slow", MEMORY, delay="30ms"), True),
        ("driver replaced", fault("error", "*", code="LIB_RM_VERSION_MISMATCH"), True),
        ("process list hangs", fault("hang", LIST, gpu), True),
        ("process list grows", fault("grow", LIST), False),
        ("GPU taken out", fault("absent", gpu=gpu), False),
        ("unknown errors", fault("error", MEMORY, gpu, code="UNKNOWN"), True),
    ]


def schedule(on, off, seconds, names=None):
    """A calm period and a fault, alternately: (name, whether it counts, from, until, its entry), in seconds from the epoch."""
    at, cycle = off, 0
    while True:
        for name, entry, counts in episodes(cycle % GPUS):
            if names and name not in names:
                continue
            if at + on > seconds:
                return
            yield name, counts, at, at + on, f'{entry}\nfrom = "{round(at * 1000)}ms"\nuntil = "{round((at + on) * 1000)}ms"\n'
            at += on + off
        cycle += 1


class Machine(exporter.Machine):
    """The machine and its faults."""

    def __init__(self, folder, library, on, off, seconds, names=None):
        faults = list(schedule(on, off, seconds, names))
        super().__init__(folder, library, "\n".join([scenario(), *(entry for *_, entry in faults)]), control=None)
        self.environment["LD_PRELOAD"] = str(Path(library).resolve())
        self.history = [
            {"name": name, "counts": counts, "from": self.epoch + begin, "until": self.epoch + end}
            for name, counts, begin, end, _ in faults
        ]

def cycle_seconds(on, off):
    return len(episodes(0)) * (on + off)
