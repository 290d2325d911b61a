"""The client of this process: the thread that reads the allocators and sends what changed, and the handling of forks and of the exit.

Invariants: the program never waits for the exporter, no exception leaves this module, and no connection exists before a framework uses a
GPU in this very process.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Deque, Dict, List, Optional, Tuple

from . import _oom, _torch, _uuid
from ._allocators import Allocators
from ._levels import Tracker
from ._result import Measurement
from ._thread import AfterFork, Thread

if TYPE_CHECKING:
    from ._connection import Connection

DEFAULT_SOCKET = "/run/vram-exporter/allocator.sock"
INTERVAL = 0.2
# The time between two checks of `sys.modules` while no framework is imported, in seconds.
IDLE = 0.5
# The time between two checks while the program imports PyTorch, in seconds, and the maximum number of these checks. The time is short
# because the program's first allocation may already fail.
IMPORTING = 0.05
LOOKS = 200
# The longest time without a message, in seconds; the protocol allows at most 2.
ALIVE = 1.5
# The exporter drops the messages that exceed 200 per second.
MESSAGES_PER_SECOND = 150.0
# The longest time that a fork or the end of the program waits for the thread, in seconds. The thread waits for nothing but a framework.
JOIN = 0.1
NAMES = 32
NAME_LENGTH = 64

Values = Dict[str, Optional[int]]

_allocators = Allocators()
_client: Optional[Client] = None
_hooked = False
_asked: Tuple[Optional[str], Optional[float]] = (None, None)


def allocators() -> Allocators:
    """The allocators of this process, even while no client runs."""
    return _allocators


def start(socket: Optional[str] = None, interval: Optional[float] = None) -> bool:
    """Starts the client, unless it runs already. Returns whether it runs; never raises.

    `socket` is the path of the exporter's socket; the default is `$VRAM_EXPORTER_SOCKET`, or `/run/vram-exporter/allocator.sock` if that is
    not set. `interval` is the time between two readings in seconds, from 0.01 to 1.5; the default is `$VRAM_EXPORTER_INTERVAL`, then what
    the exporter suggests, then 0.2. If the exporter starts later, the client connects to it within 5 seconds.
    """
    global _client, _asked
    try:
        if _client is not None:
            return True
        _hook()
        _asked = (socket, interval)
        _client = Client(socket or os.environ.get("VRAM_EXPORTER_SOCKET") or DEFAULT_SOCKET, interval or _from_environment(), _allocators)
        _client.resume()
        return True
    except Exception:
        _client = None
        return False


def stop() -> None:
    """Stops the client and closes its connection; the exporter then no longer shows values of this process. Never raises."""
    global _client
    stopped, _client = _client, None
    try:
        if stopped is not None:
            _oom.ignore()
            stopped.end()
    except Exception:
        pass


def running() -> bool:
    """Whether the client runs in this process."""
    return _client is not None


def measured(result: Measurement) -> None:
    """Passes a result on to the exporter, if the client runs."""
    if _client is not None:
        _client.measured(result)


class Client:
    """The thread and its connection."""

    def __init__(self, path: str, interval: Optional[float], allocators: Allocators) -> None:
        self._path = path
        self._interval = interval
        self._allocators = allocators
        self._thread: Optional[Thread] = None
        self._ended = False
        self._wake = threading.Event()
        self._looks = 0
        # Guards the connection and everything below.
        self._lock = threading.Lock()
        self._connection: Optional[Connection] = None
        self._generation = 0
        self._sent: Dict[Tuple[str, str], Values] = {}
        self._sent_at = 0.0
        self._urgent: Deque[bytes] = deque(maxlen=32)
        self._measurements: Dict[Tuple[str, str, str], Dict[str, Any]] = {}
        self._names: Dict[str, None] = {}

    def resume(self) -> None:
        """Starts the thread."""
        self._wake.clear()
        self._thread = Thread(self._run)

    def runs(self) -> bool:
        """Whether the thread runs."""
        return self._thread is not None

    def pause(self) -> None:
        """Ends the thread, unless a framework holds it up for too long."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.ending.set()
            self._wake.set()
            thread.join(JOIN)

    def end(self) -> None:
        """Ends the thread, sends as many of the remaining messages as it can without waiting, and closes the connection."""
        self._ended = True
        self.pause()
        # A thread that is held up closes the connection when it continues.
        self._close()

    def _close(self) -> None:
        if self._lock.acquire(timeout=JOIN):
            try:
                if self._connection is not None:
                    if self._connection.ready():
                        self._connection.send(self._leftovers())
                    self._connection.end()
            finally:
                self._lock.release()

    def abandon(self) -> None:
        """In a forked child: closes the inherited descriptor, which leaves the parent's connection open."""
        if self._connection is not None:
            self._connection.close()

    def urgent(self, message: Dict[str, Any]) -> None:
        """Sends a message now, without waiting. If the socket is full or the thread is sending, the thread sends it."""
        from ._connection import line

        self._urgent.append(line(message))
        # The thread holds the lock only for the duration of a system call that does not wait.
        if self._lock.acquire(timeout=0.02):
            try:
                if self._open().ready():
                    self._send([])
            finally:
                self._lock.release()
        self._wake.set()

    def measured(self, result: Measurement) -> None:
        """Keeps a result for the thread. Of several results with the same name between two sends, the highest is sent."""
        name = result.name[:NAME_LENGTH]
        if not name or (name not in self._names and len(self._names) >= NAMES):
            return
        for device in result.devices:
            if device.device is None or result.seconds is None:
                continue
            self._names[name] = None
            message: Dict[str, Any] = {
                "type": "measurement",
                "framework": device.framework,
                "device": device.device,
                "name": name,
                "peak_bytes": device.highest_allocated,
                "exact": device.exact,
                "seconds": result.seconds,
            }
            if device.highest_reserved is not None:
                message["peak_reserved_bytes"] = device.highest_reserved
            key = (device.framework, device.device, name)
            known = self._measurements.get(key)
            if known is None or known["peak_bytes"] <= message["peak_bytes"]:
                self._measurements[key] = message

    def _run(self, ending: threading.Event) -> None:
        while not ending.is_set():
            delay = IDLE
            try:
                delay = self._tick()
            except Exception:  # No error here is worth a traceback in the program's output.
                pass
            if self._wake.wait(delay) and not ending.is_set():
                self._wake.clear()
        if self._ended:
            self._close()

    def _tick(self) -> float:
        """Takes one reading and sends what is new. Returns the time until the next reading."""
        if not self._allocators.present():
            return IDLE
        if _torch.cuda() is not None:
            _oom.watch(self.urgent, self._initialised)
        elif "torch" in sys.modules and self._looks < LOOKS:
            self._looks += 1
            return IMPORTING
        if not self._allocators.sample(patience=1.0):
            return INTERVAL
        trackers = [t for t in list(self._allocators.trackers.values()) if t.last is not None and t.last.in_use and t.last.device]
        if not trackers and not self._urgent:
            return INTERVAL
        with self._lock:
            if self._open().ready():
                self._send(trackers)
            suggested = None if self._connection is None else self._connection.interval
        return max(self._interval or suggested or INTERVAL, len(trackers) / MESSAGES_PER_SECOND)

    def _initialised(self) -> None:
        """Called when the program initialises CUDA."""
        self._wake.set()

    def _open(self) -> Connection:
        if self._connection is None:
            from ._connection import Connection

            self._connection = Connection(self._path)
        return self._connection

    def _send(self, trackers: List[Tracker]) -> None:
        from ._connection import line

        connection = self._open()
        if connection.generation != self._generation:
            self._generation = connection.generation
            self._sent.clear()
        # Failed allocations are sent first, because the process may be about to end.
        lines = self._leftovers()
        for tracker in trackers:
            message = self._report(tracker)
            if message is not None:
                lines.append(line(message))
        now = time.monotonic()
        if not lines and now - self._sent_at >= ALIVE:
            lines.append(b'{"type":"alive"}\n')
        if lines:
            self._sent_at = now
            connection.send(lines)

    def _leftovers(self) -> List[bytes]:
        from ._connection import line

        lines = []
        while self._urgent:
            lines.append(self._urgent.popleft())
        while self._measurements:
            lines.append(line(self._measurements.popitem()[1]))
        return lines

    def _report(self, tracker: Tracker) -> Optional[Dict[str, Any]]:
        """A report of what is new about one device, or `None`. Each contains the level and the highest level, which belong together."""
        last = tracker.last
        if last is None or last.device is None:
            return None
        values: Values = {
            "reserved_bytes": last.reserved,
            "peak_bytes": tracker.peak,
            "limit_bytes": last.limit,
            "largest_free_block_bytes": last.largest_free_block,
            "inactive_split_bytes": last.inactive_split,
            "retries": tracker.retries,
            "out_of_memory": tracker.out_of_memory,
        }
        sent = self._sent.setdefault((last.framework, last.device), {})
        changed = {key: value for key, value in values.items() if sent.get(key) != value}
        if not changed and sent.get("allocated_bytes") == last.allocated and tracker.high <= last.allocated:
            return None
        message: Dict[str, Any] = {"type": "report", "framework": last.framework, "device": last.device}
        message.update(allocated_bytes=last.allocated, high_bytes=max(tracker.high, last.allocated), **changed)
        sent.update(values, allocated_bytes=last.allocated)
        tracker.reported()
        return message


def _from_environment() -> Optional[float]:
    try:
        interval = float(os.environ.get("VRAM_EXPORTER_INTERVAL", ""))
    except ValueError:
        return None
    return interval if 0.01 <= interval <= 1.5 else None


def _hook() -> None:
    global _hooked
    if _hooked:
        return
    _hooked = True
    atexit.register(stop)
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)


def _before_fork() -> None:
    # Ends the thread, so that no lock is held in the child, and so that Python does not warn about a fork with several threads.
    try:
        if _client is not None:
            _after_fork.before()
            _client.pause()
    except Exception:
        pass


def _after_fork_in_parent() -> None:
    try:
        if _client is not None and not _after_fork.schedule():
            _client.resume()
    except Exception:
        pass


def _resume() -> None:
    if _client is not None and not _client.runs():
        _client.resume()


_after_fork = AfterFork(_resume)


def _after_fork_in_child() -> None:
    global _client, _allocators
    try:
        _after_fork.forget()
        parent, _client = _client, None
        _allocators = Allocators()
        _uuid.forget()
        _oom.reset_after_fork()
        if parent is None:
            return
        parent.abandon()
        # A child of a process that has initialised CUDA cannot use CUDA, so it will have nothing to report.
        if not _cuda_is_lost():
            start(*_asked)
    except Exception:
        pass


def _cuda_is_lost() -> bool:
    asked = getattr(sys.modules.get("torch._C"), "_cuda_isInBadFork", None)
    return bool(asked()) if asked is not None else False
