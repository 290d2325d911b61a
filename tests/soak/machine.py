"""The simulated machine of the soak: eight GPUs with 64 processes each, births and deaths without end, and faults that
come and go through the simulator's control file."""

import os
import time
from pathlib import Path

GPUS = 8
PROCESSES = 64
BIRTHS = 20
# Each of these is born again after so many seconds, and is gone for a part of them.
ROUND = 8.0
# Every fifth of those who come and go has the pid that it had before.
SAME_PID = 5

MEMORY = "nvmlDeviceGetMemoryInfo_v2"
LIST = "nvmlDeviceGetComputeRunningProcesses_v3"


def scenario(gpus=GPUS, processes=PROCESSES, births=BIRTHS):
    """`births` a second over all GPUs, and as many deaths."""
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
    """A process that lives for a part of each round; one in three has a container of its own."""
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


def fault(kind, calls=MEMORY, gpu=None, **keys):
    where = "" if gpu is None else f"gpu = {gpu}\n"
    rest = "".join(f'{key} = "{value}"\n' for key, value in keys.items())
    return f'[[fault]]\ncall = "{calls}"\n{where}kind = "{kind}"\n{rest}'


def episodes(gpu):
    """(name, what the control file holds, whether the exporter must count something). One GPU suffers where one can."""
    return [
        ("memory call hangs", fault("hang", gpu=gpu), True),
        ("GPU lost", fault("error", "*", gpu, code="GPU_IS_LOST"), True),
        ("processes refused", fault("error", LIST, gpu, code="NO_PERMISSION"), True),
        ("memory calls slow", fault("slow", delay="30ms"), True),
        ("driver replaced", fault("error", "*", code="LIB_RM_VERSION_MISMATCH"), True),
        ("process list hangs", fault("hang", LIST, gpu), True),
        ("process list grows", fault("grow", LIST), False),
        ("GPU taken out", f'[[fault]]\ngpu = {gpu}\nkind = "absent"\n', False),
        ("unknown errors", fault("error", MEMORY, gpu, code="UNKNOWN"), True),
    ]


class Machine:
    """The files of the machine, in a folder of its own."""

    def __init__(self, folder, library):
        self.folder, self.library = Path(folder).resolve(), library
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "scenario.toml").write_text(scenario())
        self.procfs = self.folder / "proc"
        self.history = []

    def control(self, text):
        aside = self.folder / "control.new"
        aside.write_text(text)
        aside.rename(self.folder / "control.toml")

    def flags(self):
        return [f"--nvml.library={self.library}", f"--path.procfs={self.procfs}", f"--path.passwd={self.procfs}/passwd"]

    def environment(self):
        return {
            "NVML_SIM_SCENARIO": str(self.folder / "scenario.toml"),
            "NVML_SIM_PROCFS": str(self.procfs),
            "NVML_SIM_CONTROL": str(self.folder / "control.toml"),
            "NVML_SIM_EPOCH": f"{time.time():.6f}",
            "PATH": os.environ.get("PATH", ""),
        }

    def suffer(self, on, off, over):
        """Calm, then a fault, again and again until `over` is set; each episode is written down."""
        cycle = 0
        while True:
            for name, text, counts in episodes(cycle % GPUS):
                if over.wait(off):
                    return
                began = time.time()
                self.control(text)
                stopped = over.wait(on)
                self.control("")
                if stopped:
                    return
                self.history.append({"name": name, "counts": counts, "from": began, "until": time.time()})
            cycle += 1


def cycle_seconds(on, off):
    return len(episodes(0)) * (on + off)
