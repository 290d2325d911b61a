"""A thread that the program does not see, what it waits for, and a way to call a function after a fork.

Invariants: `threading.enumerate()` and the warnings at a fork are the same as without the client. In a program in which gevent has replaced the
threads of the standard library, real ones are used: a replaced function lets other code of the program run, in the middle of a fork or of an
allocation, and a replaced thread runs only while the program waits.
"""

from __future__ import annotations

import _thread
import os
import sys
import threading
import time
from types import FrameType
from typing import Any, Callable, Optional


def _original(module: str, name: str) -> Any:
    """A function of the standard library, even if gevent has replaced it."""
    try:
        return sys.modules["gevent.monkey"].get_original(module, name)
    except Exception:
        return getattr(sys.modules[module], name)


def lock() -> _thread.LockType:
    """A lock that other threads wait for, and not only other greenlets. It must not be held while greenlets can change."""
    made: _thread.LockType = _original("_thread", "allocate_lock")()
    return made


def ident() -> int:
    """The number of the calling thread."""
    return int(_original("_thread", "get_ident")())


def sleep(seconds: float) -> None:
    """Blocks the calling thread."""
    _original("time", "sleep")(seconds)


class Event:
    """Like `threading.Event`. Only the thread that waits may clear it."""

    def __init__(self) -> None:
        self._set = False
        # Held as long as the event is not set.
        self._closed = lock()
        self._closed.acquire()

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        self._open()

    def clear(self) -> None:
        self._closed.acquire(False)
        self._set = False

    def wait(self, seconds: float) -> bool:
        """Waits at most `seconds`. Returns whether the event is set."""
        found = self._closed.acquire(True, seconds)
        if found:
            self._open()
        return found

    def _open(self) -> None:
        try:
            self._closed.release()
        except RuntimeError:  # It is open.
            pass


class Thread:
    """A running thread. The module `threading` does not list it, and the interpreter does not wait for it at exit. `function` gets an
    event, and must return when the event is set."""

    def __init__(self, function: Callable[[Event], None]) -> None:
        self.ending = Event()
        self._ended = Event()
        self._native = 0
        self._ident = 0
        _original("_thread", "start_new_thread")(self._main, (function,))

    def join(self, seconds: float) -> None:
        """Waits at most `seconds` for the thread to end. Returns at once if it is the calling thread."""
        if self._ident == ident():
            return
        limit = time.monotonic() + seconds
        if not self._ended.wait(seconds):
            return
        # The kernel lists the thread until it has really ended, which is a little later than the end of its Python code.
        while os.path.exists("/proc/self/task/%d" % self._native) and time.monotonic() < limit:
            sleep(0.00005)

    def _main(self, function: Callable[[Event], None]) -> None:
        self._native, self._ident = _thread.get_native_id(), ident()
        try:
            function(self.ending)
        finally:
            self._ended.set()


class AfterFork:
    """Calls a function when the main thread has returned from os.fork.

    From Python 3.12 on, os.fork counts the threads of the parent after its last hook, so no hook may start a thread.
    """

    def __init__(self, function: Callable[[], None]) -> None:
        self._function = function
        self._callback: Any = None
        self._frame: Optional[FrameType] = None
        self._instruction = 0

    def before(self) -> None:
        """Must be called before the fork, by a hook that os.fork itself has called."""
        if sys.version_info >= (3, 12) and threading.current_thread() is threading.main_thread():
            self._frame = sys._getframe(2)
            self._instruction = self._frame.f_lasti

    def forget(self) -> None:
        """Must be called by a hook in the child. Drops the frame, because it would keep the program's objects alive."""
        self._frame = None

    def schedule(self) -> bool:
        """Must be called by a hook in the parent. Returns False if no wait is needed, or if none is possible."""
        if self._frame is None:
            return False
        try:
            import ctypes

            if self._callback is None:
                self._callback = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(self._called)
            # The interpreter looks for pending calls after an ordinary call of a C function, so it would call `_called` here, in the
            # hook. From CPython 3.13 on, there is a second problem: if the interpreter looks before a pending call has returned,
            # a call that this pending call has added is not made until the main thread takes the GIL again. The interpreter does
            # not look while it unpacks an iterator.
            (failed,) = map(ctypes.pythonapi.Py_AddPendingCall, (self._callback,), (None,))
            return not failed
        except Exception:
            return False

    def _called(self, _argument: Any) -> int:
        """The interpreter calls this between two instructions of the main thread, which may still be in a hook."""
        try:
            if not (self._in_fork() and self.schedule()):
                self._frame = None
                self._function()
        except Exception:
            pass
        return 0

    def _in_fork(self) -> bool:
        """Whether the call to os.fork has not yet returned: the frame that made it is still at the same instruction."""
        frame: Optional[FrameType] = sys._getframe(2)
        if frame is self._frame:
            return False
        while frame is not None and frame is not self._frame:
            frame = frame.f_back
        return frame is not None and frame.f_lasti == self._instruction
