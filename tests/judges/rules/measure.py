#!/usr/bin/env python3
"""Measures what the shipped rules cost a real Prometheus, on simulated machines, and extrapolates to a cluster.

    tests/judges/rules/measure.py --exporter target/release/vram-exporter --machines 4 --minutes 8 [--reporting]

Starts that many exporters with the eight-h200 scenario (8 GPUs with 64 processes each) and a Prometheus on loopback
ports, with the shipped rules; only the groups' intervals are made shorter, so that each is evaluated often. With
--reporting, a client in each of the processes reports figures such as those of PyTorch's allocator; otherwise
none does. Prints the median time and the number of series of each group, and the same figures extrapolated to 1000 machines:
time grows with the number of series read, so it is scaled by the number of machines. The GPUs are simulated; Prometheus and its
work are real. Ranges longer than the run are only partly filled.
"""

import argparse
import contextlib
import json
import re
import socket
import statistics
import subprocess
import tempfile
import time
import urllib.parse
import urllib.request
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[3]
RULES = ROOT / "deploy/prometheus/rules"
SCENARIO = ROOT / "crates/nvml-sim/scenarios/eight-h200.toml"
INTERVAL = 30
CLUSTER = 1000


def free_port():
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return held.getsockname()[1]


def ask(address, path, **parameters):
    url = f"http://{address}{path}?{urllib.parse.urlencode(parameters)}"
    with urllib.request.urlopen(url, timeout=30) as answer:
        return json.load(answer)


def query(address, text):
    return ask(address, "/api/v1/query", query=text)["data"]["result"]


def wait_for(address, path, what):
    for _ in range(120):
        try:
            with urllib.request.urlopen(f"http://{address}{path}", timeout=5):
                return
        except OSError:
            time.sleep(0.5)
    raise SystemExit(f"{what} does not answer on {address}")


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


def write_configuration(folder, targets):
    groups = [dict(group, interval=f"{INTERVAL}s") for group in shipped_groups()]
    (folder / "rules.yml").write_text(yaml.safe_dump({"groups": groups}))
    labels = [{"targets": [target], "labels": {"instance": f"machine-{n}"}} for n, target in enumerate(targets)]
    job = {"job_name": "vram-exporter", "static_configs": labels}
    config = {"global": {"scrape_interval": "15s"}, "rule_files": ["rules.yml"], "scrape_configs": [job]}
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))


def group_seconds(address):
    """The time that each group's last evaluation took, by group name."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    found = re.findall(r'^prometheus_rule_group_last_duration_seconds\{rule_group="[^"]*;([^"]+)"\} (\S+)$', text, re.M)
    failed = re.findall(r"^prometheus_rule_evaluation_failures_total\{.*\} ([1-9]\S*)$", text, re.M)
    if failed:
        raise SystemExit(f"rules failed to evaluate: {failed}")
    return {name: float(seconds) for name, seconds in found}


def count(address, selector):
    result = query(address, f"count({selector})")
    return int(float(result[0]["value"][1])) if result else 0


def report(address, seconds, machines):
    scraped = count(address, '{__name__=~".+", instance=~"machine-.*", __name__!~".*:.*|ALERTS.*|up|scrape_.*"}')
    print(f"{machines} machines, {scraped / machines:.0f} scraped series each\n")
    whole = f"{CLUSTER} machines"
    columns = ["group", "interval", "series a machine", whole, "one evaluation", whole, "of a core"]
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    for group in shipped_groups():
        names = [rule["record"] for rule in group["rules"] if "record" in rule]
        recorded = sum(count(address, f'{{__name__="{name}"}}') for name in names)
        median = statistics.median(seconds[group["name"]])
        whole = median / machines * CLUSTER
        every = {"30s": 30, "1m": 60, "2m": 120, "4m": 240, "5m": 300, "30m": 1800}[group["interval"]]
        print(
            f"| `{group['name']}` | {group['interval']} "
            f"| {recorded / machines:.1f} | {recorded / machines * CLUSTER:.0f} "
            f"| {median * 1000:.2f} ms | {whole:.2f} s | {whole / every:.2%} |"
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--exporter", required=True)
    parser.add_argument("--machines", type=int, default=4)
    parser.add_argument("--minutes", type=float, default=8)
    parser.add_argument("--reporting", action="store_true", help="the processes report about their allocators")
    arguments = parser.parse_args()
    targets = [f"127.0.0.1:{free_port()}" for _ in range(arguments.machines)]
    address = f"127.0.0.1:{free_port()}"
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        log = stack.enter_context(open(folder / "log", "w"))

        def start(*command):
            process = subprocess.Popen([str(word) for word in command], stdout=log, stderr=log)
            stack.callback(process.wait)
            stack.callback(process.terminate)

        scenario = write_scenario(folder, arguments.reporting)
        for target in targets:
            start(arguments.exporter, f"--demo={scenario}", f"--web.listen-address={target}", "--memory.rate=1")
        for target in targets:
            wait_for(target, "/metrics", "an exporter")
        write_configuration(folder, targets)
        start(
            "prometheus",
            f"--config.file={folder}/prometheus.yml",
            f"--storage.tsdb.path={folder}/data",
            f"--web.listen-address={address}",
            "--log.level=warn",
        )
        wait_for(address, "/-/ready", "Prometheus")
        seconds = {}
        end = time.monotonic() + arguments.minutes * 60
        while time.monotonic() < end:
            time.sleep(INTERVAL)
            # The first half fills the ranges.
            if end - time.monotonic() < arguments.minutes * 30:
                for name, taken in group_seconds(address).items():
                    seconds.setdefault(name, []).append(taken)
        report(address, seconds, arguments.machines)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
