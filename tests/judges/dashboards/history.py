"""A week of data with known peaks, devices, activity and alerts, in a real Prometheus that scrapes nothing.

Invariant: the week's data is defined only here, and the shipped rules record the maxima from this data.
"""

import contextlib
import tempfile
import time
from pathlib import Path

import yaml

import dashboards
from harness.exporter import series_name
from harness.prometheus import Prometheus
from harness.promtool import blocks_from

GIB = 1 << 30
MINUTE, HOUR, DAY = 60, 3600, 86400
SCRAPE, PIECE, WEEK = 60, 12 * HOUR, 7 * DAY
# The length of a Prometheus block.
BLOCK = 2 * HOUR
# Seconds from each peak to the end; each peak is one reading long. 2 peaks are in the last hour, 5 in the last day, 8 in the week.
PEAKS = [
    20 * MINUTE + 13,
    47 * MINUTE + 41,
    5 * HOUR + 13 * MINUTE + 7,
    11 * HOUR + 7 * MINUTE + 29,
    19 * HOUR + 41 * MINUTE + 52,
    2 * DAY + 3 * HOUR + 17 * MINUTE + 31,
    4 * DAY + 9 * HOUR + 29 * MINUTE + 3,
    6 * DAY + 1 * HOUR + 53 * MINUTE + 44,
]
# Length of the exporter's peak window.
WINDOW = 60
# The times since the last data from the removed GPU, and since the last data from the exporter that is not scraped.
GONE, SILENT = 2 * HOUR, 1 * HOUR
# The share of its memory that the full MIG device uses.
FULL = 0.96

# (seconds from the start to the end of the week, duration, labels)
ALERTS = [
    (30 * MINUTE + 17, 12 * MINUTE, {"alertname": "GpuMemoryCritical", "severity": "critical", "gpu": "0"}),
    (2 * HOUR, 2 * HOUR, {"alertname": "GpuMemoryHigh", "severity": "warning", "gpu": "3"}),
    (50 * MINUTE, 50 * MINUTE, {"alertname": "GpuUtilizationLow", "severity": "info", "gpu": "3"}),
    (40 * MINUTE, 40 * MINUTE, {"alertname": "GpuMemoryHeldIdle", "severity": "info", "gpu": "3", "workload": "small"}),
    (
        35 * MINUTE,
        9 * MINUTE,
        {"alertname": "GpuProcessMemoryLeak", "severity": "warning", "gpu": "0", "workload": "peaking"},
    ),
    (
        25 * MINUTE,
        20 * MINUTE,
        {"alertname": "GpuAllocatedUnused", "severity": "info", "namespace": "ml", "pod": "idle-0"},
    ),
    (45 * MINUTE, 9 * MINUTE, {"alertname": "VramExporterStale", "severity": "warning", "gpu": "0", "lane": "process"}),
    # Alerts on earlier days, shorter than one step of a graph that covers a week.
    (9 * HOUR + 11 * MINUTE, 90, {"alertname": "GpuMemoryCritical", "severity": "critical", "gpu": "3"}),
    (3 * DAY + 11 * MINUTE, 2 * MINUTE, {"alertname": "GpuLost", "severity": "critical", "gpu": "0"}),
]


def gpu(number, mig="", **labels):
    mig = {"mig_uuid": f"MIG-{mig}", "gpu_instance": mig, "profile": "1g.18gb"} if mig else {}
    return {"instance": "known", "gpu": str(number), "uuid": f"GPU-{number}", **mig, **labels}


def peaking(low, high):
    """`high` in the window of each peak, otherwise `low`."""
    return lambda before_end: high if any(0 <= peak - before_end < WINDOW for peak in PEAKS) else low


def memory(prefix, labels, total, used, peak=None):
    """The families of a device with constant memory use; `peak`, if given, is a function of the seconds before the end."""
    yield f"{prefix}_total_bytes", labels, total
    yield f"{prefix}_used_bytes", labels, used
    yield f"{prefix}_free_bytes", labels, (lambda before: total - used(before)) if callable(used) else total - used
    yield f"{prefix}_window_peak_bytes", labels, peak or used


def workload(name, device, used, peak=None):
    labels = {**device, "workload": name, "kind": "user"}
    yield "gpu_workload_memory_used_bytes", labels, used
    yield "gpu_workload_memory_window_peak_bytes", labels, peak or used
    yield "gpu_workload_processes", labels, 1


def filling(before_end):
    """From 10 GiB to 60 GiB in the last two hours."""
    return (10 + 50 * max(0, 1 - before_end / (2 * HOUR))) * GIB


def activity(prefix, device):
    """Counters of a device whose SMs are active for half of the time."""
    yield f"{prefix}_engine_active_seconds_total", {**device, "engine": "sm"}, lambda before: (WEEK - before) // 2
    yield f"{prefix}_pipe_active_seconds_total", {**device, "pipe": "tensor"}, lambda before: (WEEK - before) // 4
    yield f"{prefix}_memory_bandwidth_active_seconds_total", device, lambda before: (WEEK - before) // 6


def claims():
    """A node whose GPUs are given out by claims: two GPUs of one claim with two containers, of which one uses one GPU; an unused GPU of one
    claim with two pods; and an unused GPU of a device plugin."""
    on = {"instance": "claims"}
    yield "vram_exporter_kubernetes_api_up", on, 1
    for number in range(5, 9):
        yield "gpu_up", gpu(number, **on), 1
    for number, claim, pod, container in (
        (5, "train-c", "train-0", "first"),
        (5, "train-c", "train-0", "second"),
        (6, "train-c", "train-0", "first"),
        (6, "train-c", "train-0", "second"),
        (7, "both", "a", "main"),
        (7, "both", "b", "main"),
    ):
        names = {"namespace": "claiming", "pod": pod, "container": container, "claim": claim, "claim_namespace": "claiming"}
        pool = {"driver": "gpu.nvidia.com", "pool": "node-1", "device": f"gpu-{number}"}
        yield "gpu_allocation_info", gpu(number, **on, **names, **pool), 1
    plugged = {"namespace": "claiming", "pod": "plugged", "container": "main", "resource": "nvidia.com/gpu"}
    yield "gpu_allocation_info", gpu(8, **on, **plugged), 1
    user = {"namespace": "claiming", "pod": "train-0", "container": "second", "workload": "claiming/train-0/second"}
    yield "gpu_workload_processes", gpu(5, **on, **user, kind="kubernetes"), 1
    # All of it is free, and only the claim says that no job fits.
    yield from memory("gpu_memory", gpu(7, **on), 140 * GIB, 0)


def series():
    """Every series as (family, labels, value). The value is a number, or a function of the seconds before the end that
    returns None if there is no sample."""
    size = 140 * GIB
    yield "vram_exporter_build_info", {"instance": "known", "version": "1"}, 1
    yield "vram_exporter_build_info", {"instance": "silent", "version": "1"}, lambda before: (
        1 if before > SILENT else None
    )
    for number in range(4):
        mode = {"mig_mode": "enabled" if number == 1 else "disabled"}
        yield "gpu_info", gpu(number, name="H200", **mode), 1
        yield "gpu_up", gpu(number), 1
    # One workload has one-minute peaks; the name of another has characters with a special meaning in a URL.
    yield from memory("gpu_memory", gpu(0), size, 50 * GIB, peaking(50 * GIB, 138 * GIB))
    # Other values that are high only for a moment, at the same times.
    throttled, age = peaking(0, 1), peaking(1, 30)
    yield "gpu_throttle_active", gpu(0, reason="hw_thermal_slowdown"), lambda b: (
        None if HOUR < b < 2 * HOUR else throttled(b)
    )
    yield "gpu_power_limit_watts", gpu(0), 600
    for name, watts in (("default", 700), ("min", 200), ("max", 700)):
        yield f"gpu_power_limit_{name}_watts", gpu(0), watts
    for name, celsius in (("gpu_max", 87), ("slowdown", 89), ("shutdown", 95), ("memory_max", 95)):
        yield "gpu_temperature_threshold_celsius", gpu(0, threshold=name), celsius
    yield "gpu_clock_limited_seconds_total", gpu(0, reason="thermal"), lambda before: (WEEK - before) // 8
    yield "vram_exporter_sample_age_seconds", gpu(0, lane="memory"), age
    yield from workload("peaking", gpu(0), 40 * GIB, peaking(40 * GIB, 128 * GIB))
    yield from workload("c++&co", gpu(0), 10 * GIB)
    # A nearly empty GPU with one full MIG device.
    part = 16 * GIB
    yield from memory("gpu_memory", gpu(1), size, FULL * part + GIB)
    yield from memory("gpu_mig_memory", gpu(1, "7"), part, FULL * part)
    yield from memory("gpu_mig_memory", gpu(1, "8"), part, GIB, peaking(GIB, 9 * GIB))
    yield from workload("full", gpu(1, "7"), FULL * part)
    for name, device in (("full", {**gpu(1), "mig_uuid": "MIG-7"}), ("c++&co", gpu(0))):
        process = {**device, "pid": "41", "process": name}
        yield "gpu_process_memory_used_bytes", process, 10 * GIB
        yield "gpu_process_info", {**process, "workload": name, "kind": "user", "user": "nora"}, 1
    # One workload that needs nearly all of its GPU, on which an allocation failed, and one that needs very little.
    yield from memory("gpu_memory", gpu(2), size, 120 * GIB)
    yield "gpu_memory_last_incident_timestamp_seconds", {**gpu(2), "kind": "out_of_memory"}, 1_700_000_000
    yield from workload("large", gpu(2), 120 * GIB)
    yield from memory("gpu_memory", gpu(3), size, 2 * GIB)
    yield from workload("small", gpu(3), GIB)
    process = {**gpu(3), "pid": "42", "process": "small"}
    yield "gpu_process_memory_used_bytes", process, GIB
    yield "gpu_process_idle_seconds", process, 2 * HOUR
    yield "gpu_process_info", {**process, "workload": "small", "kind": "user", "user": "nora"}, 1
    # A GPU that fills up, and is used by no workload.
    yield from memory("gpu_memory", gpu(4, instance="filling"), size, filling)
    yield "gpu_info", gpu(4, instance="filling", name="H200", mig_mode="disabled"), 1
    yield "gpu_up", gpu(4, instance="filling"), 1
    for family, labels, value in claims():
        yield family, labels, lambda before, value=value: value if before < HOUR else None
    # GPU 0 is shared, GPU 1 is partitioned, GPU 2 has one workload, and GPU 3 has no counters of activity.
    for number in range(3):
        yield from activity("gpu", gpu(number))
    yield from activity("gpu_mig", gpu(1, "7"))
    for family, labels, value in memory("gpu_memory", gpu(0, instance="left"), size, 91 * GIB):
        yield family, labels, lambda before, value=value: value if before > GONE else None
    for began, lasted, labels in ALERTS:
        of_gpu = {"uuid": f"GPU-{labels['gpu']}"} if "gpu" in labels else {}
        labels = {"alertstate": "firing", "instance": "known", **of_gpu, **labels}
        yield "ALERTS", labels, lambda before, b=began, e=began - lasted: 1 if e < before <= b else None


class Ago(int):
    """A time as a value: this many seconds before the end."""


def write(path, families, end, longest, shortest, step):
    """OpenMetrics text of the samples between `longest` and `shortest` seconds before `end`."""
    with open(path, "w") as file:
        for family, listed in families.items():
            file.write(f"# TYPE {family} gauge\n")
            for labels, value in listed:
                name = series_name(family, labels)
                for before in range(longest, shortest, -step):
                    number = value(before) if callable(value) else value
                    if number is not None:
                        file.write(f"{name} {end - number if isinstance(number, Ago) else number} {end - before}\n")
        file.write("# EOF\n")


def backfill(folder, every, end, span, step=SCRAPE, piece=PIECE):
    """Stores the samples of the last `span` seconds. promtool reads the whole file for each block of two hours, so small files are faster."""
    families = {}
    for family, *series in every:
        families.setdefault(family, []).append(series)
    for longest in range(span, 0, -piece):
        write(folder / "piece", families, end, longest, max(0, longest - piece), step)
        blocks_from("openmetrics", "--quiet", folder / "piece", folder / "data")


def record(folder, port, end, span=WEEK, names=("vram-exporter.sizing", "vram-exporter.idle")):
    """Records groups of the shipped rules for the last `span` seconds: by default those that right-sizing and idle memory read."""
    shipped = yaml.safe_load((dashboards.ROOT / "deploy/prometheus/rules/recording.yml").read_text())
    groups = [group for group in shipped["groups"] if group["name"] in names]
    (folder / "rules.yml").write_text(yaml.safe_dump({"groups": groups}))
    url = f"--url=http://127.0.0.1:{port}"
    # promtool evaluates block by block, and stops at the first block in which no evaluation is due. The time range therefore begins at
    # the start of a block.
    start = (end - span) // BLOCK * BLOCK
    blocks_from("rules", url, f"--start={start}", f"--end={end}", f"--output-dir={folder / 'data'}", folder / "rules.yml")


def serving(folder):
    """A Prometheus that serves the blocks in `folder`."""
    return Prometheus(folder, {"scrape_configs": []})


@contextlib.contextmanager
def running():
    """A Prometheus with the week's data, and the time at which the week ends."""
    end = int(time.time()) // MINUTE * MINUTE
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        backfill(folder, series(), end, WEEK)
        with serving(folder) as prometheus:
            record(folder, prometheus.port, end)
        with serving(folder) as prometheus:
            yield prometheus, end
