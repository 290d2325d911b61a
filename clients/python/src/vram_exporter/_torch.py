"""Reads the caching allocator of PyTorch.

Invariants: PyTorch is found in `sys.modules` and never imported. Nothing is read before the program has initialised CUDA, or in a forked
child that must not use CUDA. No peak or counter is reset.
"""

from __future__ import annotations

import os
import sys
from typing import Any, Dict, List, Optional

from . import _uuid
from ._reading import Reading

NAME = "pytorch"

# The figures whose peaks `reset_peak_memory_stats` lowers.
_PEAKS = ("allocated_bytes", "reserved_bytes", "active_bytes", "requested_bytes", "allocation", "segment", "active", "inactive_split")


def cuda() -> Any:
    """The module `torch.cuda`, or `None` if the program has not imported it or runs on AMD GPUs."""
    module = sys.modules.get("torch.cuda")
    version = sys.modules.get("torch.version")
    if module is None or getattr(version, "cuda", None) is None:
        return None
    return module


def initialised() -> bool:
    """Whether the program has initialised CUDA in this process."""
    module = cuda()
    asked = getattr(module, "is_initialized", None)
    return bool(asked()) if asked is not None else False


def _uses_amd() -> bool:
    """Whether the program has initialised a GPU in a build of PyTorch for AMD GPUs, about which nothing is read."""
    module = sys.modules.get("torch.cuda")
    if module is None or getattr(sys.modules.get("torch.version"), "hip", None) is None:
        return False
    asked = getattr(module, "is_initialized", None)
    return bool(asked()) if asked is not None else False


class Torch:
    """The reader of PyTorch's allocator. Not safe to use from two threads at once."""

    framework = NAME
    blind = False

    def __init__(self) -> None:
        self._count: Optional[int] = None
        self._backend: Optional[str] = None
        self._splits_seen: Dict[int, bool] = {}

    def present(self) -> bool:
        return "torch" in sys.modules

    def read(self) -> List[Reading]:
        """One reading for each device that PyTorch can see; empty until CUDA is initialised. May raise whatever PyTorch raises."""
        self.blind = _uses_amd()
        if not initialised():
            return []
        core: Any = sys.modules["torch._C"]
        if self._count is None:
            self._count = int(core._cuda_getDeviceCount())
            self._backend = backend()
        return [self._device(_stats(core, ordinal), ordinal) for ordinal in range(self._count)]

    def _device(self, stats: Dict[str, Any], ordinal: int) -> Reading:
        allocated, reserved = stats["allocated_bytes"]["all"], stats["reserved_bytes"]["all"]
        in_use = reserved["current"] > 0 or reserved["peak"] > 0 or reserved["allocated"] > 0
        native = self._backend == "native"
        return Reading(
            framework=NAME,
            ordinal=ordinal,
            device=_device_uuid(ordinal) if in_use else None,
            in_use=in_use,
            allocated=allocated["current"],
            peak=allocated["peak"],
            reserved=reserved["current"],
            reserved_peak=reserved["peak"],
            # Other backends always leave the figures below at 0.
            taken=allocated["allocated"] if native else None,
            returned=allocated["freed"] if native else None,
            reserved_taken=reserved["allocated"] if native else None,
            reserved_returned=reserved["freed"] if native else None,
            inactive_split=self._inactive_split(stats, ordinal) if native else None,
            retries=stats.get("num_alloc_retries") if native else None,
            out_of_memory=stats.get("num_ooms") if native else None,
            peaks=tuple(stats[key][pool]["peak"] for key in _PEAKS if key in stats for pool in ("all", "small_pool", "large_pool")),
        )

    def _inactive_split(self, stats: Dict[str, Any], ordinal: int) -> Optional[int]:
        """The bytes of inactive splits. Absent until PyTorch has counted one, because with expandable segments it never counts any."""
        splits = stats.get("inactive_split_bytes")
        if splits is None or _expandable_segments():
            return None
        if splits["all"]["peak"] > 0 or splits["all"]["allocated"] > 0:
            self._splits_seen[ordinal] = True
        return int(splits["all"]["current"]) if self._splits_seen.get(ordinal) else None


def _stats(core: Any, ordinal: int) -> Dict[str, Any]:
    """The figures of one device. Raises ValueError if figures that belong to one moment cannot be obtained."""
    for _ in range(3):
        stats: Dict[str, Any] = core._cuda_memoryStats(ordinal)
        # The backend cudaMallocAsync requests the figures from the driver one after the other.
        if stats["allocated_bytes"]["all"]["current"] <= stats["reserved_bytes"]["all"]["current"]:
            return stats
    raise ValueError("the figures of PyTorch belong to different moments")


def amounts(ordinal: int) -> Dict[str, int]:
    """What is allocated and reserved now, for a report of a failed allocation; empty if PyTorch cannot provide it."""
    try:
        core: Any = sys.modules["torch._C"]
        stats = core._cuda_memoryStats(ordinal)
        amounts = {"allocated_bytes": stats["allocated_bytes"]["all"]["current"], "reserved_bytes": stats["reserved_bytes"]["all"]["current"]}
        return amounts if amounts["allocated_bytes"] <= amounts["reserved_bytes"] else {}
    except Exception:
        return {}


def unlimited(ordinal: int) -> bool:
    """Whether it is certain that the program has set no limit (`set_per_process_memory_fraction`). Must be called in a thread that uses the
    device: if there is a limit, PyTorch queries the driver for the current device."""
    try:
        core: Any = sys.modules["torch._C"]
        return bool(core._cuda_getMemoryFraction(ordinal) == 1.0)
    except Exception:
        return False


def device_uuid(ordinal: int) -> Optional[str]:
    """The UUID of a PyTorch device, or `None` if it is not known."""
    try:
        return _device_uuid(ordinal)
    except Exception:
        return None


def _device_uuid(ordinal: int) -> Optional[str]:
    found = _uuid.of_ordinal(ordinal)
    if found is None and not _uuid.driver_loaded() and "MIG" not in os.environ.get("CUDA_VISIBLE_DEVICES", ""):
        # The driver library has another name on this machine. PyTorch returns the UUID without a prefix.
        value = getattr(cuda().get_device_properties(ordinal), "uuid", None)
        found = None if value is None else "GPU-" + str(value)
    return found


def backend() -> Optional[str]:
    asked = getattr(cuda(), "get_allocator_backend", None)
    return str(asked()) if asked is not None else None


def _expandable_segments() -> bool:
    settings = os.environ.get("PYTORCH_ALLOC_CONF", "") + "," + os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "")
    return "expandable_segments:true" in settings.lower().replace(" ", "")
