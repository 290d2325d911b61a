"""A real Prometheus on loopback that scrapes an exporter and evaluates rule files."""

import json
import os
import time
import urllib.parse

from exporter import Server, free_port

# Short, so that a check of a minute has more than 100 samples.
SCRAPE = "500ms"


class Prometheus(Server):
    """Prometheus with one target, ready when /-/ready returns 200. `rules` are paths of rule files, which are used as they are."""

    def __init__(self, setup, name, target, rules=()):
        port, folder = free_port(), os.path.join(setup.out, f"{name}-prometheus")
        os.makedirs(folder, exist_ok=True)
        config = os.path.join(folder, "prometheus.yml")
        jobs = [{"job_name": "vram-exporter", "static_configs": [{"targets": [f"127.0.0.1:{target}"]}]}]
        # Prometheus reads YAML, and JSON is valid YAML.
        with open(config, "w") as out:
            json.dump({"global": {"scrape_interval": SCRAPE, "scrape_timeout": SCRAPE}, "rule_files": list(map(str, rules)), "scrape_configs": jobs}, out)
        command = [setup.prometheus, f"--config.file={config}", f"--storage.tsdb.path={folder}/data", f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn"]
        super().__init__(command, port, os.path.join(setup.out, f"{name}-prometheus.log"), ready_path="/-/ready")
        self.url = f"http://127.0.0.1:{port}"

    def ask(self, path):
        status, body = self.get(f"/api/v1/{path}")
        if status != 200:
            raise RuntimeError(f"Prometheus answered {status}: {body[:300]!r}")
        return json.loads(body)["data"]

    def query(self, expression):
        """(labels, value) of each series now."""
        found = self.ask("query?" + urllib.parse.urlencode({"query": expression}))["result"]
        return [(series["metric"], float(series["value"][1])) for series in found]

    def alert(self, name):
        """The rule of this alert as Prometheus has it, with the alerts that are pending or firing."""
        return next(rule for group in self.ask("rules?type=alert")["groups"] for rule in group["rules"] if rule["name"] == name)


def wait(what, found, limit):
    """Waits until `found` returns something true, and returns it."""
    deadline = time.monotonic() + limit
    while not (value := found()):
        if time.monotonic() > deadline:
            raise RuntimeError(f"not within {limit:.0f} s: {what}")
        time.sleep(0.2)
    return value
