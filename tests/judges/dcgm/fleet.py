"""Four simulated machines whose exporters serve dcgm-exporter's families, and a Prometheus that scrapes them, all on loopback.

Each machine is scraped by two jobs: one adds the labels of the scraped pod, as a ServiceMonitor does, so that Prometheus renames the
exporter's labels to exported_…; the other one honors the exporter's labels. Invariant: every process started here is stopped at the end.
"""

import contextlib
import json
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "dashboards"))
from machines import Prometheus, free_port, started, wait_until  # noqa: E402

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
        log = stack.enter_context(open(folder / "log", "w+b"))
        ports = {name: free_port() for name, _, _ in MACHINES}
        for name, scenario, flags in MACHINES:
            command = [
                exporter,
                f"--demo={scenario}",
                "--web.listen-address=127.0.0.1:0",
                f"--dcgm.listen-address=127.0.0.1:{ports[name]}",
                f"--kubernetes.node-name=node-{name}",
                f"--dcgm.collectors-file={HERE / 'counters.csv'}",
                *flags,
            ]
            stack.enter_context(started(command, log))
        config, port = folder / "prometheus.yml", free_port()
        # Prometheus reads YAML, and JSON is valid YAML.
        config.write_text(json.dumps(configuration(ports)))
        command = ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}"]
        stack.enter_context(started([*command, f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn"], log))
        prometheus = Prometheus(port)

        def scraped():
            with contextlib.suppress(OSError, ValueError):
                return len(prometheus.instant("up == 1")) == 2 * len(MACHINES)

        wait_until(scraped, "Prometheus", log)
        time.sleep(SETTLE)
        yield prometheus
