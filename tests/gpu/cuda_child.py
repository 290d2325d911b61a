"""One CUDA process for the scripts beside it; it does what its mode says until stdin closes.

Modes: `driver-load` only calls NVML; the others use CUDA. `context` holds a CUDA context (and --mib of device memory), `busy` multiplies small
matrices without end, `spikes` allocates and frees on command, `leak` takes 64 MiB more each second, `burst` allocates and frees without a pause,
`training` trains a small transformer, `paced` trains it too and times its steps. Each prints one JSON line when it is ready. Only `busy`,
`leak`, `training` and `paced` load PyTorch; the others call the driver directly, so that an allocation is the driver's own.
"""

import argparse
import ctypes
import json
import sys
import threading
import time
from ctypes import byref, c_int, c_size_t, c_uint, c_uint64, c_void_p

MIB = 1 << 20


def say(**message):
    """One JSON line to the parent."""
    print(json.dumps(message), flush=True)


class Cuda:
    """The driver API of device 0 with its primary context current on this thread."""

    def __init__(self):
        self.lib = self.load()
        device = c_int()
        context = c_void_p()
        self.call("cuInit", c_uint(0))
        self.call("cuDeviceGet", byref(device), c_int(0))
        self.call("cuDevicePrimaryCtxRetain", byref(context), device)
        self.call("cuCtxSetCurrent", context)

    @staticmethod
    def load():
        tried = []
        for place in ("libcuda.so.1", "/usr/local/nvidia/lib64/libcuda.so.1"):
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
        """Device memory of `size` bytes straight from the driver."""
        address = c_uint64()
        self.call("cuMemAlloc_v2", byref(address), c_size_t(size))
        return address

    def free(self, address):
        self.call("cuMemFree_v2", address)


def hold_context(options):
    cuda = Cuda()
    if options.mib:
        cuda.allocate(options.mib * MIB)
    say(ready=True)
    sys.stdin.read()


def spike(options):
    """For each stdin line {"mib": n, "hold_ms": t}: allocate, hold, free, report the
    CLOCK_MONOTONIC times of the allocation's end and the release's start."""
    cuda = Cuda()
    warm = cuda.allocate(64 * MIB)
    cuda.free(warm)
    say(ready=True)
    for line in sys.stdin:
        order = json.loads(line)
        asked = time.monotonic()
        address = cuda.allocate(order["mib"] * MIB)
        held_from = time.monotonic()
        # Sleep overshoots by 50 µs and more: the last part is spun, a 2 ms spike lasts 2 ms.
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
    closed = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), closed.set()), daemon=True).start()
    say(ready=True, held=keep.numel())
    while not closed.is_set():
        for _ in range(50):
            left @ left
        torch.cuda.synchronize()


def leak(options):
    """Hold --mib and then take 64 MiB more each second, in PyTorch, as a list that somebody forgot does."""
    import torch

    kept = [torch.empty(options.mib * MIB, dtype=torch.uint8, device="cuda")]
    left = torch.randn(1024, 1024, device="cuda")
    closed = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), closed.set()), daemon=True).start()
    say(ready=True)
    due = time.monotonic()
    while not closed.wait(max(0.0, due - time.monotonic())):
        due += 1
        kept.append(torch.empty(64 * MIB, dtype=torch.uint8, device="cuda"))
        (left @ left).sum().item()


def burst(options):
    """Allocate and free between --mib and twice as much without a pause until stdin closes; hold what is left at the end."""
    cuda = Cuda()
    cuda.allocate(options.mib * MIB)
    closed = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), closed.set()), daemon=True).start()
    say(ready=True)
    turn = 0
    while not closed.is_set():
        turn += 1
        cuda.free(cuda.allocate((options.mib + turn % 7 * options.mib // 7) * MIB))


def paced(options):
    """For each stdin line {"steps": n, "allocations": m}: the milliseconds of n training steps and of m allocations with their release,
    each on its own clock."""
    from training import paces

    paces(Cuda(), say, sys.stdin)


def training(options):
    from training import train

    train(options.steps, say, sys.stdin)


def driver_load(options):
    """Keep the driver's lock taken: the energy call holds it for milliseconds."""
    import nvml_abi

    gpu = nvml_abi.Gpu(path=options.nvml)
    energy = ctypes.c_ulonglong()
    closed = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), closed.set()), daemon=True).start()
    say(ready=True)
    while not closed.is_set():
        gpu.check("nvmlDeviceGetTotalEnergyConsumption", gpu.lib.nvmlDeviceGetTotalEnergyConsumption(gpu.device, byref(energy)))


MODES = {"context": hold_context, "spikes": spike, "busy": busy, "leak": leak, "burst": burst, "paced": paced, "training": training, "driver-load": driver_load}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("mode", choices=list(MODES))
    parser.add_argument("--mib", type=int, default=0, help="device memory to hold")
    parser.add_argument("--steps", type=int, default=200, help="training steps")
    parser.add_argument("--nvml", metavar="PATH", help="the NVML library of driver-load")
    options = parser.parse_args()
    MODES[options.mode](options)


if __name__ == "__main__":
    main()
