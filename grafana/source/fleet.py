"""Fleet: what fires, which GPUs are near the limit, what is wasted, and where there is room."""

from . import activity, budgets, capacity, grid, imbalance, incidents, links, panels as p, queries as q, tables as t
from .imbalance import BY_NODE, BY_OWNER, WORKLOAD_COLUMNS
from .queries import DEVICE, DEVICE_KEY, GPU_KEY, NODE, usable

# The sampled value, and the highest window peak in a step of a graph and in the selected time range.
USED = q.used_ratio(NODE)
DRAWN = q.peak_ratio(NODE, q.STEP)
HIGHEST = q.peak_ratio(NODE, "$__range")
FULLEST_HEIGHT = 9
# The devices in the table of the fullest ones.
FULLEST = f"topk({t.rows(FULLEST_HEIGHT)}, {HIGHEST})"


def near_limit(expression):
    """`expression` for the devices with the highest peak in the selected time range."""
    return f"max by ({DEVICE}) ({expression}) and on ({DEVICE_KEY}) {FULLEST}"


def issue(expression, text):
    """Puts `text` into the `issue` label; $1 in the text stands for the Xid code."""
    return f'label_replace({expression}, "issue", "{text}", "xid", "(.*)")'


def counted(increase):
    """The increase of a counter, if there was any, as a whole number: increase() extrapolates to the ends of the range."""
    return f"clamp_min(round({increase} > 0), 1)"


KNOWN = f"group by (cluster, instance) (last_over_time(vram_exporter_build_info{{{NODE}}}[6h]))"
PRESENT = f"group by (cluster, instance) (vram_exporter_build_info{{{NODE}}})"
ISSUES = " or ".join(
    [
        issue(f"1 - gpu_up{{{NODE}}} > 0", "GPU down"),
        issue(counted(q.xids(NODE, "$__range")), "Xid $1"),
        issue(counted(f'increase(gpu_ecc_errors_total{{{NODE},type="uncorrected"}}[$__range])'), "uncorrected ECC errors"),
        issue(f"gpu_row_remap_pending{{{NODE}}} > 0", "row remapping waits for a reset"),
        issue(f"gpu_row_remap_failed{{{NODE}}} > 0", "row remapping failed"),
        f'label_replace(gpu_recovery_action{{{NODE},action!="none"}} > 0, "issue", "requires $1", "action", "(.*)")',
        issue(
            "max without (reason) (avg_over_time(gpu_throttle_active"
            f'{{{NODE},reason=~"hw_thermal_slowdown|sw_thermal_slowdown|hw_power_brake_slowdown"}}[$__range])) > 0',
            "throttled, share of readings",
        ),
        f'label_replace(1 - vram_exporter_nvml_up{{{NODE}}} > 0, "issue", "no driver: NVML is not open", "", "")',
        f'label_replace({KNOWN} unless {PRESENT}, "issue", "exporter silent", "", "")',
    ]
)
SHIPPED = "(Gpu|Allocator|VramExporter).*"
# 0 if the shipped rules are loaded: one of them records this series, of the nodes that are silent now too.
NOTHING_FIRES = f"0 * count(last_over_time(gpu:gpu_memory_allocatable_bytes:diff{{{q.of_rules(NODE)}}}[6h]))"
OVERVIEW = [
    p.counts(
        "Firing",
        "Alerts of the shipped rules that fire at the end of the selected time range, by severity. Other: warning and info.",
        {
            "critical": (f'{incidents.count(SHIPPED, NODE, "critical")} or {NOTHING_FIRES}', p.bad_from(1)),
            "other": (f'{incidents.count(SHIPPED, NODE, "warning|info")} or {NOTHING_FIRES}', p.bad_from(1, "orange")),
        },
    ),
    p.counts(
        "GPUs",
        "Up: GPUs that answer (gpu_up is 1). Down: GPUs that the driver lists, but that do not answer or whose last good "
        "reading is too old; the table Issues lists them.",
        {
            "up": (q.total(f"gpu_up{{{NODE}}}"), p.PLAIN),
            "down": (q.total(f"1 - gpu_up{{{NODE}}}"), p.bad_from(1)),
        },
    ),
    p.stat(
        "Silent nodes",
        "Nodes whose exporter was scraped within the last 6 hours, but is not scraped now. The Exporter dashboard, to which the "
        "number links, names them and says since when.",
        f"count({KNOWN}) - (count({PRESENT}) or vector(0))",
        thresholds=p.bad_from(1),
        size=(4, 3),
        decimals=0,
        empty="none",
        links=links.page("exporter"),
    ),
    p.stat(
        "Used",
        "Used memory of all GPUs as a share of allocatable memory (total minus reserved).",
        f"{q.total(f'gpu_memory_used_bytes{{{NODE}}}')} / {q.total(usable(NODE))}",
        unit=p.RATIO,
        thresholds=p.FILL,
        size=(3, 3),
        empty="unknown",
        decimals=0,
    ),
    p.stat(
        "Free",
        "Sum of the free memory of all GPUs. A job needs its memory on one GPU: the section Capacity shows where it fits.",
        q.total(q.free(NODE)),
        unit=p.BYTES,
        size=(3, 3),
        empty="unknown",
        decimals=1,
    ),
    p.stat(
        "Near limit",
        "GPUs, or their MIG devices if there are any, whose highest use in the selected time range is at or above 90 % of "
        "allocatable memory.",
        f"sum({q.once(HIGHEST)} >= bool {p.CRITICAL})",
        thresholds=p.bad_from(1, "orange"),
        size=(4, 3),
        decimals=0,
        empty="unknown",
    ),
]

FULL = [
    t.table(
        "Fullest devices",
        "GPUs, or their MIG devices if there are any, with the highest use in the selected time range. Allocatable: "
        "total minus reserved. Used: at the last scrape. Peak: the highest use that the exporter sampled in the range, between "
        "scrapes too. ≥ 90 %: share of time with at least 90 % in use; not reported for MIG devices. Busy: GPU "
        "utilization. SMs, Bandwidth: activity of the SMs and of the memory; – means that it is not measured on this GPU.",
        [
            near_limit(q.each_device(lambda prefix: f"{prefix}_used_bytes{{{NODE}}}", NODE)),
            near_limit(q.each_device(lambda prefix: usable(NODE, "$__range", prefix), NODE)),
            q.linked(FULLEST),
            near_limit(f'rate(gpu_memory_pressure_seconds_total{{{NODE},ratio="0.9"}}[$__range])'),
            near_limit(f"avg_over_time(gpu_utilization_ratio{{{NODE}}}[$__range])"),
            near_limit(activity.each_device(activity.SM, NODE, "$__range")),
            near_limit(activity.each_device(activity.BANDWIDTH, NODE, "$__range")),
            f"{FULLEST} * on (cluster, instance, uuid) group_left (name)"
            f" group by (cluster, instance, uuid, name) (last_over_time(gpu_info{{{NODE}}}[$__range]))",
        ],
        [
            *t.device_columns(),
            t.column("name", "Model", width=192),
            t.column("Value #A", "Used", p.BYTES, width=75, decimals=0),
            t.column("Value #B", "Allocatable", p.BYTES, width=95, decimals=0),
            t.column("Value #C", "Peak %", p.RATIO, 92, p.FILL, decimals=0),
            t.column("Value #D", "≥ 90 %", p.RATIO, width=70, decimals=0),
            t.column("Value #E", "Busy", p.RATIO, width=60, decimals=0),
            t.column("Value #F", "SMs", p.RATIO, width=60, decimals=0),
            t.column("Value #G", "Bandwidth", p.RATIO, width=95, decimals=0),
        ],
        size=(24, FULLEST_HEIGHT),
        empty="No GPU reports its memory.",
        sort="Peak %",
    ),
]
OVER_TIME = [
    p.series(
        "Memory use of the GPUs",
        "Used memory as a share of allocatable memory, over all GPUs, or their MIG devices if there are any. The "
        "peak is the highest use that the exporter sampled since the previous point, not the value at the "
        "scrape.",
        [
            p.ranged(f"max({DRAWN})", "highest peak"),
            p.ranged(f"max({USED})", "highest"),
            p.ranged(f"quantile(0.9, {q.once(USED)})", "90th percentile"),
            p.ranged(f"quantile(0.5, {q.once(USED)})", "median"),
            p.ranged(f"min({USED})", "lowest"),
        ],
        unit=p.RATIO,
        thresholds=p.FILL,
        max=1,
        size=(12, 8),
        fill=0,
        interval="90s",
        overrides=[
            p.colored(name, color, **more)
            for name, color, more in (
                ("highest peak", "blue", {"custom__lineStyle": p.DASHES}),
                ("highest", "blue", {}),
                ("90th percentile", "purple", {}),
                ("median", "#c0b283", {}),
                ("lowest", "rgb(150, 150, 150)", {}),
            )
        ],
        empty="No GPU reports its memory.",
    ),
    p.series(
        "Devices by peak use",
        "Number of GPUs, or of their MIG devices if there are any, whose peak since the previous point was at least this "
        "share of allocatable memory. Each area contains the ones below it.",
        [
            p.ranged(f"count({q.once(DRAWN)})", "all"),
            p.ranged(f"sum({q.once(DRAWN)} >= bool 0.5)", "50 % or more"),
            p.ranged(f"sum({q.once(DRAWN)} >= bool {p.HIGH})", "85 % or more"),
            p.ranged(f"sum({q.once(DRAWN)} >= bool {p.CRITICAL})", "90 % or more"),
        ],
        unit=p.COUNT,
        fill=80,
        decimals=0,
        size=(12, 8),
        interval="90s",
        overrides=[
            p.colored(name, color)
            for name, color in (
                ("all", "blue"),
                ("50 % or more", "green"),
                ("85 % or more", "orange"),
                ("90 % or more", "red"),
            )
        ],
        empty="No GPU reports its memory.",
    ),
]

# Of the GPUs on which at least one process reports about its allocators.
SLACK = f"(gpu_memory_used_bytes{{{NODE}}} - gpu_memory_needed_bytes{{{NODE}}})"
# Reads two series for each workload on a device; those of its processes can be many times as many.
IDLE = (
    f"max by ({q.HOLDER}) ({q.USED_BY}{{{NODE}}} and on ({DEVICE_KEY}, workload)"
    f" workload:gpu_process_idle_seconds:min{{{q.of_rules(NODE)}}} >= 3600)"
)
UNUSED = [
    p.series(
        "Used, peak and allocatable memory",
        "Sums over all GPUs. The peaks of different GPUs may have occurred at different times. The memory between the "
        "peaks and the allocatable memory was not used. Needed: used memory without what "
        "allocators reserved and do not use; the memory of processes that do not report counts as needed.",
        [
            p.ranged(q.total(usable(NODE)), "allocatable"),
            p.ranged(q.total(q.peak(NODE, q.STEP)), "peaks"),
            p.ranged(q.total(f"gpu_memory_used_bytes{{{NODE}}}"), "used"),
            p.ranged(q.total(f"gpu_memory_needed_bytes{{{NODE}}} or gpu_memory_used_bytes{{{NODE}}}"), "needed"),
            p.ranged(q.total(q.unattributed(NODE)), "unattributed"),
        ],
        size=(12, 8),
        interval="90s",
        overrides=p.MEMORY_COLORS,
        empty="No GPU reports its memory.",
    ),
    t.ranking(
        "Memory never used in range",
        "Memory of each GPU, or of its MIG devices if there are any, that remained free even at the highest peak in "
        "the selected time range.",
        q.linked(f"topk({t.rows(8)}, {q.never_needed(NODE, '$__range')})"),
        t.device_columns(),
        size=(12, 8),
        empty="No GPU reports its memory.",
    ),
    t.ranking(
        "Slack by GPU",
        "Memory of each GPU that allocators reserved and do not use, of the processes that report it. A job that does not "
        "fit may fit if these processes start with a lower limit (docs/allocators.md).",
        q.linked(f"topk({t.rows(7)}, max by ({GPU_KEY}) ({SLACK}))"),
        t.device_columns(),
        size=(8, 7),
        empty="No process reports about its allocator.",
    ),
    t.ranking(
        "Idle memory by workload",
        "Memory of the workloads of which no process has worked on the GPU for an hour, from the recording rules. Under MIG "
        "the driver does not report when a process last worked.",
        f"topk({t.rows(7)}, sum by ({BY_OWNER}) ({IDLE}))",
        WORKLOAD_COLUMNS,
        size=(8, 7),
        empty="No workload is known to have held idle memory for this long.",
    ),
    t.ranking(
        "Unattributed memory",
        "Used memory that no visible process holds: memory that a dead process left behind, memory of processes in "
        "other pid namespaces, or memory of the driver itself.",
        q.linked(f"topk({t.rows(7)}, {q.unattributed(NODE)})"),
        t.device_columns(),
        thresholds=p.bad_from(1 << 30, "orange"),
        size=(8, 7),
        empty="Not known for any GPU.",
    ),
]

HEALTH = [
    t.table(
        "Issues",
        "Issues in the selected time range: GPUs that do not answer, critical errors (Xid), uncorrected ECC errors, "
        "row remapping, recovery actions that the driver requires, throttling by heat or power brake, nodes without a "
        "driver, and nodes whose exporter is not scraped.",
        [q.linked(f"max by ({GPU_KEY}, issue) ({ISSUES})")],
        [
            t.column("issue", "Issue"),
            t.column("instance", "Node", links=links.detail("exporter", "instance"), width=100),
            t.column("gpu", "GPU", width=50, links=links.detail("gpu", "instance", gpu="uuid", mig="mig")),
            t.column("Value #A", "Count or share", p.COUNT, width=120),
            t.hidden("uuid"),
            t.hidden("mig"),
        ],
        size=(12, 8),
        empty="No issue: every GPU answers, and no error of the hardware or the driver was reported in the selected time range.",
    ),
    t.table(
        "Inventory",
        "The GPUs of each node by model, and the driver of the node.",
        [
            f"count by ({BY_NODE}, name) (group by ({GPU_KEY}, name) (gpu_info{{{NODE}}}))",
            f"count by ({BY_NODE}, name) (group by ({GPU_KEY}, name) (gpu_info{{{NODE},mig_mode=\"enabled\"}}))",
            f"group by ({BY_NODE}, name, driver_version) (group by ({BY_NODE}, name) (gpu_info{{{NODE}}})"
            f" * on ({BY_NODE}) group_left (driver_version) group by ({BY_NODE}, driver_version) (nvidia_driver_info{{{NODE}}}))",
        ],
        [
            t.column("instance", "Node", width=100, links=links.detail("gpu", "instance")),
            t.column("name", "Model"),
            t.column("Value #A", "GPUs", p.COUNT, width=55, decimals=0),
            t.column("Value #B", "with MIG", p.COUNT, width=75, decimals=0),
            t.column("driver_version", "Driver", width=90),
        ],
        size=(12, 8),
        empty="No GPU is visible.",
    ),
]

DASHBOARD = grid.dashboard(
    "fleet",
    "All GPUs: what fires, which GPUs are near the limit, where there is room, what is wasted, and what is faulty.",
    [grid.SIZE],
    grid.alerts("(Gpu|Allocator).*", NODE, "critical", "warning"),
    [
        *OVERVIEW,
        incidents.firing(SHIPPED, NODE, (24, 9)),
        *FULL,
        grid.row("Over time"),
        *OVER_TIME,
        grid.row("Capacity"),
        *capacity.PANELS,
        *budgets.ON_FLEET,
        grid.row("Waste"),
        *UNUSED,
        grid.row("Issues and inventory"),
        *HEALTH,
        grid.row("Imbalance"),
        *imbalance.ON_FLEET,
    ],
)
