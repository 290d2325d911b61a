"""One workload from its start to its end, on the Workloads dashboard: allocatable memory, peak and its time, the ladder, the neighbours."""

from . import budgets, grid, links, panels as p, queries as q, tables as t
from .queries import AT, HOLDER, PEAK_BY, RUN, USED_BY, WORKLOAD

# The workloads with the highest peaks, by name, and their nodes.
LISTED = grid.hidden_list(
    "run",
    f"topk(20, max by (workload) ({q.highest(PEAK_BY, WORKLOAD, '$__range')}))",
    "workload",
    "The 20 selected workloads with the highest peaks in the time range.",
)
NODES = grid.hidden_list(
    "at",
    f"group by (instance) (max_over_time({USED_BY}{{{RUN}}}[$__range]))",
    "instance",
    "The nodes of these workloads.",
)
HEIGHT = 8
ROWS = q.top_holders(t.rows(HEIGHT), RUN)
PLACE = "cluster, instance, uuid, mig_uuid"
# The last reading: now, or at the resolution of a graph.
LAST_SEEN = f"timestamp({USED_BY}{{{RUN}}}) or max_over_time(timestamp({USED_BY}{{{RUN}}})[$__range:$__interval])"
# The first reading whose window holds the peak. A subquery does not see what is newer than its last step.
HOLDS_PEAK = (
    f"(timestamp({PEAK_BY}{{{RUN}}}) and {q.highest(PEAK_BY, RUN, q.STEP)}"
    f" >= max_over_time({PEAK_BY}{{{RUN}}}[$__range] @ end()))"
)
AT_PEAK = f"min_over_time({HOLDS_PEAK}[$__range:$__interval]) or {HOLDS_PEAK}"
CAPACITY = f"max by ({PLACE}) ({q.device_usable(AT, '$__range')})"
STARTED = (
    f"min by ({HOLDER}) ({q.processes('gpu_process_start_time_seconds', AT, '$__range')}"
    f" {q.owner('workload, kind', RUN, '$__range')})"
)
# 1 if it has ended, 2 if it is idle, otherwise 0.
STATE = (
    f"1 + 0 * ({ROWS} unless on ({HOLDER}) {USED_BY}{{{RUN}}}) or 2 + 0 * ({ROWS} and on (cluster, instance, workload)"
    f" {q.idle_for(RUN)} >= $idle) or 0 * ({ROWS})"
)
RUNS = [
    t.table(
        "From start to end",
        "Workloads that held memory in the selected time range, those with the highest peaks first, also those that have "
        "ended. State: idle if no process has worked for `Idle after`, from the recording rules. Started: start of the oldest "
        "process that is known. Ended: last reading with memory. Allocatable: that of the GPU or MIG device. Peak: the highest "
        "use that the exporter sampled, and when it was first scraped; the link opens the GPU at that moment.",
        [
            STATE,
            f"1000 * ({STARTED} and on ({HOLDER}) {ROWS})",
            f"1000 * ({q.of_holders(ROWS, LAST_SEEN)} unless on ({HOLDER}) {USED_BY}{{{RUN}}})",
            f"{CAPACITY} * on ({PLACE}) group_right () ({ROWS} ^ 0)",
            ROWS,
            f"{ROWS} / on ({PLACE}) group_left () {CAPACITY}",
            f"1000 * ({q.of_holders(ROWS, AT_PEAK)})",
            q.named_device(ROWS, AT),
            *t.around(f"({q.of_holders(ROWS, AT_PEAK)})"),
        ],
        [
            t.workload_column(),
            t.column("instance", "Node", width=90, links=links.detail("gpu", "instance")),
            *t.device_columns()[1:],
            t.words("Value #A", "State", {"_0": ("running", "green"), "_1": ("ended", "text"), "_2": ("idle", "orange")}, width=75),
            t.column("Value #B", "Started", p.TIME, width=100),
            t.column("Value #C", "Ended", p.TIME, width=100),
            t.column("Value #D", "Allocatable", p.BYTES, width=95, decimals=1),
            t.column("Value #E", "Peak", p.BYTES, width=82, decimals=1),
            t.column("Value #F", "Peak %", p.RATIO, 65, p.FILL, decimals=0),
            t.column(
                "Value #G",
                "Peak at",
                p.TIME,
                width=100,
                links=t.at_that_time("Value #I", "Value #J", "instance", gpu="uuid", mig="mig"),
            ),
            t.hidden("Value #I"),
            t.hidden("Value #J"),
        ],
        size=(24, HEIGHT),
        empty="No workload held memory in the selected time range.",
        sort="Peak",
    ),
]

NAME = "{{instance}} · {{workload}}"
# The devices on which the selected workloads held memory in the time range.
THEIR_DEVICES = f"group by ({PLACE}) (max_over_time({USED_BY}{{{RUN}}}[$__range] @ end()))"
THEIR_GPUS = f"group by (cluster, instance, uuid) (max_over_time({USED_BY}{{{RUN}}}[$__range]))"
LARGEST = (
    f"topk(12, sum by (workload) (max by ({q.HOLDING}) (max_over_time({USED_BY}{{{AT}}}[$__range] @ end())"
    f" and on ({PLACE}) {THEIR_DEVICES})))"
)
PEAKS = f"sum by ({q.OWNER}) (max by ({HOLDER}) ({q.highest(PEAK_BY, RUN, q.STEP)}))"
TOP = f"and on ({q.OWNER}) {q.largest(PEAK_BY, RUN, q.OWNER, 8)}"


# The selected workload with the highest peak, on its nodes.
LARGEST_RUN = f"topk(1, max by (workload) ({q.highest(PEAK_BY, RUN, '$__range')}))"


ITS_DEVICES = f"({q.highest(USED_BY, RUN, '$__range')} and on (workload) {LARGEST_RUN})"


def rung(expression):
    return f"max({expression} and on (workload) {LARGEST_RUN})"


def reported(kind):
    return f"max_over_time(gpu_workload_allocator_{kind}_bytes{{{RUN}}}[$__range])"


LADDER = p.bars(
    "Ladder",
    "From the device to what was needed, for the selected workload with the highest peak, on the device where it is highest: "
    "allocatable memory of the device, lowest budget, peak: the highest use in the time range, used: the highest use at a scrape, then the "
    "highest of what its allocators reserved and of what they had allocated, if they report it (docs/allocators.md).",
    [
        p.instant(f"max({CAPACITY} and on ({PLACE}) {ITS_DEVICES})", "allocatable"),
        p.instant(rung(budgets.lowest(RUN, "$__range")), "budget"),
        p.instant(rung(q.highest(PEAK_BY, RUN, "$__range")), "peak"),
        p.instant(rung(q.highest(USED_BY, RUN, "$__range")), "used"),
        p.instant(rung(reported("reserved")), "reserved"),
        p.instant(rung(reported("allocated")), "allocated"),
    ],
    decimals=1,
    size=(12, 8),
    empty="No workload held memory.",
)
ALLOCATABLE = f"sum({q.once(CAPACITY.replace('[$__range]', '[5m]') + f' and on ({PLACE}) {THEIR_DEVICES}')})"
OVER_TIME = [
    p.series(
        "Peak of the workloads, and allocatable memory",
        "Peak of each workload since the previous point, summed over its GPUs on a node, of the workloads with the highest "
        "peaks. Allocatable: memory of the at most 8 devices that the selected workloads used.",
        [
            p.ranged(f"{PEAKS} {TOP}", NAME),
            p.ranged(f"{ALLOCATABLE} and on () count({q.once(THEIR_DEVICES)}) <= 8", "allocatable"),
        ],
        size=(12, 9),
        fill=0,
        interval="2m",
        overrides=[p.colored("allocatable", p.GREY)],
        calcs=p.LAST_AND_MAX,
        empty="No workload held memory.",
    ),
    p.series(
        "Neighbours on the same devices",
        "Memory of all workloads on the GPUs and MIG devices that the selected workloads used, stacked, and what can be allocated "
        "there: what else held memory at the moment that the pointer marks in every graph.",
        [
            p.ranged(
                f"sum by (workload) (max by ({q.HOLDING}) ({USED_BY}{{{AT}}} and on ({PLACE}) {THEIR_DEVICES}))"
                f" and on (workload) {LARGEST}",
                "{{workload}}",
            ),
            p.ranged(ALLOCATABLE, "allocatable"),
        ],
        size=(12, 9),
        stack=True,
        interval="2m",
        overrides=[p.colored("allocatable", p.GREY, custom__fillOpacity=0, custom__stacking={"mode": "none"})],
        calcs=p.LAST_AND_MAX,
        empty="No workload held memory.",
    ),
    LADDER,
]
