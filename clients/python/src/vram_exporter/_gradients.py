"""Reads gradients while no backward pass runs, and tells what the program's threads are doing.

A backward pass sets gradients in threads of PyTorch, without the GIL. Reading one at the same time has crashed the program (on an H200 with PyTorch
2.11, in each of four trials). A Python thread needs the GIL to begin a backward pass, so none begins within one call that is made of functions
in C. A backward pass that an extension begins in C++, without PyTorch's Python function, is not noticed.
"""

from __future__ import annotations

import sys
from itertools import chain, starmap, takewhile
from operator import attrgetter, itemgetter, not_
from types import CodeType, FrameType
from typing import Any, Callable, Iterator, List, Optional, Set

# The files whose functions are called while PyTorch compiles a part of the program, and hardly at other times.
_COMPILER = ("torch/_dynamo/convert_frame.py", "torch/_inductor/compile_fx.py")
# The maximum number of frames of a thread that are read.
_DEPTH = 10000


def running() -> bool:
    """Whether a thread is in a backward pass."""
    codes = _codes()
    return _any(lambda code: id(code) in codes)


def waiting() -> Optional[FrameType]:
    """The frame in which the only thread that is in a backward pass waits for it; `None` if there is none, or more than one."""
    codes = _codes()
    found = [frame for frame in sys._current_frames().values() if id(frame.f_code) in codes]
    return found[0] if len(found) == 1 else None


def compiling() -> bool:
    """Whether a thread is in PyTorch's compiler."""
    return _any(lambda code: code.co_filename.endswith(_COMPILER))


def _any(is_meant: Callable[[CodeType], bool]) -> bool:
    """Whether a thread has a frame with such code."""
    frames: List[Any] = list(sys._current_frames().values())
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


def known() -> bool:
    """Whether a backward pass would be noticed."""
    return bool(_codes())


def of(tensors: List[Any], read: Callable[[Any], Any]) -> Iterator[Any]:
    """The gradient of each tensor, or nothing while a thread is in a backward pass. The iterator must be used up in one call."""
    codes = _codes()
    # What is innermost in the thread that waits for a backward pass. `running` reads all frames, before.
    frames = chain.from_iterable(map(dict.values, starmap(sys._current_frames, ((),))))
    innermost = map(id, map(attrgetter("f_code"), frames))
    idle = takewhile(not_, map(any, (map(codes.__contains__, innermost),)))
    return chain.from_iterable(map(itemgetter(1), zip(idle, (map(read, tensors),))))


def _codes() -> Set[int]:
    """The functions that wait for a backward pass, as the identities of their code."""
    functions = [_named("torch.autograd.graph", "_engine_run_backward")]
    if functions == [None]:
        functions = [_named("torch.autograd", name) for name in ("backward", "grad")]
    return {id(function.__code__) for function in functions if hasattr(function, "__code__")}


def _named(module: str, name: str) -> Any:
    return getattr(sys.modules.get(module), "__dict__", {}).get(name)
