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
import tomllib
from pathlib import Path

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness import ROOT, Server, finish, free_port, names, skipped, until
from harness.serving import Handler, Serving

CONFIGURATION = ROOT / "deploy/alertmanager/alertmanager.yml"


CASES = tomllib.loads(Path(__file__).with_name("notifications.toml").read_text())["case"]


def alerts_of(case):
    """The labels of each alert."""
    for group in case["alerts"]:
        labels = {"cluster": "a", "instance": "node-1"} | {key: value for key, value in group.items() if key != "names"}
        for name in group["names"]:
            alertname, _, kind = name.partition("@")
            yield {"alertname": alertname, **labels, **({"kind": kind} if kind else {})}


def named(labels):
    """The name of an alert, with the kind of an incident."""
    return "@".join(filter(None, (labels["alertname"], labels.get("kind"))))


class Receiver(Handler):
    def do_POST(self):
        self.server.heard.append(json.loads(self.content()))
        self.reply(200)


def unknown_names():
    """Names in the configuration and in the cases that no rule has."""
    known = {rule["alert"] for group in names.rule_groups() for rule in group["rules"] if "alert" in rule}
    named = {alert["alertname"] for case in CASES for alert in alerts_of(case)}
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
        for case in CASES:
            name, alerts, expected = case["name"], list(alerts_of(case)), case["notifications"]
            with tempfile.TemporaryDirectory(prefix="notifications-") as folder:
                heard = heard_for(program, Path(folder), alerts, webhook)
            right = sorted(heard) == sorted(expected)
            print(f"{'ok  ' if right else 'FAIL'} {name}: {len(alerts)} alerts, {len(heard)} notifications: {heard}", flush=True)
            problems += [] if right else [f"{name}: {heard}, not {expected}"]
    return finish(problems)


if __name__ == "__main__":
    sys.exit(main())
