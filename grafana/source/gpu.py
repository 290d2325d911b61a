"""GPU: one GPU, or the sum of several: its memory, owners, pressure, churn, MIG devices and health."""

from . import grid, panels as p, queries as q
from .gpu_health import HEALTH, NAME, each
from .queries import DEVICE, DEVICE_KEY, GPU, PART, WHOLE

MIG_NAME = NAME + " · {{profile}} #{{gpu_instance}}"


def each_part(expression):
    return f"max by ({DEVICE}) ({expression})"


def share(prefix, time=None):
    """The peak as a share of what can be allocated."""
    return f"{q.peak(GPU, time, prefix)} / {q.usable(GPU, time, prefix)}"


OVERVIEW = [
    p.stat(
        "Answers",
        "The worst of the GPUs chosen. At `no` a GPU is lost, stalled or not read lately, and has no other series.",
        f"min(gpu_up{{{GPU}}})",
        thresholds=p.good_from(1),
        empty="no GPU",
        mappings=p.values(_0=("no", "red"), _1=("yes", "green")),
    ),
    p.stat(
        "Used",
        "The fullest GPU chosen, or MIG device where there are some: used memory as a share of what can be allocated "
        "(total less reserved).",
        f"max({q.used_ratio(GPU)})",
        unit=p.RATIO,
        thresholds=p.FILL,
        empty="not reported",
        decimals=1,
    ),
    p.stat(
        "Window peak",
        "The fullest GPU chosen, or MIG device where there are some: highest use in the exporter's last peak window, as a "
        "share of what can be allocated.",
        f"max({q.peak_ratio(GPU)})",
        unit=p.RATIO,
        thresholds=p.FILL,
        empty="not reported",
        decimals=1,
    ),
    p.stat(
        "Peak in range",
        "The fullest GPU chosen, or MIG device where there are some: the highest use in the range shown, as a share of what "
        "could be allocated. Also of a GPU that is gone since.",
        f"max({q.peak_ratio(GPU, '$__range')})",
        unit=p.RATIO,
        thresholds=p.FILL,
        empty="not reported",
        decimals=1,
    ),
    p.stat(
        "Free",
        "Memory that can be allocated now.",
        f"sum(gpu_memory_free_bytes{{{GPU}}})",
        unit=p.BYTES,
        empty="not reported",
        decimals=1,
    ),
    p.stat(
        "No visible owner",
        "Used memory that no visible process holds. Absent while the memory of a process is not known.",
        f"sum({q.unattributed(GPU)})",
        unit=p.BYTES,
        thresholds=p.bad_from(1 << 30, "orange"),
        empty="not known",
        decimals=1,
    ),
    p.stat(
        "Busy",
        "Share of time in which a kernel ran, averaged over the selected GPUs. The driver does not report it under MIG.",
        f"avg(gpu_utilization_ratio{{{GPU}}})",
        unit=p.RATIO,
        empty="not reported",
        decimals=0,
    ),
    p.stat(
        "Xid errors in range",
        "Critical errors that the driver reported in the range shown, of any code.",
        f"sum(increase(gpu_xid_errors_total{{{GPU}}}[$__range]))",
        thresholds=p.bad_from(0.5),
        empty="not reported",
        decimals=0,
    ),
]

# Grey for unattributed memory.
REST = [
    p.by_name(name, color={"mode": "fixed", "fixedColor": color}, custom__fillOpacity=fill)
    for name, color, fill in (
        ("no visible process", "dark-red", 60),
        ("processes without a workload", "dark-orange", 50),
        ("free", "rgb(90, 95, 105)", 12),
        ("reserved", "rgb(60, 62, 68)", 60),
    )
]
PROCESS = f"{DEVICE_KEY}, pid, process"
PARTS = f"group by (cluster, instance, uuid, mig_uuid, gpu_instance, profile) (gpu_mig_memory_total_bytes{{{GPU}}})"
LARGEST = q.largest("gpu_workload_memory_used_bytes", GPU, "workload")
HELD = f"gpu_workload_memory_used_bytes{{{GPU}}}"
# From one reading, so that nothing of it is a change between two.
NO_WORKLOAD = f"sum(gpu_process_memory_used_bytes{{{GPU}}}) - (sum({HELD}) or vector(0)) > 1048576"
DASHED = p.by_query(
    "B",
    custom__fillOpacity=0,
    custom__lineWidth=2,
    custom__lineStyle={"fill": "dash", "dash": [6, 4]},
)
MEMORY = [
    p.series(
        "Peak against sampled value",
        "Used memory at each scrape, and the highest use that the exporter sampled since the point before (it reads 100 "
        "times a second unless configured). Where the lines part, a graph of sampled values hides the peak.",
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
        "As a share of what can be allocated",
        "Window peak over what can be allocated (total less reserved), of each GPU, or MIG device where there are some. "
        "Marked at 85 and 90 %.",
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
        "Who holds it",
        "Workloads, what no visible process holds, free and reserved memory, stacked to the total of the GPUs chosen. "
        "The largest workloads of the range are named, the others are one. In the middle of a sudden change the parts "
        "can be of two readings, milliseconds apart.",
        [
            p.ranged(f"sum by (workload) ({HELD}) and on (workload) {LARGEST}", "{{workload}}"),
            p.ranged(f"sum({HELD} unless on (workload) {LARGEST})", "other workloads"),
            p.ranged(NO_WORKLOAD, "processes without a workload"),
            p.ranged(f"sum(gpu_memory_unattributed_bytes{{{GPU}}})", "no visible process"),
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
        "Processes on the GPUs chosen, and whose they are. Highest: since the process was first seen. Idle: since it "
        "last worked on the GPU; absent where the driver does not report it, as under MIG.",
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
            p.column("pid", "Pid", width=80),
            p.column("process", "Process"),
            p.column("user", "User", width=90),
            p.column("workload", "Workload", links=p.detail("workloads", "instance", "workload")),
            p.column("Value #A", "Used", p.BYTES, width=85),
            p.column("Value #B", "Highest", p.BYTES, width=85),
            p.column("Value #C", "Idle", p.SECONDS, width=80, decimals=0),
            p.column("Value #D", "Busy", p.RATIO, width=60, decimals=0),
            p.column("Value #E", "Age", p.SECONDS, width=85, decimals=1),
        ],
        empty="No process holds memory here, or the families with a pid are switched off (--process.series=false).",
        sort="Used",
    ),
]

PRESSURE = [
    p.series(
        "Pressure",
        "Share of time in which the fullest GPU chosen had at least so much of its memory in use. It is weighted by "
        "real time in the exporter, so a peak between two scrapes counts.",
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
        "Churn",
        "Memory that was allocated and given back, for each second. Much of both at an even level is an allocator that "
        "does not keep its memory; more growth than shrinking is a leak or a start.",
        [
            p.ranged(f"sum(rate(gpu_memory_increase_bytes_total{{{GPU}}}[$__rate_interval]))", "allocated"),
            p.ranged(f"-sum(rate(gpu_memory_decrease_bytes_total{{{GPU}}}[$__rate_interval]))", "given back"),
        ],
        unit=p.RATE,
        min=None,
        empty="No selected GPU reports its memory.",
    ),
]

MIG = [
    p.ranking(
        "MIG devices: window peak",
        "Highest use of each MIG device in the last peak window, as a share of what can be allocated on it.",
        each_part(share(PART)),
        [p.column("instance", "Node"), p.column("gpu", "GPU", width=55), *p.MIG_COLUMNS],
        unit=p.RATIO,
        thresholds=p.FILL,
        max=1,
        decimals=1,
        size=(12, 7),
        empty="No MIG device: MIG is off, or the GPU does not answer.",
    ),
    p.series(
        "MIG devices: peak against sampled value",
        "Used memory of each MIG device at each scrape, and the highest use that the exporter sampled since the point "
        "before.",
        [
            p.ranged(each_part(f"gpu_mig_memory_used_bytes{{{GPU}}}"), f"{MIG_NAME} used"),
            p.ranged(each_part(q.peak(GPU, q.STEP, PART)), f"{MIG_NAME} peak"),
        ],
        overrides=[DASHED],
        calcs=p.LAST_AND_MAX,
        size=(12, 7),
        empty="No MIG device: MIG is off, or the GPU does not answer.",
    ),
]

DASHBOARD = grid.dashboard(
    "gpu",
    "One GPU, or the sum of several: its memory and true peaks, owners, pressure, churn and health.",
    [grid.GPU, grid.TOP],
    grid.alerts("Gpu.*", GPU, "critical", "warning", "info"),
    [
        *OVERVIEW,
        grid.row("Memory and its owners"),
        *MEMORY,
        grid.row("Pressure and churn"),
        *PRESSURE,
        grid.row("MIG devices"),
        *MIG,
        grid.row("State and health"),
        *HEALTH,
    ],
)
