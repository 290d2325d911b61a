"""Which lines of the program hold JAX's GPU memory: JAX itself remembers the Python frames of each array, and tells them in a profile.

Invariants: only backends that the program has initialised are asked, and never in another process than the one that made the object. What
JAX is asked keeps nothing and switches nothing on. No exception leaves this module. If JAX lacks something that is needed, or a look takes
too long, nothing is sent from then on.
"""

from __future__ import annotations

import os
import time
from typing import Any, Callable, Dict, List, Optional, Sequence

from . import _jax, _pprof
from ._frames import Frames
from ._growth import Growth
from ._look import UNKNOWN, Look, Summary, look
from ._sites import EVERY, LONGEST, SHARE


class JaxSites:
    """The sites of this process in JAX's memory. One thread at a time must call `tick`."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, timer: Callable[[], float] = time.thread_time) -> None:
        self._clock, self._timer = clock, timer
        self._pid = os.getpid()
        self._over = False
        self._look_at = 0.0
        self._growth = Growth()

    def tick(self, allocated: int, _taken: Sequence[Optional[int]] = ()) -> List[Look]:
        """Looks if that is due; `allocated` is the sum of what JAX has allocated now. Returns a look at each device."""
        now = self._clock()
        if self._over or allocated <= 0 or now < self._look_at or os.getpid() != self._pid:
            return []
        start = self._timer()
        looks: List[Look] = []
        try:
            for backend in _jax.gpu_backends() or ():
                looks += self._look(backend, now)
        except Exception:  # Another attempt would probably fail as well.
            self._over = True
            return []
        cost = self._timer() - start
        self._look_at = now + max(EVERY, cost / SHARE)
        self._over = cost > LONGEST
        return looks

    def _look(self, backend: Any, now: float) -> List[Look]:
        if any(_is_in_host_memory(array) for array in backend.live_arrays()):
            return []
        # `jax.profiler.device_memory_profile` asks the same, but initialises a backend if there is none, and compresses the answer.
        profile = backend.heap_profile()
        readings = {str(device): _jax.reading(device) for device in backend.local_devices()}
        summaries: Dict[str, Summary] = {}
        samples = _pprof.samples(profile, ("space", "bytes")) or []
        frames = Frames()
        for sample in samples:
            # The code of compiled programs has no device.
            device = sample.labels.get("device")
            if device is not None and sample.value > 0:
                summaries.setdefault(device, Summary()).add(sample.value, UNKNOWN, frames.origin(sample.frames))
        looks = []
        for name, summary in sorted(summaries.items()):
            found = readings.get(name)
            # A profile with more than JAX has allocated is of another moment, or counts memory of another framework.
            if found is not None and found.device is not None and sum(summary.roles.values()) <= found.allocated:
                amounts = {"allocated_bytes": found.allocated}
                if found.reserved is not None:
                    amounts["reserved_bytes"] = found.reserved
                growth = self._growth.message(now, _jax.NAME, found.device, summary.sites)
                looks.append(look(_jax.NAME, found.device, amounts, summary.message(_jax.NAME, found.device, frozenset()), growth))
        return looks


def _is_in_host_memory(array: Any) -> bool:
    """Whether an array is in the host's memory, where the profile counts it as memory of the GPU."""
    return "host" in (array.sharding.memory_kind or "")
