"""Memory budgets on the Fleet, GPU and Workloads dashboards: promised memory, workloads over their budget, unneeded budgets."""

from . import panels as p, queries as q, tables as t
from .gpu_health import NAME, each
from .queries import BOARD, GPU_KEY, HOLDER, NODE, OWNER, PEAK_BY, WORKLOAD
from .sizing import NEEDED

# A share of time-slicing is not a budget.
BUDGET = "gpu_workload_memory_limit_bytes"
OVER_FAMILY = "gpu_workload_memory_over_limit_seconds_total"
PROMISED = "gpu_memory_promised_bytes"


def lowest(select, time=None):
    """The lowest budget of each workload on each device, as in the rules."""
    declared = f'{select},source!="time_slicing"'
    return f"min by ({HOLDER}) ({q.newest(BUDGET, declared, time)})"


def in_namespaces():
    """The same with the namespace."""
    return lowest(WORKLOAD).replace(f"({HOLDER})", f"({HOLDER}, namespace)", 1)


LIMIT = lowest(WORKLOAD)
PEAK = f"max by ({HOLDER}) ({PEAK_BY}{{{WORKLOAD}}})"
HEADROOM = f"({LIMIT} - {PEAK})"
HEIGHT = 8
# The workloads with the least headroom.
CLOSEST = f"and on ({HOLDER}) bottomk({t.rows(HEIGHT)}, {HEADROOM})"
NO_BUDGET = "No workload has a memory budget."
WORKLOAD_COLUMNS = [
    t.workload_column(),
    *t.device_columns(100),
]


def allocatable(select):
    return f"max by ({GPU_KEY}) ({q.usable(select)})"


def promised(select):
    return f"max by ({GPU_KEY}) ({PROMISED}{{{select}}})"


MOST = f"bottomk({t.rows(HEIGHT)}, {allocatable(NODE)} - on ({GPU_KEY}) {promised(NODE)})"
ON_FLEET = [
    t.table(
        "Promised against allocatable",
        "GPUs with memory budgets: the sum of the budgets of all containers, whether or not they have started, against what the "
        "driver can allocate (total minus reserved), the GPUs with the least left first. Left: what can still be promised; if it is "
        "negative, a workload can run out of memory within its budget.",
        [
            q.linked(MOST),
            f"{promised(NODE)} and on ({GPU_KEY}) {MOST}",
            f"{allocatable(NODE)} and on ({GPU_KEY}) {MOST}",
        ],
        [
            *t.device_columns(),
            t.column("Value #B", "Promised", p.BYTES, width=90, decimals=0),
            t.column("Value #C", "Allocatable", p.BYTES, width=95, decimals=0),
            t.column("Value #A", "Left", p.BYTES, width=90, thresholds=p.good_from(-(1 << 20)), decimals=0),
        ],
        size=(12, HEIGHT),
        empty="Nothing is promised on any GPU: there are no memory budgets.",
        sort="Left",
        ascending=True,
    ),
]

# Without a name in the legend, because it is the same for most GPUs.
LIMIT_LINE = {
    "color": {"mode": "fixed", "fixedColor": p.GREY},
    "custom__hideFrom": {"viz": False, "legend": True, "tooltip": False},
    "custom__fillOpacity": 0,
    "custom__lineStyle": p.DASHES,
}
ON_GPU = [
    p.series(
        "Promised against allocatable",
        "The sum of the budgets of all containers on each GPU, whether or not they have started, and the memory that "
        "the driver can allocate on it (total minus reserved). If more is promised than can be allocated, a workload "
        "can run out of memory within its budget. Dashed: allocatable memory. GPUs without budgets are left out.",
        [
            p.ranged(promised(BOARD), f"{NAME} promised"),
            p.ranged(each(f"{q.usable(BOARD)} and on ({GPU_KEY}) {PROMISED}{{{BOARD}}}"), f"{NAME} allocatable"),
        ],
        overrides=[p.by_query("B", **LIMIT_LINE)],
        fill=0,
        size=(24, 7),
        legend="right",
        calcs=p.LAST_AND_MAX,
        empty="Nothing is promised on the selected GPUs.",
    ),
]

OVERVIEW = p.stat(
    "Over budget",
    "Number of workloads whose highest use in the exporter's last peak window is above their lowest memory "
    "budget, counted for each device.",
    q.total(f"{LIMIT} < bool {PEAK}", key=q.HOLDING),
    thresholds=p.bad_from(1),
    size=(4, 3),
    decimals=0,
    empty="no budgets",
)
ON_WORKLOADS = [
    t.table(
        "Budgets",
        "Workloads with the least memory left of their lowest budget. Peak now: of the exporter's last peak "
        "window. Headroom: budget minus that, negative "
        "above the budget. Time over: time above it in the selected time range. The exporter enforces no budget "
        "(docs/owners.md).",
        [
            f"{LIMIT} {CLOSEST}",
            f"{PEAK} {CLOSEST}",
            f"{HEADROOM} {CLOSEST}",
            f"max by ({HOLDER}) (increase({OVER_FAMILY}{{{WORKLOAD}}}[$__range])) {CLOSEST}",
            q.named_device(f"({LIMIT} {CLOSEST})", NODE),
        ],
        [
            *WORKLOAD_COLUMNS,
            t.column("Value #A", "Budget", p.BYTES, width=95, decimals=1),
            t.column("Value #B", "Peak now", p.BYTES, width=95, decimals=1),
            t.column("Value #C", "Headroom", p.BYTES, width=115, thresholds=p.good_from(0), decimals=1),
            t.column("Value #D", "Time over", p.SECONDS, width=100, thresholds=p.bad_from(1), decimals=1),
        ],
        size=(24, HEIGHT),
        empty=NO_BUDGET,
        sort="Headroom",
        ascending=True,
    ),
    p.series(
        "Time over budget",
        "Share of time in which a workload held more than its lowest memory budget, on the GPU where it was highest. "
        "The exporter measures the time, so a peak between two scrapes counts. Workloads within their budgets have no line.",
        [
            p.ranged(
                f"max by ({OWNER}) (rate({OVER_FAMILY}{{{WORKLOAD}}}[$__rate_interval]))"
                f" and on ({OWNER}) max by ({OWNER}) (increase({OVER_FAMILY}{{{WORKLOAD}}}[$__range] @ end())) > 0",
                "{{instance}} · {{workload}}",
            )
        ],
        unit=p.RATIO,
        max=1,
        size=(24, 7),
        legend="right",
        interval="5m",
        calcs=p.LAST_AND_MAX,
        empty="No workload was over its budget, or none has one.",
    ),
]

UNNEEDED = f"topk({t.rows(HEIGHT)}, {LIMIT} - {NEEDED} > 0)"
TO_GIVE_BACK = [
    t.table(
        "Budgets that could be smaller",
        "Memory of each workload's lowest budget that it did not need even at its highest peak within `Lookback`, in "
        "descending order. Beyond the selected time range this needs the recording rules. Keep a margin above the "
        "peak. The memory of a MIG device can only be given back with a smaller profile.",
        [
            UNNEEDED,
            f"{LIMIT} and on ({HOLDER}) {UNNEEDED}",
            f"{NEEDED} and on ({HOLDER}) {UNNEEDED}",
            q.named_device(UNNEEDED, NODE),
        ],
        [
            *WORKLOAD_COLUMNS,
            t.column("Value #A", "Not needed", p.BYTES, width=120, decimals=1),
            t.column("Value #B", "Budget", p.BYTES, width=95, decimals=1),
            t.column("Value #C", "Peak", p.BYTES, width=95, decimals=1),
        ],
        size=(24, HEIGHT),
        empty=NO_BUDGET,
        sort="Not needed",
    ),
]
