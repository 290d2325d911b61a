"""Machines with made data, of which the fleets in made.py consist. None of the numbers is measured.

Invariant: a value depends only on the code and on the time before the end, so every run makes the same data.
"""

import math
import zlib

GIB = 1 << 30
MINUTE, HOUR, DAY = 60, 3600, 86400
JOB = "vram-exporter"
H200, H100, A100 = ("NVIDIA H200", 141, 1), ("NVIDIA H100 80GB HBM3", 80, 1), ("NVIDIA A100-SXM4-80GB", 80, 1)
ALLOCATORS = ("reserved", "allocated", "window_peak")


def noise(name, before, period=300):
    """A value between 0 and 1 that changes slowly with the time."""
    phase = zlib.crc32(name.encode()) % 1000 / 1000
    return 0.5 + 0.25 * math.sin(2 * math.pi * (before / period + phase)) + 0.25 * math.sin(before / 71 + phase * 9)


def steady(low, high, name):
    return lambda before: int((low + (high - low) * noise(name, before)) * GIB)


def growing(low, high, since):
    """Rises evenly from `low` to `high` over the last `since` seconds."""
    return lambda before: int((low + (high - low) * max(0, 1 - before / since)) * GIB)


def between(value, began, ended=0):
    """`value` from `began` to `ended` seconds before the end, otherwise no sample."""
    return lambda before: value(before) if ended <= before <= began else None


def until(value, lost):
    """`value` up to `lost` seconds before the end, then no sample."""
    return between(value if callable(value) else lambda before: value, 9 * DAY, lost)


def age_of(lane, age, lost):
    """The age of a reading; of a lost GPU, the time since then."""
    return lambda before: lost - before if lost and before < lost else age * (1 + noise(lane, before))


def shown(value):
    """`value` and, for five minutes after its last sample, that sample: without a staleness marker, which this format does not have,
    Prometheus shows it for this long."""
    return lambda before: next(filter(None, (value(then) for then in range(before, before + 5 * MINUTE + 1, MINUTE))), None)


def plus(*values):
    """The sum of the values that exist."""
    return lambda before: sum(value(before) or 0 for value in values)


def times(value, factor):
    def result(before):
        number = value(before)
        return None if number is None else int(number * factor)

    return result


def seconds_above(used, limit):
    """A counter of the seconds in which `used` was above `limit`. It is called with falling times before the end, as `write` does."""
    seconds, last = 0, None

    def count(before):
        nonlocal seconds, last
        passed = 0 if last is None else last - before
        last = before
        if (used(before) or 0) > limit:
            seconds += passed
        return seconds

    return count


def counter(rate):
    return lambda before: int(1e7 + rate * (8 * DAY - before))


class Node:
    """A machine: its series are in `series`, as (family, labels, value)."""

    def __init__(self, name, kubernetes=True, job=JOB):
        self.labels = {"instance": name, "job": job}
        self.series = []
        self.used = {}
        self.boards = {}
        self.promised = {}
        self.lost = {}
        self.allocatable = []
        self.resources = {}
        self.add("vram_exporter_build_info", 1, version="1.0.0")
        self.add("up", 1)
        self.add("vram_exporter_nvml_up", 1)
        self.add("vram_exporter_peak_window_seconds", 60)
        self.add("nvidia_driver_info", 1, driver_version="580.95.05", cuda_version="13.0")
        self.add("vram_exporter_scrapes_total", counter(1 / 15))
        self.add("process_cpu_seconds_total", lambda before: 90000 - before * 0.011)
        self.add("process_resident_memory_bytes", steady(0.024, 0.027, name))
        self.add("process_open_fds", 41)
        self.add("process_max_fds", 1024)
        self.add("process_start_time_seconds", lambda before: -9 * DAY, relative=True)
        self.add("scrape_duration_seconds", lambda before: 0.004 + 0.003 * noise(name, before))
        self.add("scrape_samples_scraped", 900)
        self.add("vram_exporter_stuck_threads", 0)
        for lane, rate in (("memory", 100), ("process", 1), ("telemetry", 1)):
            self.add("vram_exporter_missed_ticks_total", 12, lane=lane, gpu="0")
            for limit, share in (("0.0005", 0.6), ("0.001", 0.97), ("+Inf", 1)):
                self.add("vram_exporter_lane_duration_seconds_bucket", counter(share * rate), lane=lane, le=limit)
            self.add("vram_exporter_lane_duration_seconds_count", counter(rate), lane=lane)
        for source in ("memory", "process", "recorder"):
            self.add("vram_exporter_faults_total", 0, source=source)
        if kubernetes:
            self.add("vram_exporter_kubernetes_api_up", 1)
            self.add("vram_exporter_pod_resources_up", 1)

    def add(self, family, value, relative=False, **labels):
        """`relative`: the value is a time in seconds before the end, negative; it is written as a Unix time."""
        self.series.append((family, {**self.labels, **labels}, value, relative))

    def gpu(self, number, model=H200, mig=(), lost=None, profiled=(0.63, 0.36, 0.45)):
        """`lost`: seconds before the end at which it is lost. `profiled`: the activity of the SMs, the tensor cores and the memory
        bandwidth; None without these counters."""
        name, size, reserved = model
        board = {"gpu": str(number), "uuid": f"GPU-{self.labels['instance']}-{number}"}
        self.boards[number] = (board, size, None if mig else profiled)
        mode = "enabled" if mig else "disabled"
        card = {"name": name, "mig_mode": mode, "pci_bus_id": f"0000:{number:02}:00.0", "simulated": "true"}
        self.add("gpu_info", 1, architecture="Hopper", **card, **board)
        self.add("gpu_up", lambda before: 0 if lost and before <= lost else 1, **board)
        for lane, age in (("memory", 0.01), ("process", 0.4), ("telemetry", 0.4)):
            self.add("vram_exporter_sample_age_seconds", age_of(lane, age, lost), lane=lane, **board)
        self.used[number, None] = []
        for index, (profile, part) in enumerate(mig):
            device = {**board, "mig_uuid": f"MIG-{self.labels['instance']}-{number}-{index}"}
            device |= {"gpu_instance": str(index + 1), "compute_instance": "0", "profile": profile}
            self.boards[number, index] = (device, part, None)
            self.used[number, index] = []
            self.resources[device["mig_uuid"]] = f"nvidia.com/mig-{profile}"
        self.lost[number] = lost

    def workload(
        self, name, device, used, kind="kubernetes", peak=1.06, needed=None, user="root", idle=0, limit=None, started=None, **pod
    ):
        """A workload with one process. `device` is the GPU, or a pair of the GPU and the number of its MIG device. `used` returns
        bytes or None by the seconds before the end; `needed` is the share of it that the allocator uses; `limit` is in GiB."""
        # It has no memory before it starts.
        started = started or (1 + zlib.crc32(name.encode()) % 7) * DAY
        used = between(used, started)
        present = lambda value: lambda before: None if used(before) is None else value  # noqa: E731
        number, index = device if isinstance(device, tuple) else (device, None)
        board = self.boards[device if index is not None else number][0]
        place = {key: board[key] for key in ("gpu", "uuid", "mig_uuid") if key in board}
        labels = {**place, "workload": name, "kind": kind, **pod}
        top = times(used, peak)
        self.used[number, index].append((used, top, needed))
        self.promised[number] = self.promised.get(number, 0) + (limit or 0)
        self.add("gpu_workload_memory_used_bytes", used, **labels)
        self.add("gpu_workload_memory_window_peak_bytes", top, **labels)
        # The lists of workloads and namespaces are those of this family.
        self.add("gpu_workload_memory_peak_bytes", top, **labels)
        self.add("gpu_workload_processes", present(1), **labels)
        process = {**place, "pid": str(4000 + zlib.crc32(name.encode()) % 9000), "process": name.split("/")[-1].split(":")[-1][:15], **pod}
        self.add("gpu_process_memory_used_bytes", used, **process)
        highest = max((top(before) or 0 for before in range(0, started + 1, MINUTE)), default=0)
        self.add("gpu_process_memory_peak_bytes", present(highest), **process)
        self.add("gpu_process_info", present(1), user=user, workload=name, kind=kind, **process)
        self.add("gpu_process_start_time_seconds", present(-started), relative=True, **process)
        if index is None:
            self.add("gpu_process_idle_seconds", lambda before: None if used(before) is None else max(0, idle - before), **process)
        if needed:
            shares = {"reserved": 0.99, "allocated": needed, "window_peak": min(0.98, needed * 1.1)}
            for what in ALLOCATORS:
                self.add(f"gpu_process_allocator_{what}_bytes", times(used, shares[what]), framework="pytorch", **process)
            for what in ("reserved", "allocated"):
                self.add(f"gpu_workload_allocator_{what}_bytes", times(used, shares[what]), **labels)
        if limit:
            self.add("gpu_workload_memory_limit_bytes", present(limit * GIB), source="annotation", **labels)
            over = seconds_above(top, limit * GIB)
            self.add("gpu_workload_memory_over_limit_seconds_total", over, source="annotation", **labels)
        if "pod" in pod:
            self.allocated(place, pod, present(1))
        return labels

    def allocated(self, place, pod, value=1):
        resource = self.resources.get(place.get("mig_uuid"), "nvidia.com/gpu")
        # Two containers may have been given one device, one after the other.
        if place not in self.allocatable:
            self.allocatable.append(place)
            self.add("gpu_allocatable_devices", 1, resource=resource, **place)
        self.add("gpu_allocation_info", value, resource=resource, **place, **pod)

    def incident(self, number, kind, ago):
        board = self.boards[number][0]
        when = lambda before: None if before > ago else -ago  # noqa: E731
        self.add("gpu_memory_incidents_total", lambda before: None if before > ago else 1, kind=kind, **board)
        self.add("gpu_memory_last_incident_timestamp_seconds", when, relative=True, kind=kind, **board)

    def finished(self):
        """Every series, with those of the devices."""
        for (number, index), held in self.used.items():
            place, size, profiled = self.boards[number if index is None else (number, index)]
            part = index is not None
            if not part:
                held = held + [entry for (n, i), found in self.used.items() if n == number and i is not None for entry in found]
            lost = self.lost[number]
            for family, labels, value, relative in self.device("gpu_mig_memory" if part else "gpu_memory", place, size, held, profiled):
                yield family, labels, until(value, lost) if lost else value, relative
        yield from self.series

    def device(self, prefix, place, size, held, profiled):
        labels = {**self.labels, **place}
        total = (size - 1) * GIB
        used = plus(*(shown(use) for use, _, _ in held), lambda before: int(0.4 * GIB))
        top = plus(*(shown(high) for _, high, _ in held), lambda before: int(0.4 * GIB))
        slack = plus(*(times(use, 0.99 - needed) for use, _, needed in held if needed))
        yield f"{prefix}_total_bytes", labels, size * GIB, False
        yield f"{prefix}_reserved_bytes", labels, GIB, False
        yield f"{prefix}_used_bytes", labels, lambda before: min(total, used(before)), False
        yield f"{prefix}_free_bytes", labels, lambda before: max(0, total - used(before)), False
        yield f"{prefix}_window_peak_bytes", labels, lambda before: min(total, top(before)), False
        yield f"{prefix}_unattributed_bytes", labels, int(0.4 * GIB), False
        if prefix == "gpu_mig_memory":
            return
        if self.promised.get(int(place["gpu"])):
            yield "gpu_memory_promised_bytes", labels, self.promised[int(place["gpu"])] * GIB, False
        if any(needed for _, _, needed in held):
            yield "gpu_memory_needed_bytes", labels, lambda before: min(total, used(before)) - slack(before), False
        for ratio in ("0.85", "0.9"):
            yield "gpu_memory_pressure_seconds_total", {**labels, "ratio": ratio}, seconds_above(used, float(ratio) * total), False
        busy = 0.9 if held and profiled != (0, 0, 0) else 0.0
        name = place["uuid"]
        if not any(number == int(place["gpu"]) and index is not None for number, index in self.used):
            yield "gpu_utilization_ratio", labels, lambda before: busy * (1.08 + 0.03 * noise(name, before)), False
        yield "gpu_temperature_celsius", labels, lambda before: 34 + 30 * busy * noise(name, before), False
        yield "gpu_power_watts", labels, lambda before: 80 + 500 * busy * noise(name, before), False
        yield "gpu_power_limit_watts", labels, 700, False
        yield "gpu_memory_increase_bytes_total", labels, counter(3e8 * busy), False
        yield "gpu_memory_decrease_bytes_total", labels, counter(3e8 * busy), False
        yield "gpu_clock_hertz", {**labels, "clock": "sm"}, 1.98e9 if busy else 3.45e8, False
        for reason in ("hw_thermal_slowdown", "sw_power_cap"):
            yield "gpu_throttle_active", {**labels, "reason": reason}, 0, False
        yield "gpu_clock_limited_seconds_total", {**labels, "reason": "power"}, counter(0.3 * busy), False
        yield "gpu_clock_limited_seconds_total", {**labels, "reason": "thermal"}, 0, False
        for dropped in ("process_series_dropped", "workload_series_dropped", "processes_invisible"):
            yield f"vram_exporter_{dropped}", labels, 0, False
        yield "gpu_xid_class_errors_total", {**labels, "class": "hardware"}, 0, False
        yield "gpu_recovery_action", {**labels, "action": "none"}, 1, False
        if profiled:
            sm, tensor, bandwidth = profiled if held else (0, 0, 0)
            yield "gpu_engine_active_seconds_total", {**labels, "engine": "sm"}, counter(sm), False
            yield "gpu_pipe_active_seconds_total", {**labels, "pipe": "tensor"}, counter(tensor), False
            yield "gpu_memory_bandwidth_active_seconds_total", labels, counter(bandwidth), False
