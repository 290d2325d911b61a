"""Four simulated machines whose exporters serve dcgm-exporter's families, and a Prometheus that scrapes them, all on loopback.

Each machine is scraped by two jobs: one adds the labels of the scraped pod, as a ServiceMonitor does, so that Prometheus renames the
exporter's labels to exported_…; the other one honors the exporter's labels. Invariant: every process started here is stopped at the end.
"""

import contextlib
import tempfile
import time
from pathlib import Path

from harness import free_port, until
from harness.exporter import Exporter
from harness.prometheus import Prometheus

HERE = Path(__file__).resolve().parent
# Name, scenario, flags. The label names are the default ones, which Kruize needs.
MACHINES = [
    ("idle", "idle-h200", []),
    ("busy", "busy-h200", []),
    ("mig", HERE / "mig.toml", []),
    ("sharing", HERE / "sharing.toml", ["--dcgm.virtual-gpus=true"]),
]
# Long enough for a rate over 10 s.
SETTLE = 14


def configuration(ports):
    jobs = []
    for job, honors in (("renamed", False), ("honored", True)):
        targets = []
        for name, port in ports.items():
            # The labels of the scraped pod, as an operator adds them.
            labels = {"instance": name, "namespace": "monitoring", "pod": f"exporter-{name}", "container": "exporter"}
            targets.append({"targets": [f"127.0.0.1:{port}"], "labels": labels if not honors else {"instance": name}})
        jobs.append({"job_name": job, "honor_labels": honors, "static_configs": targets})
    return {"global": {"scrape_interval": "1s", "scrape_timeout": "1s"}, "scrape_configs": jobs}


@contextlib.contextmanager
def running(exporter):
    """A Prometheus that has scraped every machine for long enough."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        ports = {name: free_port() for name, _, _ in MACHINES}
        for name, scenario, flags in MACHINES:
            own = [f"--dcgm.listen-address=127.0.0.1:{ports[name]}", f"--kubernetes.node-name=node-{name}", f"--dcgm.collectors-file={HERE / 'counters.csv'}"]
            stack.enter_context(Exporter(exporter, f"--demo={scenario}", *own, *flags, ready=None))
        prometheus = stack.enter_context(Prometheus(folder, configuration(ports)))
        until("every machine is scraped", lambda: len(prometheus.instant("up == 1")) == 2 * len(MACHINES), log=prometheus.output)
        time.sleep(SETTLE)
        yield prometheus
