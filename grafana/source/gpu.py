"""GPU: one GPU, a MIG device, or the GPUs of a node: what fires, memory and true peaks, owners, activity, churn and health."""

from . import activity, budgets, energy, grid, incidents, links, needed, panels as p, queries as q, tables as t
from .activity import MIG_NAME
from .gpu_health import HEALTH, each
from .needed import PROCESS
from .queries import BOARD, DEVICE, GPU, HOLDER, PART, USED_BY, WHOLE


def each_part(expression):
    return f"max by ({DEVICE}) ({expression})"


def share(prefix, time=None):
    """The peak as a share of allocatable memory."""
    return f"{q.peak(GPU, time, prefix)} / {q.usable(GPU, time, prefix)}"


SMALL = (4, 3)
SHIPPED = "(Gpu|Allocator).*"
OVERVIEW = [
    p.stat(
        "State",
        "Down if at least one selected GPU is lost, stalled or was not read recently. Such a GPU has no other series. Unknown: "
        "there is no such GPU, or its exporter is not scraped; the Exporter dashboard, to which the state links, says since when.",
        f"min(gpu_up{{{BOARD}}})",
        thresholds=p.good_from(1),
        size=SMALL,
        empty="unknown",
        links=links.page("exporter"),
        mappings=p.values(_0=("Down", "red"), _1=("Up", "green")),
    ),
    p.stat(
        "Used",
        "Highest use of the selected GPUs, or of their MIG devices if there are any: used memory as a share of "
        "allocatable memory (total minus reserved).",
        f"max({q.used_ratio(GPU)})",
        unit=p.RATIO,
        thresholds=p.FILL,
        size=SMALL,
        empty="unknown",
        decimals=0,
    ),
    p.stat(
        "Peak in range",
        "Highest use of the selected GPUs, or of their MIG devices if there are any, in the selected time range, as a "
        "share of allocatable memory. Includes GPUs that are no longer reported.",
        f"max({q.peak_ratio(GPU, '$__range')})",
        unit=p.RATIO,
        thresholds=p.FILL,
        size=SMALL,
        empty="unknown",
        decimals=0,
    ),
    p.stat(
        "Needed",
        "Needed memory of the selected GPUs as a share of their allocatable memory, where a process reports about its "
        "allocator (docs/allocators.md). Used memory above it could be given back. Not known for a single MIG device.",
        f"max(gpu_memory_needed_bytes{{{GPU}}} / {q.usable(GPU)})",
        unit=p.RATIO,
        thresholds=p.FILL,
        size=SMALL,
        empty="unknown",
        decimals=0,
    ),
    p.stat(
        "Free",
        "Memory that can be allocated now, on the selected GPU, or its MIG devices if there are any, with the least. Of a GPU that "
        "shares the memory of the machine: what the machine can still give to any program.",
        f"min({q.each_device(lambda prefix: q.free(GPU, prefix=prefix), GPU)})",
        unit=p.BYTES,
        size=SMALL,
        empty="unknown",
        decimals=1,
    ),
    p.stat(
        "Busy",
        "GPU utilization: share of time in which a kernel ran, averaged over the selected GPUs. The driver does not report "
        "it under MIG.",
        f"avg({q.once(f'gpu_utilization_ratio{{{GPU}}}')})",
        unit=p.RATIO,
        size=SMALL,
        empty="unknown",
        decimals=0,
    ),
]

def styled(reference, **properties):
    return p.by_query(reference, **{f"custom__{key}": value for key, value in properties.items()})


LINES = [
    styled("B", lineStyle=p.DASHES),
    styled("C", lineStyle={"fill": "dot", "dash": [2, 3]}),
    p.by_query("D", color={"mode": "fixed", "fixedColor": p.GREY}),
]
HOLDERS_HEIGHT = 9
HELD = f"{USED_BY}{{{GPU}}}"
TOP = q.top_holders(t.rows(HOLDERS_HEIGHT), GPU)
NOW = [
    p.series(
        "Used, peak, needed and allocatable",
        "For each selected GPU, or for its MIG devices if there are any. Used: at each scrape. Peak: the highest use that the "
        "exporter sampled since the previous point (by default it reads 100 times per second); where it is above the used "
        "memory, a graph of sampled values hides the peak. Needed: used memory without what allocators reserved and do not "
        "use. Allocatable: total minus reserved, the limit. A MIG device is named by its GPU, profile and GPU instance.",
        [
            p.ranged(q.each_device(lambda prefix: f"{prefix}_used_bytes{{{GPU}}}", GPU), "#{{gpu}} {{profile}} {{gpu_instance}} used"),
            p.ranged(q.each_device(lambda prefix: q.peak(GPU, q.STEP, prefix), GPU), "#{{gpu}} {{profile}} {{gpu_instance}} peak"),
            p.ranged(each(q.whole(f"gpu_memory_needed_bytes{{{GPU}}}", GPU)), "#{{gpu}} needed"),
            p.ranged(f"max({q.each_device(lambda prefix: q.usable(GPU, prefix=prefix), GPU)})", "allocatable"),
        ],
        fill=0,
        overrides=[*p.BY_INDEX, *LINES],
        size=(8, HOLDERS_HEIGHT),
        empty="No selected GPU reports its memory.",
    ),
    t.table(
        "Holders",
        "Workloads that held memory in the selected time range, those with the highest peaks first. Used: – means that it has "
        "ended. Budget: its lowest one. Grew: change in the last 10 minutes. Slack: what its allocators "
        "reserved and do not use, if they report it.",
        [
            q.of_holders(TOP, HELD),
            TOP,
            q.of_holders(TOP, f"delta({HELD}[10m])"),
            q.of_holders(TOP, q.slack(GPU)),
            q.named_device(TOP, GPU),
            f"{budgets.lowest(GPU)} and on ({HOLDER}) {TOP}",
        ],
        [
            t.workload_column(),
            t.hidden("instance"),
            *t.device_columns()[1:],
            t.column("Value #A", "Used", p.BYTES, width=78, decimals=1),
            t.column("Value #B", "Peak", p.BYTES, width=78, decimals=1),
            t.column("Value #F", "Budget", p.BYTES, width=75, decimals=0),
            t.column("Value #C", "Grew 10 min", p.BYTES, width=98, decimals=1),
            t.column("Value #D", "Slack", p.BYTES, width=80, decimals=1),
        ],
        size=(16, HOLDERS_HEIGHT),
        empty="No workload held memory.",
        sort="Peak",
    ),
]

# Fixed colours for the parts that belong to no workload.
REST = [
    p.colored(name, color, custom__fillOpacity=fill)
    for name, color, fill in (
        ("unattributed", "dark-red", 60),
        ("processes without a workload", "dark-orange", 50),
        ("free", "rgb(140, 145, 155)", 12),
        ("reserved", "rgb(100, 102, 108)", 60),
    )
]
PARTS = f"group by (cluster, instance, uuid, mig_uuid, gpu_instance, profile) (gpu_mig_memory_total_bytes{{{GPU}}})"
LARGEST = q.largest(USED_BY, GPU, "workload", 12)
# Both sums come from the same reading, so changes between readings do not affect the difference.
NO_WORKLOAD = (
    f"{q.total(f'gpu_process_memory_used_bytes{{{GPU}}}', key=q.RUNNING)} - ({q.total(HELD, key=q.HOLDING)} or vector(0)) > 1048576"
)


MEMORY = [
    p.series(
        "Memory by workload",
        "Memory of the workloads, unattributed memory (held by no visible process), free and reserved memory, stacked "
        "to the total memory of the selected GPUs or MIG device. The 12 largest workloads of the time range have a line each; "
        "the line `other workloads` is the sum of the rest. During a sudden change the parts may come from two readings, "
        "taken a few milliseconds apart.",
        [
            p.ranged(f"{q.total(HELD, 'workload', q.HOLDING)} and on (workload) {LARGEST}", "{{workload}}"),
            p.ranged(f"{q.total(f'{HELD} unless on (workload) {LARGEST}', key=q.HOLDING)}", "other workloads"),
            p.ranged(NO_WORKLOAD, "processes without a workload"),
            p.ranged(needed.rest("unattributed"), "unattributed"),
            p.ranged(needed.rest("free"), "free"),
            p.ranged(needed.rest("reserved"), "reserved"),
        ],
        stack=True,
        size=(24, 10),
        legend="right",
        overrides=REST,
        calcs=p.LAST_AND_MAX,
        empty="No selected GPU reports its memory.",
    ),
    t.table(
        "Processes",
        "Processes on the selected GPUs, with user and workload. Peak: since the exporter first saw the "
        "process. Idle: time since the process last worked on the GPU; absent if the driver does not report it, for "
        "example under MIG. Busy: share of the SMs' time.",
        [
            q.processes("gpu_process_memory_used_bytes", GPU),
            f"max by ({PROCESS}) (gpu_process_memory_peak_bytes{{{GPU}}} and gpu_process_memory_used_bytes{{{GPU}}})",
            q.processes("gpu_process_idle_seconds", GPU),
            q.processes("gpu_process_sm_utilization_ratio", GPU),
            f"time() - {q.processes('gpu_process_start_time_seconds', GPU)}",
            f"max by ({PROCESS}, user, workload)"
            f" (gpu_process_memory_used_bytes{{{GPU}}} {q.owner('user, workload', GPU)})",
            f"max by ({PROCESS}, gpu_instance, profile) (gpu_process_memory_used_bytes{{{GPU}}}"
            f" * on (cluster, instance, uuid, mig_uuid) group_left (gpu_instance, profile) {PARTS})",
        ],
        [
            t.column("instance", "Node", width=90),
            t.column("gpu", "GPU", width=50),
            *t.MIG_COLUMNS,
            t.column("pid", "PID", width=72),
            t.column("process", "Process", width=132),
            t.column("user", "User", width=85),
            t.workload_column(),
            t.column("Value #A", "Used", p.BYTES, width=80, decimals=1),
            t.column("Value #B", "Peak", p.BYTES, width=80, decimals=1),
            t.column("Value #C", "Idle", p.SECONDS, width=72, decimals=0),
            t.column("Value #D", "Busy", p.RATIO, width=55, decimals=0),
            t.column("Value #E", "Age", p.SECONDS, width=80, decimals=1),
        ],
        empty="No process holds memory, or the series with a PID are disabled (--process.series=false).",
        sort="Used",
    ),
]

PRESSURE = [
    p.series(
        "Peak as a share of allocatable memory",
        "Peak of each GPU, or of its MIG devices if there are any, divided by allocatable memory (total minus "
        "reserved). Dashed lines mark 85 and 90 %.",
        [
            p.ranged(each(q.whole(share(WHOLE, q.STEP), GPU)), "#{{gpu}} · {{instance}}"),
            p.ranged(each_part(share(PART, q.STEP)), MIG_NAME),
        ],
        unit=p.RATIO,
        thresholds=p.FILL,
        max=1,
        fill=0,
        size=(8, 9),
        overrides=p.BY_INDEX,
        calcs=p.LAST_AND_MAX,
        empty="No selected GPU reports its memory.",
    ),
    p.series(
        "Memory pressure",
        "Share of time in which memory use was at or above each ratio, on the selected GPU where it is highest. The "
        "exporter measures the time, so a peak between two scrapes counts. MIG devices are not included.",
        [
            p.ranged(
                f"max by (ratio) (rate(gpu_memory_pressure_seconds_total{{{GPU}}}[$__rate_interval]))",
                "{{ratio}}",
            )
        ],
        unit=p.RATIO,
        max=1,
        size=(8, 9),
        overrides=[
            p.by_name(ratio, displayName=f"at or above {float(ratio) * 100:.0f} %")
            for ratio in ("0.5", "0.7", "0.75", "0.8", "0.85", "0.9", "0.95", "0.97", "0.98", "0.99")
        ],
        empty="Not reported: a MIG device is selected, or no selected GPU reports its memory.",
    ),
    p.series(
        "Allocation churn",
        "Memory that was allocated and freed per second. High values of both at constant use indicate an allocator "
        "that does not cache memory. More allocated than freed memory indicates a leak or the start of a job.",
        [
            p.ranged(q.total(f"rate(gpu_memory_increase_bytes_total{{{GPU}}}[$__rate_interval])"), "allocated"),
            p.ranged(f"-{q.total(f'rate(gpu_memory_decrease_bytes_total{{{GPU}}}[$__rate_interval])')}", "freed"),
        ],
        unit=p.RATE,
        min=None,
        size=(8, 9),
        empty="Not reported: a MIG device is selected, or no selected GPU reports its memory.",
    ),
]

MIG = [
    t.ranking(
        "MIG devices: window peak",
        "Highest use of each MIG device in the last peak window, as a share of its allocatable memory.",
        each_part(share(PART)),
        [t.column("instance", "Node"), t.column("gpu", "GPU", width=55), *t.MIG_COLUMNS],
        unit=p.RATIO,
        thresholds=p.FILL,
        max=1,
        decimals=0,
        size=(12, 8),
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
        overrides=[styled("B", fillOpacity=0, lineStyle=p.DASHES)],
        calcs=p.LAST_AND_MAX,
        size=(12, 8),
        empty="No MIG device: MIG is disabled, or the GPU does not answer.",
    ),
]

DASHBOARD = grid.dashboard(
    "gpu",
    "One GPU, a MIG device, or the GPUs of a node: what fires, memory and true peaks, owners, activity and health.",
    [grid.GPU, grid.MIG, grid.PORT],
    grid.alerts(SHIPPED, GPU, "critical", "warning", "info"),
    [
        *OVERVIEW,
        incidents.firing(SHIPPED, GPU, (24, 7), "Firing alerts and what to do", more=("VramExporter.*", q.NODE)),
        *NOW,
        incidents.incidents(BOARD, (24, 5)),
        grid.row("Owners"),
        *MEMORY,
        *budgets.ON_GPU,
        grid.row("Memory pressure and allocation churn"),
        *PRESSURE,
        grid.row("What the allocators need"),
        *needed.ON_GPU,
        grid.row(activity.TITLE),
        *activity.ON_GPU,
        grid.row("MIG devices", MIG),
        grid.row("State and health"),
        *HEALTH,
        grid.row("Energy"),
        *energy.ON_GPU,
    ],
    nodes=grid.ONE_INSTANCE,
    refresh="30s",
)
