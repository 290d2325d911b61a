"""Memory budgets: promised memory on the GPU dashboard; budgets, headroom and unneeded memory on the Workloads dashboard."""

from . import panels as p, queries as q
from .gpu_health import NAME, each
from .queries import GPU, WORKLOAD
from .sizing import KEY, NEEDED, PEAK_FAMILY

# The lowest budget of each workload on each device, as in the rules: a share of time-slicing is not a budget.
LIMIT = f'min by ({KEY}) (gpu_workload_memory_limit_bytes{{{WORKLOAD},source!="time_slicing"}})'
PEAK = f"max by ({KEY}) ({PEAK_FAMILY}{{{WORKLOAD}}})"
HEADROOM = f"({LIMIT} - {PEAK})"
OVER_FAMILY = "gpu_workload_memory_over_limit_seconds_total"
# The workloads with the least headroom.
CLOSEST = f"and on ({KEY}) bottomk($top, {HEADROOM})"
NO_BUDGET = "No workload has a memory budget."

WORKLOAD_COLUMNS = [
    p.column("workload", "Workload"),
    p.column("instance", "Node", links=p.detail("gpu", "instance", "gpu")),
    p.column("gpu", "GPU", width=55),
    p.column("mig_uuid", "MIG device"),
]

PROMISED = "gpu_memory_promised_bytes"
ON_GPU = [
    p.series(
        "Promised against allocatable",
        "The sum of the budgets of all containers on each GPU, whether or not they have started, and the memory that "
        "the driver can allocate on it (total minus reserved). If more is promised than can be allocated, a workload "
        "can run out of memory within its budget. GPUs without budgets are left out.",
        [
            p.ranged(each(f"{PROMISED}{{{GPU}}}"), f"{NAME} promised"),
            p.ranged(each(f"{q.usable(GPU)} and on ({q.GPU_KEY}) {PROMISED}{{{GPU}}}"), f"{NAME} allocatable"),
        ],
        overrides=[
            p.by_query(
                "B",
                custom__fillOpacity=0,
                custom__lineWidth=2,
                custom__lineStyle={"fill": "dash", "dash": [6, 4]},
            )
        ],
        size=(24, 8),
        calcs=p.LAST_AND_MAX,
        empty="Nothing is promised on the selected GPUs.",
    ),
]

ON_WORKLOADS = [
    p.stat(
        "Workloads over budget",
        "Number of workloads whose highest use in the exporter's last peak window is above their lowest memory "
        "budget, counted for each GPU.",
        f"sum({LIMIT} < bool {PEAK})",
        thresholds=p.bad_from(1),
        size=(4, 9),
        empty="no budgets",
    ),
    p.table(
        "Budgets",
        "Workloads with the least memory left of their lowest budget. Headroom: budget minus window peak, negative "
        "above the budget. Over budget: time above it in the selected time range. The exporter enforces no budget "
        "(docs/budgets.md).",
        [
            f"{LIMIT} {CLOSEST}",
            f"{PEAK} {CLOSEST}",
            f"{HEADROOM} {CLOSEST}",
            f"max by ({KEY}) (increase({OVER_FAMILY}{{{WORKLOAD}}}[$__range])) {CLOSEST}",
        ],
        [
            *WORKLOAD_COLUMNS,
            p.column("Value #A", "Budget", p.BYTES, width=95, decimals=1),
            p.column("Value #B", "Peak", p.BYTES, width=95, decimals=1),
            p.column("Value #C", "Headroom", p.BYTES, width=115, thresholds=p.good_from(0), decimals=1),
            p.column("Value #D", "Time over", p.SECONDS, width=100, thresholds=p.bad_from(1), decimals=0),
        ],
        size=(20, 9),
        empty=NO_BUDGET,
    ),
    p.series(
        "Time over budget",
        "Share of time in which a workload held more than its lowest memory budget, on the GPU where it was highest. "
        "The exporter measures the time, so a peak between two scrapes counts. Workloads within their budgets have no line.",
        [
            p.ranged(
                f"max by ({OWNER}) (rate({OVER_FAMILY}{{{WORKLOAD}}}[$__rate_interval])) > 0",
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

UNNEEDED = f"topk($top, {LIMIT} - {NEEDED} > 0)"
TO_GIVE_BACK = [
    p.table(
        "Budgets that could be smaller",
        "Memory of each workload's lowest budget that it did not need even at its highest peak within `Lookback`, in "
        "descending order. Beyond the selected time range this needs the recording rules. Keep a margin above the "
        "peak. The memory of a MIG device can only be given back with a smaller profile.",
        [
            UNNEEDED,
            f"{LIMIT} and on ({KEY}) {UNNEEDED}",
            f"{NEEDED} and on ({KEY}) {UNNEEDED}",
        ],
        [
            *WORKLOAD_COLUMNS,
            p.column("Value #A", "Not needed", p.BYTES, width=120, decimals=1),
            p.column("Value #B", "Budget", p.BYTES, width=95, decimals=1),
            p.column("Value #C", "Peak", p.BYTES, width=95, decimals=1),
        ],
        size=(24, 8),
        empty=NO_BUDGET,
        sort="Not needed",
    ),
]
