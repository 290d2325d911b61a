"""Checks of sharing (a GPU shared by processes under MPS, an allocation shared through CUDA IPC, one process on two GPUs), and of
allocators other than the default one."""

import os
import shutil
import subprocess
import tempfile
import time

import nvml_abi
from check_memory import settle
from children import Child
from exporter import Exporter

MIB = 1 << 20
KINDS = ("Compute", "Graphics", "MPSCompute")
MPS_CONTROL = "nvidia-cuda-mps-control"
MPS_PLACES = os.pathsep.join((os.environ.get("PATH", ""), "/usr/local/nvidia/bin", "/usr/bin"))


def listed(gpu):
    """pid to bytes across the three lists. A pid on several lists counts once, with the first known figure."""
    seen = {}
    for kind in KINDS:
        for pid, used in gpu.processes(kind).items():
            seen[pid] = used if seen.get(pid) is None else seen[pid]
    return seen


def shown(scrape, index):
    """pid to bytes as the exporter shows them. Raises ValueError if a pid has two series on one GPU."""
    found = {}
    for labels, value in scrape.rows("gpu_process_memory_used_bytes", gpu=index):
        if int(labels["pid"]) in found:
            raise ValueError(f"pid {labels['pid']} has two series on GPU {index}")
        found[int(labels["pid"])] = value
    return found


def equal_to_lists(setup, results, exporter, what, pids):
    """Adds one result for each GPU: at rest, its memory and its processes equal NVML's figures, and `pids` are among the processes
    on GPU 0."""
    gpus = nvml_abi.Gpu.all(setup.library)
    for gpu in gpus:
        settle(gpu)
    time.sleep(1.5)  # the process lane reads at least once a second
    scrape = exporter.scrape()
    for index, gpu in enumerate(gpus):
        memory, lists = gpu.memory(), listed(gpu)
        known = {pid: float(used) for pid, used in lists.items() if used is not None}
        ours = shown(scrape, index)
        used = scrape.value("gpu_memory_used_bytes", gpu=index)
        unowned = scrape.value("gpu_memory_unattributed_bytes", gpu=index)
        want_unowned = max(0.0, memory["used"] - sum(known.values())) if len(known) == len(lists) else None
        rows = ", ".join(f"{value / MIB:.0f}" for _, value in sorted(ours.items()))
        counts = " + ".join(str(len(gpu.processes(kind))) for kind in KINDS)
        figure = f"processes {rows or 'none'} MiB, used {show(used)}, unattributed {show(unowned)}; lists of {counts}"
        same = ours == known and used == memory["used"] and unowned == want_unowned and (index or set(pids) <= ours.keys())
        if not same:
            figure += f"; NVML: processes {known}, used {memory['used']}, unattributed {want_unowned}"
        results.check(f"{what}: the values for GPU {index} equal NVML's lists", figure, "equal to the byte", same)
    return scrape


def show(value):
    return "absent" if value is None else f"{value / MIB:.1f} MiB"


class Mps:
    """A separate MPS daemon: pipes and logs in a temporary folder, stopped with its `quit` command."""

    def __init__(self):
        self.control = shutil.which(MPS_CONTROL, path=MPS_PLACES)
        self.folder = None

    def __enter__(self):
        self.folder = tempfile.mkdtemp(prefix="mps-")
        self.environment = {"CUDA_MPS_PIPE_DIRECTORY": self.folder, "CUDA_MPS_LOG_DIRECTORY": self.folder}
        self.send("-d")
        return self

    def send(self, *flags, text=None):
        return subprocess.run([self.control, *flags], input=text, text=True, capture_output=True, check=True, timeout=60, env={**os.environ, **self.environment})

    def __exit__(self, *_):
        try:
            self.send(text="quit\n")
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)


def mps(setup, results):
    """Three clients of one MPS server, and a process that is not a client."""
    daemon = Mps()
    if daemon.control is None:
        results.note("MPS", f"left out: no {MPS_CONTROL}")
        return
    with daemon, Exporter(setup, "mps") as exporter:
        clients = []
        try:
            for mib in (700, 800, 900):
                clients.append(Child("context", "--mib", mib, environment=daemon.environment))
            clients.append(Child("context", "--mib", 300))
            for child in clients:
                child.hear()
            pids = [child.pid for child in clients]
            scrape = equal_to_lists(setup, results, exporter, "MPS, three clients", pids)
            servers = nvml_abi.Gpu(0, setup.library).processes("MPSCompute").keys() & set(pids)
            results.check("MPS: the clients are on the MPS list", f"{len(servers)} of 3 are on NVML's MPS list", "3", servers == set(pids[:3]))
            names = {labels.get("process") for pid in pids for labels, _ in scrape.rows("gpu_process_memory_used_bytes", gpu=0, pid=pid)}
            results.check("MPS: the clients have their own names", ", ".join(sorted(map(str, names))), "cuda_child.py", names == {"cuda_child.py"})
        finally:
            for child in clients:
                child.end()


def ipc(setup, results):
    """2 GiB that one process allocates and another maps."""
    owner, user = Child("ipc-owner", "--mib", 2048), Child("ipc-user")
    try:
        handle = owner.hear()["handle"]
        user.hear()
        user.send(handle=handle)
        user.hear()
        with Exporter(setup, "ipc") as exporter:
            scrape = equal_to_lists(setup, results, exporter, "CUDA IPC, 2 GiB in two processes", [owner.pid, user.pid])
        held = [scrape.value("gpu_process_memory_used_bytes", gpu=0, pid=child.pid) for child in (owner, user)]
        results.check("CUDA IPC: counted once, for the process that allocated it", f"{show(held[0])} and {show(held[1])}", "over and under 2 GiB",
            None not in held and held[0] > 2048 * MIB > held[1])  # fmt: skip
    finally:
        owner.end()
        user.end()


def allocators(setup, results):
    """PyTorch's allocators: the process grows by the memory that its allocator reports as reserved."""
    for what, conf in (("caching allocator", ""), ("expandable segments", "expandable_segments:True"), ("cudaMallocAsync", "backend:cudaMallocAsync")):
        child = Child("tensors", "--mib", 10240, environment={"PYTORCH_ALLOC_CONF": conf})
        try:
            before = child.hear(180)
            gpu = setup.gpu()
            settle(gpu)
            base = gpu.process_memory(child.pid)
            child.send(go=True)
            after = child.hear()
            with Exporter(setup, f"allocator-{before['backend']}") as exporter:
                scrape = equal_to_lists(setup, results, exporter, f"PyTorch, {what}", [child.pid])
            used = scrape.value("gpu_process_memory_used_bytes", gpu=0, pid=child.pid)
            apart = float("inf") if used is None else (used - base - (after["reserved"] - before["reserved"])) / MIB
            results.check(f"PyTorch, {what} ({before['backend']}): growth against memory_reserved()",
                f"{apart:+.2f} MiB of {show(after['reserved'])}, {show(after['allocated'])} of it allocated", "within 4 MiB", abs(apart) <= 4)  # fmt: skip
        finally:
            child.end()


def jax(setup, results):
    """A JAX process with 1 GiB of arrays, with JAX's default settings and without preallocation."""
    for what, preallocate in (("as installed", "true"), ("without preallocation", "false")):
        child = Child("arrays", "--mib", 1024, environment={"XLA_PYTHON_CLIENT_PREALLOCATE": preallocate})
        try:
            answer = child.hear(180)
            results.check(f"JAX, {what}: runs on the GPU", f"platform {answer['platform']}, {show(answer['in_use'])} in use, {show(answer['pool'])} in the pool", "gpu", answer["platform"] == "gpu")
            with Exporter(setup, f"jax-{preallocate}") as exporter:
                scrape = equal_to_lists(setup, results, exporter, f"JAX, {what}", [child.pid])
            used = scrape.value("gpu_process_memory_used_bytes", gpu=0, pid=child.pid)
            fits = used is not None and answer["pool"] is not None and used >= answer["pool"]
            results.check(f"JAX, {what}: the process holds its pool", show(used), "the pool and a context", fits)
        finally:
            child.end()


def two_gpus(setup, results):
    """One process with different amounts on every GPU."""
    gpus = nvml_abi.Gpu.all(setup.library)
    if len(gpus) < 2:
        results.note("one process on two GPUs", "left out: one GPU")
        return
    child = Child("every-gpu", "--mib", 1024)
    try:
        sizes = child.hear()["mib"]
        with Exporter(setup, "two-gpus") as exporter:
            scrape = equal_to_lists(setup, results, exporter, f"one process on {len(gpus)} GPUs", [child.pid])
            held = [scrape.value("gpu_process_memory_used_bytes", gpu=index, pid=child.pid) for index in range(len(gpus))]
            right = [value is not None and mib * MIB < value < (mib + 1024) * MIB for value, mib in zip(held, sizes)]
            results.check("one process on two GPUs: each GPU shows its share", ", ".join(map(show, held)), f"{sizes} MiB and a context each", all(right) and len(right) == len(gpus))
    finally:
        child.end()
