#!/usr/bin/env python3
"""One cause results in one notification: sends alerts of made causes to a real Alertmanager with deploy/alertmanager/alertmanager.yml.

    check_notifications.py

Needs Alertmanager and PyYAML. Without Alertmanager it prints SKIPPED and succeeds, unless VRAM_EXPORTER_TEST_REQUIRE_ALL is set. Only the
receiver and the waiting times of the configuration are replaced.
"""

import http.server
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[3]
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


class Receiver(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.server.heard.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_):
        pass


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def eventually(what, ask):
    end = time.monotonic() + 60
    while not (answer := ask()):
        if time.monotonic() > end:
            raise AssertionError(f"not within 60 s: {what}")
        time.sleep(0.05)
    return answer


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
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        url = f"http://127.0.0.1:{port}/api/v2/alerts"

        def send():
            body = json.dumps([{"labels": alert} for alert in alerts]).encode()
            request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
            try:
                return urllib.request.urlopen(request, timeout=10).status == 200
            except OSError:
                return process.poll() is not None and (_ for _ in ()).throw(AssertionError((folder / "log").read_text()[-2000:]))

        webhook.heard.clear()
        eventually("Alertmanager takes the alerts", send)
        eventually("a notification", lambda: webhook.heard)
        # All groups wait for the same time, and began together.
        time.sleep(2)
        return [sorted(named(alert["labels"]) for alert in message["alerts"]) for message in webhook.heard]
    finally:
        process.terminate()
        process.wait(20)


def main():
    program = shutil.which("alertmanager") or shutil.which("prometheus-alertmanager")
    if not program:
        print("SKIPPED: Alertmanager is not installed")
        return 1 if os.environ.get("VRAM_EXPORTER_TEST_REQUIRE_ALL") else 0
    problems = [f"no rule is named {name}" for name in sorted(unknown_names())]
    webhook = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    webhook.heard = []
    threading.Thread(target=webhook.serve_forever, daemon=True).start()
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
