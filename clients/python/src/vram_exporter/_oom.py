"""Reports PyTorch's failed allocations before PyTorch raises its exception in the program.

Invariants: the observer never waits. It never raises, because PyTorch would then raise the observer's exception instead of an
OutOfMemoryError. It is attached once, because PyTorch cannot detach it; the program's own observers are called as before.
"""

from __future__ import annotations

import sys
import time
from types import FrameType
from typing import Any, Callable, Dict, List, Optional

from . import _torch

Before = Callable[[int, Optional[FrameType]], Dict[str, Any]]
"""Called with the number of a device and with the innermost frame of the program, if the thread has one. Returns further keys of the report."""

_attached = False
_queued = False
_send: Optional[Callable[[Dict[str, Any]], None]] = None
_before: Optional[Before] = None

# At most `_MOST` failed allocations are reported in `_WINDOW` seconds, and the others are only counted: a program may attempt
# an allocation hundreds of times a second, and the exporter accepts 20 reports in 20 seconds from all processes of a user.
_MOST = 10
_WINDOW = 20.0
_recent: List[float] = []


def watch(send: Callable[[Dict[str, Any]], None], initialised: Callable[[], None], before: Optional[Before] = None) -> None:
    """Passes each failed allocation to `send`, which must not wait; `before` is called first. Must be called repeatedly, because the observer is
    attached only when the program has initialised CUDA. `initialised` is called if the observer is attached in the program's own thread.
    Never raises."""
    global _send, _before, _queued
    _send, _before = send, before
    if _attached:
        return
    try:
        if _torch.initialised():
            _attach()
        elif not _queued:
            # PyTorch calls this in the program's thread when CUDA has been initialised, so even a failed first allocation is noticed.
            later = getattr(_torch.cuda(), "_lazy_call", None)
            if later is not None:
                _queued = True
                later(lambda: _when_initialised(initialised))
    except Exception:
        pass


def watching() -> bool:
    """Whether the next failed allocation of PyTorch will be seen, even if it is the first allocation."""
    return _attached or _queued


def ignore() -> None:
    """Reports nothing until the next `watch`."""
    global _send, _before
    _send = _before = None


def reset_after_fork() -> None:
    """For a forked child: the parent's observer remains attached there, and must not send reports on behalf of the parent."""
    global _queued
    ignore()
    # If the parent has not initialised CUDA, PyTorch still holds the queued call and no observer is attached.
    if not _attached:
        _queued = False


def _when_initialised(initialised: Callable[[], None]) -> None:
    try:
        _attach()
        initialised()
    except Exception:
        pass


def _attach() -> None:
    global _attached
    if _attached:
        return
    backend = getattr(_torch.cuda(), "get_allocator_backend", None)
    attach = getattr(sys.modules.get("torch._C"), "_cuda_attach_out_of_memory_observer", None)
    _attached = True  # Also set after a failure, because another attempt would fail as well.
    if attach is not None and backend is not None and backend() == "native":
        attach(_observe)


def _observe(device: int, requested: int, total: int, free: int, *_more: Any) -> None:
    try:
        send = _send
        now = time.monotonic()
        if send is None or not _allowed(now):
            return
        uuid = _torch.device_uuid(device)
        if uuid is None:
            return
        message: Dict[str, Any] = {
            "type": "out_of_memory",
            "framework": _torch.NAME,
            "device": uuid,
            "requested_bytes": requested,
            "free_bytes": free,
        }
        # If the program has set a limit, PyTorch passes the limit instead of the device's total.
        if _torch.unlimited(device):
            message["total_bytes"] = total
        message.update(_torch.amounts(device))
        try:
            caller: Optional[FrameType] = sys._getframe(1)
        except ValueError:  # A thread of autograd may run no Python code.
            caller = None
        message.update(_prepare(device, caller))
        _shorten(message)
        send(message)
    except BaseException:
        pass


def _prepare(device: int, caller: Optional[FrameType]) -> Dict[str, Any]:
    before = _before
    try:
        return {} if before is None else before(device, caller)
    except BaseException:
        return {}


def _shorten(message: Dict[str, Any]) -> None:
    """Leaves out what the line has no room for: the outer frames, then all frames and the site."""
    if "frames" not in message:
        return
    from ._connection import fits

    while message["frames"] and not fits(message):
        message["frames"].pop()
    if not message["frames"]:
        del message["frames"]
        if not fits(message):
            message.pop("site", None)


def _allowed(now: float) -> bool:
    _recent[:] = [then for then in _recent if now - then < _WINDOW]
    if len(_recent) >= _MOST:
        return False
    _recent.append(now)
    return True
