"""Fleet: how full, which GPUs are near the limit, imbalance, waste, and faults."""

from . import grid, panels as p, queries as q
from .queries import DEVICE, DEVICE_KEY, GPU_KEY, NODE, usable

# Sampled, the window peak, the highest one in a step of a graph, and in the range shown.
USED = q.used_ratio(NODE)
PEAK = q.peak_ratio(NODE)
DRAWN = q.peak_ratio(NODE, q.STEP)
HIGHEST = q.peak_ratio(NODE, "$__range")


def near_edge(expression):
    """Of each device, for the $top devices whose highest use in the range shown is nearest to what can be allocated."""
    return f"max by ({DEVICE}) ({expression}) and on ({DEVICE_KEY}) topk($top, {HIGHEST})"


def band(low, high):
    upper = f" * ({DRAWN} < bool {high})" if high else ""
    return f"sum(({DRAWN} >= bool {low}){upper})"


def trouble(expression, text):
    """Named by `text`, in which $1 is the code of an Xid."""
    return f'label_replace({expression}, "trouble", "{text}", "xid", "(.*)")'


KNOWN = f"group by (cluster, instance) (last_over_time(vram_exporter_build_info{{{NODE}}}[6h]))"
PRESENT = f"group by (cluster, instance) (vram_exporter_build_info{{{NODE}}})"
TROUBLES = " or ".join(
    [
        trouble(f"1 - gpu_up{{{NODE}}} > 0", "does not answer"),
        trouble(f"increase(gpu_xid_errors_total{{{NODE}}}[$__range]) > 0", "Xid $1"),
        trouble(f'increase(gpu_ecc_errors_total{{{NODE},type="uncorrected"}}[$__range]) > 0', "uncorrected ECC errors"),
        trouble(f"gpu_row_remap_pending{{{NODE}}} > 0", "row remapping waits for a reset"),
        trouble(f"gpu_row_remap_failed{{{NODE}}} > 0", "row remapping failed"),
        trouble(
            "max without (reason) (avg_over_time(gpu_throttle_active"
            f'{{{NODE},reason=~"hw_thermal_slowdown|sw_thermal_slowdown|hw_power_brake_slowdown"}}[$__range])) > 0',
            "throttled by heat or power brake, share of time",
        ),
        f'label_replace(1 - vram_exporter_nvml_up{{{NODE}}} > 0, "trouble", "no driver: NVML is not open", "", "")',
        f'label_replace({KNOWN} unless {PRESENT}, "trouble", "the exporter is silent", "", "")',
    ]
)

OVERVIEW = [
    p.stat(
        "GPUs that answer",
        "GPUs with gpu_up 1. Those that do not answer are in the list of troubles.",
        f"sum(gpu_up{{{NODE}}})",
        empty="no GPU seen",
    ),
    p.stat(
        "GPUs lost",
        "GPUs that the driver names and that do not answer, or whose last good sample is too old.",
        f"count(gpu_up{{{NODE}}}) - sum(gpu_up{{{NODE}}})",
        thresholds=p.bad_from(1),
        empty="no GPU seen",
    ),
    p.stat(
        "Nodes silent",
        "Nodes whose exporter was scraped within the last 6 hours and is not now. The list of troubles names them.",
        f"count({KNOWN}) - (count({PRESENT}) or vector(0))",
        thresholds=p.bad_from(1),
        empty="no exporter seen",
    ),
    p.stat(
        "Memory in use",
        "Used memory of all GPUs as a share of what can be allocated (total less reserved).",
        f"sum(gpu_memory_used_bytes{{{NODE}}}) / sum({usable(NODE)})",
        unit=p.RATIO,
        thresholds=p.FILL,
        empty="not reported",
        decimals=1,
    ),
    p.stat(
        "Memory free",
        "Free memory of all GPUs together. A job needs it in one place: see the list below.",
        f"sum(gpu_memory_free_bytes{{{NODE}}})",
        unit=p.BYTES,
        empty="not reported",
        decimals=1,
    ),
    p.stat(
        "GPUs near the limit",
        "GPUs, and MIG devices where there are some, whose window peak is at or above 90 % of what can be allocated.",
        f"sum({PEAK} >= bool {p.EDGE})",
        thresholds=p.bad_from(1, "orange"),
        empty="not reported",
    ),
    p.stat(
        "Held idle",
        "Memory of processes that have not worked on the GPU for as long as `Idle after` says.",
        f"sum(gpu_process_memory_used_bytes{{{NODE}}} * (gpu_process_idle_seconds{{{NODE}}} >= bool $idle))",
        unit=p.BYTES,
        thresholds=p.bad_from(1, "orange"),
        empty="none known",
        decimals=1,
    ),
    p.stat(
        "Allocated, unused",
        "GPUs, MIG devices and shares that the kubelet handed to containers which have no process on any GPU. "
        "Known where the exporter asks both the kubelet and the API server.",
        q.count_unused(NODE),
        thresholds=p.bad_from(1, "orange"),
        empty="not known",
    ),
]

FULL = [
    p.series(
        "How full the GPUs are",
        "Used memory as a share of what can be allocated, over all GPUs, or MIG devices where there are some. The window "
        "peak is the highest use that the exporter sampled since the point before, not the value at the scrape.",
        [
            p.ranged(f"max({DRAWN})", "fullest, window peak"),
            p.ranged(f"max({USED})", "fullest"),
            p.ranged(f"quantile(0.9, {USED})", "90th percentile"),
            p.ranged(f"quantile(0.5, {USED})", "median"),
            p.ranged(f"min({USED})", "emptiest"),
        ],
        unit=p.RATIO,
        thresholds=p.FILL,
        max=1,
        empty="No GPU reports its memory.",
    ),
    p.series(
        "GPUs by how full they get",
        "Number of GPUs, and of MIG devices where there are some, by the band of what can be allocated in which their "
        "highest window peak lies.",
        [
            p.ranged(band(0, 0.5), "below 50 %"),
            p.ranged(band(0.5, p.NEAR), "50 to 85 %"),
            p.ranged(band(p.NEAR, p.EDGE), "85 to 90 %"),
            p.ranged(band(p.EDGE, None), "90 % and more"),
        ],
        unit=p.COUNT,
        stack=True,
        decimals=0,
        overrides=[
            p.by_name(name, color={"mode": "fixed", "fixedColor": color})
            for name, color in (
                ("below 50 %", "blue"),
                ("50 to 85 %", "green"),
                ("85 to 90 %", "orange"),
                ("90 % and more", "red"),
            )
        ],
        empty="No GPU reports its memory.",
    ),
    p.table(
        "Near the limit",
        "The GPUs, or MIG devices where there are some, with the highest use in the range shown. Sampled is the value at "
        "the last scrape; the peak is the highest that the exporter saw in between. One that is gone has its peak in "
        "the range only. ≥ 90 %: share of time that this GPU was so full; not reported for MIG devices.",
        [
            near_edge(q.each_device(lambda prefix: f"{prefix}_used_bytes{{{NODE}}}", NODE)),
            near_edge(q.each_device(lambda prefix: usable(NODE, "$__range", prefix), NODE)),
            near_edge(USED),
            near_edge(PEAK),
            f"topk($top, {HIGHEST})",
            near_edge(f'rate(gpu_memory_pressure_seconds_total{{{NODE},ratio="0.9"}}[$__range])'),
            near_edge(f"avg_over_time(gpu_utilization_ratio{{{NODE}}}[$__range])"),
            f"topk($top, {HIGHEST}) * on (cluster, instance, uuid) group_left (name)"
            f" group by (cluster, instance, uuid, name) (last_over_time(gpu_info{{{NODE}}}[$__range]))",
        ],
        [
            p.column("instance", "Node", links=p.detail("gpu", "instance", "gpu")),
            p.column("gpu", "GPU", width=55),
            *p.MIG_COLUMNS,
            p.column("name", "Model"),
            p.column("Value #A", "Used", p.BYTES, width=85),
            p.column("Value #B", "Usable", p.BYTES, width=85),
            p.column("Value #C", "Sampled", p.RATIO, 120, p.FILL, gauge=True, decimals=1),
            p.column("Value #D", "Window peak", p.RATIO, 120, p.FILL, gauge=True, decimals=1),
            p.column("Value #E", "Peak in range", p.RATIO, 135, p.FILL, gauge=True, decimals=1),
            p.column("Value #F", "≥ 90 %", p.RATIO, 75, decimals=1),
            p.column("Value #G", "Busy", p.RATIO, 65, decimals=0),
        ],
        empty="No GPU reports its memory.",
        sort="Peak in range",
    ),
]

BY_NODE = "cluster, instance"
BY_OWNER = "cluster, instance, workload"
# A node's GPUs, whole: how it is cut up is no unevenness.
GPU_USED = f"gpu_memory_used_bytes{{{NODE}}} / {usable(NODE)}"
HELD = f"sum by ({BY_OWNER}, gpu) (gpu_workload_memory_used_bytes{{{NODE}}})"
DEVICE_COLUMNS = [
    p.column("instance", "Node", links=p.detail("gpu", "instance", "gpu")),
    p.column("gpu", "GPU", width=55),
    *p.MIG_COLUMNS,
]
WORKLOAD_COLUMNS = [
    p.column("workload", "Workload", links=p.detail("workloads", "instance", "workload")),
    p.column("instance", "Node"),
]
UNEVEN = [
    p.ranking(
        "Uneven nodes",
        "Fullest less emptiest GPU of the same node. A large spread means that jobs could be packed better, or that "
        "one job runs into the edge while its neighbours are empty.",
        f"topk($top, max by ({BY_NODE}) ({GPU_USED}) - min by ({BY_NODE}) ({GPU_USED})"
        f" and on ({BY_NODE}) count by ({BY_NODE}) (gpu_up{{{NODE}}}) > 1)",
        [p.column("instance", "Node", links=p.detail("gpu", "instance"))],
        unit=p.RATIO,
        max=1,
        decimals=1,
        thresholds=p.bad_from(0.5, "orange"),
        size=(12, 7),
        empty="No node with several GPUs.",
    ),
    p.ranking(
        "Uneven workloads",
        "Of a workload on several GPUs of a node: what its largest part holds more than its smallest.",
        f"topk($top, max by ({BY_OWNER}) ({HELD}) - min by ({BY_OWNER}) ({HELD})"
        f" and on ({BY_OWNER}) count by ({BY_OWNER}) ({HELD}) > 1)",
        WORKLOAD_COLUMNS,
        size=(12, 7),
        empty="No workload runs on several GPUs.",
    ),
]

WASTED = [
    p.series(
        "In use, peak and capacity",
        "Sums over all GPUs. The peaks of different GPUs need not have happened at the same time. What lies between "
        "the peaks and what is usable was never needed in that window.",
        [
            p.ranged(f"sum({usable(NODE)})", "usable"),
            p.ranged(f"sum({q.peak(NODE, q.STEP)})", "window peaks"),
            p.ranged(f"sum(gpu_memory_used_bytes{{{NODE}}})", "used"),
            p.ranged(f"sum({q.unattributed(NODE)})", "of that, no visible process"),
        ],
        empty="No GPU reports its memory.",
    ),
    p.ranking(
        "Never needed in the range",
        "Memory of each GPU, or MIG device where there are some, that even its highest peak in the range shown left free.",
        f"topk($top, {q.never_needed(NODE, '$__range')})",
        DEVICE_COLUMNS,
        size=(12, 9),
        empty="No GPU reports its memory.",
    ),
    p.ranking(
        "Held idle",
        "Workloads whose processes have not worked for as long as `Idle after` says, and what they hold.",
        f"topk($top, sum by ({BY_OWNER}) ({q.idle_holders(NODE)} {q.owner('workload', NODE)}))",
        WORKLOAD_COLUMNS,
        thresholds=p.bad_from(1 << 30, "orange"),
        empty="No process is known to have held memory idle for so long.",
    ),
    p.ranking(
        "Held by no visible process",
        "Used memory that no process explains: what a dead process left, other pid namespaces, or the driver's own.",
        f"topk($top, {q.unattributed(NODE)})",
        DEVICE_COLUMNS,
        thresholds=p.bad_from(1 << 30, "orange"),
        empty="Not known on any GPU.",
    ),
]

HEALTH = [
    p.table(
        "Troubles",
        "GPUs that do not answer, critical errors (Xid), uncorrected ECC errors, row remapping, thermal throttling, "
        "nodes without a driver, and nodes whose exporter is silent, in the range shown.",
        [f"sum by ({GPU_KEY}, trouble) ({TROUBLES})"],
        [
            p.column("instance", "Node", links=p.detail("gpu", "instance", "gpu"), width=220),
            p.column("gpu", "GPU", width=80),
            p.column("trouble", "Trouble"),
            p.column("Value #A", "Count or share", width=140, decimals=1),
        ],
        size=(24, 8),
        empty="No trouble: every GPU answers, and nothing was reported in this range.",
    ),
]

DASHBOARD = grid.dashboard(
    "fleet",
    "How full the GPUs are, which are near the limit, how uneven, what is wasted.",
    [grid.TOP, grid.IDLE],
    grid.alerts("Gpu.*", NODE, "critical", "warning"),
    [
        *OVERVIEW,
        grid.row("How full, and which GPUs are near the limit"),
        *FULL,
        grid.row("How uneven"),
        *UNEVEN,
        grid.row("What is wasted"),
        *WASTED,
        grid.row("What is out of order"),
        *HEALTH,
    ],
)
