"""Answers the question of `vram leaks`: which lines of the program hold more memory at each of several looks.

A line is listed if its live memory grew between any two looks, and if, between any two looks but the first two, some of its blocks were
alive at both and not at the look before: memory that was added and stayed. That leaves out activations, which are at the same addresses again or
freed, and windows that roll, which do not grow.

Invariants: the history is on for the time of the looks and is the program's or that of `Sites`. One question is open at a time; it ends with
its connection. What is kept is of the latest two looks.
"""

from __future__ import annotations

import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Set, Tuple

from . import _torch
from ._connection import fits, line
from ._frames import Frames
from ._look import SITES, Block
from ._objects import Remembered
from ._peer import Peer
from ._sites import Sites
from ._steps import steps

# The limits of a question, which the exporter keeps too.
SECONDS = range(1, 601)
LOOKS = range(3, 21)
# The maximum number of devices in an answer.
DEVICES = 32

Site = Tuple[int, str]
"""The number of a device, and a place in the program."""


class Comparison:
    """Compares the allocated blocks of several looks."""

    def __init__(self) -> None:
        self.looks = 0
        self.unrecorded: Dict[int, int] = {}
        """For each device with blocks: the bytes of those without frames, at the latest look."""
        self._first: Dict[Site, int] = {}
        self._live: Dict[Site, int] = {}
        self._grown: Set[Site] = set()
        # The blocks of the latest two looks by their addresses, each with its size.
        self._before: Dict[int, Tuple[int, Site]] = {}
        self._latest: Dict[int, Tuple[int, Site]] = {}

    def add(self, blocks: Dict[int, Block]) -> None:
        """Adds a look."""
        frames = Frames()
        current: Dict[int, Tuple[int, Site]] = {}
        live: Dict[Site, int] = {}
        unrecorded: Dict[int, int] = {}
        for address, block in blocks.items():
            unrecorded.setdefault(block.device, 0)
            origin = frames.origin(block.frames)
            if origin is None:
                unrecorded[block.device] += block.requested
            else:
                site = (block.device, origin.site)
                current[address] = (block.size, site)
                live[site] = live.get(site, 0) + block.requested
        if self.looks == 0:
            self._first = live
        else:
            grown = {site for site, size in live.items() if size > self._live.get(site, 0)}
            self._grown = grown if self.looks == 1 else self._grown & grown & self._stayed(current)
        self._before, self._latest, self._live = self._latest, current, live
        self.unrecorded = unrecorded
        self.looks += 1

    def _stayed(self, current: Dict[int, Tuple[int, Site]]) -> Set[Site]:
        """The sites with blocks that were new at the look before and are still there."""
        return {block[1] for address, block in current.items() if self._latest.get(address) == block != self._before.get(address)}

    def grown(self, device: int) -> List[Dict[str, Any]]:
        """What is listed for a device, the largest growth first."""
        found = [(self._live[site] - self._first.get(site, 0), site) for site in self._grown if site[0] == device]
        found.sort(key=lambda item: (-item[0], item[1]))
        return [{"site": site[1], "bytes": size, "live_bytes": self._live[site]} for size, site in found]


class _Question(NamedTuple):
    peer: Peer
    generation: int
    number: int
    looks: int
    start: float
    end: float
    steps: Optional[int]
    comparison: Comparison


class Leaks:
    """The questions of all peers. `tick` must be called by one thread at a time."""

    def __init__(self, sites: Sites, clock: Callable[[], float] = time.monotonic) -> None:
        self._sites, self._clock = sites, clock
        self._open: Optional[_Question] = None
        self._due = 0.0
        self._optimizers = Remembered()

    def tick(self, peers: List[Peer]) -> Optional[float]:
        """Does what is due. Returns the time until the next look, or `None` if no question is open. Never raises."""
        try:
            for peer in peers:
                for message in iter(peer.asked, None):
                    self._hear(peer, message)
            asked = self._open
            if asked is None:
                return None
            if asked.peer.generation() != asked.generation:
                self._end()
                return None
            if self._clock() >= self._due:
                self._look(asked)
            return 0.0 if self._open is None else max(0.0, self._due - self._clock())
        except Exception:
            if self._open is not None:
                self._answer(self._open, "failed")
            return None

    def _hear(self, peer: Peer, message: Dict[str, Any]) -> None:
        number, generation = message.get("id"), peer.generation()
        if not isinstance(number, int) or generation is None:
            return
        if message.get("type") == "stop":
            if self._open is not None and (self._open.peer, self._open.number) == (peer, number):
                self._end()
            return
        seconds, looks = message.get("seconds"), message.get("looks")
        if not isinstance(seconds, int) or not isinstance(looks, int) or seconds not in SECONDS or looks not in LOOKS:
            return
        start = self._clock()
        if self._open is not None:
            _send(peer, number, "busy")
            return
        problem = self._sites.hold()
        if problem is not None:
            _send(peer, number, problem)
            return
        self._open = _Question(peer, generation, number, looks, start, start + seconds, steps(self._optimizers), Comparison())
        self._due = start

    def _look(self, asked: _Question) -> None:
        blocks = self._sites.blocks()
        if blocks is None:
            self._answer(asked, "history_ended" if self._sites.goes_on() else "not_available")
            return
        now = self._clock()
        asked.comparison.add(blocks)
        left = asked.looks - asked.comparison.looks
        if left:
            # A look that is late moves the others, so that none follows at once.
            self._due = now + max(0.0, asked.end - now) / left
            return
        after = steps(self._optimizers)
        taken = after - asked.steps if after is not None and asked.steps is not None and after >= asked.steps else None
        for device in sorted(asked.comparison.unrecorded)[:DEVICES]:
            uuid = _torch.device_uuid(device)
            if uuid is not None:
                asked.peer.answers.append(_part(asked, device, uuid, max(1, round(now - asked.start)), taken))
        self._answer(asked)

    def _answer(self, asked: _Question, problem: Optional[str] = None) -> None:
        self._end()
        _send(asked.peer, asked.number, problem)

    def _end(self) -> None:
        self._open = None
        self._sites.release()


def _send(peer: Peer, number: int, problem: Optional[str]) -> None:
    """Ends an answer."""
    message: Dict[str, Any] = {"type": "answered", "id": number}
    peer.answers.append(line(message if problem is None else {**message, "reason": problem}))


def _part(asked: _Question, device: int, uuid: str, seconds: int, taken: Optional[int]) -> bytes:
    """The part of an answer that is about one device, which fits into one line."""
    found = asked.comparison.grown(device)
    sites = found[:SITES]
    message: Dict[str, Any] = {"type": "leak_sites", "id": asked.number, "framework": _torch.NAME, "device": uuid}
    message.update(seconds=seconds, looks=asked.looks, steps=taken, sites=sites)
    message.update(more_sites=len(found) - len(sites), unrecorded_bytes=asked.comparison.unrecorded[device])
    while sites and not fits(message):
        sites.pop()
        message["more_sites"] += 1
    return line(message)
