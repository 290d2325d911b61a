"""What docs/sizing.md promises about the made history, computed from the samples themselves, without PromQL.

`answer` builds the object that `vram-exporter advise --format=json` must print, except for `prometheus`, `queries` and `warnings`.
"""

import math
from collections import defaultdict

from backfill import STEP
from fleet import MIB, PROFILES
from packing import boards

# The forms into which a range is divided at most.
INTERVALS = 1344
# How far back a current value is looked for, in seconds.
LOOKBACK = 300
# What is assumed for the memory outside of allocators.
OUTSIDE = 520 * MIB
# Each MIG device in nvidia-smi's table is this much smaller for processes.
MIG_RESERVED = 16 * MIB
WORDS = ("vllm", "sglang", "tensorflow", "trtllm", "jax")


def sampled(series, low, high):
    """(time, value) of the samples at `low` < time <= `high`."""
    for first, last, value in series.runs:
        for time in range(max(series.begin + first * STEP, low + 1 + (series.begin - low - 1) % STEP), min(series.begin + last * STEP, high) + 1, STEP):
            yield time, value


def highest(every, low, high):
    """The highest value, or None without samples."""
    return max((value for series in every for _, value in sampled(series, low, high)), default=None)


class RunTruth:
    """What is true of one workload on one device."""

    def __init__(self, work, device, cluster, interval, time, lookback):
        self.work, self.device, self.cluster, self.lookback = work, device, cluster, lookback
        self.interval, self.time = interval, time
        self.samples, self.peaks = {}, {}
        self.count, self.now, self.limits, self.shortage = 0, False, defaultdict(list), None
        self.processes = defaultdict(lambda: {"used": None, "reported": {}, "outside": None, "failed": None})

    @property
    def last(self):
        return max(self.peaks)

    @property
    def peak(self):
        return max(self.peaks.values())

    @property
    def budget(self):
        """(bytes, source) of the lowest budget, or None."""
        limits = [(source, *last) for source, every in self.limits.items() for last in every if source != "time_slicing"]
        fresh = [one for one in limits if one[1] > self.time - self.lookback]
        # Those of now count, and otherwise those of an ended run. Copies and names of a series count by their highest value.
        highest_of = {}
        for source, _, value in fresh or ([] if self.now else limits):
            highest_of[source] = max(value, highest_of.get(source, 0))
        return min(((value, source) for source, value in highest_of.items()), default=None)

    @property
    def reports(self):
        return any(process["reported"] for process in self.processes.values())

    def need(self):
        """The most that the run needs, in bytes."""
        if not self.reports:
            return self.peak
        needs = []
        for process in self.processes.values():
            own = process["used"]
            both = process["reported"] and process["outside"] is not None
            needs.append(min(own, sum(process["reported"].values()) + process["outside"]) if both else own)
        return min(self.peak, sum(sorted(needs, reverse=True)[: self.count]))

    def beside(self, end, offset):
        """Whether the interval before or after the one that ends then has memory."""
        begin = (end - 1) // self.interval * self.interval
        after = begin + self.interval + offset
        return min(after, self.time) in self.peaks if offset < 0 or end < self.time else False

    def reservation(self):
        """Why the memory is a reservation, or None."""
        if self.reports:
            blind = any("tensorflow" in process["reported"] and process["outside"] is None for process in self.processes.values())
            return "tensorflow" if blind else None
        names = [process["name"].lower() for process in self.processes.values()]
        for word in WORDS:
            if any(word in name for name in names):
                return word
        width = self.interval
        inner = [peak for end, peak in self.peaks.items() if self.beside(end, -width) and self.beside(end, width)]
        if min(inner or self.peaks.values()) * 100 < self.peak * 98:
            return None
        share = self.peak * 100 / self.device.allocatable
        return "share_75" if 74 <= share <= 77 else "share_93" if share >= 93 else None


class Truth:
    """The samples of all stays, between `time` - `seconds` and `time`. `lookback`: a current value is younger than this, in seconds."""

    def __init__(self, begin, devices, stays, time, seconds, lookback=LOOKBACK):
        self.lookback = lookback
        self.interval = max(60, -(-seconds // INTERVALS))
        self.begin, self.time, self.devices = begin, time, devices
        # Intervals end at multiples of their length; the last one ends with the range.
        self.low = (time - seconds) // self.interval * self.interval
        self.seconds = time - self.low
        self.others = set()
        self.runs = {}
        for stay in stays:
            self.read(stay)
        for run in self.runs.values():
            # An ended workload is shown with 0 for some minutes.
            run.peaks = {end: peak for end, peak in run.peaks.items() if peak}
            run.samples = {end: run.samples[end] for end in run.peaks}
        self.runs = {key: run for key, run in self.runs.items() if run.peaks}

    def read(self, stay):
        every = defaultdict(list)
        for series in stay.series(self.begin):
            every[series.family].append(series)
        cluster = stay.device.parts[0].target.get("cluster")
        key = (cluster, stay.work.kind, stay.work.name, *stay.device.key)
        copies = [self.by_interval(series) for series in every["gpu_workload_memory_window_peak_bytes"]]
        if not any(copies):
            return
        if stay.work.name == "other":
            self.others.add(key)
            return
        run = self.runs.setdefault(key, RunTruth(stay.work, stay.device, cluster, self.interval, self.time, self.lookback))
        for copy in copies:
            for number, (count, peak) in copy.items():
                run.samples[number] = max(run.samples.get(number, 0), count)
                run.peaks[number] = max(run.peaks.get(number, 0), peak)
        run.count = max(run.count, highest(every["gpu_workload_processes"], self.low, self.time) or 0)
        run.now |= bool(highest(every["gpu_workload_processes"], self.time - self.lookback, self.time))
        for series in every["gpu_workload_memory_limit_bytes"]:
            last = max(sampled(series, self.low, self.time), default=None)
            if last:
                run.limits[series.labels["source"]].append(last)
        # The exporter goes on showing a shortage from before the range.
        short = highest(every["gpu_workload_memory_last_shortage_timestamp_seconds"], self.low, self.time)
        if short and short > self.low:
            run.shortage = max(short, run.shortage or 0)
        for family, group in every.items():
            if family.startswith("gpu_process"):
                self.read_processes(run, family, group)

    def by_interval(self, series):
        """(number of samples, highest) by the end of the interval."""
        found = {}
        for time, value in sampled(series, self.low, self.time):
            end = min(self.time, -(-time // self.interval) * self.interval)
            count, peak = found.get(end, (0, 0))
            found[end] = count + 1, max(peak, value)
        return found

    def read_processes(self, run, family, group):
        """What clients report. The copies of a series, such as those under the other name of a node, are one series."""
        copies = defaultdict(list)
        for series in group:
            copies[series.labels["pid"], series.labels["process"], series.labels.get("framework")].append(series)
        for (pid, name, framework), every in copies.items():
            samples = sorted(sample for series in every for sample in sampled(series, self.low, self.time))
            if not samples:
                continue
            values = [value for _, value in samples]
            process = run.processes[pid, name]
            process["name"] = name
            if family == "gpu_process_memory_window_peak_bytes":
                process["used"] = max(values)
            elif family == "gpu_process_memory_outside_allocator_bytes":
                process["outside"] = max(values)
            elif family == "gpu_process_allocator_window_peak_bytes":
                process["reported"][framework] = max(values)
            elif family == "gpu_process_allocator_out_of_memory_total":
                # A counter that begins in the range counts from 0, and one that falls has begun again.
                before = highest(every, self.low - self.lookback, self.low) or 0
                failed = sum(new - old if new >= old else new for old, new in zip([before, *values], values))
                process["failed"] = failed + (process["failed"] or 0)

    def grouped(self, by):
        """The runs of each group by (cluster, kind, name), and how many runs belong to none."""
        groups, out = defaultdict(list), len(self.others)
        for (cluster, kind, name, *_), run in self.runs.items():
            work = run.work
            group = {"workload": work.group, "pod": name if kind == "kubernetes" else "", "job": work.job, "user": work.user if run.processes else ""}[by]
            if group:
                groups[cluster or "", "user" if by == "user" else kind, group].append(run)
            else:
                out += 1
        return groups, out

    def answer(self, by="workload", min_samples=100, min_span=10_800):
        groups, out = self.grouped(by)
        found = {key: self.group(runs, min_samples, min_span) for key, runs in groups.items()}
        ordered = sorted(found, key=lambda key: tuple(text.encode() for text in key))
        workloads = []
        for cluster, kind, name in ordered:
            identity = {"cluster": cluster} if cluster else {}
            workloads.append({**identity, "workload": name, "kind": kind, **found[cluster, kind, name]})
        advice = {id(run): found[key]["advice_bytes"] for key, runs in groups.items() for run in runs}
        fleet = boards(self.devices, [(run, advice.get(id(run))) for run in self.runs.values() if run.now])
        lower = {id(run) for key, runs in groups.items() for run in runs if found[key]["action"] == "lower"}
        for workload, key in zip(workloads, ordered):
            workload["freed_bytes"] = self.freed(groups[key], advice, lower)
        fleet["freed_bytes"] = self.freed(self.runs.values(), advice, lower)
        return {"version": 1, "by": by, "time": self.time, "range_seconds": self.seconds, "interval_seconds": self.interval, "source": "raw",
            "min_samples": min_samples, "min_span_seconds": min_span, "left_out": out, "workloads": workloads, "fleet": fleet}  # fmt: skip

    def freed(self, runs, advice, lower):
        """What the current ones of the runs can give back; the room of a device counts once. A run has one group in this history."""
        total = 0
        for device in {run.device.key: run.device for run in runs}.values():
            there = [run for run in self.runs.values() if run.now and run.device.key == device.key]
            room = max(0, device.allocatable - sum(advice.get(id(run)) or run.peak for run in there))
            own = [run for run in runs if run in there and id(run) in lower]
            promised = sum(max(0, run.budget[0] - advice[id(run)]) for run in own if run.budget)
            unlimited = any(not run.budget for run in own) and all(advice.get(id(run)) for run in there)
            total += room if unlimited else min(room, promised)
        return total

    def group(self, runs, min_samples, min_span):
        peaks = defaultdict(int)
        for run in runs:
            for end, peak in run.peaks.items():
                peaks[end] = max(peaks[end], peak)
        first, last, highest_peak = min(peaks), max(peaks), max(peaks.values())
        until = min(end for end, peak in peaks.items() if peak == highest_peak)
        needs = [(run.need(), run.reports) for run in runs]
        peak, reports = max(needs)
        processes = [process for run in runs for process in run.processes.values()]
        failed = [process["failed"] for process in processes if process["failed"] is not None]
        said = {
            "runs": len(runs),
            "devices": len({run.device.key for run in runs}),
            "devices_now": sum(run.now for run in runs),
            "samples": sum(count for run in runs for count in run.samples.values()),
            "first": first,
            "last": last,
            "span_seconds": last - first,
            "driver_peak_bytes": highest_peak,
            "peak_from": (until - 1) // self.interval * self.interval,
            "peak_until": until,
            "intervals": len(peaks),
            "intervals_near_peak": sum(peak * 100 >= highest_peak * 95 for peak in peaks.values()),
            "basis": "allocator" if reports else "driver",
            "peak_bytes": peak,
            "allocated_peak_bytes": max((sum(process["reported"].values()) for process in processes if process["reported"]), default=None),
            "frameworks": sorted({framework for process in processes for framework in process["reported"]}) or None,
            "out_of_memory": sum(failed) if failed else None,
            "last_shortage": max((run.shortage for run in runs if run.shortage), default=None),
            "preallocates": self.reservation(runs),
            "simulated": True if any(run.device.info.get("simulated") for run in runs) else None,
        }
        self.advise(said, runs, min_samples, min_span)
        return {name: value for name, value in said.items() if value is not None or name == "advice_bytes"}

    @staticmethod
    def reservation(runs):
        found = {run.reservation() for run in runs}
        return next((word for word in (*WORDS, "share_75", "share_93") if word in found), None)

    def advise(self, said, runs, min_samples, min_span):
        latest = max(runs, key=lambda run: (run.last, run.device.allocatable, [-ord(digit) for digit in "".join(run.device.key)]))
        device = latest.device
        budgets = [run.budget for run in runs if run.last == latest.last and run.budget]
        current, source = max(budgets, default=(device.allocatable, "device"))
        said["current_bytes"], said["current_source"] = current, source
        failed = said["out_of_memory"] or 0
        short = said["samples"] < min_samples, said["span_seconds"] < min_span or 2 * (said["span_seconds"] - self.interval + 60) < min_span, said["preallocates"] is not None
        said["advice_bytes"], said["action"] = None, "none"
        advice = -(-said["peak_bytes"] * 115 // 100)
        rates = [rate for rate in (self.rising(run.peaks) for run in runs) if rate is not None]
        is_explained = said["basis"] == "driver" or said["peak_bytes"] * 100 >= said["driver_peak_bytes"] * 90
        rate = max(rates, default=None) if is_explained else None
        is_full = (failed or said["last_shortage"]) and said["driver_peak_bytes"] * 100 >= device.allocatable * 95
        if failed or said["last_shortage"]:
            said["reason"] = "failed_allocations" if failed else "shortage"
            said["action"] = "raise" if said["driver_peak_bytes"] * 100 >= current * 95 else "none"
        elif any(short):
            said["reason"] = ("too_few_samples", "too_short", "preallocated")[short.index(True)]
        elif rate is not None:
            said["reason"], said["rising_bytes_per_hour"] = "rising", rate
        elif advice > device.allocatable:
            said["reason"] = "exceeds_device"
            said["action"] = "raise" if said["peak_bytes"] > current else "none"
        if is_full or said.get("reason") == "exceeds_device":
            said["beyond"] = self.beyond(device, said["driver_peak_bytes"] + 1 if is_full else advice)
        if "reason" in said:
            return
        said["reason"], said["advice_bytes"] = "peak_plus_15_percent", advice
        said["units"] = self.units(advice, said["peak_bytes"], device, runs)
        said["action"] = "keep"
        if advice > current and said["peak_bytes"] > current:
            said["action"] = "raise"
        elif (current - advice) * 100 > current * 5 and (current - advice) * 100 > device.total and self.may_shrink(said, device, source):
            said["action"] = "lower"

    def rising(self, peaks):
        """Bytes per hour by which the lowest use of an eighth of the range rose from the first to the last, if it rose by half a percent of
        the peak in each, and the peak is in none but the last."""
        first = min(peaks)
        number = lambda end: -(-(end - first) // self.interval)
        intervals = number(max(peaks)) + 1
        parts = [[peak for end, peak in peaks.items() if number(end) * 8 // intervals == part] for part in range(8)]
        if not all(parts):
            return None
        peak, floors = max(peaks.values()), [min(part) for part in parts]
        rises = all(later - earlier >= -(-peak // 200) for earlier, later in zip(floors, floors[1:]))
        if not rises or any(max(part) == peak for part in parts[:-1]):
            return None
        return (floors[-1] - floors[0]) * 3600 // (intervals * self.interval * 7 // 8)

    def beyond(self, device, wanted):
        wanted = max(wanted, device.allocatable + 1)
        larger = min(((other.allocatable, other.board.name) for other in self.devices if not other.profile and other.allocatable >= wanted), default=None)
        found = {"name": device.profile["profile"] if device.profile else device.board.name, "allocatable_bytes": device.allocatable}
        if larger:
            found["larger_board"] = {"name": larger[1], "allocatable_bytes": larger[0]}
        return found

    @staticmethod
    def may_shrink(said, device, source):
        """A MIG device can only be replaced by a smaller profile."""
        if not device.profile or source not in ("mig", "device"):
            return True
        smaller = said["units"].get("mig_profile")
        return smaller is not None and smaller["allocatable_bytes"] < device.allocatable

    def units(self, advice, peak, device, runs):
        total, allocatable = device.total, device.allocatable
        outside = [process["outside"] for run in runs for process in run.processes.values() if process["outside"] is not None]
        processes = max(1, *(run.count for run in runs))
        aside = max(outside, default=min(OUTSIDE, peak // 4 // processes))
        boards = sorted((other.allocatable, other.board.name) for other in self.devices if not other.profile and other.allocatable >= advice)
        kai = -(-advice * 100 // total)
        inside = advice - processes * aside
        torch = inside * 10_000 // allocatable
        vllm = advice * 10_000 // allocatable
        said = {
            "device_total_bytes": total,
            "device_allocatable_bytes": allocatable,
            "board": {"name": boards[0][1], "allocatable_bytes": boards[0][0]} if boards else None,
            "mig_profile": self.profile(advice, device),
            "kai_gpu_fraction": kai / 100 if kai < 100 and not device.profile else None,
            "kai_gpu_memory_mib": math.ceil(advice / MIB),
            "hami_gpumem_mib": math.ceil(advice / MIB),
            "torch_memory_fraction": torch / 10_000 if 0 < torch and inside <= allocatable else None,
            "vllm_gpu_memory_utilization": vllm / 10_000 if advice <= allocatable else None,
            "processes": processes,
            "outside_bytes": aside,
            "outside_assumed": None if outside else True,
        }
        said["xla_client_mem_fraction"] = said["torch_memory_fraction"]
        return {name: value for name, value in said.items() if value is not None}

    def profile(self, advice, device):
        """The smallest MIG profile of the board. A size that was seen takes the place of that of every profile that has as much memory in
        the table: 2g.20gb is not smaller than 1g.20gb."""
        table = PROFILES.get(device.board.name, {})
        sizes = {name: (mib * MIB - MIG_RESERVED, False) for name, mib in table.items()}
        for other in self.devices:
            if other.profile and other.board == device.board:
                seen = other.profile["profile"]
                for name in sizes:
                    if table[name] == table[seen]:
                        sizes[name] = (other.allocatable, name == seen or sizes[name][1])
        fitting = sorted((size, name, seen) for name, (size, seen) in sizes.items() if size >= advice)
        return {"name": fitting[0][1], "allocatable_bytes": fitting[0][0], "seen": fitting[0][2]} if fitting else None
