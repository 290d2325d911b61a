#!/usr/bin/env python3
"""One cause results in one notification: sends alerts of made causes to a real Alertmanager with deploy/alertmanager/alertmanager.yml.

    check_notifications.py

Needs Alertmanager and PyYAML. Without Alertmanager it prints SKIPPED and succeeds, unless VRAM_EXPORTER_TEST_REQUIRE_ALL is set. Only the
receiver and the waiting times of the configuration are replaced.
"""

import json
import re
import shutil
import sys
import tempfile
import time
from pathlib import Path

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness import ROOT, Server, free_port, skipped, until
from harness.serving import Handler, Serving

CONFIGURATION = ROOT / "deploy/alertmanager/alertmanager.yml"
RULES = ROOT / "deploy/prometheus/rules"


def on(gpu, *names, **labels):
    """Alerts of these names about one GPU; `name@kind` is an incident of this kind."""
    for name in names:
        alertname, _, kind = name.partition("@")
        yield {"alertname": alertname, "cluster": "a", "instance": "node-1", **({"gpu": gpu} if gpu else {}), **({"kind": kind} if kind else {}), **labels}


# Name, alerts, and of each notification the alerts that it contains, with their kinds.
CASES = [
    ("a process that reported its failure dies", [*on("0", "GpuOutOfMemory", "AllocatorRetries", pid="7"),
        *on("0", "GpuMemoryIncident@near_limit", "GpuMemoryIncident@ended_at_peak", "GpuMemoryPeakNearLimit")], [["GpuOutOfMemory"]]),
    ("a process dies at the limit", [*on("0", "GpuMemoryIncident@near_limit", "GpuMemoryIncident@ended_at_peak", "GpuMemoryPeakNearLimit")],
        [["GpuMemoryIncident@ended_at_peak"]]),
    ("another process and another MIG device", [*on("0", "GpuOutOfMemory", mig_uuid="MIG-a", pid="7"), *on("0", "AllocatorRetries", mig_uuid="MIG-a", pid="8"),
        *on("0", "GpuMemoryIncident@near_limit", "GpuMemoryPeakNearLimit", mig_uuid="MIG-b")],
        [["AllocatorRetries", "GpuOutOfMemory"], ["GpuMemoryIncident@near_limit", "GpuMemoryPeakNearLimit"]]),
    ("a failure beside a memory error", [*on("0", "GpuOutOfMemory", "GpuMemoryIncident@memory_xid")], [["GpuMemoryIncident@memory_xid", "GpuOutOfMemory"]]),
    ("a leak", [*on("0", "GpuMemoryExhaustionPredicted", "GpuMemoryHigh", "GpuProcessMemoryLeak", "GpuMemoryPeakNearLimit")], [["GpuMemoryExhaustionPredicted"]]),
    ("a full GPU", [*on("0", "GpuMemoryCritical", "GpuMemoryHigh", "GpuMemoryPeakNearLimit")], [["GpuMemoryCritical"]]),
    ("a GPU falls off the bus", [*on("0", "GpuLost", "GpuXidError", "GpuMemoryIncident@gpu_lost", "GpuMemoryReserved", "GpuMemoryHigh")], [["GpuLost"]]),
    ("the driver fails", [*on(None, "VramExporterNvmlDown"), *on("0", "GpuLost", "GpuMemoryHigh"), *on("1", "GpuXidError")], [["VramExporterNvmlDown"]]),
    ("two GPUs are full for two reasons", [*on("0", "GpuMemoryCritical", "GpuMemoryHigh"), *on("1", "GpuMemoryHigh")], [["GpuMemoryCritical"], ["GpuMemoryHigh"]]),
    ("two MIG devices of one GPU", [*on("0", "GpuMemoryCritical", mig_uuid="MIG-a"), *on("0", "GpuMemoryHigh", mig_uuid="MIG-b")], [["GpuMemoryCritical"], ["GpuMemoryHigh"]]),
    ("two different things about one GPU", [*on("0", "GpuThermalThrottle", "GpuMemoryHigh")], [["GpuMemoryHigh", "GpuThermalThrottle"]]),
]  # fmt: skip


def named(labels):
    """The name of an alert, with the kind of an incident."""
    return "@".join(filter(None, (labels["alertname"], labels.get("kind"))))


class Receiver(Handler):
    def do_POST(self):
        self.server.heard.append(json.loads(self.content()))
        self.reply(200)


def unknown_names():
    """Names in the configuration and in the cases that no rule has."""
    known = {rule["alert"] for file in RULES.glob("*.yml") for group in yaml.safe_load(file.read_text())["groups"] for rule in group["rules"] if "alert" in rule}
    named = {alert["alertname"] for _, alerts, _ in CASES for alert in alerts}
    for rule in yaml.safe_load(CONFIGURATION.read_text())["inhibit_rules"]:
        for matcher in rule["source_matchers"] + rule["target_matchers"]:
            label, _, value = matcher.replace("=~", "=").partition("=")
            if label == "alertname" and "(" not in value:
                named |= set(value.strip('"').split("|"))
    return {name for name in named if not any(re.fullmatch(name, other) for other in known)}


def heard_for(program, folder, alerts, webhook):
    configuration = yaml.safe_load(CONFIGURATION.read_text())
    configuration["receivers"] = [{"name": "nobody", "webhook_configs": [{"url": f"http://127.0.0.1:{webhook.server_port}/", "send_resolved": False}]}]
    configuration["route"] |= {"group_wait": "2s", "group_interval": "5m"}
    (folder / "alertmanager.yml").write_text(yaml.safe_dump(configuration))
    port = free_port()
    command = [program, f"--config.file={folder / 'alertmanager.yml'}", f"--storage.path={folder / 'data'}", f"--web.listen-address=127.0.0.1:{port}", "--cluster.listen-address="]
    with Server(command, port, "/-/ready") as alertmanager:
        webhook.heard.clear()
        body = json.dumps([{"labels": alert} for alert in alerts]).encode()
        alertmanager.get("/api/v2/alerts", method="POST", body=body, headers={"Content-Type": "application/json"})
        until("a notification", lambda: webhook.heard, log=alertmanager.output)
        # All groups wait for the same time, and began together.
        time.sleep(2)
        return [sorted(named(alert["labels"]) for alert in message["alerts"]) for message in webhook.heard]


def main():
    program = shutil.which("alertmanager") or shutil.which("prometheus-alertmanager")
    if not program:
        return skipped("Alertmanager is not installed")
    problems = [f"no rule is named {name}" for name in sorted(unknown_names())]
    with Serving(Receiver) as webhook:
        webhook.heard = []
        for name, alerts, expected in CASES:
            with tempfile.TemporaryDirectory(prefix="notifications-") as folder:
                heard = heard_for(program, Path(folder), alerts, webhook)
            right = sorted(heard) == sorted(expected)
            print(f"{'ok  ' if right else 'FAIL'} {name}: {len(alerts)} alerts, {len(heard)} notifications: {heard}", flush=True)
            problems += [] if right else [f"{name}: {heard}, not {expected}"]
    print("\n".join(problems))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
