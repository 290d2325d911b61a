"""Exporter: age of the readings, faults, and resource use of the exporters."""

from . import grid, panels as p, queries as q
from .queries import NODE

BY_NODE = "cluster, instance"
# Other exporters on the node have process_* families too.
OWN = f"and on (cluster, instance, job) vram_exporter_build_info{{{NODE}}}"


def own(family):
    return f"({family}{{{NODE}}} {OWN})"


def duration(quantile):
    rate = f"rate(vram_exporter_lane_duration_seconds_bucket{{{NODE}}}[$__rate_interval])"
    return f"histogram_quantile({quantile}, sum by (lane, le) ({rate}))"


OVERVIEW = [
    p.stat(
        "Exporters scraped",
        "Number of exporters that Prometheus scrapes now.",
        f"count(vram_exporter_build_info{{{NODE}}})",
        thresholds=p.good_from(1),
        size=(8, 3),
        empty="none",
    ),
    p.stat(
        "Exporters without a driver",
        "Exporters that answer scrapes but cannot open NVML: no driver is loaded, or its library does not match.",
        f"count(vram_exporter_nvml_up{{{NODE}}}) - sum(vram_exporter_nvml_up{{{NODE}}})",
        thresholds=p.bad_from(1),
        size=(8, 3),
        empty="none",
    ),
    p.stat(
        "Oldest memory reading",
        "Age of the last good memory reading: the highest value of all selected GPUs. Up to one second is normal while "
        "no process uses a GPU.",
        f'max(vram_exporter_sample_age_seconds{{{NODE},lane="memory"}})',
        unit=p.SECONDS,
        thresholds=p.bad_from(5),
        size=(8, 3),
        empty="no GPU",
        decimals=2,
    ),
    p.stat(
        "Faults in range",
        "Number of faults of all kinds in the selected time range. The section Faults lists them by source and reason.",
        f"sum(increase(vram_exporter_faults_total{{{NODE}}}[$__range]))",
        thresholds=p.bad_from(0.5, "orange"),
        size=(8, 3),
        empty="none",
        decimals=0,
    ),
    p.stat(
        "Invisible processes",
        "Processes on GPUs that /proc does not show: the exporter lacks the host's pid namespace, or /proc is "
        "restricted.",
        f"sum(vram_exporter_processes_invisible{{{NODE}}})",
        thresholds=p.bad_from(1, "orange"),
        size=(8, 3),
        empty="not reported",
    ),
    p.stat(
        "Simulated GPUs",
        "GPUs that the demo simulates. None of their values is a measurement.",
        f'count(gpu_info{{{NODE},simulated="true"}})',
        thresholds={"mode": "absolute", "steps": [{"color": "purple", "value": None}]},
        size=(8, 3),
        empty="none",
    ),
]

FRESH = [
    p.series(
        "Age of readings",
        "Age of the last good memory, process and telemetry reading: the highest value of all selected GPUs and of "
        "all scrapes since the previous point. Memory readings are hundredths of a second old while GPUs are in use, "
        "and up to one second old while no GPU is in use.",
        [
            p.ranged(
                f"max by (lane) ({q.highest('vram_exporter_sample_age_seconds', NODE, q.STEP)})", "{{lane}} readings"
            )
        ],
        unit=p.SECONDS,
        empty="No GPU is read.",
    ),
    p.series(
        "Missed ticks",
        "Readings per second that the exporter did not take in time. It skips them and does not repeat them, so a "
        "peak in between may be missed.",
        [
            p.ranged(
                f"sum by (lane) (rate(vram_exporter_missed_ticks_total{{{NODE}}}[$__rate_interval]))",
                "{{lane}} readings",
            )
        ],
        unit="ops",
        empty="No exporter is scraped.",
    ),
    p.series(
        "Pass duration",
        "Duration of one pass of memory, process or telemetry readings over all GPUs: median and 99th percentile.",
        [
            p.ranged(duration(0.5), "{{lane}} readings, median"),
            p.ranged(duration(0.99), "{{lane}} readings, 99th percentile"),
        ],
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
                f"avg by (lane) (rate(vram_exporter_lane_duration_seconds_count{{{NODE}}}[$__rate_interval]))",
                "{{lane}} readings",
            )
        ],
        unit="ops",
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
                f"sum by (source) (rate(vram_exporter_faults_total{{{NODE}}}[$__rate_interval])) * 60 > 0",
                "{{source}}",
            )
        ],
        unit=p.COUNT,
        calcs=p.LAST_AND_MAX,
        empty="No fault in the selected time range.",
    ),
    p.ranking(
        "Faults by source and reason",
        "Number of faults in the selected time range for each node, source and reason.",
        # increase() does not count the first fault of a source and reason whose series appeared within the range.
        "sum by (cluster, instance, source, reason) "
        f"(({REASONS} unless {REASONS} offset $__range) or increase({REASONS}[$__range])) > 0",
        [p.column("instance", "Node"), p.column("source", "Source"), p.column("reason", "Reason")],
        unit=p.COUNT,
        size=(12, 9),
        decimals=0,
        empty="No fault in the selected time range.",
    ),
]

COST = [
    p.series(
        "CPU use",
        "CPU time of the exporter as a share of one core.",
        [p.ranged(f"rate(process_cpu_seconds_total{{{NODE}}}[$__rate_interval]) {OWN}", "{{instance}}")],
        unit=p.RATIO,
        size=(8, 9),
        calcs=p.LAST_AND_MAX,
        empty="No exporter is scraped.",
    ),
    p.series(
        "Resident memory",
        "Host memory of the exporter, including the driver's library.",
        [p.ranged(own("process_resident_memory_bytes"), "{{instance}}")],
        size=(8, 9),
        calcs=p.LAST_AND_MAX,
        empty="No exporter is scraped.",
    ),
    p.series(
        "Scrapes",
        "Scrapes per minute that the exporter answered. A second Prometheus server doubles the number.",
        [
            p.ranged(
                f"sum by (instance) (rate(vram_exporter_scrapes_total{{{NODE}}}[$__rate_interval])) * 60",
                "{{instance}}",
            )
        ],
        unit="cpm",
        size=(8, 9),
        calcs=p.LAST_AND_MAX,
        empty="No exporter is scraped.",
    ),
]

UP = p.values(_0=("no", "red"), _1=("yes", "green"))
TEXT = {"type": "color-text"}
NODES = [
    p.table(
        "Exporters",
        "Each exporter that Prometheus scrapes. Peak window: if it is shorter than the scrape interval, peaks are "
        "lost. API server, Kubelet: the cell is empty if the exporter does not use it. Dropped: process entries "
        "beyond the series limit. Files: open file descriptors.",
        [
            f"max by ({BY_NODE}, version) (vram_exporter_build_info{{{NODE}}})",
            f"max by ({BY_NODE}, driver_version, cuda_version) (nvidia_driver_info{{{NODE}}})",
            f"max by ({BY_NODE}) (vram_exporter_nvml_up{{{NODE}}})",
            f"count by ({BY_NODE}) (gpu_info{{{NODE}}})",
            f"max by ({BY_NODE}) (vram_exporter_kubernetes_api_up{{{NODE}}})",
            f"max by ({BY_NODE}) (vram_exporter_pod_resources_up{{{NODE}}})",
            f"max by ({BY_NODE}) (vram_exporter_peak_window_seconds{{{NODE}}})",
            f"sum by ({BY_NODE}) (vram_exporter_process_series_dropped{{{NODE}}})",
            f"max by ({BY_NODE}) (process_open_fds{{{NODE}}} {OWN})",
            f"time() - max by ({BY_NODE}) (process_start_time_seconds{{{NODE}}} {OWN})",
        ],
        [
            p.column("instance", "Node", links=p.detail("fleet", "instance")),
            p.column("version", "Version", width=75),
            p.column("driver_version", "Driver"),
            p.column("cuda_version", "CUDA", width=60),
            p.column("Value #C", "NVML", width=60, mappings=UP, custom__cellOptions=TEXT),
            p.column("Value #D", "GPUs", width=60),
            p.column("Value #E", "API server", width=85, mappings=UP, custom__cellOptions=TEXT),
            p.column("Value #F", "Kubelet", width=75, mappings=UP, custom__cellOptions=TEXT),
            p.column("Value #G", "Peak window", p.SECONDS, width=110),
            p.column("Value #H", "Dropped", width=70),
            p.column("Value #I", "Files", width=60),
            p.column("Value #J", "Uptime", p.SECONDS, width=80, decimals=1),
        ],
        empty="No exporter is scraped.",
    ),
]

DASHBOARD = grid.dashboard(
    "exporter",
    "Reliability of the values: age of the readings, faults, and resource use of the exporters.",
    [],
    grid.alerts("VramExporter.*", NODE, "critical", "warning"),
    [
        *OVERVIEW,
        grid.row("Freshness"),
        *FRESH,
        grid.row("Faults"),
        *FAULTS,
        grid.row("Exporters and their resource use"),
        *NODES,
        *COST,
    ],
)
