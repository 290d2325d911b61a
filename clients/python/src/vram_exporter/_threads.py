"""Tells what the program's threads are doing, from their Python frames.

Invariants: nothing is hooked, and no frame of the program is kept. What an extension in C++ does on its own is not noticed.
"""

from __future__ import annotations

import sys
from types import CodeType, FrameType
from typing import Any, Callable, List, Optional, Set

from ._objects import named

# The files whose functions are called while PyTorch compiles a part of the program, and hardly at other times.
_COMPILER = ("torch/_dynamo/convert_frame.py", "torch/_inductor/compile_fx.py")
# The files whose functions are called in a thread that trains.
_TRAINING = ("torch/nn/modules/module.py", "torch/autograd/__init__.py", "torch/autograd/graph.py")
# The maximum number of frames of a thread that are read.
_DEPTH = 10000


def can_tell() -> bool:
    """Whether the functions that wait for a backward pass are known."""
    return bool(_codes())


def in_backward() -> bool:
    """Whether a thread is in a backward pass."""
    codes = _codes()
    return _any(lambda code: id(code) in codes)


def waiting() -> Optional[FrameType]:
    """The frame in which the only thread that is in a backward pass waits for it; `None` if there is none, or more than one."""
    codes = _codes()
    found = [frame for frame in sys._current_frames().values() if id(frame.f_code) in codes]
    return found[0] if len(found) == 1 else None


def training(besides: int) -> bool:
    """Whether a thread, except one, trains or computes with a module."""
    return _any(lambda code: code.co_filename.endswith(_TRAINING) or "torch/optim/" in code.co_filename, besides)


def compiling() -> bool:
    """Whether a thread is in PyTorch's compiler."""
    return _any(lambda code: code.co_filename.endswith(_COMPILER))


def _any(is_meant: Callable[[CodeType], bool], besides: Optional[int] = None) -> bool:
    """Whether a thread, except one, has a frame with such code."""
    frames: List[Any] = [frame for thread, frame in sys._current_frames().items() if thread != besides]
    try:
        while frames:
            outer = frames.pop()
            for _ in range(_DEPTH):
                if outer is None:
                    break
                if is_meant(outer.f_code):
                    return True
                outer = outer.f_back
        return False
    finally:
        # The frame of this function is one of them, and would refer to itself and to what its callers hold.
        outer = None
        frames.clear()


def _codes() -> Set[int]:
    """The functions that wait for a backward pass, as the identities of their code."""
    functions = [named("torch.autograd.graph", "_engine_run_backward")]
    if functions == [None]:
        functions = [named("torch.autograd", name) for name in ("backward", "grad")]
    return {id(function.__code__) for function in functions if hasattr(function, "__code__")}
