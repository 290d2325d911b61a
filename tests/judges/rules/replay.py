"""Evaluates the shipped rules, unchanged, on jobs that were recorded on a real GPU.

| recording | what must happen |
|---|---|
| leak | GpuMemoryExhaustionPredicted and GpuProcessMemoryLeak fire |
| training | neither of the two fires |
| flat, from the moment at which 91 % is in use | in an hour, no alert with the severity warning or critical fires; GpuMemoryReserved does |
| flat, with its start | the same |
| climb, stretched to three hours | GpuMemoryHigh fires |
| jax, with its start | in an hour, no alert with the severity warning or critical fires, nor does GpuMemoryReserved, although 90 % is in use |

Two recordings are also replayed with a change, to show that silence is not the only possible result: flat with memory use that grows by 5 %
in three hours, where GpuMemoryHigh and GpuMemoryCritical must fire, and jax without what its allocator reports, where GpuMemoryReserved
must.

**Stretched time.** The recordings (tests/fixtures/recordings, made by lab/gpu/record_job.py) last minutes, and the rules look
back over half an hour and more. So time is stretched: what was scraped every second is replayed as if scraped every half minute or
so. Everything that is measured in time is stretched with it: a family in seconds (time under pressure, the age of a reading, the peak
window, how long a process has been idle) is multiplied by the same factor, and a timestamp becomes the stretched time since the
recording began. Bytes and counts are as recorded. So an hour at 91 % is a minute and a half at 91 %, slowed down, and not a recording of
an hour; a leak of 64 MiB a second becomes one of 8 MiB a second with a factor of eight.
"""

import json
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness import ROOT
from harness.promtool import unit_test

RECORDINGS = ROOT / "tests/fixtures/recordings"
RULES = sorted((ROOT / "deploy/prometheus/rules").glob("*.yml"))
LEAK_ALERTS = ("GpuMemoryExhaustionPredicted", "GpuProcessMemoryLeak")
TARGET = 'job="vram-exporter",instance="gpu-host"'
LEAK_STRETCH = 8
HOUR = 3600
# This alert is right to fire if the exporter that was recorded ran in a container with a pid namespace of its own. It is about the
# exporter's installation, not about the job.
INSTALLATION_ALERT = "VramExporterProcessesInvisible"


class Recording:
    """The series of a job on an even grid: `interval` is the replayed time between two scrapes. A scrape without the series is None."""

    def __init__(self, raw, stretch, first=0):
        """Leaves out the scrapes before number `first`."""
        self.job, self.stretch = raw["job"], stretch
        every, begin = raw["every"], raw["seconds"][first]
        self.interval = every * stretch
        # A scrape belongs to the nearest point of the grid; a point without a scrape is a missed scrape.
        slots = {round((second - begin) / every): number for number, second in enumerate(raw["seconds"]) if number >= first}
        self.length = max(slots) + 1
        self.series = {}
        for name, values in raw["series"].items():
            every_scrape = values if isinstance(values, list) else [values] * len(raw["seconds"])
            in_time = self.time_unit(name, self.started(raw) + begin)
            self.series[name] = [in_time(every_scrape[slots[slot]]) if slot in slots else None for slot in range(self.length)]
        self.up = [1 if slot in slots else None for slot in range(self.length)]
        if not any(name.startswith("gpu_process_info{") for name in raw["series"]):
            self.add_process_info()

    @staticmethod
    def started(raw):
        """When the recording began. The first recordings lack it: there, the process started shortly before it was first seen."""
        if "started" in raw:
            return raw["started"]
        (values,) = (values for name, values in raw["series"].items() if name.startswith("gpu_process_start_time_seconds{"))
        return next(value - second for value, second in zip(values, raw["seconds"]) if value)

    def time_unit(self, name, began):
        """What stretching the time does to a value of this series."""
        family = name.partition("{")[0]
        if family.endswith(("_timestamp_seconds", "_start_time_seconds")):
            return lambda value: None if value is None else (value - began) * self.stretch
        if re.search(r"_seconds(_total)?$", family):
            return lambda value: None if value is None else value * self.stretch
        return lambda value: value

    def add_process_info(self):
        """The first recordings lack gpu_process_info, and hold the process's workload in a separate family."""
        for name, values in list(self.series.items()):
            if name.startswith("gpu_process_memory_used_bytes{"):
                owner = name.partition("{")[2][:-1].replace(',type="compute"', "") + ',workload="user:root",kind="user",user="root"'
                self.series[f"gpu_process_info{{{owner}}}"] = [None if value is None else 1 for value in values]

    def of(self, family):
        """The names of the series of this family."""
        return [name for name in self.series if name.startswith(family + "{")]

    def grow(self, share):
        """Adds growth by this share of the memory over the length of the recording."""
        (total,) = (self.series[name][0] for name in self.of("gpu_memory_total_bytes"))
        for family in ("gpu_memory_used_bytes", "gpu_memory_window_peak_bytes", "gpu_memory_increase_bytes_total"):
            for name in self.of(family):
                values = self.series[name]
                self.series[name] = [None if v is None else v + round(share * total * n / self.length) for n, v in enumerate(values)]

    def forget(self, *prefixes):
        """Removes the families with these prefixes."""
        for name in [name for name in self.series if name.startswith(prefixes)]:
            del self.series[name]

    def input(self):
        """The series in promtool's notation."""
        for name, values in [*self.series.items(), ("up{}", self.up)]:
            family, _, labels = name[:-1].partition("{")
            text = " ".join("_" if value is None else str(value) if isinstance(value, int) else f"{value:.6f}" for value in values)
            yield {"series": f"{family}{{{TARGET}{',' if labels else ''}{labels}}}", "values": text}

    def end(self):
        """The time of the last scrape, in seconds."""
        return int((self.length - 1) * self.interval)

    def test(self, name, *checks):
        tests = [
            {"expr": expr, "eval_time": f"{self.end()}s", "exp_samples": [{"labels": labels, "value": value} for labels, value in expected]}
            for expr, expected in checks
        ]
        return {"name": name, "interval": f"{round(self.interval * 1000)}ms", "input_series": list(self.input()), "promql_expr_test": tests}


def taken(raw):
    """The number of the first scrape at which the job has taken its memory: at least half of the highest use."""
    (used,) = (values for name, values in raw["series"].items() if name.startswith("gpu_memory_used_bytes{"))
    return next(number for number, value in enumerate(used) if value and value >= max(filter(None, used)) / 2)


def hour(raw, first=0, hours=1):
    """The recording from the scrape `first` on, stretched so that the part in which the job holds its memory lasts an hour, or `hours`."""
    return Recording(raw, hours * HOUR / (raw["seconds"][-1] - raw["seconds"][taken(raw)]), first)


def fired(alert):
    """A check: the alert fired at some time."""
    return f'count(count_over_time(ALERTS{{alertname="{alert}",alertstate="firing"}}[2h])) > bool 0', [("{}", 1)]


def never_fired(alert):
    """A check: the alert did not fire at any time."""
    return f'count_over_time(ALERTS{{alertname="{alert}",alertstate="firing"}}[2h])', []


def quiet(recording):
    """A check: no alert with the severity warning or critical fired at any time."""
    excepted = f',alertname!="{INSTALLATION_ALERT}"' if in_container(recording) else ""
    selector = f'{{alertstate="firing",severity=~"warning|critical"{excepted}}}'
    return f"count by (alertname, severity) (count_over_time(ALERTS{selector}[2h]))", []


def in_container(recording):
    """Whether the exporter of the recording had a pid namespace of its own."""
    return any(0 in recording.series[name] for name in recording.of("vram_exporter_host_pid_namespace"))


def full(recording):
    """A check: the memory use of the GPU is high enough for the alerts, so that only the rules can keep them silent."""
    return "count(gpu:gpu_memory_used:ratio >= 0.9)", [("{}", 1)]


def tests(raw):
    """The replays, from the recordings by job."""
    leak, training = (Recording(raw[job], LEAK_STRETCH) for job in ("leak", "training"))
    yield leak.test("leak", *map(fired, LEAK_ALERTS))
    yield training.test("training", *map(never_fired, LEAK_ALERTS))

    flat = hour(raw["flat"], taken(raw["flat"]))
    yield flat.test("flat", full(flat), quiet(flat), fired("GpuMemoryReserved"))
    started = hour(raw["flat"])
    yield started.test("flat, with its start", full(started), quiet(started), fired("GpuMemoryReserved"))
    grown = hour(raw["flat"], taken(raw["flat"]), 3)
    grown.grow(0.05)
    yield grown.test("flat, with growth added", fired("GpuMemoryHigh"), fired("GpuMemoryCritical"))

    yield hour(raw["climb"], hours=3).test("climb", fired("GpuMemoryHigh"))

    jax = hour(raw["jax"])
    needed = "count(gpu_memory_needed_bytes < 0.05 * gpu_memory_total_bytes)", [("{}", 1)]
    yield jax.test("jax, with its start", full(jax), needed, quiet(jax), never_fired("GpuMemoryReserved"))
    mute = hour(raw["jax"])
    mute.forget("gpu_memory_needed_", "gpu_process_allocator_", "gpu_workload_allocator_", "gpu_process_memory_outside_")
    yield mute.test("jax, without what it reports", full(mute), quiet(mute), fired("GpuMemoryReserved"))


def main():
    raw = {job: json.loads((RECORDINGS / f"h200-{job}.json").read_text()) for job in ("leak", "training", "flat", "climb", "jax")}
    simulated = [job for job, recording in raw.items() if recording.get("simulated")]
    if simulated:
        sys.exit(f"not recorded on a real GPU: {', '.join(simulated)}")
    failed = []
    for test in tests(raw):
        status, text = unit_test(test, RULES, evaluation_interval="30s")
        print(f"{test['name']}: {'FAILED' if status else 'as expected'}", flush=True)
        if status:
            failed.append(f"{test['name']}\n{text}")
    for job, recording in raw.items():
        print(f"{job} was recorded on {recording['date']} on an {recording['gpu']}")
    if failed:
        sys.exit("\n".join(failed))


if __name__ == "__main__":
    main()
