"""Which lines of the program hold GPU memory, and in which role: when PyTorch records frames, and when this client looks at them.

PyTorch records the Python frames of each allocation while its history is on, and keeps them as long as the block is allocated. So the history is
on when CUDA is initialised, while weights and optimiser state are allocated, and later only in windows, as often as the budget allows.

Invariants: a history that the program records is read and never switched on or off. Nothing is asked of CUDA before the program has
initialised it, or in another process than the one that made the object. No exception leaves this module. If PyTorch lacks something
that is needed, or a look takes too long, nothing is recorded and nothing is sent from then on.
"""

from __future__ import annotations

import os
import time
from types import FrameType
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, Sequence, Tuple

from . import _history, _look, _objects, _roles, _threads, _torch
from ._frames import asking
from ._growth import Growth
from ._look import Look

if TYPE_CHECKING:
    from ._memory_viz import Files

# The share of the time that all of this may cost on average, after the first phase is paid for. What is promised is 0.02; the rest is for what is not
# counted.
SHARE = 0.016
# What a step costs more while frames are recorded: the worst case of the measurements, in which steps are short. And how long the program waits for a
# look, as a multiple of the processor time of the look.
RECORDING = 0.18
WAITED = 1.1
# The length of a window, and the shortest time between two looks, in seconds.
WINDOW = 5.0
EVERY = 5.0
# When the memory exceeds the most while it was recorded by this factor, a window begins at once, and its cost may be paid for afterwards: a program
# whose memory grows may be about to fail.
GROWN = 1.1
# How long recording is paused before the history is ended, in seconds: see `_history.end`.
PAUSE = 1.0
# How much later a look is attempted again if PyTorch compiles, in seconds.
COMPILING = 1.0
# The shortest time between two looks because of failed allocations, in seconds.
FAILURES = 1.0
# The first phase lasts this long from the first allocation, in seconds; longer as long as the memory grows, up to a limit. Time in which the program
# allocates nothing is not counted: recording costs nothing then, and a program that compiles or reads its data has most of its memory later.
FIRST = 30.0
QUIET = 5.0
FIRST_LIMIT = 90.0
# All that follows is processor time of the thread that looks: for that long it has the interpreter, and the program waits for it.
# The longest that the search for the program's tensors takes in one look, in seconds.
SEARCH = 0.6
# A look that takes longer, in seconds, is the last one. A history of the program may have millions of entries, all of which are copied.
LONGEST = 2.0


class Budget:
    """The seconds that may be spent. They accrue with time, but no more than one window needs, so that a pause is not made up for."""

    def __init__(self, now: float) -> None:
        self.left = 0.0
        self.look = 0.0
        """What the latest look cost."""
        self._at = now

    def advance(self, now: float, recording: bool) -> float:
        """Adds what has accrued, and subtracts what recording is estimated to have cost in the meantime. Returns the seconds since the latest call."""
        elapsed, self._at = max(0.0, now - self._at), now
        self.left = min(self.window(), self.left + SHARE * elapsed) - (RECORDING * elapsed if recording else 0.0)
        return elapsed

    def spend(self, seconds: float) -> None:
        self.look = seconds
        self.left -= seconds

    def window(self) -> float:
        """What a window and its look cost."""
        return RECORDING * WINDOW + 2 * self.look


class Sites:
    """The sites of this process. `tick` and `initialised` must be called by one thread at a time; `failed` and `end` by any."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, timer: Callable[[], float] = time.thread_time) -> None:
        self._clock, self._timer = clock, timer
        self._pid = os.getpid()
        self._over = False
        self._begun = False
        self._budget = Budget(clock())
        # Whether the history is on because of this object, and whether the latest snapshot shows that the program has replaced it.
        self._recording = False
        self._replaced = False
        # When a paused history is to be ended.
        self._end_at: Optional[float] = None
        # Whether a question is answered meanwhile, which needs the history.
        self._held = False
        # The first phase: whether it lasts, for how many seconds the program has allocated in it, the most memory while it was recorded and after how
        # many of these seconds it was reached.
        self._first = False
        self._lasted = 0.0
        self._most = 0
        self._grown_at = 0.0
        # What was allocated at the latest tick, and since the program began; and whether there was a look after the last change.
        self._allocated = 0
        self._taken: List[Optional[int]] = []
        self._seen = False
        # When the window ends or ended, and what had frames before it began.
        self._window_end = 0.0
        self._old: Dict[int, int] = {}
        self._look_at = 0.0
        self._failed_at: Optional[float] = None
        self._growth = Growth()
        self._remembered = _objects.Remembered()
        self.files: Optional[Files] = None
        """Where snapshots at failed allocations are written, if anywhere."""

    def initialised(self) -> None:
        """Called when the program initialises CUDA, so that even its first allocation has frames."""
        if self._mine() and not self._begun:
            self._guarded(self._begin)

    def tick(self, allocated: int, taken: Sequence[Optional[int]] = ()) -> List[Look]:
        """Does what is due. Returns a look at each device, if one was due. `allocated` is the sum of what PyTorch has allocated now. `taken` has
        what it has allocated on each device since the program began, freed memory included: while it stays the same, the program allocates nothing.
        """
        looks: List[Look] = []
        if self._mine():
            works = not taken or None in taken or list(taken) != self._taken
            self._taken = list(taken)
            self._guarded(lambda: looks.extend(self._tick(self._clock(), allocated, works)))
        return looks

    def failed(self, ordinal: int, caller: Optional[FrameType], send: Callable[[Look], None]) -> Dict[str, Any]:
        """Passes a look at a device on which an allocation has just failed to `send`, in the thread in which it failed. Returns what is known
        about the failure besides, as keys of its report. `caller` is the innermost frame of the program, if there is one. The look is
        sent first because a file of the snapshot may take a while."""
        details: Dict[str, Any] = {}
        try:
            # A thread of autograd may run no Python code. Then the line that began the backward pass has asked.
            details = asking(caller or _threads.waiting())
        except Exception:  # The failure is reported without the line.
            pass
        now = self._clock()
        if self._mine() and self._begun and (self._failed_at is None or now - self._failed_at >= FAILURES):
            self._failed_at = now
            self._guarded(lambda: details.update(self._failure(now, ordinal, send)))
        return details

    def _failure(self, now: float, ordinal: int, send: Callable[[Look], None]) -> Dict[str, Any]:
        looks, snapshot = self._examine(now, ordinal)
        for look in looks:
            send(look)
        details: Dict[str, Any] = {"largest_free_block_bytes": _look.largest_free(snapshot, ordinal)}
        path = None if self.files is None else self.files.write(snapshot)
        if path is not None:
            details["snapshot_path"] = path
        return details

    def hold(self) -> Optional[str]:
        """Keeps the history on until `release`. Returns why that is not possible, or `None`. What it costs is not part of the budget."""
        if not self._mine():
            return "not_available"
        if not _torch.initialised():
            return "not_initialised"
        self._guarded(self._hold)
        return None if self._held else "not_available"

    def release(self) -> None:
        """Ends what `hold` began; the next tick switches the history off unless something else needs it."""
        self._held = False

    def blocks(self) -> Optional[Dict[int, _look.Block]]:
        """The allocated blocks, while the history is held; `None` if it is no longer on."""
        found: List[Dict[int, _look.Block]] = []
        if self._mine() and self._held:
            self._guarded(lambda: found.extend(self._blocks()))
        return found[0] if found else None

    def goes_on(self) -> bool:
        """Whether sites are still reported."""
        return self._mine()

    def end(self) -> None:
        """Ends the recording, unless it is the program's. The history stays on without frames."""
        if self._mine():
            self._over = True
            self._guarded(self._off)

    def _mine(self) -> bool:
        return not self._over and os.getpid() == self._pid

    def _guarded(self, step: Callable[[], Any]) -> None:
        """Takes a step. The first exception is the end of it all, because another attempt would probably fail as well."""
        try:
            step()
        except Exception:
            self._over = True
            try:
                self._off()
            except Exception:
                pass

    def _begin(self) -> None:
        self._begun = True
        if not _history.available():
            self._over = True
            return
        now = self._clock()
        self._budget = Budget(now)
        self._look_at = now + EVERY
        # Who records a history already has the frames of the first allocations.
        if not _history.recorded():
            self._first = True
            self._on()

    def _tick(self, now: float, allocated: int, works: bool) -> List[Look]:
        if not _torch.initialised():
            return []
        if not self._begun:
            self._begin()
            return []
        works = works and allocated > 0
        self._seen = self._seen and not works and allocated == self._allocated
        self._allocated = allocated
        elapsed = self._budget.advance(now, self._recording and works and not self._held)
        if self._end_at is not None:
            return self._end_history(now, self._end_at)
        if not _history.recorded():
            self._recording = False  # The program may have ended it.
        elif not self._recording or self._replaced:
            return self._follow(now)
        if self._held:
            return self._look(now) if now >= self._look_at and self._budget.left >= self._budget.look else []
        if self._first:
            return self._first_phase(now, allocated, elapsed if works else 0.0)
        if self._recording:
            self._most = max(self._most, allocated)
            return self._close(now) if now >= self._window_end else []
        least = -self._budget.window() if allocated > GROWN * self._most else self._budget.window()
        if now >= self._look_at and self._budget.left >= least:
            self._open(now)
        return []

    def _end_history(self, now: float, at: float) -> List[Look]:
        """Ends the paused history when it is time, unless the program has replaced it."""
        if now >= at:
            self._end_at = None
            start = self._timer()
            if _history.recorded():
                self._snapshot()
                if not self._replaced:
                    _history.end()
            self._budget.left -= self._timer() - start
        return []

    def _follow(self, now: float) -> List[Look]:
        """Looks at the history of the program."""
        self._recording = self._replaced = self._first = False
        self._old, self._window_end = {}, now
        if now >= self._look_at and self._budget.left >= self._budget.look:
            return self._look(now)
        return []

    def _first_phase(self, now: float, allocated: int, elapsed: float) -> List[Look]:
        """`elapsed`: the seconds since the latest tick in which the program has allocated."""
        self._lasted += elapsed
        if allocated > self._most:
            self._most, self._grown_at = allocated, self._lasted
        if self._most > 0 and (not self._recording or self._is_over(self._lasted, self._lasted - self._grown_at)):
            self._first = False
            return self._close(now)
        return self._look(now) if allocated > 0 and not self._seen and now >= self._look_at else []

    def _is_over(self, lasted: float, quiet: float) -> bool:
        return lasted >= FIRST_LIMIT or (lasted >= FIRST and quiet >= QUIET)

    def _hold(self) -> None:
        if not self._begun:
            self._begin()
        if not self._over and self._end_at is not None:
            self._end_at = None
            self._snapshot()
            if not self._replaced:
                _history.record()
                self._recording, self._window_end = True, self._clock() + WINDOW
        if not self._over and not _history.recorded():
            self._recording = False  # The program may have ended it.
            self._open(self._clock())
        self._held = not self._over and _history.recorded()

    def _blocks(self) -> List[Dict[int, _look.Block]]:
        if not _history.recorded():
            return []
        start = self._timer()
        blocks = _look.allocated(self._snapshot())
        if self._timer() - start > LONGEST:
            self._over = True
            self._off()
        return [blocks]

    def _open(self, now: float) -> None:
        """Begins a window. What has frames already was allocated before the previous window ended, so it has outlived a pause."""
        start = self._timer()
        blocks = _look.allocated(self._snapshot())
        self._old = {address: block.size for address, block in blocks.items() if block.frames}
        self._budget.left -= self._timer() - start
        self._window_end = now + WINDOW
        self._on()

    def _close(self, now: float) -> List[Look]:
        """Looks and ends the recording."""
        self._window_end = now
        looks = self._look(now)
        self._off()
        return looks

    def _look(self, now: float) -> List[Look]:
        """A look at all devices, unless PyTorch compiles a part of the program: a search then takes longest, and the memory is not the program's."""
        if _threads.compiling():
            self._look_at = now + COMPILING
            return []
        return self._examine(now)[0]

    def _examine(self, now: float, ordinal: Optional[int] = None) -> Tuple[List[Look], Dict[str, Any]]:
        """A look at all devices, or at one on which an allocation has just failed, and the snapshot that it describes."""
        start = self._timer()
        before = _look.allocated(self._snapshot())
        held = self._search(ordinal is not None and len({block.device for block in before.values()}) <= 1)
        snapshot = self._snapshot()
        after = _look.allocated(snapshot)
        # Long after a window, what it recorded and is still allocated is no activation.
        old = self._old if self._recording or now - self._window_end <= WINDOW else None
        looked_for = _look.looked_for(held, old)
        looks = []
        self._seen = ordinal is None
        for number, summary in sorted(_look.describe(before, after, held, old).items()):
            device = _torch.device_uuid(number) if ordinal in (None, number) else None
            if device is not None:
                sites = summary.message(_torch.NAME, device, looked_for)
                growth = self._growth.message(now, _torch.NAME, device, summary.sites)
                modules = None if held is None or held.modules is None else held.modules.message(_torch.NAME, device, summary.modules)
                looks.append(_look.look(_torch.NAME, device, _torch.amounts(number), sites, growth, modules))
        taken = self._timer() - start
        cost = WAITED * taken
        self._budget.spend(cost)
        # In the first phase looks may cost as much as recording.
        self._look_at = now + max(EVERY, cost / (RECORDING if self._first else SHARE))
        if taken > LONGEST:
            self._over = True
            self._off()
        return looks, snapshot

    def _search(self, alone: bool) -> Optional[_roles.Held]:
        """`alone`: an allocation has failed in this thread, and the process uses one device only: a backward pass, if there is one, waits."""
        try:
            return _roles.gather(SEARCH, self._remembered, alone)
        except Exception:
            return None  # The roles are unknown.

    def _snapshot(self) -> Dict[str, Any]:
        snapshot = _history.snapshot()
        # The history of this client keeps one event of each device.
        self._replaced = any(len(trace) > 1 for trace in snapshot.get("device_traces", ()))
        return snapshot

    def _on(self) -> None:
        if not _history.recorded():
            _history.record()
            self._recording, self._replaced = True, False
            if self._over:  # `end` was called in the meantime.
                self._off()

    def _off(self) -> None:
        recording, self._recording = self._recording, False
        if recording and not self._replaced and _torch.initialised() and _history.recorded():
            _history.pause()
            self._end_at = self._clock() + PAUSE
