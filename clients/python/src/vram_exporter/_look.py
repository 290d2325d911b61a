"""Compares PyTorch's allocated blocks with what Python code holds, and makes the message about each device.

Invariants: each block counts once, with the bytes that were requested. For each device, the bytes of the roles have the same sum as the
bytes of the sites, `other_bytes` and `unknown_bytes`. What is not known for certain is unknown.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import AbstractSet, Any, Dict, List, NamedTuple, Optional, Tuple

from ._connection import fits
from ._frames import Frames, Origin
from ._roles import OTHER, ROLES, Held

ACTIVATIONS = "activations"
UNKNOWN = "unknown"
# The order of the roles in a message.
_ORDER = (*ROLES[:3], ACTIVATIONS, *ROLES[3:], UNKNOWN)
# The number of sites in a message.
SITES = 10


class Look(NamedTuple):
    """What a look found on one device."""

    pair: Tuple[str, str]
    """The framework and the device."""
    messages: List[Dict[str, Any]]
    """In the order in which they are sent: a report of the same moment, because the exporter refuses `sites` of more memory than it knows to
    be reserved, unless the framework could not provide it; `sites`; `growth`, unless this is the first look at the device; and
    `modules`, if modules have memory there and are known."""


class Block(NamedTuple):
    """A part of a segment that a tensor, or something like it, occupies."""

    device: int
    size: int
    requested: int
    frames: Any

    def same(self, other: Optional[Block]) -> bool:
        """Whether `other`, from another snapshot, may be the same allocation at the same address."""
        return other is not None and self.size == other.size and _first(self.frames) == _first(other.frames)


class Summary:
    """What the blocks of one device amount to."""

    def __init__(self) -> None:
        self.roles: Dict[str, int] = {}
        self.sites: Dict[Tuple[str, str], int] = {}
        self.without_frames = 0
        self.modules: Dict[int, int] = {}
        """The bytes that belong to each node of the tree of modules itself."""

    def add(self, size: int, role: str, origin: Optional[Origin]) -> None:
        self.roles[role] = self.roles.get(role, 0) + size
        if origin is None:
            self.without_frames += size
        else:
            key = (origin.site, role)
            self.sites[key] = self.sites.get(key, 0) + size

    def message(self, framework: str, device: str, looked_for: AbstractSet[str]) -> Dict[str, Any]:
        """The message for the exporter, which fits into one line."""
        largest = sorted(self.sites.items(), key=lambda item: (-item[1], item[0]))[:SITES]
        sites = [{"site": site, "role": role, "bytes": size} for (site, role), size in largest]
        message: Dict[str, Any] = {
            "type": "sites",
            "framework": framework,
            "device": device,
            "roles": {role: self.roles.get(role, 0) for role in _ORDER if role in self.roles or role in looked_for or role == UNKNOWN},
            "sites": sites,
            "other_bytes": sum(self.sites.values()) - sum(size for _, size in largest),
            "unknown_bytes": self.without_frames,
        }
        while sites and not fits(message):
            message["other_bytes"] += sites.pop()["bytes"]
        return message


def look(framework: str, device: str, amounts: Dict[str, int], *messages: Optional[Dict[str, Any]]) -> Look:
    """A look with those of the messages that there are. `amounts` is what was allocated and reserved at the same moment; empty if unknown."""
    report = {"type": "report", "framework": framework, "device": device, **amounts} if amounts else None
    return Look((framework, device), [message for message in (report, *messages) if message is not None])


def allocated(snapshot: Dict[str, Any]) -> Dict[int, Block]:
    """The allocated blocks of a snapshot by their addresses, which are unique among all devices of a process."""
    blocks: Dict[int, Block] = {}
    for segment in snapshot["segments"]:
        for block in segment["blocks"]:
            # A block that waits for another stream is free for PyTorch's own figure, too.
            if block["state"] == "active_allocated":
                size, requested = int(block["size"]), block.get("requested_size")
                if not isinstance(requested, int) or not 0 < requested <= size:
                    requested = size
                blocks[int(block["address"])] = Block(int(segment["device"]), size, requested, block.get("frames") or ())
    return blocks


def largest_free(snapshot: Dict[str, Any], device: int) -> int:
    """The size of the largest free block in the segments of a device, or 0 if there is none."""
    segments = (segment for segment in snapshot["segments"] if segment["device"] == device)
    return max((int(block["size"]) for segment in segments for block in segment["blocks"] if block["state"] == "inactive"), default=0)


def describe(before: Dict[int, Block], after: Dict[int, Block], held: Optional[Held], old: Optional[Dict[int, int]]) -> Dict[int, Summary]:
    """The summary of each device at the time of `after`. `held` was gathered between the two snapshots, because the program goes on in the
    meantime: a block that is only in the second one has no known role.

    `old` has the addresses and sizes of blocks whose frames are too old for an activation; `None` means all blocks.
    """
    ranks = _first_of(after, {} if held is None else held.ranks)
    results = _first_of(after, {} if held is None else dict.fromkeys(held.results, 0))
    nodes = _first_of(after, {} if held is None or held.modules is None else held.modules.pointers)
    activations = held is not None and old is not None and held.complete and held.graph
    frames = Frames()
    summaries: Dict[int, Summary] = {}
    for address, block in after.items():
        origin = frames.origin(block.frames)
        role = UNKNOWN
        summary = summaries.setdefault(block.device, Summary())
        if held is not None and block.same(before.get(address)):
            rank = ranks.get(address)
            if rank is not None and (rank != OTHER or held.gradients):
                role = ROLES[rank]
            may_be_held = rank is None or (rank == OTHER and address in results)
            if may_be_held and activations and origin is not None and origin.forward and old is not None and old.get(address) != block.size:
                role = ACTIVATIONS
            node = nodes.get(address)
            if node is not None:
                summary.modules[node] = summary.modules.get(node, 0) + block.requested
        summary.add(block.requested, role, origin)
    return summaries


def looked_for(held: Optional[Held], old: Optional[Dict[int, int]]) -> AbstractSet[str]:
    """The roles that could be determined."""
    if held is None:
        return frozenset()
    return frozenset(held.looked_for + ((ACTIVATIONS,) if held.complete and old is not None else ()))


def _first_of(blocks: Dict[int, Block], numbers: Dict[int, int]) -> Dict[int, int]:
    """The lowest number of the pointers into each block."""
    starts: List[int] = sorted(blocks)
    lowest: Dict[int, int] = {}
    for pointer, number in numbers.items():
        index = bisect_right(starts, pointer) - 1
        if index >= 0 and pointer < starts[index] + blocks[starts[index]].size:
            lowest[starts[index]] = min(number, lowest.get(starts[index], number))
    return lowest


def _first(frames: Any) -> Any:
    return frames[0] if frames else None
