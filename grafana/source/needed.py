"""What the allocators need, on the GPU dashboard."""

from . import panels as p, queries as q
from .gpu_health import NAME
from .queries import DEVICE_KEY, GPU

PROCESS = f"{DEVICE_KEY}, pid, process"


def rest(kind):
    """The memory of this kind of the selected GPUs or, if one is chosen, of the MIG device."""
    return f"{q.total(f'gpu_memory_{kind}_bytes{{{GPU}}}')} or {q.total(f'gpu_mig_memory_{kind}_bytes{{{GPU}}}')}"


SLACK = " - ".join(f"gpu_process_allocator_{kind}_bytes{{{GPU}}}" for kind in ("reserved", "allocated"))
ON_GPU = [
    p.series(
        "Used and needed",
        "Needed: used memory without what allocators reserved and do not use; memory of processes that do not report counts as "
        "needed. Reserved and allocated: the sums over the "
        "processes that report about their allocators (docs/allocators.md). Without such a process there is only used memory.",
        [
            p.ranged(rest("used"), "used"),
            p.ranged(q.total(q.needed(GPU)), "needed"),
            p.ranged(q.total(f"gpu_process_allocator_reserved_bytes{{{GPU}}}", key=f"{q.RUNNING}, framework"), "reserved by allocators"),
            p.ranged(q.total(f"gpu_process_allocator_allocated_bytes{{{GPU}}}", key=f"{q.RUNNING}, framework"), "allocated"),
        ],
        overrides=[
            *p.MEMORY_COLORS,
            p.colored("reserved by allocators", "#00bcd4", custom__fillOpacity=0),
            p.colored("allocated", "#c0b283", custom__fillOpacity=0),
        ],
        calcs=p.LAST_AND_MAX,
        empty="No selected GPU reports its memory.",
    ),
    p.series(
        "Slack by process",
        "Memory that an allocator reserved and does not use, of the processes that report it.",
        [p.ranged(f"topk(10, max by ({PROCESS}, framework) ({SLACK}))", f"{NAME} · {{{{process}}}} {{{{pid}}}} {{{{framework}}}}")],
        calcs=p.LAST_AND_MAX,
        empty="No process reports about its allocator.",
    ),
]
