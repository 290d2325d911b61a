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
    return _any(lambda _thread: lambda code: id(code) in codes)


def waiting() -> Optional[FrameType]:
    """The frame in which the only thread that is in a backward pass waits for it; `None` if there is none, or more than one."""
    codes = _codes()
    found = [frame for frame in sys._current_frames().values() if id(frame.f_code) in codes]
    return found[0] if len(found) == 1 else None


def busy(besides: int) -> bool:
    """Whether a thread is in a backward pass, or a thread, except one, trains or computes with a module."""
    codes = _codes()

    def in_backward(code: CodeType) -> bool:
        return id(code) in codes

    def trains(code: CodeType) -> bool:
        return in_backward(code) or code.co_filename.endswith(_TRAINING) or "torch/optim/" in code.co_filename

    return _any(lambda thread: in_backward if thread == besides else trains)


def compiling() -> bool:
    """Whether a thread is in PyTorch's compiler."""
    return _any(lambda _thread: lambda code: code.co_filename.endswith(_COMPILER))


def _any(meant_in: Callable[[int], Callable[[CodeType], bool]]) -> bool:
    """Whether a thread has a frame with such code as is meant in it."""
    frames: List[Any] = list(sys._current_frames().items())
    outer: Any = None
    try:
        while frames:
            thread, outer = frames.pop()
            is_meant = meant_in(thread)
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
