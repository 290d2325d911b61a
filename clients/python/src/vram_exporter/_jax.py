"""Reads the allocators of JAX's CUDA devices.

Invariants: JAX is found in `sys.modules` and never imported. Only the backends that the program has initialised are read. They are read
through one of JAX's private tables, because its public functions would initialise them. If the table is missing, nothing is reported.
"""

from __future__ import annotations

import sys
from typing import Any, Dict, List, Optional

from . import _uuid
from ._reading import Reading

NAME = "jax"


class Jax:
    """The reader of JAX's allocators. Not safe to use from two threads at once."""

    framework = NAME
    blind = False

    def present(self) -> bool:
        return "jax" in sys.modules

    def read(self) -> List[Reading]:
        """One reading for each local CUDA device of an initialised backend. May raise whatever JAX raises."""
        backends = gpu_backends()
        # Without the table, it is unknown whether the program uses a GPU.
        self.blind = backends is None
        readings: Dict[int, Reading] = {}
        for backend in backends or ():
            for device in backend.local_devices():
                found = reading(device)
                if found is None:
                    self.blind = True
                else:
                    readings[found.ordinal] = found
        return list(readings.values())


def gpu_backends() -> Optional[List[Any]]:
    """The backends of CUDA devices that the program has initialised, or `None` if JAX's table of backends is missing."""
    bridge = sys.modules.get("jax._src.xla_bridge")
    backends: Any = getattr(bridge, "_backends", None)
    if not isinstance(backends, dict):
        return [] if bridge is None else None
    return [backend for backend in list(backends.values()) if getattr(backend, "platform", None) in ("cuda", "gpu")]


def reading(device: Any) -> Optional[Reading]:
    """What a device's allocator reports, or `None` if it reports nothing. May raise whatever JAX raises."""
    ordinal: Optional[int] = getattr(device, "local_hardware_id", None)
    stats: Optional[Dict[str, int]] = device.memory_stats()
    if not stats or ordinal is None or "bytes_in_use" not in stats:
        return None
    allocated, pool = stats["bytes_in_use"], stats.get("pool_bytes")
    if pool is not None and pool < allocated:
        pool = None  # An allocator without a pool.
    return Reading(
        framework=NAME,
        ordinal=ordinal,
        device=_uuid.of_ordinal(ordinal),
        allocated=allocated,
        peak=stats.get("peak_bytes_in_use"),
        reserved=pool,
        reserved_peak=None if pool is None else stats.get("peak_pool_bytes"),
        limit=stats.get("bytes_limit") or None,
        largest_free_block=None if pool is None else stats.get("largest_free_block_bytes"),
        peaks=tuple(stats[key] for key in ("peak_bytes_in_use", "peak_pool_bytes") if key in stats),
    )
