"""PyTorch's memory history and its snapshots.

Invariants: nothing is asked of CUDA before the program has initialised it. A snapshot imports nothing.
"""

from __future__ import annotations

import importlib
import inspect
import sys
import threading
import types
from typing import Any, Dict, Optional

from . import _torch

_COMPILER = "_inductor"


def available() -> bool:
    """Whether PyTorch can record frames without the events of the history."""
    memory, core = _memory(), sys.modules.get("torch._C")
    record = getattr(memory, "_record_memory_history", None)
    if record is None or not hasattr(memory, "_snapshot") or not hasattr(core, "_cuda_isHistoryEnabled"):
        return False
    # Another allocator has no blocks. A PyTorch without these parameters cannot record frames alone.
    return _torch.backend() == "native" and {"enabled", "context", "stacks"} <= set(inspect.signature(record).parameters)


def recorded() -> bool:
    """Whether a history is on, of the program or of this client. Must not be called before CUDA is initialised: PyTorch 2.11 crashes then."""
    core: Any = sys.modules["torch._C"]
    return bool(core._cuda_isHistoryEnabled())


def record() -> None:
    """Records the Python frames of each allocation from now on, and no events."""
    _set("state", "alloc")


def pause() -> None:
    """Records no frames from now on. Blocks keep their frames. PyTorch still counts the history as on."""
    _set("state", None)


def end() -> None:
    """Ends a history that has been paused for a while.

    PyTorch ends it in two steps: it forgets the function that records frames, and then that frames are to be recorded. A thread that
    allocates memory between them crashes (on an H200 with PyTorch 2.11, in each of two trials, and in none with a pause before)."""
    _set(None, None)


def _set(enabled: Optional[str], context: Optional[str]) -> None:
    function = _memory()._record_memory_history
    # Otherwise PyTorch attaches a callback to the calling thread, and prints a warning if another thread ends the history.
    more = {"global_record_annotations": True} if "global_record_annotations" in inspect.signature(function).parameters else {}
    function(enabled=enabled, context=context, stacks="python", **more)


def snapshot() -> Dict[str, Any]:
    """PyTorch's segments with their blocks, and its events.

    For the frames in generated code, a snapshot asks for the attribute `torch._inductor`, which PyTorch imports when it is first asked for. In
    the thread of this client, while the program imports a part of PyTorch itself, that has made the program's import fail. So the attribute
    exists for the duration of the snapshot, and tells this thread that there is no generated code. For other threads it acts as PyTorch's."""
    torch = sys.modules["torch"]
    stand_in = _NotImported() if _COMPILER not in torch.__dict__ and "__getattr__" in torch.__dict__ else None
    if stand_in is not None:
        torch.__dict__.setdefault(_COMPILER, stand_in)
    try:
        found: Dict[str, Any] = _memory()._snapshot()
        return found
    finally:
        # An import that ended in the meantime has replaced it. If one does between these two steps, PyTorch finds the module again when it is asked.
        if stand_in is not None and torch.__dict__.get(_COMPILER) is stand_in:
            del torch.__dict__[_COMPILER]


class _NotImported(types.ModuleType):
    """Stands for PyTorch's compiler, which the program has not imported."""

    def __init__(self) -> None:
        super().__init__("torch." + _COMPILER)
        self.__dict__["_thread"] = threading.get_ident()

    def __getattr__(self, name: str) -> Any:
        if threading.get_ident() == self.__dict__["_thread"]:
            raise AttributeError(name)
        return getattr(importlib.import_module("torch." + _COMPILER), name)


def _memory() -> Any:
    return sys.modules.get("torch.cuda.memory")
