"""Exporters running shipped scenarios and a Prometheus that scrapes them every second, all on loopback.

Invariant: every process started here is stopped when `running` exits.
"""

import contextlib
import tempfile
import time
from pathlib import Path

import yaml

from harness import free_port, names, until
from harness.exporter import Exporter
from harness.prometheus import Prometheus

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
# Seconds from the start of the exporters to the first query: long enough for rates, idle processes, and the faults of the broken node. A
# GPU of that node is lost at second 14, and its workload is the one that has ended, so the last query must begin before the range of
# the queries no longer contains second 14. A slow start is part of these seconds.
SETTLE = 24
# Long enough for several steps of a query, in which the node that is stopped is still there.
GONE_AFTER = 8
# Long enough for a step of a query in which it is gone.
GONE_FOR = 4


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
    for group in names.rule_groups():
        for rule in group["rules"]:
            rule.pop("for", None)
        groups.append({**group, "interval": "2s"})
    return yaml.safe_dump({"groups": groups})


@contextlib.contextmanager
def running(exporter):
    """A Prometheus that has scraped every node for long enough."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        ports, began = {}, time.monotonic()
        for node in NODES:
            flags = (f"--demo={node[1]}", "--telemetry.workload-energy=true")
            last = stack.enter_context(Exporter(exporter, *flags, ready=None))
            ports[node] = last.port
        (folder / "rules.yml").write_text(eager_rules())
        prometheus = stack.enter_context(Prometheus(folder, configuration(ports)))
        until("every node is scraped", lambda: len(prometheus.instant("up == 1")) == len(NODES), log=prometheus.output)
        time.sleep(GONE_AFTER)
        last.process.terminate()
        time.sleep(max(GONE_FOR, began + SETTLE - time.monotonic()))
        yield prometheus
