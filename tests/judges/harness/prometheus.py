"""A real Prometheus on loopback, and Prometheus' API, which other engines have, too."""

import json
import time
import urllib.parse
from pathlib import Path

from harness import Server, free_port, request


class Api:
    """Prometheus' API on a port."""

    def __init__(self, port):
        self.base = f"http://127.0.0.1:{port}/api/v1/"

    def ask(self, path, **parameters):
        """The data in the response. An error of the engine is a ValueError with its text."""
        text = urllib.parse.urlencode(parameters, doseq=True)
        # Some queries are too long for a URL.
        address, body = (path, text.encode()) if path.startswith("query") else (f"{path}?{text}", None)
        status, _, content = request(self.base + address, "POST" if body is not None else "GET", body, timeout=300)
        if status != 200:
            raise ValueError(f"status {status}: {content.decode(errors='replace')[:500]}")
        return json.loads(content)["data"]

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


def command_of(folder, configuration, port, program="prometheus"):
    """Writes the configuration, and returns the command of a Prometheus that reads it and stores its data in the folder."""
    path = Path(folder) / "prometheus.yml"
    # JSON is valid YAML.
    path.write_text(json.dumps(configuration))
    storage = f"--storage.tsdb.path={Path(folder) / 'data'}"
    return [program, f"--config.file={path}", storage, f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn"]


class Prometheus(Server, Api):
    """A Prometheus in a folder of its own, which it may share with other files."""

    def __init__(self, folder, configuration, *flags, program="prometheus"):
        port = free_port()
        Server.__init__(self, [*command_of(folder, configuration, port, program), *flags], port, "/-/ready", Path(folder) / "prometheus.log")
        Api.__init__(self, port)
