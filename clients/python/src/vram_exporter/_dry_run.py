"""Runs a function once for its memory."""

from __future__ import annotations

from typing import Any, Callable

from ._measure import measure
from ._result import Measurement


def dry_run(step: Callable[..., Any], *args: Any, **kwargs: Any) -> Measurement:
    """Calls `step(*args, **kwargs)` once and returns what it needed; the value that it returned is dropped.

    The step is really executed, so a step that changes weights does change them. `highest_allocated - allocated_before` is what the step
    needs in addition to what was there. An exception from the step is passed on.
    """
    with measure("dry_run") as result:
        step(*args, **kwargs)
    return result
