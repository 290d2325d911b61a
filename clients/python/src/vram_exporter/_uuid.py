"""Finds the UUID of a CUDA device ordinal with the CUDA driver library that the program has already loaded.

Invariant: nothing is loaded or initialised here. The result is `None` if the program has not initialised CUDA, and whenever there is doubt.
"""

from __future__ import annotations

import os
import uuid
from typing import Any, Dict, Optional

_known: Dict[int, str] = {}
_driver: Any = None


def of_ordinal(ordinal: int) -> Optional[str]:
    """The UUID, in NVML's format, of the device whose CUDA ordinal in this process is `ordinal`."""
    found = _known.get(ordinal)
    if found is None:
        found = _ask(ordinal)
        if found is not None:
            _known[ordinal] = found
    return found


def driver_loaded() -> bool:
    """Whether the program has loaded the CUDA driver library."""
    return _library() is not None


def forget() -> None:
    """For a forked child, in which CUDA may see other devices."""
    _known.clear()


def _library() -> Any:
    global _driver
    if _driver is None:
        import ctypes

        try:
            _driver = ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
        except (OSError, AttributeError):
            return None
    return _driver


def _ask(ordinal: int) -> Optional[str]:
    library = _library()
    if library is None:
        return None
    import ctypes

    try:
        device = ctypes.c_int()
        board, instance = (ctypes.c_ubyte * 16)(), (ctypes.c_ubyte * 16)()
        # Before cuInit, which only the program itself may call, this returns CUDA_ERROR_NOT_INITIALIZED.
        if library.cuDeviceGet(ctypes.byref(device), ctypes.c_int(ordinal)) != 0:
            return None
        # The first function returns the UUID of the GPU. If the device is a MIG device, the second returns the UUID of the MIG device.
        if library.cuDeviceGetUuid(ctypes.byref(board), device) != 0:
            return None
        if library.cuDeviceGetUuid_v2(ctypes.byref(instance), device) != 0:
            return None
    except AttributeError:
        return None  # A driver older than 470: a MIG device could be mistaken for its GPU.
    prefix = "GPU-" if bytes(board) == bytes(instance) else "MIG-"
    return prefix + str(uuid.UUID(bytes=bytes(instance)))
