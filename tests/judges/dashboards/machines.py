"""Exporters running shipped scenarios and a Prometheus that scrapes them every second, all on loopback.

Invariant: every process started here is stopped when `running` exits.
"""

import contextlib
import json
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

import yaml

import dashboards

HERE = Path(__file__).resolve().parent
# Name of the node, its scenario, and the value of its `cluster` label.
NODES = [
    ("busy", "demo", None),
    ("mig", "mig-h100", "b"),
    ("idle", "idle-h200", "b"),
    ("broken", HERE / "broken.toml", None),
    # Stopped after a few scrapes.
    ("gone", "idle-h200", None),
]
# A target that never answers.
DOWN = "down"
# Long enough for rates, idle processes, and the faults of the broken node.
SETTLE = 22
# Long enough for several steps of a query, in which the node that is stopped is still there.
GONE_AFTER = 8


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def configuration(ports):
    jobs = []
    for (name, _, cluster), port in ports.items():
        labels = {"instance": name, **({"cluster": cluster} if cluster else {})}
        jobs.append({"targets": [f"127.0.0.1:{port}"], "labels": labels})
    jobs.append({"targets": [f"127.0.0.1:{free_port()}"], "labels": {"instance": DOWN}})
    return {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s"},
        "rule_files": ["rules.yml"],
        "scrape_configs": [{"job_name": "vram-exporter", "static_configs": jobs}],
    }


def eager_rules():
    """The shipped rules, evaluated every two seconds, and with alerts that fire at once."""
    groups = []
    for group in dashboards.rule_groups():
        for rule in group["rules"]:
            rule.pop("for", None)
        groups.append({**group, "interval": "2s"})
    return yaml.safe_dump({"groups": groups})


class Prometheus:
    def __init__(self, port, pid=None):
        self.port, self.pid = port, pid
        self.base = f"http://127.0.0.1:{port}/api/v1/"

    def ask(self, path, **parameters):
        """The data in the response. An error from Prometheus is raised as a ValueError with the error text."""
        query = urllib.parse.urlencode(parameters)
        try:
            with urllib.request.urlopen(f"{self.base}{path}?{query}", timeout=60) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise ValueError(json.load(error).get("error", str(error))) from None

    def instant(self, expression, **when):
        return self.ask("query", query=expression, **when)["result"]

    def ranged(self, expression):
        now = time.time()
        return self.between(expression, now - 10, now, 2)

    def between(self, expression, start, end, step):
        return self.ask("query_range", query=expression, start=start, end=end, step=step)["result"]

    def samples_read(self, expression, **when):
        """Number of samples that Prometheus reads for the query."""
        answer = self.ask("query", query=expression, stats="all", **when)
        return answer["stats"]["samples"]["totalQueryableSamples"]

    def label_values(self, label, selector):
        return self.ask(f"label/{label}/values", **{"match[]": selector})


@contextlib.contextmanager
def started(command, log):
    process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)


def wait_until(ready, what, log):
    deadline = time.monotonic() + 15
    while not ready():
        if time.monotonic() > deadline:
            log.seek(0)
            raise SystemExit(f"{what} is not ready: {log.read().decode(errors='replace')[-2000:]}")
        time.sleep(0.2)


@contextlib.contextmanager
def running(exporter):
    """A Prometheus that has scraped every node for long enough."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        log = stack.enter_context(open(folder / "log", "w+b"))
        ports = {node: free_port() for node in NODES}
        for node, port in ports.items():
            command = [exporter, f"--demo={node[1]}", f"--web.listen-address=127.0.0.1:{port}"]
            process = stack.enter_context(started(command, log))
        config, port = folder / "prometheus.yml", free_port()
        # Prometheus reads YAML, and JSON is valid YAML.
        config.write_text(json.dumps(configuration(ports)))
        (folder / "rules.yml").write_text(eager_rules())
        command = [
            "prometheus",
            f"--config.file={config}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
            "--log.level=warn",
        ]
        stack.enter_context(started(command, log))
        prometheus = Prometheus(port)

        def scraped():
            with contextlib.suppress(OSError, ValueError):
                return len(prometheus.instant("up == 1")) == len(NODES)

        wait_until(scraped, "Prometheus", log)
        time.sleep(GONE_AFTER)
        # The last node.
        process.terminate()
        time.sleep(SETTLE - GONE_AFTER)
        yield prometheus
