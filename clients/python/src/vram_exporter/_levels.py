"""Derives, from successive readings, the highest levels reached between them.

Invariant: for each interval between two readings, `low` is an amount that was reached in it, and `high` is an amount that was not exceeded
in it (`None` if no bound is known). The program's own peaks are read and never reset.
"""

from __future__ import annotations

from typing import Dict, NamedTuple, Optional, Tuple

from ._reading import Reading


class Span(NamedTuple):
    """The highest amount in an interval: at least `low`, at most `high` bytes. Equal values are exact."""

    low: int
    high: Optional[int]

    def join(self, other: Span) -> Span:
        """The span of two adjacent intervals together."""
        high = None if self.high is None or other.high is None else max(self.high, other.high)
        return Span(max(self.low, other.low), high)


class Point(NamedTuple):
    """The values of one quantity at one moment."""

    current: int
    peak: Optional[int]
    taken: Optional[int]
    returned: Optional[int]


class Level(NamedTuple):
    """What is to be reported about one device."""

    framework: str
    device: str
    allocated: int
    high: int
    """The highest `allocated` known since the previous `Level` of the device; at least `allocated`."""
    values: Dict[str, Optional[int]]
    """All other values, under their names in the protocol."""
    taken: Optional[int] = None
    """The bytes that the framework has allocated on the device since the program began, freed ones included; `None` if it does not count them."""


def between(before: Point, after: Point, reset: bool) -> Span:
    """The highest amount from `before` to `after`. `reset` is true if the framework's peak was reset in between."""
    low = max(before.current, after.current)
    high = None
    if after.peak is not None:
        # A peak that rose was reached after `before`. A reset sets the peak to the amount that is current at that time.
        if reset or before.peak is None or after.peak > before.peak:
            low = max(low, after.peak)
        if not reset and before.peak is not None:
            high = after.peak
    allocated = _allocated(before, after)
    if allocated is not None:
        # Had nothing been freed, this would be the amount at the end.
        bound = before.current + allocated
        high = bound if high is None else min(high, bound)
    if high is not None and high < low:
        high = None  # The figures contradict each other, so no bound can be relied on.
    return Span(low, high)


def _allocated(before: Point, after: Point) -> Optional[int]:
    """The bytes allocated between two points, or `None` if the totals are not known or were reset."""
    if before.taken is None or after.taken is None or before.returned is None or after.returned is None:
        return None
    taken, returned = after.taken - before.taken, after.returned - before.returned
    if taken < 0 or returned < 0 or taken - returned != after.current - before.current:
        return None
    return taken


class Total:
    """A counter of the framework that keeps its sum when the program resets it."""

    def __init__(self) -> None:
        self._last: Optional[int] = None
        self._sum = 0

    def update(self, value: Optional[int]) -> Optional[int]:
        """The total since the process started, or `None` while the framework does not provide it."""
        if value is None:
            return None
        last = self._last or 0
        self._sum += value - last if value >= last else value
        self._last = value
        return self._sum


class Tracker:
    """The history that the peaks and counters of one framework on one device require."""

    def __init__(self) -> None:
        self._last: Optional[Reading] = None
        self._retries, self._out_of_memory = Total(), Total()
        self.peak: Optional[int] = None
        """The highest `allocated` known since the process started. A reset by the program does not lower it."""
        self.reserved_peak: Optional[int] = None
        """The highest `reserved` known since the process started, or `None` if the framework does not provide it."""
        self.high: int = 0
        """The highest `allocated` known since the previous call of `take`."""
        self.retries: Optional[int] = None
        self.out_of_memory: Optional[int] = None

    @property
    def last(self) -> Optional[Reading]:
        return self._last

    def update(self, now: Reading) -> Tuple[Span, Optional[Span]]:
        """Adds a reading. Returns the spans of `allocated` and `reserved` since the previous reading. For the first reading, the spans
        begin when the program began to use the device."""
        before = self._last
        reset = before is not None and any(new < old for new, old in zip(now.peaks, before.peaks))
        origin = Point(0, 0, 0, 0)
        allocated = between(origin if before is None else _allocated_point(before), _allocated_point(now), reset)
        reserved = None
        if now.reserved is not None and (before is None or before.reserved is not None):
            reserved = between(origin if before is None else _reserved_point(before), _reserved_point(now), reset)
        # The first reading of a process that started long ago does not show when its peak was reached.
        self.high = max(self.high, now.allocated if before is None else allocated.low)
        self.peak = max(self.peak or 0, allocated.low, now.peak or 0)
        if now.reserved is not None:
            low = now.reserved if reserved is None else reserved.low
            self.reserved_peak = max(self.reserved_peak or 0, low, now.reserved_peak or 0)
        self.retries = self._retries.update(now.retries)
        self.out_of_memory = self._out_of_memory.update(now.out_of_memory)
        self._last = now
        return allocated, reserved

    def take(self) -> Optional[Level]:
        """What is to be reported, or `None`. Begins a new interval for `high`."""
        last = self._last
        if last is None or last.device is None or not last.in_use:
            return None
        high, self.high = max(self.high, last.allocated), last.allocated
        values = {
            "reserved_bytes": last.reserved,
            "peak_bytes": self.peak,
            "peak_reserved_bytes": self.reserved_peak,
            "limit_bytes": last.limit,
            "largest_free_block_bytes": last.largest_free_block,
            "inactive_split_bytes": last.inactive_split,
            "retries": self.retries,
            "out_of_memory": self.out_of_memory,
        }
        return Level(last.framework, last.device, last.allocated, high, values, last.taken)


def _allocated_point(reading: Reading) -> Point:
    return Point(reading.allocated, reading.peak, reading.taken, reading.returned)


def _reserved_point(reading: Reading) -> Point:
    return Point(reading.reserved or 0, reading.reserved_peak, reading.reserved_taken, reading.reserved_returned)
