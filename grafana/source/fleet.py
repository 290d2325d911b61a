"""Fleet: memory use, GPUs near the limit, imbalance, unused memory, and problems."""

from . import activity, grid, panels as p, queries as q
from .queries import DEVICE, DEVICE_KEY, GPU_KEY, NODE, usable

# The sampled value, the window peak, and the highest window peak in a step of a graph and in the selected time range.
USED = q.used_ratio(NODE)
PEAK = q.peak_ratio(NODE)
DRAWN = q.peak_ratio(NODE, q.STEP)
HIGHEST = q.peak_ratio(NODE, "$__range")


def near_limit(expression):
    """`expression` for the $top devices with the highest peak in the selected time range."""
    return f"max by ({DEVICE}) ({expression}) and on ({DEVICE_KEY}) topk($top, {HIGHEST})"


def band(low, high):
    upper = f" * ({DRAWN} < bool {high})" if high else ""
    return f"sum(({DRAWN} >= bool {low}){upper})"


def problem(expression, text):
    """Puts `text` into the `trouble` label; $1 in the text stands for the Xid code."""
    return f'label_replace({expression}, "trouble", "{text}", "xid", "(.*)")'


KNOWN = f"group by (cluster, instance) (last_over_time(vram_exporter_build_info{{{NODE}}}[6h]))"
PRESENT = f"group by (cluster, instance) (vram_exporter_build_info{{{NODE}}})"
PROBLEMS = " or ".join(
    [
        problem(f"1 - gpu_up{{{NODE}}} > 0", "does not answer"),
        problem(f"increase(gpu_xid_errors_total{{{NODE}}}[$__range]) > 0", "Xid $1"),
        problem(f'increase(gpu_ecc_errors_total{{{NODE},type="uncorrected"}}[$__range]) > 0', "uncorrected ECC errors"),
        problem(f"gpu_row_remap_pending{{{NODE}}} > 0", "row remapping waits for a reset"),
        problem(f"gpu_row_remap_failed{{{NODE}}} > 0", "row remapping failed"),
        f'label_replace(gpu_recovery_action{{{NODE},action!="none"}} > 0, "trouble", "requires $1", "action", "(.*)")',
        problem(
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
        "GPUs up",
        "GPUs that answer (gpu_up is 1). The table Problems lists those that do not.",
        f"sum(gpu_up{{{NODE}}})",
        empty="no GPU seen",
    ),
    p.stat(
        "GPUs lost",
        "GPUs that the driver lists, but that do not answer or whose last good reading is too old.",
        f"count(gpu_up{{{NODE}}}) - sum(gpu_up{{{NODE}}})",
        thresholds=p.bad_from(1),
        empty="no GPU seen",
    ),
    p.stat(
        "Nodes not scraped",
        "Nodes whose exporter was scraped within the last 6 hours, but is not scraped now. The table Problems lists "
        "them.",
        f"count({KNOWN}) - (count({PRESENT}) or vector(0))",
        thresholds=p.bad_from(1),
        empty="no exporter seen",
    ),
    p.stat(
        "Memory in use",
        "Used memory of all GPUs as a share of allocatable memory (total minus reserved).",
        f"sum(gpu_memory_used_bytes{{{NODE}}}) / sum({usable(NODE)})",
        unit=p.RATIO,
        thresholds=p.FILL,
        empty="not reported",
        decimals=1,
    ),
    p.stat(
        "Memory free",
        "Sum of the free memory of all GPUs. A job needs its memory on one GPU: see the table Highest memory use.",
        f"sum(gpu_memory_free_bytes{{{NODE}}})",
        unit=p.BYTES,
        empty="not reported",
        decimals=1,
    ),
    p.stat(
        "GPUs near the limit",
        "GPUs, or their MIG devices if there are any, whose window peak is at or above 90 % of allocatable memory.",
        f"sum({PEAK} >= bool {p.CRITICAL})",
        thresholds=p.bad_from(1, "orange"),
        empty="not reported",
    ),
    p.stat(
        "Idle memory",
        "Memory of processes that have not worked on the GPU for at least the time in `Idle after`.",
        f"sum(gpu_process_memory_used_bytes{{{NODE}}} * (gpu_process_idle_seconds{{{NODE}}} >= bool $idle))",
        unit=p.BYTES,
        thresholds=p.bad_from(1, "orange"),
        empty="none known",
        decimals=1,
    ),
    p.stat(
        "Allocated but unused",
        "GPUs, MIG devices and shares that the kubelet allocated to containers without a process on any GPU. "
        "Known only if the exporter uses both the kubelet and the API server.",
        q.count_unused(NODE),
        thresholds=p.bad_from(1, "orange"),
        empty="unknown",
    ),
]

FULL = [
    p.series(
        "Memory use of the GPUs",
        "Used memory as a share of allocatable memory, over all GPUs, or their MIG devices if there are any. The "
        "window peak is the highest use that the exporter sampled since the previous point, not the value at the "
        "scrape.",
        [
            p.ranged(f"max({DRAWN})", "highest, window peak"),
            p.ranged(f"max({USED})", "highest"),
            p.ranged(f"quantile(0.9, {USED})", "90th percentile"),
            p.ranged(f"quantile(0.5, {USED})", "median"),
            p.ranged(f"min({USED})", "lowest"),
        ],
        unit=p.RATIO,
        thresholds=p.FILL,
        max=1,
        empty="No GPU reports its memory.",
    ),
    p.series(
        "GPUs by memory use",
        "Number of GPUs, or of their MIG devices if there are any, by the highest window peak as a share of "
        "allocatable memory.",
        [
            p.ranged(band(0, 0.5), "below 50 %"),
            p.ranged(band(0.5, p.HIGH), "50 to 85 %"),
            p.ranged(band(p.HIGH, p.CRITICAL), "85 to 90 %"),
            p.ranged(band(p.CRITICAL, None), "90 % or more"),
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
                ("90 % or more", "red"),
            )
        ],
        empty="No GPU reports its memory.",
    ),
    p.table(
        "Highest memory use",
        "GPUs, or their MIG devices if there are any, with the highest use in the selected time range. Usable: "
        "allocatable memory. Sampled: value at the last scrape. Peaks: highest value that the exporter sampled "
        "between scrapes. A device that is no longer reported has only the values of the time range. ≥ 90 %: share of "
        "time with at least 90 % in use; not reported for MIG devices. Busy: GPU utilization. SMs, "
        "Bandwidth: activity of the SMs and of the memory; – means that it is not measured on this GPU.",
        [
            near_limit(q.each_device(lambda prefix: f"{prefix}_used_bytes{{{NODE}}}", NODE)),
            near_limit(q.each_device(lambda prefix: usable(NODE, "$__range", prefix), NODE)),
            near_limit(USED),
            near_limit(PEAK),
            f"topk($top, {HIGHEST})",
            near_limit(f'rate(gpu_memory_pressure_seconds_total{{{NODE},ratio="0.9"}}[$__range])'),
            near_limit(f"avg_over_time(gpu_utilization_ratio{{{NODE}}}[$__range])"),
            near_limit(activity.each_device(activity.SM, NODE, "$__range")),
            near_limit(activity.each_device(activity.BANDWIDTH, NODE, "$__range")),
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
            p.column("Value #H", "SMs", p.RATIO, 65, decimals=0),
            p.column("Value #I", "Bandwidth", p.RATIO, 95, decimals=0),
        ],
        empty="No GPU reports its memory.",
        sort="Peak in range",
    ),
]

BY_NODE = "cluster, instance"
BY_OWNER = "cluster, instance, workload"
# Whole GPUs only: MIG devices of different sizes are not an imbalance.
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
IMBALANCE = [
    p.ranking(
        "Imbalance within nodes",
        "Difference between the highest and the lowest memory use of the GPUs of a node. A large difference means "
        "that jobs could be packed better, or that one job reaches the limit while other GPUs of the node are empty.",
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
        "Imbalance within workloads",
        "For each workload on several GPUs of a node: difference between its memory on the GPU where it holds the "
        "most and on the GPU where it holds the least.",
        f"topk($top, max by ({BY_OWNER}) ({HELD}) - min by ({BY_OWNER}) ({HELD})"
        f" and on ({BY_OWNER}) count by ({BY_OWNER}) ({HELD}) > 1)",
        WORKLOAD_COLUMNS,
        size=(12, 7),
        empty="No workload runs on several GPUs.",
    ),
]

# Of the GPUs on which at least one process reports about its allocators.
REPORTED = f"(gpu_memory_used_bytes{{{NODE}}} and gpu_memory_needed_bytes{{{NODE}}})"
SLACK = f"(gpu_memory_used_bytes{{{NODE}}} - gpu_memory_needed_bytes{{{NODE}}})"
NODE_SLACK = f"topk($top, sum by ({BY_NODE}) ({SLACK}))"


def most_slack(expression):
    """`expression` for the $top nodes with the most slack."""
    return f"{expression} and on ({BY_NODE}) {NODE_SLACK}"


UNUSED = [
    p.series(
        "Used, peak and allocatable memory",
        "Sums over all GPUs. The peaks of different GPUs may have occurred at different times. The memory between the "
        "window peaks and the allocatable memory was not used within the peak window. Needed: used memory without what "
        "allocators reserved and do not use; the memory of processes that do not report counts as needed.",
        [
            p.ranged(f"sum({usable(NODE)})", "allocatable"),
            p.ranged(f"sum({q.peak(NODE, q.STEP)})", "window peaks"),
            p.ranged(f"sum(gpu_memory_used_bytes{{{NODE}}})", "used"),
            p.ranged(f"sum(gpu_memory_needed_bytes{{{NODE}}} or gpu_memory_used_bytes{{{NODE}}})", "needed"),
            p.ranged(f"sum({q.unattributed(NODE)})", "used, unattributed"),
        ],
        empty="No GPU reports its memory.",
    ),
    p.ranking(
        "Memory never used in range",
        "Memory of each GPU, or of its MIG devices if there are any, that remained free even at the highest peak in "
        "the selected time range.",
        f"topk($top, {q.never_needed(NODE, '$__range')})",
        DEVICE_COLUMNS,
        size=(12, 9),
        empty="No GPU reports its memory.",
    ),
    p.table(
        "Used and needed memory by node",
        "GPUs on which a process reports about its allocators (docs/needed.md). Slack: memory that allocators reserved "
        "and do not use. Needed: used memory without the slack; the memory of processes that do not report counts as "
        "needed. GPUs: how many GPUs of the node these are.",
        [
            most_slack(f"sum by ({BY_NODE}) ({REPORTED})"),
            most_slack(f"sum by ({BY_NODE}) (gpu_memory_needed_bytes{{{NODE}}})"),
            NODE_SLACK,
            most_slack(f"count by ({BY_NODE}) ({REPORTED})"),
        ],
        [
            p.column("instance", "Node", links=p.detail("gpu", "instance")),
            p.column("Value #A", "Used", p.BYTES, width=95),
            p.column("Value #B", "Needed", p.BYTES, width=95),
            p.column("Value #C", "Slack", p.BYTES, width=95),
            p.column("Value #D", "GPUs", p.COUNT, width=70, decimals=0),
        ],
        size=(12, 8),
        empty="No process reports about its allocator.",
        sort="Slack",
    ),
    p.ranking(
        "Slack by GPU",
        "Memory of each GPU that allocators reserved and do not use, of the processes that report it. A job that does not "
        "fit may fit if these processes start with a lower limit (docs/needed.md).",
        f"topk($top, max by ({GPU_KEY}) ({SLACK}))",
        [
            p.column("instance", "Node", links=p.detail("gpu", "instance", "gpu")),
            p.column("gpu", "GPU", width=55),
        ],
        empty="No process reports about its allocator.",
    ),
    p.ranking(
        "Idle memory by workload",
        "Memory of the workloads whose processes have not worked on the GPU for at least the time in `Idle after`.",
        f"topk($top, sum by ({BY_OWNER}) ({q.idle_holders(NODE)} {q.owner('workload', NODE)}))",
        WORKLOAD_COLUMNS,
        thresholds=p.bad_from(1 << 30, "orange"),
        empty="No process is known to have held idle memory for this long.",
    ),
    p.ranking(
        "Unattributed memory",
        "Used memory that no visible process holds: memory that a dead process left behind, memory of processes in "
        "other pid namespaces, or memory of the driver itself.",
        f"topk($top, {q.unattributed(NODE)})",
        DEVICE_COLUMNS,
        thresholds=p.bad_from(1 << 30, "orange"),
        empty="Not known for any GPU.",
    ),
]

HEALTH = [
    p.table(
        "Problems",
        "Problems in the selected time range: GPUs that do not answer, critical errors (Xid), uncorrected ECC errors, "
        "row remapping, recovery actions that the driver requires, throttling by heat or power brake, nodes without a "
        "driver, and nodes whose exporter is not scraped.",
        [f"sum by ({GPU_KEY}, trouble) ({PROBLEMS})"],
        [
            p.column("instance", "Node", links=p.detail("gpu", "instance", "gpu"), width=220),
            p.column("gpu", "GPU", width=80),
            p.column("trouble", "Problem"),
            p.column("Value #A", "Count or share", width=140, decimals=1),
        ],
        size=(24, 8),
        empty="No problem: every GPU answers, and nothing was reported in the selected time range.",
    ),
]

DASHBOARD = grid.dashboard(
    "fleet",
    "Memory use of all GPUs, GPUs near the limit, imbalance, unused memory, and problems.",
    [grid.TOP, grid.IDLE],
    grid.alerts("(Gpu|Allocator).*", NODE, "critical", "warning"),
    [
        *OVERVIEW,
        grid.row("Memory use"),
        *FULL,
        grid.row("Imbalance"),
        *IMBALANCE,
        grid.row("Unused memory"),
        *UNUSED,
        grid.row("Health"),
        *HEALTH,
    ],
)
