"""The stand-in's allocator and the private functions that the client uses."""

import copy
import os
import sys
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
# What `_record_memory_history` was last called with, or `None`; all its calls; and the blocks that autograd holds, as C++ does.
history = None
history_calls = []
saved = []
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
        self.blocks = {}
        self.traces = [[] for _ in range(DEVICES)]
        self._next = [0x7F0000000000 + (device << 40) for device in range(DEVICES)]

    def _place(self, device, size, rounded):
        """A block that is just allocated, in the form of a snapshot. An address is not used again."""
        address, self._next[device] = self._next[device], self._next[device] + rounded
        frames = call_frames() if history is not None and history["context"] is not None else []
        self.blocks[address] = {"address": address, "size": rounded, "requested_size": size, "state": "active_allocated", "frames": frames}
        if history is not None:
            self.traces[device].append({"action": "alloc", "addr": address, "size": rounded, "frames": []})
            del self.traces[device][: -(1 if history["enabled"] == "state" else 1000)]
        return address

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
                address = self._place(device, size, rounded)
        if failed:
            for observer in list(observers):
                observer(device, rounded, int(MEMORY * fraction), free)
            raise OutOfMemoryError(self._text(device, rounded, free))
        return device, size, rounded, pool, address

    def _text(self, device, requested, free):
        used = self.stats[device]["allocated_bytes"]["all"]["current"]
        amounts = (requested, MEMORY, free, MEMORY - free, used, self.reserved(device) - used)
        return (
            "CUDA out of memory. Tried to allocate %s. GPU 0 has a total capacity of %s of which %s is free. Including non-PyTorch memory, "
            "this process has %s memory in use. Of the allocated memory %s is allocated by PyTorch, and %s is reserved by PyTorch but unallocated."
        ) % tuple(size_text(amount) for amount in amounts)

    def free(self, block):
        device, size, rounded, pool, address = block
        with self.lock:
            if len(self.blocks) < 100:
                self.blocks[address].update(state="inactive", frames=[])
            else:
                del self.blocks[address]
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


class DisableTorchFunctionSubclass:
    """PyTorch's context manager of this name."""

    def __enter__(self):
        pass

    def __exit__(self, *_error):
        pass


def call_frames():
    """The Python frames of the caller, the innermost first."""
    frame, found = sys._getframe(1), []
    while frame is not None:
        found.append({"filename": frame.f_code.co_filename, "line": frame.f_lineno, "name": frame.f_code.co_name})
        frame = frame.f_back
    return found


def save_for_backward(size, device=0):
    """Memory that only autograd holds."""
    saved.append(allocator.allocate(device, size))


def backward():
    while saved:
        allocator.free(saved.pop())


def _cuda_isHistoryEnabled():
    _check("_cuda_isHistoryEnabled")
    return history is not None


def _cuda_record_memory_history(enabled, context, stacks, max_entries):
    global history
    _check("_cuda_record_memory_history")
    history_calls.append("paused" if enabled is not None and context is None else enabled)
    history = None if enabled is None else {"enabled": enabled, "context": context, "stacks": stacks}
    if enabled is None:
        for trace in allocator.traces:
            trace.clear()


def _cuda_memorySnapshot(_mempool_id):
    _check("_cuda_memorySnapshot")
    if BACKEND != "native":
        raise RuntimeError("cudaMallocAsync does not yet support snapshot.")
    with allocator.lock:
        segments = [_segment(device) for device in range(DEVICES)]
        return {"segments": [segment for segment in segments if segment["blocks"]], "device_traces": copy.deepcopy(allocator.traces)}


def _segment(device):
    blocks = [dict(block) for address, block in sorted(allocator.blocks.items()) if (address - 0x7F0000000000) >> 40 == device]
    sizes = [block["size"] for block in blocks if block["state"] != "inactive"]
    return {
        "device": device,
        "address": blocks[0]["address"] if blocks else 0,
        "total_size": sum(block["size"] for block in blocks),
        "allocated_size": sum(sizes),
        "active_size": sum(sizes),
        "requested_size": sum(sizes),
        "stream": 0,
        "segment_type": "large",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "frames": [],
        "blocks": blocks,
    }


def _check(name):
    calls[name] = calls.get(name, 0) + 1
    if _initialised_in != os.getpid():
        raise AssertionError(name + " before CUDA is initialised, or in a forked child")



def _cuda_getMemoryFraction(_device):
    return fraction
