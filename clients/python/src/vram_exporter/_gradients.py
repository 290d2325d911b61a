"""Reads gradients in the program's main thread.

PyTorch changes `grad` without the GIL: a backward pass sets it in other threads, and setting it to `None` gives up the GIL before the old value is
gone. Reading it in another thread at such a moment has crashed programs (PyTorch 2.11; on an H200 in each of four trials, on a CPU within a
second). So the interpreter is asked to read gradients in the main thread between two of its own steps, and they are not read while any
thread is in a backward pass, or if another thread than the main one trains. What an extension in C++ does on its own is not noticed.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections import deque
from typing import Any, Callable, Deque, List, Optional

from . import _threads
from ._thread import Event, ident


def of(tensors: List[Any], read: Callable[[Any], Any], patience: float) -> Optional[List[Any]]:
    """The gradient of each tensor; `None` if they cannot be read within `patience` seconds."""
    if not _threads.can_tell():
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
        if not self.expired and os.getpid() == self._pid and not _threads.busy(besides=ident()):
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
