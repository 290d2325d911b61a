"""GPU: one GPU, or the sum of several: memory, owners, activity, pressure, churn, MIG devices and health."""

from . import activity, budgets, grid, panels as p, queries as q
from .activity import MIG_NAME
from .gpu_health import HEALTH, NAME, each
from .queries import DEVICE, DEVICE_KEY, GPU, PART, WHOLE


def each_part(expression):
    return f"max by ({DEVICE}) ({expression})"


def share(prefix, time=None):
    """The peak as a share of allocatable memory."""
    return f"{q.peak(GPU, time, prefix)} / {q.usable(GPU, time, prefix)}"


OVERVIEW = [
    p.stat(
        "GPU up",
        "`no` if at least one selected GPU is lost, stalled or was not read recently. Such a GPU has no other series.",
        f"min(gpu_up{{{GPU}}})",
        thresholds=p.good_from(1),
        empty="no GPU",
        mappings=p.values(_0=("no", "red"), _1=("yes", "green")),
    ),
    p.stat(
        "Used",
        "Highest use of the selected GPUs, or of their MIG devices if there are any: used memory as a share of "
        "allocatable memory (total minus reserved).",
        f"max({q.used_ratio(GPU)})",
        unit=p.RATIO,
        thresholds=p.FILL,
        empty="not reported",
        decimals=1,
    ),
    p.stat(
        "Window peak",
        "Highest use of the selected GPUs, or of their MIG devices if there are any, in the exporter's last peak "
        "window, as a share of allocatable memory.",
        f"max({q.peak_ratio(GPU)})",
        unit=p.RATIO,
        thresholds=p.FILL,
        empty="not reported",
        decimals=1,
    ),
    p.stat(
        "Peak in range",
        "Highest use of the selected GPUs, or of their MIG devices if there are any, in the selected time range, as a "
        "share of allocatable memory. Includes GPUs that are no longer reported.",
        f"max({q.peak_ratio(GPU, '$__range')})",
        unit=p.RATIO,
        thresholds=p.FILL,
        empty="not reported",
        decimals=1,
    ),
    p.stat(
        "Free memory",
        "Memory that can be allocated now, summed over the selected GPUs.",
        f"sum(gpu_memory_free_bytes{{{GPU}}})",
        unit=p.BYTES,
        empty="not reported",
        decimals=1,
    ),
    p.stat(
        "Unattributed memory",
        "Used memory that no visible process holds. Absent while the memory of a process is unknown.",
        f"sum({q.unattributed(GPU)})",
        unit=p.BYTES,
        thresholds=p.bad_from(1 << 30, "orange"),
        empty="unknown",
        decimals=1,
    ),
    p.stat(
        "GPU utilization",
        "Share of time in which a kernel ran, averaged over the selected GPUs. The driver does not report it under "
        "MIG.",
        f"avg(gpu_utilization_ratio{{{GPU}}})",
        unit=p.RATIO,
        empty="not reported",
        decimals=0,
    ),
    p.stat(
        "Xid errors in range",
        "Critical errors of any code that the driver reported in the selected time range.",
        f"sum(increase(gpu_xid_errors_total{{{GPU}}}[$__range]))",
        thresholds=p.bad_from(0.5),
        empty="not reported",
        decimals=0,
    ),
]

# Fixed colours for the parts that belong to no workload.
REST = [
    p.by_name(name, color={"mode": "fixed", "fixedColor": color}, custom__fillOpacity=fill)
    for name, color, fill in (
        ("unattributed", "dark-red", 60),
        ("processes without a workload", "dark-orange", 50),
        ("free", "rgb(90, 95, 105)", 12),
        ("reserved", "rgb(60, 62, 68)", 60),
    )
]
PROCESS = f"{DEVICE_KEY}, pid, process"
PARTS = f"group by (cluster, instance, uuid, mig_uuid, gpu_instance, profile) (gpu_mig_memory_total_bytes{{{GPU}}})"
LARGEST = q.largest("gpu_workload_memory_used_bytes", GPU, "workload")
HELD = f"gpu_workload_memory_used_bytes{{{GPU}}}"
# Both sums come from the same reading, so changes between readings do not affect the difference.
NO_WORKLOAD = f"sum(gpu_process_memory_used_bytes{{{GPU}}}) - (sum({HELD}) or vector(0)) > 1048576"
DASHED = p.by_query(
    "B",
    custom__fillOpacity=0,
    custom__lineWidth=2,
    custom__lineStyle={"fill": "dash", "dash": [6, 4]},
)
MEMORY = [
    p.series(
        "Sampled and peak use",
        "Used memory at each scrape, and the highest use that the exporter sampled since the previous point (by "
        "default it reads 100 times per second). Where the lines differ, a graph of sampled values hides the peak.",
        [
            p.ranged(each(f"gpu_memory_used_bytes{{{GPU}}}"), f"{NAME} used"),
            p.ranged(each(q.peak(GPU, q.STEP)), f"{NAME} peak"),
        ],
        overrides=[DASHED],
        size=(12, 10),
        calcs=p.LAST_AND_MAX,
        empty="No selected GPU reports its memory.",
    ),
    p.series(
        "Peak as a share of allocatable memory",
        "Window peak of each GPU, or of its MIG devices if there are any, divided by allocatable memory (total minus "
        "reserved). Dashed lines mark 85 and 90 %.",
        [
            p.ranged(each(q.whole(share(WHOLE, q.STEP), GPU)), NAME),
            p.ranged(each_part(share(PART, q.STEP)), MIG_NAME),
        ],
        unit=p.RATIO,
        thresholds=p.FILL,
        max=1,
        size=(12, 10),
        calcs=p.LAST_AND_MAX,
        empty="No selected GPU reports its memory.",
    ),
    p.series(
        "Memory by workload",
        "Memory of the workloads, unattributed memory (held by no visible process), free and reserved memory, stacked "
        "to the total memory of the selected GPUs. The largest workloads of the time range have a line each; the "
        "line `other workloads` is the sum of the rest. During a sudden change the parts may come from two readings, "
        "taken a few milliseconds apart.",
        [
            p.ranged(f"sum by (workload) ({HELD}) and on (workload) {LARGEST}", "{{workload}}"),
            p.ranged(f"sum({HELD} unless on (workload) {LARGEST})", "other workloads"),
            p.ranged(NO_WORKLOAD, "processes without a workload"),
            p.ranged(f"sum(gpu_memory_unattributed_bytes{{{GPU}}})", "unattributed"),
            p.ranged(f"sum(gpu_memory_free_bytes{{{GPU}}})", "free"),
            p.ranged(f"sum(gpu_memory_reserved_bytes{{{GPU}}})", "reserved"),
        ],
        stack=True,
        size=(24, 11),
        legend="right",
        overrides=REST,
        calcs=p.LAST_AND_MAX,
        empty="No selected GPU reports its memory.",
    ),
    p.table(
        "Processes",
        "Processes on the selected GPUs, with user and workload. Highest: peak since the exporter first saw the "
        "process. Idle: time since the process last worked on the GPU; absent if the driver does not report it, for "
        "example under MIG.",
        [
            f"max by ({PROCESS}) (gpu_process_memory_used_bytes{{{GPU}}})",
            f"max by ({PROCESS}) (gpu_process_memory_peak_bytes{{{GPU}}} and gpu_process_memory_used_bytes{{{GPU}}})",
            f"max by ({PROCESS}) (gpu_process_idle_seconds{{{GPU}}})",
            f"max by ({PROCESS}) (gpu_process_sm_utilization_ratio{{{GPU}}})",
            f"time() - max by ({PROCESS}) (gpu_process_start_time_seconds{{{GPU}}})",
            f"max by ({PROCESS}, user, workload)"
            f" (gpu_process_memory_used_bytes{{{GPU}}} {q.owner('user, workload', GPU)})",
            f"max by ({PROCESS}, gpu_instance, profile) (gpu_process_memory_used_bytes{{{GPU}}}"
            f" * on (cluster, instance, uuid, mig_uuid) group_left (gpu_instance, profile) {PARTS})",
        ],
        [
            p.column("instance", "Node"),
            p.column("gpu", "GPU", width=55),
            *p.MIG_COLUMNS,
            p.column("pid", "PID", width=80),
            p.column("process", "Process"),
            p.column("user", "User", width=90),
            p.column("workload", "Workload", links=p.detail("workloads", "instance", "workload")),
            p.column("Value #A", "Used", p.BYTES, width=85),
            p.column("Value #B", "Highest", p.BYTES, width=85),
            p.column("Value #C", "Idle", p.SECONDS, width=80, decimals=0),
            p.column("Value #D", "Busy", p.RATIO, width=60, decimals=0),
            p.column("Value #E", "Age", p.SECONDS, width=85, decimals=1),
        ],
        empty="No process holds memory, or the series with a PID are disabled (--process.series=false).",
        sort="Used",
    ),
]

SLACK = " - ".join(f"gpu_process_allocator_{kind}_bytes{{{GPU}}}" for kind in ("reserved", "allocated"))
ALLOCATORS = [
    p.series(
        "Used and needed",
        "Needed: used memory without what allocators reserved and do not use. Reserved and allocated: the sums over the "
        "processes that report about their allocators (docs/needed.md). Without such a process there is only used memory.",
        [
            p.ranged(f"sum(gpu_memory_used_bytes{{{GPU}}})", "used"),
            p.ranged(f"sum(gpu_memory_needed_bytes{{{GPU}}})", "needed"),
            p.ranged(f"sum(gpu_process_allocator_reserved_bytes{{{GPU}}})", "reserved by allocators"),
            p.ranged(f"sum(gpu_process_allocator_allocated_bytes{{{GPU}}})", "allocated"),
        ],
        calcs=p.LAST_AND_MAX,
        empty="No selected GPU reports its memory.",
    ),
    p.series(
        "Slack by process",
        "Memory that an allocator reserved and does not use, of the processes that report it.",
        [p.ranged(f"topk($top, sum by ({PROCESS}, framework) ({SLACK}))", f"{NAME} · {{{{process}}}} {{{{pid}}}} {{{{framework}}}}")],
        calcs=p.LAST_AND_MAX,
        empty="No process reports about its allocator.",
    ),
]

INCIDENT = "cluster, instance, gpu, uuid, kind"
INCIDENTS = [
    p.table(
        "Incidents",
        "Moments of which the exporter keeps a copy: the number since the exporter started, and the last one. The "
        "details (which processes held the memory, which grew, which ended) are on the exporter's own page and in its "
        "API under /api/v1/incidents.",
        [
            f"max by ({INCIDENT}) (gpu_memory_incidents_total{{{GPU}}})",
            f"1000 * max by ({INCIDENT}) (gpu_memory_last_incident_timestamp_seconds{{{GPU}}})",
        ],
        [
            p.column("instance", "Node"),
            p.column("gpu", "GPU", width=55),
            p.column("kind", "Kind"),
            p.column("Value #A", "Incidents", p.COUNT, width=100, decimals=0),
            p.column("Value #B", "Last", p.TIME, width=200),
        ],
        size=(24, 6),
        empty="No incident since the exporter started, or its recorder is switched off.",
        sort="Last",
    ),
]

PRESSURE = [
    p.series(
        "Memory pressure",
        "Share of time in which memory use was at or above each ratio, on the selected GPU where it is highest. The "
        "exporter measures the time, so a peak between two scrapes counts.",
        [
            p.ranged(
                f"max by (ratio) (rate(gpu_memory_pressure_seconds_total{{{GPU}}}[$__rate_interval]))",
                "at or above {{ratio}}",
            )
        ],
        unit=p.RATIO,
        max=1,
        empty="No selected GPU reports its memory.",
    ),
    p.series(
        "Allocation churn",
        "Memory that was allocated and freed per second. High values of both at constant use indicate an allocator "
        "that does not cache memory. More allocated than freed memory indicates a leak or the start of a job.",
        [
            p.ranged(f"sum(rate(gpu_memory_increase_bytes_total{{{GPU}}}[$__rate_interval]))", "allocated"),
            p.ranged(f"-sum(rate(gpu_memory_decrease_bytes_total{{{GPU}}}[$__rate_interval]))", "freed"),
        ],
        unit=p.RATE,
        min=None,
        empty="No selected GPU reports its memory.",
    ),
]

MIG = [
    p.ranking(
        "MIG devices: window peak",
        "Highest use of each MIG device in the last peak window, as a share of its allocatable memory.",
        each_part(share(PART)),
        [p.column("instance", "Node"), p.column("gpu", "GPU", width=55), *p.MIG_COLUMNS],
        unit=p.RATIO,
        thresholds=p.FILL,
        max=1,
        decimals=1,
        size=(12, 7),
        empty="No MIG device: MIG is disabled, or the GPU does not answer.",
    ),
    p.series(
        "MIG devices: sampled and peak use",
        "Used memory of each MIG device at each scrape, and the highest use that the exporter sampled since the "
        "previous point.",
        [
            p.ranged(each_part(f"gpu_mig_memory_used_bytes{{{GPU}}}"), f"{MIG_NAME} used"),
            p.ranged(each_part(q.peak(GPU, q.STEP, PART)), f"{MIG_NAME} peak"),
        ],
        overrides=[DASHED],
        calcs=p.LAST_AND_MAX,
        size=(12, 7),
        empty="No MIG device: MIG is disabled, or the GPU does not answer.",
    ),
]

DASHBOARD = grid.dashboard(
    "gpu",
    "One GPU, or the sum of several: memory and true peaks, owners, activity, pressure, churn and health.",
    [grid.GPU, grid.TOP],
    grid.alerts("(Gpu|Allocator).*", GPU, "critical", "warning", "info"),
    [
        *OVERVIEW,
        grid.row("Memory and owners"),
        *MEMORY,
        *budgets.ON_GPU,
        *INCIDENTS,
        grid.row("What the allocators need"),
        *ALLOCATORS,
        grid.row(activity.TITLE),
        *activity.ON_GPU,
        grid.row("Memory pressure and allocation churn"),
        *PRESSURE,
        grid.row("MIG devices"),
        *MIG,
        grid.row("State and health"),
        *HEALTH,
    ],
)
