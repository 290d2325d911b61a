"""One socket that the client reports to: its connection, and what has not been sent on it yet.

Invariant: no call waits, what is kept is bounded, and a peer that is absent or reads nothing does not affect the others: each has its own
messages and its own highest levels since its last report.
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Any, Deque, Dict, List, Optional, Set, Tuple

from ._levels import Level

if TYPE_CHECKING:
    from ._connection import Connection

# Something is sent at least this often, in seconds; the protocol demands 2.
ALIVE = 1.5
# The maximum number of urgent messages that are kept; beyond it the oldest are dropped.
URGENT = 32
# The same for lines that answer questions. An exporter that asks one question at a time gets at most 33.
ANSWERS = 64

Region = Tuple[str, str, str]
"""A framework, a device and the name of a measured region."""


class Peer:
    """An exporter, or `vram run`. Two threads must not call its methods at once, except `measured`; `urgent`, `looks` and `resend` may be added
    to at any time."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.connection: Optional[Connection] = None
        self.urgent: Deque[bytes] = deque(maxlen=URGENT)
        """Messages that are sent before the values. Each entry may have several lines, which stay together."""
        self.looks: Dict[Tuple[str, str], bytes] = {}
        """The lines of the latest look at each framework and device, until they are sent."""
        self.answers: Deque[bytes] = deque(maxlen=ANSWERS)
        """Answers to questions of the current connection."""
        self.resend: Set[Tuple[str, str]] = set()
        """Frameworks and devices about which a report is or was sent that is none of the levels, so that the next level is new to the peer."""
        self._measurements: Dict[Region, Dict[str, Any]] = {}
        self._questions = False
        self._generation = 0
        self._sent: Dict[Tuple[str, str], Dict[str, Optional[int]]] = {}
        self._highs: Dict[Tuple[str, str], int] = {}
        self._sent_at = 0.0

    @property
    def interval(self) -> Optional[float]:
        """The time between two readings that the peer suggests, in seconds."""
        return None if self.connection is None else self.connection.interval

    def take_questions(self) -> None:
        """Lets the exporter ask questions from the next connection on."""
        self._questions = True
        if self.connection is not None:
            self.connection.questions = True

    def asked(self) -> Optional[Dict[str, Any]]:
        """The next question, or the end of one; `None` if there is none."""
        return self.connection.asked.popleft() if self.connection is not None and self.connection.asked else None

    def generation(self) -> Optional[int]:
        """The number of the current connection; `None` if there is none."""
        return self.connection.generation if self.connection is not None and self.connection.connected() else None

    def measured(self, region: Region, message: Dict[str, Any]) -> None:
        """Keeps a result. Of several results of the same region between two sends, the highest is sent."""
        known = self._measurements.get(region)
        if known is None or known["peak_bytes"] <= message["peak_bytes"]:
            self._measurements[region] = message

    def report(self, levels: List[Level]) -> None:
        """Sends what has not been sent to the peer yet, if the socket accepts it now."""
        from ._connection import line

        for level in levels:
            key = (level.framework, level.device)
            self._highs[key] = max(self._highs.get(key, 0), level.high)
        connection = self._open()
        if not connection.ready():
            return
        if connection.generation != self._generation:
            self._generation = connection.generation
            self._sent.clear()
            self.answers.clear()
        # Failed allocations first: their process may be about to end.
        lines = self._leftovers()
        for level in levels:
            message = self._message(level)
            if message is not None:
                lines.append(line(message))
        now = time.monotonic()
        if not lines and now - self._sent_at >= ALIVE:
            lines.append(b'{"type":"alive"}\n')
        if lines:
            self._sent_at = now
            connection.send(lines)

    def end(self) -> None:
        """Sends as many of the remaining messages as the socket takes, and closes the connection for good."""
        if self.connection is not None:
            if self.connection.ready():
                self.connection.send(self._leftovers())
            self.connection.end()

    def abandon(self) -> None:
        """In a forked child: closes the inherited descriptor, which leaves the parent's connection open."""
        if self.connection is not None:
            self.connection.close()

    def _open(self) -> Connection:
        if self.connection is None:
            from ._connection import Connection

            self.connection = Connection(self._path, self._questions)
        return self.connection

    def _leftovers(self) -> List[bytes]:
        from ._connection import line

        lines = []
        # A failed allocation has its own look, which is later than these.
        while self.looks:
            lines.append(self.looks.popitem()[1])
        while self.urgent:
            lines.append(self.urgent.popleft())
        while self.answers:
            lines.append(self.answers.popleft())
        while self._measurements:
            lines.append(line(self._measurements.popitem()[1]))
        return lines

    def _message(self, level: Level) -> Optional[Dict[str, Any]]:
        """What is new about one device, or `None`. Every report contains the level and the highest level, which belong together."""
        key = (level.framework, level.device)
        high = max(self._highs.get(key, 0), level.allocated)
        if key in self.resend:
            self.resend.discard(key)
            self._sent.pop(key, None)
        sent = self._sent.setdefault(key, {})
        changed = {name: value for name, value in level.values.items() if sent.get(name) != value}
        if not changed and sent.get("allocated_bytes") == level.allocated and high <= level.allocated:
            return None
        message: Dict[str, Any] = {"type": "report", "framework": level.framework, "device": level.device}
        message.update(allocated_bytes=level.allocated, high_bytes=high, **changed)
        sent.update(level.values, allocated_bytes=level.allocated)
        # The `high` of the next level includes the amount of this level.
        self._highs.pop(key, None)
        return message
