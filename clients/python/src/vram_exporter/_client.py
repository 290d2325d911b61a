"""The client of this process: the thread that reads the allocators and reports to its peers, and its handling of forks and of process exit.

Invariants: the program never waits for the exporter, no exception leaves this module, and no connection exists before a framework uses a
GPU in this very process.
"""

from __future__ import annotations

import atexit
import os
import sys
from typing import TYPE_CHECKING, Any, Dict, Iterable, List, Optional, Tuple, Union

from . import _jax, _oom, _torch, _uuid
from ._allocators import Allocators
from ._levels import Level
from ._peer import Peer
from ._result import Measurement
from ._thread import AfterFork, Event, Thread, lock

if TYPE_CHECKING:
    from types import FrameType

    from ._jax_sites import JaxSites
    from ._leaks import Leaks
    from ._look import Look
    from ._sites import Sites

DEFAULT_SOCKET = "/run/vram-exporter/allocator.sock"
INTERVAL = 0.2
# The time between two checks of `sys.modules` while no framework is imported, in seconds.
IDLE = 0.5
# The time between two checks while the program imports PyTorch, in seconds, and the maximum number of these checks. The time is short
# because the program's first allocation may already fail.
IMPORTING = 0.05
LOOKS = 200
# The exporter drops messages beyond 200 per second.
MESSAGES_PER_SECOND = 150.0
# The longest time that a fork or the program's exit waits for the thread, in seconds. The thread waits for nothing but a framework.
JOIN = 0.1
NAMES = 32
NAME_LENGTH = 64
# The maximum number of sockets.
PEERS = 4

_allocators = Allocators()
_client: Optional[Client] = None
_hooked = False
_asked: Tuple[Optional[str], Optional[float], Optional[bool], Optional[str]] = (None, None, None, None)


def allocators() -> Allocators:
    """The allocators of this process, even while no client is running."""
    return _allocators


def start(socket: Optional[str] = None, interval: Optional[float] = None, sites: Optional[bool] = None, snapshots: Optional[str] = None) -> bool:
    """Starts the client unless it is already running. Returns whether it is running; never raises.

    `socket` is the path of the exporter's socket, or up to four paths separated by `os.pathsep`, to all of which the client reports; by
    default `$VRAM_EXPORTER_SOCKET`, otherwise `/run/vram-exporter/allocator.sock`.
    `interval` is the time between two readings in seconds, from 0.01 to 1.5; by default `$VRAM_EXPORTER_INTERVAL`, otherwise the
    shortest that an exporter suggests, otherwise 0.2. An exporter that starts later is found within 5 seconds.
    `sites` says whether the lines of the program that hold the memory of PyTorch and JAX are reported, too, with their names; by default only if
    `$VRAM_EXPORTER_SITES` is `1`. `start(sites=True)` adds them to a client that is already running.
    `snapshots` is a folder for snapshots of PyTorch's memory at failed allocations, which are written only if sites are reported; by default
    `$VRAM_EXPORTER_SNAPSHOTS`, otherwise none.
    """
    global _client, _asked
    try:
        if _client is not None:
            if sites:
                _asked = (*_asked[:2], True, snapshots or _asked[3])
                _client.add_sites(snapshots)
            return True
        _hook()
        _asked = (socket, interval, sites, snapshots)
        _client = Client(_paths(socket or os.environ.get("VRAM_EXPORTER_SOCKET", "")), interval or _from_environment(), _allocators)
        if os.environ.get("VRAM_EXPORTER_SITES") == "1" if sites is None else sites:
            _client.add_sites(snapshots)
        _client.resume()
        return True
    except Exception:
        _client = None
        return False


def stop() -> None:
    """Stops the client and closes its connections; the exporter then no longer shows values of this process. Never raises."""
    global _client
    stopped, _client = _client, None
    try:
        if stopped is not None:
            _oom.ignore()
            stopped.end()
    except Exception:
        pass


def running() -> bool:
    """Whether the client is running in this process."""
    return _client is not None


def measured(result: Measurement) -> None:
    """Passes a result on to the exporter if the client is running."""
    if _client is not None:
        _client.measured(result)


class Client:
    """The thread and its peers."""

    def __init__(self, paths: List[str], interval: Optional[float], allocators: Allocators) -> None:
        self._interval = interval
        self._allocators = allocators
        self._thread: Optional[Thread] = None
        self._ended = False
        self._wake = Event()
        self._looks = 0
        self._names: Dict[str, None] = {}
        self._peers = [Peer(path) for path in paths]
        self._sites: Optional[Sites] = None
        self._jax_sites: Optional[JaxSites] = None
        self._leaks: Optional[Leaks] = None
        # Guards the peers, except the operations that `Peer` allows without a lock.
        self._lock = lock()

    def add_sites(self, snapshots: Optional[str] = None) -> None:
        """Reports sites from now on, and writes snapshots to a folder. Until then, the modules for that are not even imported. Never raises."""
        try:
            if self._sites is None:
                from ._jax_sites import JaxSites
                from ._sites import Sites

                self._sites, self._jax_sites = Sites(), JaxSites()
                for peer in self._peers:
                    peer.take_questions()
            folder = snapshots or os.environ.get("VRAM_EXPORTER_SNAPSHOTS")
            if folder and self._sites.files is None:
                from ._memory_viz import Files

                self._sites.files = Files(folder)
        except Exception:  # The values are reported without them.
            pass

    def resume(self) -> None:
        """Starts the thread."""
        self._wake.clear()
        self._thread = Thread(self._run)

    def runs(self) -> bool:
        """Whether the thread is running."""
        return self._thread is not None

    def pause(self) -> None:
        """Ends the thread, unless a framework holds it up for too long."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.ending.set()
            self._wake.set()
            thread.join(JOIN)

    def end(self) -> None:
        """Ends the thread after a last reading, sends as many of the remaining messages as it can without waiting, and closes the
        connections."""
        self._ended = True
        self.pause()
        if self._sites is not None:
            self._sites.end()
        # A thread that is held up closes the connections when it continues.
        self._close()

    def _close(self) -> None:
        if self._lock.acquire(timeout=JOIN):
            try:
                for peer in self._peers:
                    peer.end()
            finally:
                self._lock.release()

    def abandon(self) -> None:
        """In a forked child: closes the inherited descriptors."""
        for peer in self._peers:
            peer.abandon()

    def urgent(self, *messages: Dict[str, Any]) -> None:
        """Sends messages together now, without waiting. If a socket is full or the thread is already sending, the thread sends them later."""
        text = _lines(messages)
        for peer in self._peers:
            peer.urgent.append(text)
        # The thread holds the lock only for the duration of a few system calls that do not wait.
        if self._lock.acquire(timeout=0.02):
            try:
                for peer in self._peers:
                    peer.report([])
            finally:
                self._lock.release()
        self._wake.set()

    def measured(self, result: Measurement) -> None:
        """Keeps a result for the thread."""
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
            for peer in self._peers:
                peer.measured((device.framework, device.device, name), message)

    def _run(self, ending: Event) -> None:
        while not ending.is_set():
            delay = IDLE
            try:
                delay = self._tick()
            except Exception:  # No error here is worth a traceback in the program's output.
                pass
            if self._wake.wait(delay) and not ending.is_set():
                self._wake.clear()
        if self._ended:
            try:
                # A program may be shorter than the time between two readings.
                if self._allocators.present():
                    self._report()
            except Exception:
                pass
            self._close()

    def _tick(self) -> float:
        """Takes one reading and sends what is new. Returns the time until the next reading."""
        if not self._allocators.present():
            return IDLE
        if _torch.cuda() is not None:
            _oom.watch(self.urgent, self._initialised, None if self._sites is None else self._failed)
        elif "torch" in sys.modules and self._looks < LOOKS:
            self._looks += 1
            return IMPORTING
        return self._report()

    def _report(self) -> float:
        levels = self._allocators.take(patience=1.0)
        if levels is not None and not self._ended:
            self._look(_torch.NAME, self._sites, levels)
            self._look(_jax.NAME, self._jax_sites, levels)
        if levels is None or not (levels or any(peer.urgent for peer in self._peers)):
            return INTERVAL
        with self._lock:
            for peer in self._peers:
                peer.report(levels)
            suggested = [peer.interval for peer in self._peers if peer.interval is not None]
        delay = max(self._interval or min(suggested, default=INTERVAL), len(levels) / MESSAGES_PER_SECOND)
        due = None if self._sites is None or self._ended else self._answer(self._sites)
        return delay if due is None else min(delay, due)

    def _answer(self, sites: Sites) -> Optional[float]:
        """Does what is due for a question of an exporter. Returns the time until something else is due, or `None`."""
        if self._leaks is None:
            if not any(peer.connection is not None and peer.connection.asked for peer in self._peers):
                return None
            from ._leaks import Leaks

            self._leaks = Leaks(sites)
        return self._leaks.tick(self._peers)

    def _look(self, framework: str, sites: Union[Sites, JaxSites, None], levels: List[Level]) -> None:
        """Passes on what is known about the sites of a framework, if a look is due."""
        if sites is None:
            return
        own = [level for level in levels if level.framework == framework]
        for look in sites.tick(sum(level.allocated for level in own), [level.taken for level in own]):
            text = _lines(look.messages)
            for peer in self._peers:
                peer.looks[look.pair] = text
                peer.resend.add(look.pair)

    def _failed(self, ordinal: int, caller: Optional[FrameType]) -> Dict[str, Any]:
        """Called when an allocation on a PyTorch device has failed, before that is reported. Returns further keys of the report."""
        return {} if self._sites is None else self._sites.failed(ordinal, caller, self._send_look)

    def _send_look(self, look: Look) -> None:
        for peer in self._peers:
            peer.looks.pop(look.pair, None)
            peer.resend.add(look.pair)
        self.urgent(*look.messages)

    def _initialised(self) -> None:
        """Called when the program initialises CUDA."""
        if self._sites is not None:
            self._sites.initialised()
        self._wake.set()


def _lines(messages: Iterable[Dict[str, Any]]) -> bytes:
    from ._connection import line

    return b"".join(map(line, messages))


def _paths(text: str) -> List[str]:
    """The paths in a list, each once, without empty ones; the default if there is none."""
    paths = dict.fromkeys(path for path in text.split(os.pathsep) if path)
    return list(paths)[:PEERS] or [DEFAULT_SOCKET]


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
