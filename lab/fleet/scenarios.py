"""The machines of the fleet as scenarios for the simulator (crates/nvml-sim/README.md).

A shape is a name: `8x64` is eight GPUs with 64 processes each, `8x1` one training job over eight GPUs; a trailing `r` means that each
process reports about its allocator; `8mig` is eight GPUs divided into seven MIG devices each; any other name is one of the simulator's
built-in scenarios. Invariant: a shape always gives the same text.
"""

import re
from pathlib import Path

BUILT_IN = Path(__file__).resolve().parents[2] / "crates/nvml-sim/scenarios"
SHAPE = re.compile(r"(\d+)(?:x(\d+)(r?)|mig)")
# The processes that one batch pod runs on a GPU.
BATCH = 4
MIG_DEVICES = 7


def identity(*numbers):
    """64 hexadecimal digits, and the uid of a pod, for a container with these numbers."""
    digits = "".join(f"{number:04x}" for number in numbers).ljust(64, "e")
    return digits, "-".join((digits[:8], digits[8:12], "4" + digits[13:16], "8" + digits[17:20], digits[20:32]))


class Pod:
    def __init__(self, namespace, name, container, *numbers):
        self.namespace, self.name, self.container = namespace, name, container
        self.id, self.uid = identity(*numbers)

    def declared(self, gpus, mig=None):
        part = "" if mig is None else f"mig = {mig}\n"
        return (
            f'[[container]]\nid = "{self.id}"\nnamespace = "{self.namespace}"\npod = "{self.name}"\n'
            f'name = "{self.container}"\ngpus = {gpus}\n{part}'
        )

    def cgroup(self):
        slice_of_pod = f"kubepods-burstable-pod{self.uid.replace('-', '_')}.slice"
        return f"0::/kubepods.slice/kubepods-burstable.slice/{slice_of_pod}/cri-containerd-{self.id}.scope"

    def process(self, command, memory, utilization, gpu, count=1, mig=None, reporting=False):
        lines = [f"gpu = {gpu}", f"count = {count}", 'start = "-20m"', 'user = "root"', f'cgroup = "{self.cgroup()}"']
        lines += [f"command = {command}", f"memory = {memory}"]
        lines += [f"mig = {mig}"] if mig is not None else [f"utilization = {utilization}"]
        lines += ['allocator = { framework = "pytorch", allocated = 0.8 }'] if reporting else []
        return "[[process]]\n" + "\n".join(lines) + "\n"


def noise(low, high, every):
    return f'[{{ kind = "noise", low = {low}, high = {high}, every = "{every}" }}]'


def size(mebibytes):
    return f'"{mebibytes:.0f}MiB"'


SERVING, BATCHING = noise(0.0, 0.03, "2s"), noise(0.02, 0.3, "3s")


def whole(gpus, processes, reporting):
    """Each GPU has one pod that serves, with three quarters of the processes, and batch pods with up to four processes each. If there is
    one process for each GPU, they belong to one training job."""
    yield f'seed = {gpus * 1000 + processes}\n\n[[gpu]]\nmodel = "H200"\ncount = {gpus}\n'
    if processes == 1:
        pod = Pod("training", "pretrain-0", "trainer", 1)
        yield pod.declared(list(range(gpus)))
        for gpu in range(gpus):
            memory = noise(size(60000 + 800 * gpu), size(98000 + 800 * gpu), "900ms")
            yield pod.process('["/usr/bin/python3", "train.py"]', memory, noise(0.8, 1.0, "700ms"), gpu, 1, None, reporting)
        return
    share = 64 / processes
    serving = processes * 3 // 4
    for gpu in range(gpus):
        pod = Pod("serving", f"llm-{gpu}", "server", 2, gpu)
        yield pod.declared([gpu])
        command = f'["/usr/bin/python3", "serve.py", "--replica={{n}}", "--gpu={gpu}"]'
        yield pod.process(command, size(900 * share), SERVING, gpu, serving, None, reporting)
        for number, first in enumerate(range(serving, processes, BATCH)):
            pod = Pod("research", f"batch-{gpu}-{number}", "main", 3, gpu, number)
            yield pod.declared([gpu])
            memory = noise(size(512 * share), size(2000 * share), f"{700 + 90 * number}ms")
            count = min(BATCH, processes - first)
            yield pod.process('["/usr/bin/python3", "batch.py"]', memory, BATCHING, gpu, count, None, reporting)


def divided(gpus):
    """Each GPU has seven MIG devices with a pod each."""
    profiles = ['"1g.10gb"'] * MIG_DEVICES
    yield f'seed = {gpus}\n\n[[gpu]]\nmodel = "H100"\ncount = {gpus}\nmig = [{", ".join(profiles)}]\n'
    for gpu in range(gpus):
        for device in range(MIG_DEVICES):
            pod = Pod("tenants", f"notebook-{gpu}-{device}", "main", 4, gpu, device)
            yield pod.declared([gpu], device)
            memory = noise('"1GiB"', f'"{2 + device}GiB"', "1500ms")
            yield pod.process('["/usr/bin/python3", "-m", "ipykernel_launcher"]', memory, None, gpu, 1, device)


def text(shape):
    found = SHAPE.fullmatch(shape)
    if not found:
        try:
            return (BUILT_IN / f"{shape}.toml").read_text()
        except FileNotFoundError:
            raise SystemExit(f"{shape!r} is neither a shape such as 8x64 or 8mig nor a scenario in {BUILT_IN}") from None
    gpus, processes, reporting = found.groups()
    return "\n".join(divided(int(gpus)) if processes is None else whole(int(gpus), int(processes), bool(reporting)))
