"""Measures the highest allocated and reserved memory of a region of a program.

Rule for `exact`. Readings cut the region into intervals. They are taken at its start and end, at the start and end of other regions, and by
the sender thread. In each interval the framework's own peak and its totals of allocations and frees give an amount that was reached and an
amount that was not exceeded (`_levels`). If both are equal for the whole region, the result is exact. This is the case if the framework's
peak rose in the region, if it was reached at a reading in the region, or if nothing was allocated. It is not the case if an older peak of
the program is higher than anything in the region. A reset of the peaks by the program is noticed if any peak fell. If each peak has grown
beyond its old value again by the end of the interval, no reading reveals the reset, and a result that is marked exact can be too low.
"""

from __future__ import annotations

import functools
import threading
import time
from typing import Any, Callable, Dict, List, Optional, Set, Tuple, TypeVar, Union, cast, overload

from . import _client
from ._allocators import Change, Key
from ._levels import Span
from ._reading import Reading
from ._result import DeviceResult, Measurement

# Why a region was not measured.
HELD_UP = "a reading of another thread did not end in time"
FAILED = "the measurement itself failed"
# The flag that marks the code of an `async def` (inspect.CO_COROUTINE, without the import).
_COROUTINE = 0x80

Function = TypeVar("Function", bound=Callable[..., Any])


class _Region:
    """A region that is being measured."""

    def __init__(self, name: str) -> None:
        self.result = Measurement(name)
        self._allocators = _client.allocators()
        self._before: Dict[Key, Reading] = {}
        self._spans: Dict[Key, Tuple[Span, Optional[Span]]] = {}
        self._failed: Set[str] = set()
        self._blind: Set[str] = set()
        self._begun = False
        self._start = 0.0
        # Stored once: each access to `self._take` creates a new object, and the list of listeners must find the same one again.
        self._listener = self._take

    def open(self) -> None:
        self._begun = self._allocators.listen(self._listener, self._begin)
        self._start = time.perf_counter()

    def close(self) -> None:
        self.result.seconds = time.perf_counter() - self._start
        # Without a reading at the start, one at the end shows nothing of the region.
        if not (self._begun and self._allocators.unlisten(self._listener, self._end)):
            self.result.problem = HELD_UP

    def _begin(self) -> None:
        self._failed, self._blind = self._allocators.failed, self._allocators.blind
        for key, tracker in self._allocators.trackers.items():
            if tracker.last is not None:
                self._before[key] = tracker.last

    def _take(self, change: Change) -> None:
        for key, (allocated, reserved) in change.items():
            seen = self._spans.get(key)
            if seen is None:
                self._spans[key] = (allocated, reserved)
            else:
                self._spans[key] = (seen[0].join(allocated), seen[1].join(reserved) if seen[1] and reserved else None)

    def _end(self) -> None:
        # Unless there is a reading both at the start and at the end, the intervals do not match the region.
        failed, blind = self._failed | self._allocators.failed, self._blind | self._allocators.blind
        unread = ["%s could not be read" % framework for framework in sorted(failed)]
        unread += ["%s provides no figures of a GPU" % framework for framework in sorted(blind - failed)]
        self.result.problem = "; ".join(unread) or None
        self.result.devices = [
            self._device(last, self._before.get(key), *spans)
            for key, spans in sorted(self._spans.items())
            for last in (self._allocators.trackers[key].last,)
            if last is not None and last.in_use and last.framework not in failed
        ]

    def _device(self, after: Reading, before: Optional[Reading], allocated: Span, reserved: Optional[Span]) -> DeviceResult:
        if before is None:
            # The framework had not yet used the device.
            before = after._replace(allocated=0, reserved=None if after.reserved is None else 0)
        return DeviceResult(
            framework=after.framework,
            ordinal=after.ordinal,
            device=after.device,
            allocated_before=before.allocated,
            allocated_after=after.allocated,
            highest_allocated=allocated.low,
            at_most_allocated=allocated.high,
            exact=allocated.low == allocated.high,
            reserved_before=before.reserved,
            reserved_after=after.reserved,
            highest_reserved=None if reserved is None else reserved.low,
            reserved_exact=reserved is not None and reserved.low == reserved.high,
        )


class _Measure:
    """What `measure(name)` returns: a context manager, which may be entered repeatedly and in several threads, and a decorator."""

    def __init__(self, name: Optional[str]) -> None:
        self._name = name
        # The open regions of each thread, the innermost last.
        self._open: Dict[int, List[_Region]] = {}

    def __enter__(self) -> Measurement:
        region = _Region(self._name or "region")
        self._open.setdefault(threading.get_ident(), []).append(region)
        try:
            region.open()
        except Exception:  # A failed measurement must not end the program.
            region.result.problem = FAILED
        return region.result

    def __exit__(self, *_error: object) -> None:
        thread = threading.get_ident()
        try:
            regions = self._open[thread]
            region = regions.pop()
            if not regions:
                del self._open[thread]
            try:
                region.close()
            except Exception:
                region.result.problem = FAILED
            _client.measured(region.result)
        except Exception:  # A failed measurement must not end the program.
            pass

    def __call__(self, function: Function) -> Function:
        name = self._name or getattr(function, "__qualname__", "region").rsplit(".", 1)[-1]

        code = getattr(function, "__code__", None)
        if code is not None and code.co_flags & _COROUTINE:

            @functools.wraps(function)
            async def measured_coroutine(*args: Any, **kwargs: Any) -> Any:
                with _Measure(name) as result:
                    cast(Any, measured_coroutine).last = result
                    return await function(*args, **kwargs)

            cast(Any, measured_coroutine).last = None
            return cast(Function, measured_coroutine)

        @functools.wraps(function)
        def measured(*args: Any, **kwargs: Any) -> Any:
            with _Measure(name) as result:
                cast(Any, measured).last = result
                return function(*args, **kwargs)

        cast(Any, measured).last = None
        return cast(Function, measured)


@overload
def measure(name: Function) -> Function: ...


@overload
def measure(name: Optional[str] = None) -> _Measure: ...


def measure(name: Union[Function, str, None] = None) -> Union[Function, _Measure]:
    """Measures a region: `with measure("forward") as m:`, or a function: `@measure` or `@measure("step")`.

    Regions can be nested and can run in several threads. Allocations belong to the process, so a region also counts those
    made by other threads while it runs. A decorated function has its latest result in the attribute `last`. The result is sent to the
    exporter if the client is running (`start`); the exporter accepts 32 names, of at most 64 characters, for each process.
    """
    if callable(name):
        return _Measure(None)(name)
    return _Measure(name)
