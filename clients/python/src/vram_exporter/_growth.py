"""Which call sites hold more memory than at the look before.

Invariant: of each device, at most `KEPT` sites of its latest look are kept, and a growth is never overstated because of that.
"""

from __future__ import annotations

import math
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from ._connection import fits

# The number of sites that are kept for the next look, the largest ones.
KEPT = 2000
# The number of sites in a message.
SITES = 10

Site = Tuple[str, str]
"""A call site and a role."""


class _Before(NamedTuple):
    at: float
    sites: Dict[Site, int]
    floor: int
    """The most that a site which is not kept can have held: 0 if all are kept."""


class Growth:
    """What the sites of each device held at its latest look."""

    def __init__(self) -> None:
        self._before: Dict[str, _Before] = {}

    def message(self, now: float, framework: str, device: str, sites: Dict[Site, int]) -> Optional[Dict[str, Any]]:
        """The message about a look, which fits into one line; `None` for the first look at the device."""
        before, self._before[device] = self._before.get(device), _kept(now, sites)
        if before is None:
            return None
        grown = [(size - before.sites.get(site, before.floor), site) for site, size in sites.items()]
        largest = sorted((item for item in grown if item[0] > 0), key=lambda item: (-item[0], item[1]))[:SITES]
        rows = [{"site": site, "role": role, "bytes": size} for size, (site, role) in largest]
        seconds = max(1, math.ceil(now - before.at))
        message: Dict[str, Any] = {"type": "growth", "framework": framework, "device": device, "seconds": seconds, "sites": rows}
        while rows and not fits(message):
            rows.pop()
        return message


def _kept(now: float, sites: Dict[Site, int]) -> _Before:
    if len(sites) <= KEPT:
        return _Before(now, dict(sites), 0)
    items: List[Tuple[Site, int]] = sorted(sites.items(), key=lambda item: -item[1])
    return _Before(now, dict(items[:KEPT]), items[KEPT][1])
