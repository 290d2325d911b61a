"""What a framework reported about one device at one moment."""

from __future__ import annotations

from typing import NamedTuple, Optional, Tuple


class Reading(NamedTuple):
    """The figures of one allocator on one device. Amounts are bytes; `None` means that the framework does not provide the figure."""

    framework: str
    ordinal: int
    """The number that the framework gives to the device."""
    allocated: int
    """Memory in live tensors or buffers."""
    device: Optional[str] = None
    """The UUID in NVML's format, or `None` if it is not known for certain; nothing is then reported for the device."""
    in_use: bool = True
    """False if this process has never allocated anything on the device."""
    peak: Optional[int] = None
    """The framework's own peak of `allocated`, which the program may reset."""
    taken: Optional[int] = None
    """The sum of all allocations, which the program may reset."""
    returned: Optional[int] = None
    """The sum of all frees, which the program may reset."""
    reserved: Optional[int] = None
    """Memory that the allocator has taken from the driver and still holds."""
    reserved_peak: Optional[int] = None
    reserved_taken: Optional[int] = None
    reserved_returned: Optional[int] = None
    limit: Optional[int] = None
    largest_free_block: Optional[int] = None
    inactive_split: Optional[int] = None
    retries: Optional[int] = None
    """A counter, which the program may reset."""
    out_of_memory: Optional[int] = None
    """A counter, which the program may reset."""
    peaks: Tuple[int, ...] = ()
    """Every peak that a reset would lower; a fall in any of them reveals a reset."""
