"""All readers, and the history of each device. The sender thread and the measured regions share one `Allocators`.

Invariants: a framework that raises an exception is not read again for a while, and never affects the others. Readings are applied in the
order in which they were taken.
"""

from __future__ import annotations

import time
from typing import Callable, Dict, List, Optional, Protocol, Set, Tuple

from ._jax import Jax
from ._levels import Level, Span, Tracker
from ._reading import Reading
from ._tensorflow import TensorFlow
from ._thread import ident, lock
from ._torch import Torch

Key = Tuple[str, int]
"""A framework and the number that it gives to the device."""

# The longest time that a measured region waits for one reading of another thread, in seconds.
PATIENCE = 0.5
# The longest time that it waits altogether, in seconds, while readings of other threads end but another one is always first.
LONGEST_WAIT = 5.0
# The time for which a framework that has raised an exception is not read, in seconds.
REST = 1.0


class Reader(Protocol):
    """A framework. `present` costs one lookup in `sys.modules`."""

    framework: str
    blind: bool
    """Whether, at the latest reading, the program used a GPU about which the framework provides no figures."""

    def present(self) -> bool: ...

    def read(self) -> List[Reading]: ...


Change = Dict[Key, Tuple[Span, Optional[Span]]]
"""What one reading of all devices showed: the spans of `allocated` and `reserved` since the previous reading."""

Listener = Callable[[Change], None]


class Allocators:
    """The allocators of this process."""

    def __init__(self, readers: Optional[List[Reader]] = None) -> None:
        self._readers: List[Reader] = [Torch(), Jax(), TensorFlow()] if readers is None else readers
        self._rest: Dict[str, float] = {}
        self._lock = lock()
        # The thread that is reading, and the number of readings that have ended.
        self._reads_in: Optional[int] = None
        self._ended = 0
        self._listeners: List[Listener] = []
        self.trackers: Dict[Key, Tracker] = {}
        self.failed: Set[str] = set()
        """The frameworks that the latest reading could not read."""
        self.blind: Set[str] = set()
        """The frameworks that use a GPU about which they provide no figures."""

    def present(self) -> bool:
        """Whether the program has imported a framework."""
        return any(reader.present() for reader in self._readers)

    def take(self, patience: float = PATIENCE) -> Optional[List[Level]]:
        """Reads every device. Returns what is to be reported about those that the program uses, or `None` if another reading did not end
        within `patience` seconds."""
        levels: List[Level] = []

        def take() -> None:
            levels.extend(level for level in [tracker.take() for tracker in self.trackers.values()] if level is not None)

        return levels if self._with_lock(patience, take) else None

    def listen(self, listener: Listener, before: Callable[[], None], patience: float = PATIENCE) -> bool:
        """Reads every device, calls `before`, and from then on passes each change to `listener`, in the thread that reads. Returns False,
        and does nothing, if a reading of another thread did not end within `patience` seconds."""

        def add() -> None:
            before()
            self._listeners.append(listener)

        return self._with_lock(patience, add)

    def unlisten(self, listener: Listener, after: Callable[[], None], patience: float = PATIENCE) -> bool:
        """Reads every device one last time for `listener`, and calls `after`. Returns False, without both, if a reading of another thread
        did not end within `patience` seconds."""
        done = self._with_lock(patience, after)
        # Removal does not have to wait for a reading: a list's `remove` is atomic, and a reading in progress iterates over a copy.
        if listener in self._listeners:
            self._listeners.remove(listener)
        return done

    def _with_lock(self, patience: float, then: Callable[[], None]) -> bool:
        if not self._acquire(patience):
            return False
        self._reads_in = ident()
        try:
            self._read()
            then()
        finally:
            self._reads_in = None
            self._ended += 1
            self._lock.release()
        return True

    def _acquire(self, patience: float) -> bool:
        # A reading in this very thread, in the middle of which a finaliser measures a region, would never end.
        if self._reads_in == ident():
            return False
        limit = time.monotonic() + LONGEST_WAIT
        while True:
            ended = self._ended
            if self._lock.acquire(timeout=patience):
                return True
            # The lock prefers nobody, so among many threads that measure, one can wait for many readings.
            if self._ended == ended or time.monotonic() >= limit:
                return False

    def _read(self) -> None:
        change: Change = {}
        self.failed, self.blind = set(), set()
        now = time.monotonic()
        for reader in self._readers:
            if not reader.present():
                continue
            readings = self._ask(reader, now)
            if readings is None:
                self.failed.add(reader.framework)
                continue
            if reader.blind:
                self.blind.add(reader.framework)
            for reading in readings:
                key = (reading.framework, reading.ordinal)
                tracker = self.trackers.get(key)
                if tracker is None:
                    tracker = self.trackers[key] = Tracker()
                change[key] = tracker.update(reading)
        for listener in list(self._listeners):
            listener(change)

    def _ask(self, reader: Reader, now: float) -> Optional[List[Reading]]:
        if self._rest.get(reader.framework, 0.0) > now:
            return None
        try:
            return reader.read()
        except Exception:
            self._rest[reader.framework] = now + REST
            return None
