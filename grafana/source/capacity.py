"""Capacity, on the Fleet dashboard: how many GPUs the workloads need, when a GPU will be full, and where a job fits now."""

from . import panels as p, queries as q, tables as t
from .queries import DEVICE_KEY, NODE, PEAK_BY, usable

# GPUs that are not partitioned into MIG devices.
MODELS = f"group by (cluster, instance, uuid, name) ({q.whole(f'gpu_info{{{NODE}}}', NODE)})"
SIZE = f"min by (name) (max by ({q.GPU_KEY}) {usable(NODE)} * on (cluster, instance, uuid) group_left (name) {MODELS})"
# The peak of each workload on each whole GPU.
PEAKS = (
    f"max by ({q.HOLDER}) ({q.highest(PEAK_BY, NODE, '$__range')})"
    f" * on (cluster, instance, uuid) group_left (name) {MODELS}"
)
BY_SUM = f"ceil({q.total(PEAKS, 'name', q.HOLDING)} / on (name) {SIZE})"
# Two workloads that need more than half of a GPU each do not fit on one.
LARGE = f"count by (name) (group by ({q.HOLDING}, name) ({PEAKS} > on (name) group_left () {SIZE} / 2))"
NEEDED = f"({BY_SUM} >= on (name) {LARGE} or {LARGE} or {BY_SUM})"

QUARTER = 15 * 60


def floor(prefix, ago):
    moved = f" offset {ago}s" if ago else ""
    return f"min_over_time({prefix}_used_bytes{{{NODE}}}[5m]{moved})"


def filling(prefix):
    """Seconds until a device is full, where its lowest use rose in each of the last three quarters of an hour by more than
    0.5 % of its memory."""
    floors = [floor(prefix, ago) for ago in (0, QUARTER, 2 * QUARTER, 3 * QUARTER)]
    size = usable(NODE, prefix=prefix)
    rising = " and ".join(f"({new} - {old} > 0.005 * {size})" for new, old in zip(floors, floors[1:]))
    return f"({size} - {floors[0]}) * {3 * QUARTER} / ({floors[0]} - {floors[-1]}) and {rising}"


SOONEST = f"bottomk({t.rows(8)}, {q.each_device(filling, NODE)})"


def free(prefix):
    return f"{prefix}_free_bytes{{{NODE}}}"


# Devices that the kubelet has allocated as often as it can, and those of claims: whether further claims can share one is not known.
ALLOCATED = (
    f"(max by (cluster, instance, uuid, mig_uuid) (gpu_allocatable_devices{{{NODE}}}) - on (cluster, instance, uuid, mig_uuid)"
    f" count by (cluster, instance, uuid, mig_uuid) (group by (instance, {q.ALLOCATION}) (gpu_allocation_info{{{NODE},claim=\"\"}})) <= 0"
    f" or group by (cluster, instance, uuid, mig_uuid) (gpu_allocation_info{{{NODE},claim!=\"\"}}))"
)
FAULTY = f'ALERTS{{{q.of_rules(NODE)},severity="critical",alertstate="firing",uuid!=""}}'
ROOM = (
    f"({q.each_device(free, NODE)} >= $size * {q.GIB} unless on (cluster, instance, uuid, mig_uuid) {ALLOCATED}"
    f" unless on (cluster, instance, uuid) {FAULTY})"
)
FITS = f"bottomk({t.rows(9)}, {ROOM})"
# Whole GPUs that answer, that no container has been given, and on which no workload held memory.
SPARE = (
    f"{MODELS} and on (cluster, instance, uuid) gpu_up{{{NODE}}} == 1 unless on (cluster, instance, uuid)"
    f" {q.highest(PEAK_BY, NODE, '$__range')} unless on (cluster, instance, uuid) gpu_allocation_info{{{NODE}}}"
)


def boards(series):
    """The number of GPUs by model."""
    return f"count by (name) (group by (cluster, uuid, name) ({series}))"


def or_none(series):
    """The number of GPUs by model, 0 for the models without any."""
    return f"{boards(series)} or 0 * count by (name) ({MODELS})"


PANELS = [
    t.table(
        "Where a job fits now",
        "GPUs, or their MIG devices if there are any, with at least `Job size` free, the tightest fit first. Devices that the "
        "kubelet has allocated already, or that a claim has, are left out, if the exporter sees them, and GPUs with a critical "
        "alert. At peak: "
        "what was free at the highest use in the selected time range. Fits at peak: whether the job would have fitted then too; if "
        "not, it may fail later. How many devices of each model there are is in the column Fit of GPUs held and needed.",
        [
            q.linked(FITS),
            f"{q.never_needed(NODE, '$__range')} and on ({DEVICE_KEY}) {FITS}",
            f"{q.never_needed(NODE, '$__range')} >= bool $size * {q.GIB} and on ({DEVICE_KEY}) {FITS}",
        ],
        [
            *t.device_columns(),
            t.column("Value #A", "Free", p.BYTES, width=95, decimals=1),
            t.column("Value #B", "At peak", p.BYTES, width=95, decimals=1),
            t.words("Value #C", "Fits at peak", {"_0": ("no", "red"), "_1": ("yes", "green")}, width=95),
        ],
        size=(12, 9),
        empty="No device has this much free memory that is not allocated.",
        sort="Free",
        ascending=True,
    ),
    t.table(
        "GPUs held and needed",
        "GPUs that are not partitioned, by model. Held: GPUs on which a workload held memory in the selected time range. "
        "Needed: no fewer GPUs would have held the peaks of all workloads, as a lower bound: the sum of the peaks by the "
        "size of a GPU, or the number of workloads that need more than half of a GPU. Peaks that did not coincide count as "
        "if they had. `vram advise` packs the workloads. Spare: GPUs that answer, that are not allocated and not held. Fit: "
        "GPUs on which a job of `Job size` fits now.",
        [
            boards(MODELS),
            or_none(PEAKS),
            NEEDED,
            or_none(SPARE),
            or_none(f"{MODELS} and on (cluster, instance, uuid) {ROOM}"),
        ],
        [
            t.column("name", "Model"),
            t.column("Value #A", "GPUs", p.COUNT, width=80, decimals=0),
            t.column("Value #B", "Held", p.COUNT, width=58, decimals=0),
            t.column("Value #C", "Needed", p.COUNT, width=72, decimals=0),
            t.column("Value #D", "Spare", p.COUNT, width=60, decimals=0),
            t.column("Value #E", "Fit", p.COUNT, width=50, decimals=0),
        ],
        size=(12, 9),
        empty="No GPU reports its memory.",
        sort="GPUs",
    ),
    t.table(
        "Time to full",
        "GPUs, or their MIG devices if there are any, whose lowest use has risen in each of the last three quarters of an hour, "
        "and the time until they are full at this rate. A device whose use only varies is not listed.",
        [
            q.linked(SOONEST),
            f"{q.each_device(free, NODE)} and on ({DEVICE_KEY}) {SOONEST}",
        ],
        [
            *t.device_columns(),
            t.column("Value #A", "Full in", p.SECONDS, width=95, decimals=1),
            t.column("Value #B", "Free", p.BYTES, width=95, decimals=1),
        ],
        size=(12, 8),
        empty="No device has filled up steadily for 45 minutes.",
        sort="Full in",
        ascending=True,
    ),
]
