"""Reads gradients in the program's main thread, and tells what the program's threads are doing.

PyTorch changes `grad` without the GIL: a backward pass sets it in other threads, and setting it to `None` gives up the GIL before the old value is
gone. Reading it in another thread at such a moment has crashed programs (PyTorch 2.11; on an H200 in each of four trials, on a CPU within a
second). So the interpreter is asked to read gradients in the main thread between two of its own steps, and they are not read while any
thread is in a backward pass, or if another thread than the main one trains. What an extension in C++ does on its own is not noticed.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections import deque
from types import CodeType, FrameType
from typing import Any, Callable, Deque, List, Optional, Set

from ._objects import named
from ._thread import Event, ident

# The files whose functions are called while PyTorch compiles a part of the program, and hardly at other times.
_COMPILER = ("torch/_dynamo/convert_frame.py", "torch/_inductor/compile_fx.py")
# The files whose functions are called in a thread that trains.
_TRAINING = ("torch/nn/modules/module.py", "torch/autograd/__init__.py", "torch/autograd/graph.py")
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


def of(tensors: List[Any], read: Callable[[Any], Any], patience: float) -> Optional[List[Any]]:
    """The gradient of each tensor; `None` if they cannot be read within `patience` seconds."""
    if not _codes():
        return None
    request = _Request(tensors, read)
    if ident() == threading.main_thread().ident:
        request.answer()
    else:
        _requests.append(request)
        # It fails if too many calls are waiting. Then the next one answers this request, too.
        ctypes.pythonapi.Py_AddPendingCall(_answer, None)
        request.done.wait(patience)
    request.expired = True
    return request.gradients


class _Request:
    """Gradients that the main thread is to read."""

    def __init__(self, tensors: List[Any], read: Callable[[Any], Any]) -> None:
        self._tensors, self._read = tensors, read
        self._pid = os.getpid()
        self.gradients: Optional[List[Any]] = None
        self.expired = False
        self.done = Event()

    def answer(self) -> None:
        if not self.expired and os.getpid() == self._pid and not running() and not _any(_trains, besides=ident()):
            self.gradients = list(map(self._read, self._tensors))
        self._tensors = []
        self.done.set()


# Requests for the main thread. One that is late is answered by a later call of `_answer`, and has expired.
_requests: Deque[_Request] = deque(maxlen=16)


def _answer_requests(_nothing: Any) -> int:
    try:
        while _requests:
            _requests.popleft().answer()
    except BaseException:  # The interpreter would raise it in the program.
        pass
    return 0


# It lives as long as the process, because the interpreter may call it at any time.
_answer = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(_answer_requests)


def _trains(code: CodeType) -> bool:
    return code.co_filename.endswith(_TRAINING) or "torch/optim/" in code.co_filename


def _codes() -> Set[int]:
    """The functions that wait for a backward pass, as the identities of their code."""
    functions = [named("torch.autograd.graph", "_engine_run_backward")]
    if functions == [None]:
        functions = [named("torch.autograd", name) for name in ("backward", "grad")]
    return {id(function.__code__) for function in functions if hasattr(function, "__code__")}
