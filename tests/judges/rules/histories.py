#!/usr/bin/env python3
"""Runs the shipped rules, unchanged, over made histories of healthy and troubled GPUs, and judges which alerts fire and when.

    histories.py [--quick] [--half tune|judge] [--only TEXT]

| history | what must happen |
|---|---|
| healthy | no alert with the severity critical fires, and at most one with the severity warning begins per day |
| a leak that lasts an hour or more | GpuMemoryCritical or GpuMemoryExhaustionPredicted (both critical) fires at least 15 minutes before the memory is full |
| other trouble | the alert that the shape names fires within 2 minutes of the event |

Before the trouble begins, a troubled machine is judged as a healthy one. The histories are made by healthy_shapes.py and troubled_shapes.py
from a shape and a seed, and contain what the exporter would export. Each shape has two seeds: thresholds were chosen on one (`tune`), and the
other (`judge`) shows whether they hold for histories that they were not chosen on. LIMITS lists what rules cannot see, with the reason; such a row
is "not seen", and fails if the rules do see it, so that the list stays true.

promtool evaluates each rule every 30 seconds, whatever the interval of its group, with Prometheus' own engine; `for` and `keep_firing_for` are
Prometheus' own too. A healthy history lasts 8 hours, which counts as a day; with --quick 4 hours, and only the shapes in QUICK are run.
"""

import argparse
import os
import random
import re
import sys
import zlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import healthy_shapes
import troubled_shapes
from harness import names
from harness.promtool import unit_test

STEP = 30
HALVES = {"tune": 1, "judge": 2}
HOURS, QUICK_HOURS = 8, 4
BATCH = 6
# What the rules cannot see, or see late, and why. docs/rules.md says each of these in "What the alerts cannot see".
LIMITS = {
    "tide of a day": "Use that rises for hours is no different from a leak until it stays level.",
    "vLLM that reports its cache as allocated": "The allocator says that all of it is needed.",
    "cache grows, and nothing reports": "Without a report, a cache is no different from a leak until it is emptied.",
    "a load of 35 to 50 minutes": "After 35 minutes, it is no different from a leak until it stays level.",
    "sawtooth of an hour or more": "It is no different from a leak until it falls.",
    "leak of 0.5 GiB/h in 288 GiB": "Less than 0.1 % of the memory in half an hour counts as level; the warning GpuMemoryPeakNearLimit fires above 97 %.",
    "a request is refused, and nothing reports": "A request that is refused changes no figure of the driver.",
    "93 % at once, needed, and nothing reports": "It is no different from a server that takes its memory at startup; GpuMemoryReserved (info) fires.",
    "GPU missing after a reboot": "A reloaded driver lists the GPUs one by one, so the alert waits for 10 minutes.",
    "exporter that is no longer a target": "The rules do not know which machines there should be.",
    "driver gone": "While a machine starts, its driver may be loaded minutes after the exporter, so the alert waits for 5 minutes.",
    "the process lane hangs": "A call of the driver may return after a minute, so the alert waits for 5 minutes.",
}
QUICK = (
    "server takes 90 to 95 %",
    "server takes 90 to 95 % of a MIG device",
    "batches between 80 and 96 %",
    "cache grows above a constant need",
    "planned exchange",
    "workloads load one after the other",
    "two jobs and two replicas",
    "sawtooth of an hour or more",
    "leak of 5 GiB/h in 141 GiB",
    "leak of 50 GiB/h in 141 GiB",
    "leak of 200 GiB/h in 80 GiB",
    "a job runs out of memory, again and again",
    "93 % at once, needed, and reported",
    "lost GPU",
    "Xid that has no series before",
    "silent exporter",
)


@dataclass
class Row:
    shape: str
    half: str
    machine: object
    trouble: object
    # By alert: its severity, and the times at which a series of it began to fire.
    fired: dict

    def problem(self):
        """What the rules did wrong, or None."""
        healthy_until = self.machine.length + 1
        if self.trouble:
            healthy_until = self.trouble.begin if self.trouble.healthy_until is None else self.trouble.healthy_until
        begun = [(time, alert, severity) for alert, (severity, times) in self.fired.items() for time in times if time < healthy_until]
        for time, alert, severity in sorted(begun):
            if severity == "critical":
                return f"critical {alert} at {clock(time)} although nothing is wrong"
        warnings = sorted((time, alert) for time, alert, severity in begun if severity == "warning")
        if len(warnings) > 1:
            return f"{len(warnings)} warnings although nothing is wrong: {', '.join(sorted({alert for _, alert in warnings}))}"
        if not self.trouble:
            return None
        times = [time for alert in self.trouble.alerts for time in self.fired.get(alert, ("", []))[1] if time >= self.trouble.begin]
        if not times:
            return f"{' or '.join(self.trouble.alerts)} never fired"
        if min(times) > self.trouble.deadline:
            return f"fired at {clock(min(times))}, {(min(times) - self.trouble.deadline) / 60:.1f} min late"
        return None


def clock(seconds):
    return f"{int(seconds) // 3600}:{int(seconds) // 60 % 60:02d}:{int(seconds) % 60:02d}"


def seed(shape, half):
    """The kept seed of a shape: it depends on its name, so that a new shape changes no other history."""
    return zlib.crc32(shape.encode()) * 10 + HALVES[half]


def make(shape, half, hours):
    rng = random.Random(seed(shape, half))
    if shape in healthy_shapes.SHAPES:
        return healthy_shapes.SHAPES[shape](rng, hours), None
    return troubled_shapes.SHAPES[shape](rng)


def fired(machines):
    """For each machine, by alert: its severity and the times at which it began to fire, once for each series. The machines have one scrape
    interval, and names of their own, by which the rules keep them apart."""
    firing = 'ALERTS{alertstate="firing"}'
    begins = f"{firing} unless {firing} offset {STEP}s"
    end = max(machine.length for machine in machines)
    looks = [{"expr": begins, "eval_time": f"{time}s", "exp_samples": []} for time in range(0, end + 1, STEP)]
    series = [series for machine in machines for series in machine.series()]
    test = {"interval": f"{machines[0].scrape}s", "input_series": series, "promql_expr_test": looks}
    # Without an order, promtool chooses one at random. Groups that record come first.
    order = [group["name"] for group in sorted(names.rule_groups(), key=lambda group: "record" not in group["rules"][0])]
    status, text = unit_test(test, sorted(names.RULES.glob("*.yml")), evaluation_interval=f"{STEP}s", group_eval_order=order)
    found, lengths, time = {machine.name: {} for machine in machines}, {machine.name: machine.length for machine in machines}, None
    for line in text.splitlines():
        if at := re.search(r"time: (\S+),", line):
            time = duration(at[1])
        if "err:" in line:
            raise RuntimeError(text[:4000])
        for labels in re.findall(r"\{([^}]*alertname=\"[^}]*)\}", line):
            pairs = dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', labels))
            # An alert about all targets together names no machine.
            for name in [pairs["instance"]] if "instance" in pairs else found:
                if time <= lengths[name]:
                    found[name].setdefault(pairs["alertname"], (pairs["severity"], []))[1].append(time)
    if (status != 0) != any(found.values()) and "got:" not in text:
        raise RuntimeError(text[:4000])
    return [found[machine.name] for machine in machines]


def duration(text):
    units = {"d": 86400, "h": 3600, "m": 60, "s": 1, "ms": 0.001}
    return sum(int(number) * units[unit] for number, unit in re.findall(r"(\d+)(ms|[dhms])", text))


def verdict(row):
    """The verdict to print, and whether it is a failure."""
    problem = row.problem()
    if row.shape in LIMITS:
        if problem:
            return f"not seen: {problem}. {LIMITS[row.shape]}", False
        return "FAILED: LIMITS says that the rules cannot see this, and they do", True
    return ("ok", False) if problem is None else (f"FAILED: {problem}", True)


def batches(made):
    """Histories with the same scrape interval and about the same length, which promtool evaluates together; the longest first."""
    by_scrape = {}
    for what, (machine, _) in sorted(made.items(), key=lambda item: -item[1][0].length):
        by_scrape.setdefault(machine.scrape, []).append(what)
    found = [whole[first : first + BATCH] for whole in by_scrape.values() for first in range(0, len(whole), BATCH)]
    return sorted(found, key=lambda batch: -made[batch[0]][0].length)


def matrix(rows):
    yield f"| {'history':48} | half | scrape | full or event | alerts: severity, first time, how often | verdict |"
    yield "|---|---|---|---|---|---|"
    for row in rows:
        times = sorted(
            (times[0], f"{alert} {severity[:4]} {clock(times[0])}{f' x{len(times)}' if len(times) > 1 else ''}")
            for alert, (severity, times) in row.fired.items()
        )
        event = "" if not row.trouble else clock(row.trouble.full or row.trouble.begin)
        cells = (f"{row.shape:48}", f"{row.half:5}", f"{row.machine.scrape} s", event, ", ".join(text for _, text in times), verdict(row)[0])
        yield f"| {' | '.join(cells)} |"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a part that ends within a minute on two cores")
    parser.add_argument("--half", choices=HALVES)
    parser.add_argument("--only", default="", help="the shapes whose name contains this text")
    options = parser.parse_args()
    shapes = [*healthy_shapes.SHAPES, *troubled_shapes.SHAPES]
    if unknown := {*LIMITS, *QUICK} - {*shapes}:
        sys.exit(f"no such shape: {sorted(unknown)}")
    halves = [options.half] if options.half else ["judge"] if options.quick else list(HALVES)
    chosen = [
        (shape, half) for shape in shapes for half in halves if options.only in shape and (shape in QUICK or not options.quick)
    ]

    made = {}
    for number, what in enumerate(chosen):
        made[what] = make(*what, QUICK_HOURS if options.quick else HOURS)
        made[what][0].name = f"gpu-host-{number}"

    def run(batch):
        found = fired([made[what][0] for what in batch])
        return [Row(*what, *made[what], alerts) for what, alerts in zip(batch, found)]

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        rows = [row for some in pool.map(run, batches(made)) for row in some]
    rows.sort(key=lambda row: chosen.index((row.shape, row.half)))
    print("\n".join(matrix(rows)))
    for kind, of_kind in (("healthy", [row for row in rows if not row.trouble]), ("troubled", [row for row in rows if row.trouble])):
        good = sum(verdict(row)[0] == "ok" for row in of_kind)
        unseen = sum(verdict(row)[0].startswith("not seen") for row in of_kind)
        print(f"{kind}: {good} of {len(of_kind)} as they must be, {unseen} not seen")
    return 1 if any(verdict(row)[1] for row in rows) or not rows else 0


if __name__ == "__main__":
    sys.exit(main())
