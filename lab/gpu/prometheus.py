"""A real Prometheus on loopback that scrapes an exporter and evaluates rule files."""

import os

from harness import prometheus

# Short, so that a check of a minute has more than 100 samples.
SCRAPE = "500ms"


class Prometheus(prometheus.Prometheus):
    """Prometheus with one target. `rules` are paths of rule files, which are used as they are."""

    def __init__(self, setup, name, target, rules=()):
        folder = os.path.join(setup.out, f"{name}-prometheus")
        os.makedirs(folder, exist_ok=True)
        jobs = [{"job_name": "vram-exporter", "static_configs": [{"targets": [f"127.0.0.1:{target}"]}]}]
        configuration = {"global": {"scrape_interval": SCRAPE, "scrape_timeout": SCRAPE}, "rule_files": list(map(str, rules)), "scrape_configs": jobs}
        super().__init__(folder, configuration, program=setup.prometheus)

    def query(self, expression):
        """(labels, value) of each series now."""
        return [(series["metric"], float(series["value"][1])) for series in self.instant(expression)]

    def alert(self, name):
        """The rule of this alert as Prometheus has it, with the alerts that are pending or firing."""
        return next(rule for group in self.ask("rules", type="alert")["groups"] for rule in group["rules"] if rule["name"] == name)
