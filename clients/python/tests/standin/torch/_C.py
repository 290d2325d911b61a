"""The stand-in's allocator and the private functions that the client uses."""

import copy
import os
import threading
import time

BACKEND = os.environ.get("STANDIN_BACKEND", "native")
DEVICES = int(os.environ.get("STANDIN_DEVICES", "1"))
MEMORY = int(os.environ.get("STANDIN_MEMORY", str(1 << 37)))
SEGMENT = 2 << 20
COUNTS = ("allocation", "segment", "active", "inactive_split")
BYTES = ("allocated_bytes", "reserved_bytes", "active_bytes", "inactive_split_bytes", "requested_bytes")
POOLS = ("all", "small_pool", "large_pool")

_initialised_in = None
observers = []
calls = {"_cuda_memoryStats": 0}
# Tests set these: an exception that each reading raises, the seconds that it takes, and figures that it returns instead of the real ones.
raising = None
seconds = 0.0
answer = None
fraction = 1.0


class OutOfMemoryError(RuntimeError):
    """What PyTorch raises for a failed allocation."""


def empty_stats():
    stats = {key: {pool: dict.fromkeys(("current", "peak", "allocated", "freed"), 0) for pool in POOLS} for key in COUNTS + BYTES}
    stats.update(num_alloc_retries=0, num_ooms=0)
    return stats


def size_text(size):
    """An amount in the format of PyTorch's message."""
    if size <= 1024:
        return "%d bytes" % size
    for unit, name in ((1 << 10, "KiB"), (1 << 20, "MiB")):
        if size <= unit << 10:
            return "%.2f %s" % (size / unit, name)
    return "%.2f GiB" % (size / (1 << 30))


class Allocator:
    """Blocks are rounded up to 512 bytes; segments of 2 MiB are kept until the cache is emptied."""

    def __init__(self):
        self.lock = threading.Lock()
        self.stats = [empty_stats() for _ in range(DEVICES)]

    def _add(self, device, key, amount, pool):
        if BACKEND != "native" and key not in ("allocated_bytes", "active_bytes", "reserved_bytes"):
            return
        for name in ("all", pool):
            figures = self.stats[device][key][name]
            figures["current"] += amount
            figures["peak"] = max(figures["peak"], figures["current"])
            if BACKEND == "native":
                figures["allocated" if amount > 0 else "freed"] += abs(amount)

    def reserved(self, device):
        return self.stats[device]["reserved_bytes"]["all"]["current"]

    def allocate(self, device, size):
        rounded, pool = (size + 511) // 512 * 512, "small_pool" if size <= 1 << 20 else "large_pool"
        with self.lock:
            stats = self.stats[device]
            free = MEMORY - self.reserved(device)
            idle = self.reserved(device) - stats["allocated_bytes"]["all"]["current"]
            needed = max(0, (rounded - idle + SEGMENT - 1) // SEGMENT * SEGMENT)
            failed = needed > free
            if failed:
                stats["num_ooms"] += BACKEND == "native"
            else:
                if needed:
                    self._add(device, "reserved_bytes", needed, pool)
                    self._add(device, "segment", 1, pool)
                for key in ("allocated_bytes", "active_bytes"):
                    self._add(device, key, rounded, pool)
                self._add(device, "requested_bytes", size, pool)
                for key in ("allocation", "active"):
                    self._add(device, key, 1, pool)
        if failed:
            for observer in list(observers):
                observer(device, rounded, int(MEMORY * fraction), free)
            raise OutOfMemoryError(self._text(device, rounded, free))
        return device, size, rounded, pool

    def _text(self, device, requested, free):
        used = self.stats[device]["allocated_bytes"]["all"]["current"]
        amounts = (requested, MEMORY, free, MEMORY - free, used, self.reserved(device) - used)
        return (
            "CUDA out of memory. Tried to allocate %s. GPU 0 has a total capacity of %s of which %s is free. Including non-PyTorch memory, "
            "this process has %s memory in use. Of the allocated memory %s is allocated by PyTorch, and %s is reserved by PyTorch but unallocated."
        ) % tuple(size_text(amount) for amount in amounts)

    def free(self, block):
        device, size, rounded, pool = block
        with self.lock:
            for key in ("allocated_bytes", "active_bytes"):
                self._add(device, key, -rounded, pool)
            self._add(device, "requested_bytes", -size, pool)
            for key in ("allocation", "active"):
                self._add(device, key, -1, pool)

    def empty_cache(self, device=0):
        with self.lock:
            idle = (self.reserved(device) - self.stats[device]["allocated_bytes"]["all"]["current"]) // SEGMENT * SEGMENT
            if idle:
                self._add(device, "reserved_bytes", -idle, "large_pool")

    def reset_peaks(self, device):
        with self.lock:
            for key in COUNTS + BYTES:
                for figures in self.stats[device][key].values():
                    figures["peak"] = figures["current"]

    def reset_totals(self, device):
        with self.lock:
            for key in COUNTS + BYTES:
                for figures in self.stats[device][key].values():
                    figures["allocated"] = figures["freed"] = 0
            self.stats[device].update(num_alloc_retries=0, num_ooms=0)


allocator = Allocator()


def _cuda_init():
    global _initialised_in
    if _cuda_isInBadFork():
        raise RuntimeError("Cannot re-initialize CUDA in forked subprocess.")
    _initialised_in = os.getpid()


def _cuda_isInBadFork():
    return _initialised_in is not None and _initialised_in != os.getpid()


def _cuda_getDeviceCount():
    return DEVICES


def _cuda_memoryStats(device):
    if _initialised_in != os.getpid():
        raise AssertionError("asked before CUDA is initialised, or in a forked child")
    calls["_cuda_memoryStats"] += 1
    if seconds:
        time.sleep(seconds)
    if raising is not None:
        raise raising
    if answer is not None:
        return copy.deepcopy(answer)
    with allocator.lock:
        return copy.deepcopy(allocator.stats[device])


def _cuda_attach_out_of_memory_observer(observer):
    if BACKEND != "native":
        raise RuntimeError("the backend does not support observers")
    observers.append(observer)



def _cuda_getMemoryFraction(_device):
    return fraction
