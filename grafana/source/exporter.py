"""Exporter: whether the numbers can be trusted: how old they are, what failed, and what watching costs."""

from . import grid, panels as p, queries as q
from .queries import NODE

BY_NODE = "cluster, instance"
# process_* is what any exporter of the node has.
OWN = f"and on (cluster, instance, job) vram_exporter_build_info{{{NODE}}}"


def own(family):
    return f"({family}{{{NODE}}} {OWN})"


def duration(quantile):
    rate = f"rate(vram_exporter_lane_duration_seconds_bucket{{{NODE}}}[$__rate_interval])"
    return f"histogram_quantile({quantile}, sum by (lane, le) ({rate}))"


OVERVIEW = [
    p.stat(
        "Exporters",
        "Exporters that are scraped now.",
        f"count(vram_exporter_build_info{{{NODE}}})",
        thresholds=p.good_from(1),
        size=(8, 3),
        empty="none",
    ),
    p.stat(
        "Without a driver",
        "Exporters that answer and cannot open NVML: no driver, or one whose library does not fit.",
        f"count(vram_exporter_nvml_up{{{NODE}}}) - sum(vram_exporter_nvml_up{{{NODE}}})",
        thresholds=p.bad_from(1),
        size=(8, 3),
        empty="none",
    ),
    p.stat(
        "Oldest memory sample",
        "Age of the memory lane's last good reading, of the GPU where it is highest. Up to a second is as it should be "
        "while no process uses a GPU.",
        f'max(vram_exporter_sample_age_seconds{{{NODE},lane="memory"}})',
        unit=p.SECONDS,
        thresholds=p.bad_from(5),
        size=(8, 3),
        empty="no GPU",
        decimals=2,
    ),
    p.stat(
        "Faults in range",
        "Faults of all kinds in the range shown. Below is which.",
        f"sum(increase(vram_exporter_faults_total{{{NODE}}}[$__range]))",
        thresholds=p.bad_from(0.5, "orange"),
        size=(8, 3),
        empty="none",
        decimals=0,
    ),
    p.stat(
        "Out of sight",
        "Processes on GPUs that /proc does not show: no host pid namespace, or a restricted /proc.",
        f"sum(vram_exporter_processes_invisible{{{NODE}}})",
        thresholds=p.bad_from(1, "orange"),
        size=(8, 3),
        empty="not reported",
    ),
    p.stat(
        "Simulated GPUs",
        "GPUs that a demo invents. No number of them is a measurement.",
        f'count(gpu_info{{{NODE},simulated="true"}})',
        thresholds={"mode": "absolute", "steps": [{"color": "purple", "value": None}]},
        size=(8, 3),
        empty="none",
    ),
]

FRESH = [
    p.series(
        "Age of the readings",
        "Oldest last good reading of each lane, over all GPUs chosen, at the worst scrape since the point before. Memory: "
        "hundredths of a second while GPUs are in use, up to a second while none is.",
        [p.ranged(f"max by (lane) ({q.highest('vram_exporter_sample_age_seconds', NODE, q.STEP)})", "{{lane}}")],
        unit=p.SECONDS,
        empty="No GPU is read.",
    ),
    p.series(
        "Missed ticks",
        "Readings for each second that a lane could not make in time. They are left out, never made up for: a peak in "
        "between may be missed.",
        [p.ranged(f"sum by (lane) (rate(vram_exporter_missed_ticks_total{{{NODE}}}[$__rate_interval]))", "{{lane}}")],
        unit="ops",
        empty="No exporter is scraped.",
    ),
    p.series(
        "Time of a pass",
        "How long a pass of each lane over all GPUs takes: median and 99th percentile.",
        [
            p.ranged(duration(0.5), "{{lane}} median"),
            p.ranged(duration(0.99), "{{lane}} 99 %"),
        ],
        unit=p.SECONDS,
        calcs=p.LAST_AND_MAX,
        empty="No lane runs: is NVML open?",
    ),
    p.series(
        "Passes",
        "Passes for each second, the mean of the exporters chosen. The memory lane is slower while no GPU is used.",
        [
            p.ranged(
                f"avg by (lane) (rate(vram_exporter_lane_duration_seconds_count{{{NODE}}}[$__rate_interval]))",
                "{{lane}}",
            )
        ],
        unit="ops",
        empty="No lane runs: is NVML open?",
    ),
]

REASONS = f"vram_exporter_faults_by_reason_total{{{NODE}}}"

FAULTS = [
    p.series(
        "Faults",
        "Faults by the part that met them, for each minute.",
        [
            p.ranged(
                f"sum by (source) (rate(vram_exporter_faults_total{{{NODE}}}[$__rate_interval])) * 60 > 0",
                "{{source}}",
            )
        ],
        unit=p.COUNT,
        calcs=p.LAST_AND_MAX,
        empty="No fault in this range.",
    ),
    p.ranking(
        "Faults in range",
        "How many of each in the range shown.",
        # A pair that appeared within the range counts from 0, which increase() alone does not know.
        "sum by (cluster, instance, source, reason) "
        f"(({REASONS} unless {REASONS} offset $__range) or increase({REASONS}[$__range])) > 0",
        [p.column("instance", "Node"), p.column("source", "Source"), p.column("reason", "Reason")],
        unit=p.COUNT,
        size=(12, 9),
        decimals=0,
        empty="No fault in this range.",
    ),
]

COST = [
    p.series(
        "CPU",
        "CPU time of the exporter, as a share of one core.",
        [p.ranged(f"rate(process_cpu_seconds_total{{{NODE}}}[$__rate_interval]) {OWN}", "{{instance}}")],
        unit=p.RATIO,
        size=(8, 9),
        calcs=p.LAST_AND_MAX,
        empty="No exporter is scraped.",
    ),
    p.series(
        "Resident memory",
        "Memory of the exporter on the host, the driver's library included.",
        [p.ranged(own("process_resident_memory_bytes"), "{{instance}}")],
        size=(8, 9),
        calcs=p.LAST_AND_MAX,
        empty="No exporter is scraped.",
    ),
    p.series(
        "Scrapes",
        "Scrapes that were answered, for each minute. Two Prometheus servers make twice as many.",
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
        "Each exporter that is scraped. Peak window: no shorter than the scrape interval, or peaks are lost. An empty "
        "cell of API server or kubelet: it is not asked.",
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
            p.column("Value #H", "Left out", width=70),
            p.column("Value #I", "Files", width=60),
            p.column("Value #J", "Up for", p.SECONDS, width=80, decimals=1),
        ],
        empty="No exporter is scraped.",
    ),
]

DASHBOARD = grid.dashboard(
    "exporter",
    "Whether the numbers can be trusted: how old they are, what failed, and what watching costs.",
    [],
    grid.alerts("VramExporter.*", NODE, "critical", "warning"),
    [
        *OVERVIEW,
        grid.row("How fresh"),
        *FRESH,
        grid.row("What failed"),
        *FAULTS,
        grid.row("Each exporter, and what it costs"),
        *NODES,
        *COST,
    ],
)
