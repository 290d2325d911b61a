"""The stand-in's `torch.cuda`."""

import threading
import uuid

from .. import _C
from . import memory

_initialized = False
_queued_calls = []
_lock = threading.RLock()


class Properties:
    """A device; its UUID is derived from its number."""

    def __init__(self, device):
        self.name = "stand-in"
        self.total_memory = _C.MEMORY
        self.uuid = uuid.UUID(int=0x5B7B3B8A00000000000000000000000 + device)


def is_initialized():
    return _initialized and not _C._cuda_isInBadFork()


def _lazy_call(function):
    with _lock:
        if is_initialized():
            function()
        else:
            _queued_calls.append(function)


def _lazy_init():
    global _initialized
    if is_initialized():
        return
    with _lock:
        _C._cuda_init()
        for function in list(_queued_calls):
            function()
        _initialized = True


def init():
    _lazy_init()


def get_allocator_backend():
    return _C.BACKEND


def get_device_properties(device):
    _lazy_init()
    return Properties(device)


def reset_peak_memory_stats(device=0):
    _C.allocator.reset_peaks(device)


def reset_accumulated_memory_stats(device=0):
    _C.allocator.reset_totals(device)


def max_memory_allocated(device=0):
    return _C.allocator.stats[device]["allocated_bytes"]["all"]["peak"]


def max_memory_reserved(device=0):
    return _C.allocator.stats[device]["reserved_bytes"]["all"]["peak"]


def memory_allocated(device=0):
    return _C.allocator.stats[device]["allocated_bytes"]["all"]["current"]


def memory_stats(device=0):
    return {}


def mem_get_info(device=0):
    free = _C.MEMORY - _C.allocator.reserved(device)
    return free, _C.MEMORY


def set_per_process_memory_fraction(fraction, device=0):
    _C.fraction = fraction


def synchronize(device=0):
    """Does nothing, because nothing runs asynchronously here."""


def device_count():
    return _C.DEVICES


def set_device(device):
    """Does nothing, because only the argument of `empty` selects a device."""


__all__ = ["memory"]


def empty_cache():
    _C.allocator.empty_cache()
