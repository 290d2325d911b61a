"""One CUDA process for the scripts in this folder. It runs its mode until stdin closes.

Modes: `driver-load` only calls NVML; the others use CUDA. `context` holds a CUDA context (and --mib of device memory). `busy` multiplies
small matrices without end. `spikes` allocates and frees on command. `leak` takes 64 MiB more each second. `burst` allocates and frees
without a pause. `training` trains a small transformer; `paced` trains it too and times its steps. `every-gpu` holds --mib on GPU 0, twice
as much on GPU 1, and so on. `ipc-owner` allocates --mib and prints a CUDA IPC handle for it; `ipc-user` maps the handle read from stdin.
`tensors` holds PyTorch tensors and reports what its allocator has reserved; `arrays` holds a JAX array. `rank` holds --mib for --hold
seconds and ends by itself; under torchrun, each process holds --mib more than the process of the previous rank. `grower` allocates on
command, and `job` does so with PyTorch, until there is no memory left. `limited` trains with --batch samples in a step, within --fraction of
the GPU; `batch-size` prints the batch size with which such a training run allocates --share of the GPU. `flat` takes --share of the GPU at once, as an inference server does,
and keeps it; `traffic` copies memory or multiplies matrices on command; `climb` trains while its memory grows for --hold seconds, up to
--share of the GPU. Every mode except `rank` prints one JSON line when it is ready. Only `busy`, `leak`, `traffic`, `training`, `paced`,
`tensors`, `job`, `flat`, `climb`, `limited` and `batch-size` load PyTorch, and only `arrays` loads JAX; the others call the driver directly, so that no framework's
allocator is involved.
"""

import argparse
import ctypes
import json
import os
import sys
import threading
import time
from ctypes import byref, c_int, c_size_t, c_ubyte, c_uint, c_uint64, c_void_p

MIB = 1 << 20
# Where the driver library may be.
LIBRARIES = ("libcuda.so.1", "/usr/local/nvidia/lib64/libcuda.so.1")


def say(**message):
    """Send one JSON line to the parent."""
    print(json.dumps(message), flush=True)


def stdin_closed():
    """An event that is set once stdin is closed."""
    closed = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), closed.set()), daemon=True).start()
    return closed


class IpcHandle(ctypes.Structure):
    """CUipcMemHandle: 64 opaque bytes, passed by value."""

    _fields_ = [("reserved", c_ubyte * 64)]


class Cuda:
    """The driver API, with the primary context of one device current in this thread."""

    def __init__(self, ordinal=0):
        self.lib = self.load()
        self.call("cuInit", c_uint(0))
        self.use(ordinal)

    def use(self, ordinal):
        """Make the primary context of a device the current one of this thread."""
        device = c_int()
        context = c_void_p()
        self.call("cuDeviceGet", byref(device), c_int(ordinal))
        self.call("cuDevicePrimaryCtxRetain", byref(context), device)
        self.call("cuCtxSetCurrent", context)

    @staticmethod
    def load():
        tried = []
        for place in LIBRARIES:
            try:
                return ctypes.CDLL(place)
            except OSError as error:
                tried.append(str(error))
        raise OSError("the CUDA driver library does not load: " + "; ".join(tried))

    def call(self, name, *args):
        code = getattr(self.lib, name)(*args)
        if code != 0:
            raise RuntimeError(f"{name}: CUDA error {code}")

    def allocate(self, size):
        """Allocate `size` bytes of device memory directly from the driver."""
        address = c_uint64()
        self.call("cuMemAlloc_v2", byref(address), c_size_t(size))
        return address

    def free(self, address):
        self.call("cuMemFree_v2", address)

    def count(self):
        """The number of devices that this process may use."""
        count = c_int()
        self.call("cuDeviceGetCount", byref(count))
        return count.value

    def share(self, address):
        """A CUDA IPC handle for an allocation, in hexadecimal."""
        handle = IpcHandle()
        self.call("cuIpcGetMemHandle", byref(handle), address)
        return bytes(handle).hex()

    def map_shared(self, handle):
        """The allocation of another process, by its handle."""
        address = c_uint64()
        lazy_peer_access = c_uint(1)
        self.call("cuIpcOpenMemHandle_v2", byref(address), IpcHandle.from_buffer_copy(bytes.fromhex(handle)), lazy_peer_access)
        return address


def hold_context(options):
    cuda = Cuda()
    if options.mib:
        cuda.allocate(options.mib * MIB)
    say(ready=True)
    sys.stdin.read()


def spike(options):
    """For each stdin line {"mib": n, "hold_ms": t}: allocate, hold and free the memory, and report when the
    allocation ended and when the release began, as CLOCK_MONOTONIC times."""
    cuda = Cuda()
    warm = cuda.allocate(64 * MIB)
    cuda.free(warm)
    say(ready=True)
    for line in sys.stdin:
        order = json.loads(line)
        asked = time.monotonic()
        address = cuda.allocate(order["mib"] * MIB)
        held_from = time.monotonic()
        # sleep() overshoots by 50 µs or more, so the last part is a busy loop: a 2 ms spike lasts 2 ms.
        until = held_from + order["hold_ms"] / 1000
        time.sleep(max(0.0, until - time.monotonic() - 0.0005))
        while time.monotonic() < until:
            pass
        held_to = time.monotonic()
        cuda.free(address)
        say(asked=asked, held_from=held_from, held_to=held_to, freed=time.monotonic())


def busy(options):
    import torch

    keep = torch.empty(options.mib * MIB, dtype=torch.uint8, device="cuda")
    left = torch.randn(1024, 1024, device="cuda")
    (left @ left).sum().item()
    closed = stdin_closed()
    say(ready=True, held=keep.numel())
    while not closed.is_set():
        for _ in range(50):
            left @ left
        torch.cuda.synchronize()


def leak(options):
    """Hold --mib and then allocate 64 MiB more each second, in PyTorch, like a list that is never cleared."""
    import torch

    kept = [torch.empty(options.mib * MIB, dtype=torch.uint8, device="cuda")]
    left = torch.randn(1024, 1024, device="cuda")
    closed = stdin_closed()
    say(ready=True)
    due = time.monotonic()
    while not closed.wait(max(0.0, due - time.monotonic())):
        due += 1
        kept.append(torch.empty(64 * MIB, dtype=torch.uint8, device="cuda"))
        (left @ left).sum().item()


def burst(options):
    """Allocate and free without a pause until stdin closes, keeping between --mib and twice that amount in use; at the end, --mib
    is still allocated."""
    cuda = Cuda()
    cuda.allocate(options.mib * MIB)
    closed = stdin_closed()
    say(ready=True)
    turn = 0
    while not closed.is_set():
        turn += 1
        cuda.free(cuda.allocate((options.mib + turn % 7 * options.mib // 7) * MIB))


def paced(options):
    """For each stdin line {"steps": n, "allocations": m}: report the milliseconds that each of n training steps takes, and those of
    each of m allocations including its release."""
    from training import paces

    paces(Cuda(), say, sys.stdin)


def training(options):
    from training import train

    train(options.steps, say, sys.stdin)


def traffic(options):
    """For each stdin line {"kind": k, "seconds": s}: copy or multiply without a pause for s seconds, then report the bytes that were copied,
    the products that were computed, and how long it took. Kinds: `device` copies device memory, `to-device` and `to-host` copy pinned host
    memory, `products` multiplies 8192 x 8192 bf16 matrices."""
    import torch

    size = 4 << 30
    first = torch.zeros(size, dtype=torch.uint8, device="cuda")
    second = torch.zeros_like(first)
    pinned = torch.zeros(1 << 30, dtype=torch.uint8, pin_memory=True)
    part = first[: pinned.numel()]
    left = torch.randn(8192, 8192, dtype=torch.bfloat16, device="cuda")
    right, product = torch.randn_like(left), torch.empty_like(left)
    # For each kind: one operation, the bytes that it moves, and the number of operations between two readings of the clock.
    kinds = {
        "device": (lambda: second.copy_(first), size, 8),
        "to-device": (lambda: part.copy_(pinned, non_blocking=True), pinned.numel(), 2),
        "to-host": (lambda: pinned.copy_(part, non_blocking=True), pinned.numel(), 2),
        "products": (lambda: torch.matmul(left, right, out=product), 0, 20),
    }
    for act, _, _ in kinds.values():
        act()
    torch.cuda.synchronize()
    say(ready=True)
    for line in sys.stdin:
        order = json.loads(line)
        act, moved, times = kinds[order["kind"]]
        done, begun = 0, time.monotonic()
        while time.monotonic() - begun < order["seconds"]:
            for _ in range(times):
                act()
            torch.cuda.synchronize()
            done += times
        say(bytes=done * moved, done=done, seconds=time.monotonic() - begun)


def peer(options):
    """For each stdin line {"bytes": n, "seconds": s}: copy n bytes from the first GPU to the second, or for s seconds, then report the bytes
    that were copied, and how long it took."""
    import torch

    first = torch.zeros(1 << 30, dtype=torch.uint8, device="cuda:0")
    second = torch.zeros(1 << 30, dtype=torch.uint8, device="cuda:1")
    second.copy_(first)
    for device in range(2):
        torch.cuda.synchronize(device)
    say(ready=True)
    for line in sys.stdin:
        order = json.loads(line)
        copied, begun = 0, time.monotonic()
        while copied < order["bytes"] and time.monotonic() - begun < order["seconds"]:
            for _ in range(8):
                second.copy_(first, non_blocking=True)
                copied += first.numel()
            for device in range(2):
                torch.cuda.synchronize(device)
        say(bytes=copied, seconds=time.monotonic() - begun)


def driver_load(options):
    """Keep the driver's lock held by repeating the energy call, which holds the lock for milliseconds."""
    import nvml_abi

    gpu = nvml_abi.Gpu(path=options.nvml)
    energy = ctypes.c_ulonglong()
    closed = stdin_closed()
    say(ready=True)
    while not closed.is_set():
        gpu.check("nvmlDeviceGetTotalEnergyConsumption", gpu.lib.nvmlDeviceGetTotalEnergyConsumption(gpu.device, byref(energy)))


def every_gpu(options):
    first = Cuda()
    sizes = [(ordinal + 1) * options.mib for ordinal in range(first.count())]
    for ordinal, mib in enumerate(sizes):
        (Cuda(ordinal) if ordinal else first).allocate(mib * MIB)
    say(ready=True, mib=sizes)
    sys.stdin.read()


def ipc_owner(options):
    cuda = Cuda()
    say(ready=True, handle=cuda.share(cuda.allocate(options.mib * MIB)))
    sys.stdin.read()


def ipc_user(options):
    """Map the handle of the first stdin line {"handle": hex}."""
    cuda = Cuda()
    say(ready=True)
    cuda.map_shared(json.loads(sys.stdin.readline())["handle"])
    say(mapped=True)
    sys.stdin.read()


def tensors(options):
    """Report the memory that PyTorch's allocator has reserved: first with one small tensor, and after the next stdin line with --mib
    more, half of it freed."""
    import torch

    kept = [torch.zeros(1, device="cuda")]
    torch.cuda.synchronize()
    say(ready=True, backend=torch.cuda.get_allocator_backend(), reserved=torch.cuda.memory_reserved())
    sys.stdin.readline()
    for _ in range(8):
        kept.append(torch.ones(options.mib * MIB // 8, dtype=torch.uint8, device="cuda"))
    del kept[1::2]
    torch.cuda.synchronize()
    say(reserved=torch.cuda.memory_reserved(), allocated=torch.cuda.memory_allocated())
    sys.stdin.read()


def arrays(options):
    import jax

    held = jax.numpy.ones((options.mib, MIB // 4), dtype="float32")
    held.block_until_ready()
    stats = jax.local_devices()[0].memory_stats() or {}
    say(ready=True, platform=jax.local_devices()[0].platform, in_use=stats.get("bytes_in_use"), peak=stats.get("peak_bytes_in_use"),
        pool=stats.get("pool_bytes"))  # fmt: skip
    sys.stdin.read()


def rank(options):
    """Hold memory as one rank. The rank is LOCAL_RANK, which torchrun sets; without torchrun it is 0."""
    number = int(os.environ.get("LOCAL_RANK", "0"))
    lib = Cuda.load()
    devices = c_int()
    if lib.cuInit(c_uint(0)) or lib.cuDeviceGetCount(byref(devices)) or not devices.value:
        raise RuntimeError("CUDA finds no device")
    # The process has no context on any device except its own.
    cuda = Cuda(number % devices.value)
    cuda.allocate((number + 1) * options.mib * MIB)
    time.sleep(options.hold)


def grower(options):
    """For each stdin line {"mib": n, "rate": r, "piece": p}: allocate n MiB in pieces of p MiB (256 without it), at r MiB per second or all
    at once, and report. If there is not enough memory, report that and exit like a job that does not handle the error."""
    cuda = Cuda()
    # CUDA refuses an allocation of 0 bytes.
    if options.mib:
        cuda.allocate(options.mib * MIB)
    say(ready=True)
    for line in sys.stdin:
        order = json.loads(line)
        piece, got = order.get("piece", 256), 0
        try:
            for _ in range(order["mib"] // piece):
                cuda.allocate(piece * MIB)
                got += piece
                if order.get("rate"):
                    time.sleep(piece / order["rate"])
        except RuntimeError as error:
            say(refused=str(error), mib=got)
            raise
        say(held=True, mib=got)


def job(options):
    """A PyTorch job: holds --mib, and allocates n MiB more for each stdin line {"mib": n}; reports what its allocator has reserved. Like
    most jobs, it does not handle an OutOfMemoryError."""
    import torch

    kept = [torch.empty(options.mib * MIB, dtype=torch.uint8, device="cuda")]
    torch.cuda.synchronize()
    say(ready=True, reserved=torch.cuda.memory_reserved())
    for line in sys.stdin:
        try:
            kept.append(torch.empty(json.loads(line)["mib"] * MIB, dtype=torch.uint8, device="cuda"))
        except torch.OutOfMemoryError:
            say(out_of_memory=True, max_reserved=torch.cuda.max_memory_reserved())
            raise
        say(max_reserved=torch.cuda.max_memory_reserved())


def flat(options):
    """Take --share of what the GPU can allocate, in one allocation, and then compute in it without allocating more."""
    import torch

    left, result = torch.randn(2, 1024, 1024, device="cuda")
    torch.mm(left, left, out=result)
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    begun = time.monotonic()
    kept = torch.empty(int(free - (1 - options.share) * total), dtype=torch.uint8, device="cuda")
    kept[-1] = 1
    torch.cuda.synchronize()
    say(ready=True, held=kept.numel(), seconds=time.monotonic() - begun)
    closed = stdin_closed()
    while not closed.wait(0.1):
        torch.mm(left, left, out=result)
        torch.cuda.synchronize()


def climb(options):
    from training import climb

    closed = stdin_closed()
    climb(options.share, options.hold, say, closed)


def limited(options):
    from training import limited

    closed = stdin_closed()
    limited(options.batch, options.fraction, options.steps, say, closed)


def batch_size(options):
    from training import batch_for

    say(ready=True, batch=batch_for(options.share))


MODES = {"context": hold_context, "spikes": spike, "busy": busy, "leak": leak, "burst": burst, "paced": paced, "training": training, "driver-load": driver_load,
    "every-gpu": every_gpu, "ipc-owner": ipc_owner, "ipc-user": ipc_user, "tensors": tensors, "arrays": arrays, "rank": rank, "grower": grower, "job": job,
    "flat": flat, "climb": climb, "traffic": traffic, "peer": peer, "limited": limited, "batch-size": batch_size}  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("mode", choices=list(MODES))
    parser.add_argument("--mib", type=int, default=0, help="device memory to hold")
    parser.add_argument("--hold", type=float, default=5, help="seconds that rank holds its memory, or that the memory of climb grows")
    parser.add_argument("--share", type=float, default=0.91, help="share of what the GPU can allocate that flat and climb reach, and a step of batch-size allocates")
    parser.add_argument("--steps", type=int, default=200, help="training steps; of limited, those before the first report")
    parser.add_argument("--batch", type=int, default=16, help="samples in a step of limited")
    parser.add_argument("--fraction", type=float, default=0, help="share of the GPU that the allocator of limited may take; 0 for no limit")
    parser.add_argument("--nvml", metavar="PATH", help="the NVML library of driver-load")
    options = parser.parse_args()
    MODES[options.mode](options)


if __name__ == "__main__":
    main()
