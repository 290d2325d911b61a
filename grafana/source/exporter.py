"""Exporter: which exporters are silent, age of the readings, faults, scrapes, and resource use of the exporters."""

from . import calls, grid, incidents, links, panels as p, queries as q, tables as t
from .queries import NODE

BY_NODE = "cluster, instance"
BUILD = f"vram_exporter_build_info{{{NODE}}}"
# Other exporters on the node have process_* families too.
OWN = f"and on (cluster, instance, job) {BUILD}"
# Exporters that were scraped within the last 6 hours. The series `up` has no label of the exporter.
KNOWN = f"last_over_time({BUILD}[6h])"


def own(family):
    return f"max by ({BY_NODE}) ({family}{{{NODE}}} {OWN})"


def scraped(family):
    """What Prometheus itself writes about a scrape, also of an exporter that does not answer."""
    return f"max by ({BY_NODE}) ({family}{{{NODE}}} and on (cluster, instance, job) {KNOWN})"


def duration(quantile):
    rate = f"rate(vram_exporter_lane_duration_seconds_bucket{{{NODE}}}[$__rate_interval])"
    return f"histogram_quantile({quantile}, {q.total(rate, 'lane, le', BY_NODE)})"


def reached(family):
    """The number of exporters whose value of this family is 0."""
    return f"count(max by ({BY_NODE}) ({family}{{{NODE}}}) == 0) or vector(0) and on () count({family}{{{NODE}}})"


SMALL = (4, 3)
SILENT = f"group by ({BY_NODE}) ({KNOWN}) unless on ({BY_NODE}) {BUILD}"
OVERVIEW = [
    p.stat(
        "Exporters up",
        "Number of exporters that Prometheus scrapes now.",
        f"count(group by ({BY_NODE}) ({BUILD}))",
        thresholds=p.good_from(1),
        size=SMALL,
        decimals=0,
        empty="none",
    ),
    p.stat(
        "Silent",
        "Exporters that were scraped within the last 6 hours, but are not scraped now. The table Silent exporters names them.",
        f"count({SILENT}) or vector(0)",
        thresholds=p.bad_from(1),
        size=SMALL,
        decimals=0,
        empty="none",
    ),
    p.stat(
        "No driver",
        "Exporters that answer scrapes but cannot open NVML: no driver is loaded, or its library does not match.",
        reached("vram_exporter_nvml_up"),
        thresholds=p.bad_from(1),
        size=SMALL,
        decimals=0,
        empty="none",
    ),
    p.stat(
        "Reading age",
        "Age of the last good memory reading: the highest value of all selected GPUs that answer. Up to one second is normal "
        "while no process uses a GPU.",
        f'max(vram_exporter_sample_age_seconds{{{NODE},lane="memory"}} and on (cluster, instance, uuid) gpu_up{{{NODE}}} == 1)',
        unit=p.SECONDS,
        thresholds=p.bad_from(5),
        size=SMALL,
        empty="no GPU",
        decimals=2,
    ),
    p.stat(
        "Faults",
        "Number of faults of all kinds in the selected time range. The section Faults lists them by source and reason.",
        q.total(f"increase(vram_exporter_faults_total{{{NODE}}}[$__range])", key="cluster, instance, source"),
        thresholds=p.bad_from(0.5, "orange"),
        size=SMALL,
        empty="none",
        decimals=0,
    ),
    p.stat(
        "Max scrape",
        "Longest duration of a scrape in the selected time range, as Prometheus measured it.",
        f"max(max_over_time(scrape_duration_seconds{{{NODE}}}[$__range]) and on (cluster, instance, job) {KNOWN})",
        unit=p.SECONDS,
        thresholds=p.bad_from(5, "orange"),
        size=SMALL,
        empty="unknown",
        decimals=1,
    ),
]
LAST_SCRAPE = f"max by ({BY_NODE}, version) (max_over_time(timestamp({BUILD})[6h:$__interval]) unless on ({BY_NODE}) {BUILD})"
TROUBLED = [
    t.table(
        "Silent exporters",
        "Exporters that were scraped within the last 6 hours, but are not scraped now, and since when. Of these "
        "nodes, the state of the GPUs is unknown.",
        [f"time() - {LAST_SCRAPE}", f"1000 * {LAST_SCRAPE}"],
        [
            t.column("instance", "Node", links=links.detail("fleet", "instance")),
            t.column("version", "Version", width=80),
            t.column("Value #B", "Last scrape", p.TIME, width=110),
            t.column("Value #A", "Silent for", p.SECONDS, width=110, decimals=0),
        ],
        size=(24, 5),
        interval="2m",
        empty="Every exporter of the selected nodes that was scraped in the last 6 hours is scraped now.",
        sort="Silent for",
    ),
    incidents.firing("VramExporter.*", NODE, (24, 5), "Firing alerts of the exporters", linked=False, owners=False),
]

FRESH = [
    p.series(
        "Age of readings",
        "Age of the last good memory, process and telemetry reading: the highest value of all selected GPUs that answer and of "
        "all scrapes since the previous point. Memory readings are hundredths of a second old while GPUs are in use, "
        "and up to one second old while no GPU is in use.",
        [
            p.ranged(
                f"max by (lane) ({q.highest('vram_exporter_sample_age_seconds', NODE, q.STEP)}"
                f" and on (cluster, instance, uuid) gpu_up{{{NODE}}} == 1)",
                "{{lane}} readings",
            )
        ],
        fill=0,
        unit=p.SECONDS,
        empty="No GPU is read.",
    ),
    p.series(
        "Missed readings",
        "Readings per second that the exporter did not take in time, of the GPU that missed most. It skips them and "
        "does not repeat them, so a peak in between may be missed.",
        [
            p.ranged(
                f"max by (lane) (rate(vram_exporter_missed_ticks_total{{{NODE}}}[$__rate_interval]))",
                "{{lane}} readings",
            )
        ],
        unit="suffix:per s",
        soft_max=1,
        empty="No exporter is scraped.",
    ),
    p.series(
        "Pass duration",
        "Duration of one pass of memory, process or telemetry readings over all GPUs: median and 99th percentile.",
        [
            p.ranged(duration(0.5), "{{lane}} readings, median"),
            p.ranged(duration(0.99), "{{lane}} readings, 99th percentile"),
        ],
        fill=0,
        unit=p.SECONDS,
        calcs=p.LAST_AND_MAX,
        empty="No readings are taken. Check whether NVML is open.",
    ),
    p.series(
        "Pass rate",
        "Passes per second, averaged over the selected exporters. Memory readings are less frequent while no GPU is "
        "in use.",
        [
            p.ranged(
                f"avg by (lane) (max by ({BY_NODE}, lane) (rate(vram_exporter_lane_duration_seconds_count{{{NODE}}}[$__rate_interval])))",
                "{{lane}} readings",
            )
        ],
        fill=0,
        calcs=p.LAST_AND_MAX,
        unit="suffix:per s",
        empty="No readings are taken. Check whether NVML is open.",
    ),
]

REASONS = f"vram_exporter_faults_by_reason_total{{{NODE}}}"

FAULTS = [
    p.series(
        "Faults by source",
        "Faults per minute, by the part of the exporter in which they occurred.",
        [
            p.ranged(
                f"{q.total(f'rate(vram_exporter_faults_total{{{NODE}}}[$__rate_interval])', 'source', BY_NODE)} * 60 > 0",
                "{{source}}",
            )
        ],
        unit="suffix:per min",
        calcs=p.LAST_AND_MAX,
        empty="No fault was reported in the selected time range.",
    ),
    t.ranking(
        "Faults by source and reason",
        "Number of faults in the selected time range for each node, source and reason.",
        # increase() does not count the first fault of a source and reason whose series appeared within the range.
        "max by (cluster, instance, source, reason) "
        f"(({REASONS} unless {REASONS} offset $__range) or increase({REASONS}[$__range])) > 0",
        [t.column("instance", "Node"), t.column("source", "Source"), t.column("reason", "Reason")],
        unit=p.COUNT,
        size=(12, 9),
        decimals=0,
        empty="No fault was reported in the selected time range.",
    ),
]

COST = [
    p.series(
        "CPU use",
        "CPU time of the exporters as a share of one core: of the ten that use the most.",
        [p.ranged(f"topk(10, max by ({BY_NODE}) (rate(process_cpu_seconds_total{{{NODE}}}[$__rate_interval]) {OWN}))", "{{instance}}")],
        unit=p.RATIO,
        size=(8, 8),
        fill=0,
        calcs=p.LAST_AND_MAX,
        empty="No exporter is scraped.",
    ),
    p.series(
        "Resident memory",
        "Host memory of the exporters, including the driver's library: of the ten that use the most.",
        [p.ranged(f"topk(10, {own('process_resident_memory_bytes')})", "{{instance}}")],
        size=(8, 8),
        fill=0,
        calcs=p.LAST_AND_MAX,
        empty="No exporter is scraped.",
    ),
    p.series(
        "Scrape duration",
        "Duration of the scrapes as Prometheus measured it, of the ten slowest exporters. It must stay below the scrape "
        "timeout.",
        [p.ranged(f"topk(10, {scraped('scrape_duration_seconds')})", "{{instance}}")],
        unit=p.SECONDS,
        size=(8, 8),
        fill=0,
        calcs=p.LAST_AND_MAX,
        empty="No exporter is scraped.",
    ),
]

UP = {"_0": ("no", "red"), "_1": ("yes", "green")}
NODES = [
    t.table(
        "Exporters",
        "Each exporter that Prometheus scrapes; those that it does not scrape are in the table Silent exporters. Window: of "
        "the peaks; if it is shorter than the scrape interval, peaks are lost. API, Kubelet: – if the exporter does not use it. "
        "Scrape, Samples: duration and size of the last scrape, from Prometheus' side. Files: open file descriptors as a share of "
        "their limit. Dropped: processes and workloads beyond the series limit. Invisible: processes that /proc does not show. "
        "Simulated: GPUs of the demo, whose values are not measured.",
        [
            f"max by ({BY_NODE}, version) ({BUILD})",
            f"max by ({BY_NODE}) (vram_exporter_nvml_up{{{NODE}}})",
            f"count by ({BY_NODE}) (group by ({q.GPU_KEY}) (gpu_info{{{NODE}}}))",
            f"max by ({BY_NODE}) (vram_exporter_kubernetes_api_up{{{NODE}}})",
            f"max by ({BY_NODE}) (vram_exporter_pod_resources_up{{{NODE}}})",
            f"max by ({BY_NODE}) (vram_exporter_peak_window_seconds{{{NODE}}})",
            f"{scraped('scrape_duration_seconds')} and on ({BY_NODE}) {BUILD}",
            f"{scraped('scrape_samples_scraped')} and on ({BY_NODE}) {BUILD}",
            f"{own('process_open_fds')} / {own('process_max_fds')}",
            f"sum by ({BY_NODE}) (max by ({q.GPU_KEY}) (vram_exporter_process_series_dropped{{{NODE}}}"
            f" + vram_exporter_workload_series_dropped{{{NODE}}}))",
            f"sum by ({BY_NODE}) (max by ({q.GPU_KEY}) (vram_exporter_processes_invisible{{{NODE}}}))",
            f'count by ({BY_NODE}) (group by ({q.GPU_KEY}) (gpu_info{{{NODE},simulated="true"}}))',
            f"time() - {own('process_start_time_seconds')}",
        ],
        [
            t.column("instance", "Node", links=links.detail("fleet", "instance")),
            t.column("version", "Version", width=72),
            t.words("Value #B", "NVML", UP, width=58),
            t.column("Value #C", "GPUs", p.COUNT, width=55, decimals=0),
            t.words("Value #D", "API", UP, width=50),
            t.words("Value #E", "Kubelet", UP, width=68),
            t.column("Value #F", "Window", p.SECONDS, width=72, decimals=0),
            t.column("Value #G", "Scrape", p.SECONDS, width=70, decimals=1),
            t.column("Value #H", "Samples", p.COUNT, width=75, decimals=0),
            t.column("Value #I", "Files", p.RATIO, width=55, decimals=0),
            t.column("Value #J", "Dropped", p.COUNT, width=75, decimals=0),
            t.column("Value #K", "Invisible", p.COUNT, width=75, decimals=0),
            t.column("Value #L", "Simulated", p.COUNT, width=82, decimals=0),
            t.column("Value #M", "Uptime", p.SECONDS, width=82, decimals=1),
        ],
        empty="No exporter is scraped.",
    ),
]

DASHBOARD = grid.dashboard(
    "exporter",
    "Reliability of the values: silent exporters, age of the readings, faults, scrapes, and resource use of the exporters.",
    [],
    grid.alerts("VramExporter.*", NODE, "critical", "warning"),
    [
        *OVERVIEW,
        *TROUBLED,
        *NODES,
        grid.row("Cost"),
        *COST,
        grid.row("Freshness"),
        *FRESH,
        grid.row("Faults"),
        *FAULTS,
        grid.row(calls.TITLE_ON_EXPORTER, calls.ON_EXPORTER),
    ],
)
