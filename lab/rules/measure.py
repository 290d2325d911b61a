#!/usr/bin/env python3
"""Measures what the shipped rules cost a real Prometheus, on simulated machines, and extrapolates to a cluster.

    lab/rules/measure.py --exporter target/release/vram-exporter --machines 4 --minutes 8 [--reporting]

Starts that many exporters with the eight-h200 scenario (8 GPUs with 64 processes each) and a Prometheus on loopback
ports, with the shipped rules; only the groups' intervals are made shorter, so that each is evaluated often. With
--reporting, a client in each of the processes reports figures such as those of PyTorch's allocator; otherwise
none does. Prints the median time and the number of series of each group, and the same figures extrapolated to 1000 machines:
time grows with the number of series read, so it is scaled by the number of machines. The GPUs are simulated; Prometheus and its
work are real. Ranges longer than the run are only partly filled.
"""

import contextlib
import re
import statistics
import sys
import tempfile
import time
from pathlib import Path

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests/judges"))

from harness import ROOT, arguments
from harness.exporter import Exporter
from harness.prometheus import Prometheus

RULES = ROOT / "deploy/prometheus/rules"
SCENARIO = ROOT / "crates/nvml-sim/scenarios/eight-h200.toml"
INTERVAL = 30
CLUSTER = 1000


def shipped_groups():
    for file in sorted(RULES.glob("*.yml")):
        yield from yaml.safe_load(file.read_text())["groups"]


def write_scenario(folder, reporting):
    """The simulated machine as a file. With `reporting`, its processes have allocators that need four fifths of what they hold."""
    text = SCENARIO.read_text()
    if reporting:
        text = text.replace("[[process]]\n", '[[process]]\nallocator = { framework = "pytorch", allocated = 0.8 }\n')
    path = folder / "scenario.toml"
    path.write_text(text)
    return path


def configuration(folder, targets):
    groups = [dict(group, interval=f"{INTERVAL}s") for group in shipped_groups()]
    (folder / "rules.yml").write_text(yaml.safe_dump({"groups": groups}))
    labels = [{"targets": [target], "labels": {"instance": f"machine-{n}"}} for n, target in enumerate(targets)]
    job = {"job_name": "vram-exporter", "static_configs": labels}
    return {"global": {"scrape_interval": "15s"}, "rule_files": ["rules.yml"], "scrape_configs": [job]}


def group_seconds(prometheus):
    """The time that each group's last evaluation took, by group name."""
    text = prometheus.get("/metrics")
    found = re.findall(r'^prometheus_rule_group_last_duration_seconds\{rule_group="[^"]*;([^"]+)"\} (\S+)$', text, re.M)
    failed = re.findall(r"^prometheus_rule_evaluation_failures_total\{.*\} ([1-9]\S*)$", text, re.M)
    if failed:
        raise SystemExit(f"rules failed to evaluate: {failed}")
    return {name: float(seconds) for name, seconds in found}


def count(prometheus, selector):
    result = prometheus.instant(f"count({selector})")
    return int(float(result[0]["value"][1])) if result else 0


def report(prometheus, seconds, machines):
    scraped = count(prometheus, '{__name__=~".+", instance=~"machine-.*", __name__!~".*:.*|ALERTS.*|up|scrape_.*"}')
    print(f"{machines} machines, {scraped / machines:.0f} scraped series each\n")
    whole = f"{CLUSTER} machines"
    columns = ["group", "interval", "series a machine", whole, "one evaluation", whole, "of a core"]
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    for group in shipped_groups():
        names = [rule["record"] for rule in group["rules"] if "record" in rule]
        recorded = sum(count(prometheus, f'{{__name__="{name}"}}') for name in names)
        median = statistics.median(seconds[group["name"]])
        whole = median / machines * CLUSTER
        every = {"30s": 30, "1m": 60, "2m": 120, "4m": 240, "5m": 300, "30m": 1800}[group["interval"]]
        print(
            f"| `{group['name']}` | {group['interval']} "
            f"| {recorded / machines:.1f} | {recorded / machines * CLUSTER:.0f} "
            f"| {median * 1000:.2f} ms | {whole:.2f} s | {whole / every:.2%} |"
        )


def main():
    parser = arguments(__doc__)
    parser.add_argument("--machines", type=int, default=4)
    parser.add_argument("--minutes", type=float, default=8)
    parser.add_argument("--reporting", action="store_true", help="the processes report about their allocators")
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        scenario = write_scenario(folder, options.reporting)
        running = [stack.enter_context(Exporter(options.exporter, f"--demo={scenario}", "--memory.rate=1")) for _ in range(options.machines)]
        prometheus = stack.enter_context(Prometheus(folder, configuration(folder, [f"127.0.0.1:{one.port}" for one in running])))
        seconds = {}
        end = time.monotonic() + options.minutes * 60
        while time.monotonic() < end:
            time.sleep(INTERVAL)
            # The first half fills the ranges.
            if end - time.monotonic() < options.minutes * 30:
                for name, taken in group_seconds(prometheus).items():
                    seconds.setdefault(name, []).append(taken)
        report(prometheus, seconds, options.machines)
    return 0


if __name__ == "__main__":
    sys.exit(main())
