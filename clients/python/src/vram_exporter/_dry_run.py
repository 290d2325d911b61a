"""Runs a function once to measure the memory that it needs."""

from __future__ import annotations

from typing import Any, Callable

from ._measure import measure
from ._result import Measurement


def dry_run(step: Callable[..., Any], *args: Any, **kwargs: Any) -> Measurement:
    """Calls `step(*args, **kwargs)` once and returns the memory that the call needed. The return value of `step` is discarded.

    The step is really executed, so a step that changes weights does change them. `highest_allocated - allocated_before` is what the step
    needs in addition to the memory already allocated. An exception from the step is passed on.
    """
    with measure("dry_run") as result:
        step(*args, **kwargs)
    return result
