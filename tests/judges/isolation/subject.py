"""An exporter on loopback and its figures as numbers. Needs nothing but Python."""

import os
import pathlib
import re
import socket
import subprocess
import time
import urllib.error
import urllib.request

LINE = re.compile(r"^(?P<name>\w+)(?:\{(?P<labels>.*)\})? (?P<value>\S+)$", re.MULTILINE)
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class Exporter:
    """vram-exporter inside the `with` block, ready when /readyz returns 200. It is stopped by its pid."""

    def __init__(self, program, log, *flags, environment=None):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.command = [str(program), f"--web.listen-address=127.0.0.1:{self.port}", *flags]
        self.environment = {**os.environ, **(environment or {})}
        self.log = pathlib.Path(log)

    def __enter__(self):
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=log, env=self.environment)
        try:
            self.wait_ready()
        except BaseException:
            self.__exit__()
            raise
        return self

    def wait_ready(self, limit=60):
        deadline = time.monotonic() + limit
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                self.get("/readyz")
                return
            except (OSError, urllib.error.URLError):
                time.sleep(0.1)
        raise RuntimeError(f"the exporter is not ready within {limit} s: {self.log.read_text()[-2000:]}")

    def __exit__(self, *_):
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    @property
    def pid(self):
        return self.process.pid

    def get(self, path):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=10) as answer:
            return answer.read().decode()

    def scrape(self):
        """The samples of one scrape: (name, labels, value)."""
        found = LINE.finditer(self.get("/metrics"))
        return [(line["name"], dict(LABEL.findall(line["labels"] or "")), float(line["value"])) for line in found]

    def until(self, what, wanted, limit=60):
        """The first scrape that `wanted` accepts."""
        deadline = time.monotonic() + limit
        while time.monotonic() < deadline:
            scrape = self.scrape()
            if wanted(scrape):
                return scrape
            time.sleep(0.1)
        raise RuntimeError(f"not within {limit} s: {what}")


def value(scrape, name, **labels):
    """The sum of the series with this name and these labels; 0 if there is none."""
    return sum(of for other, has, of in scrape if other == name and labels.items() <= has.items())


def slow_faults(scrape):
    return value(scrape, "vram_exporter_faults_by_reason_total", reason="slow")


def cpu_seconds(pid):
    """CPU time of all live threads of a process, from the scheduler's nanoseconds."""
    threads = pathlib.Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(stat.read_text().split()[0]) for stat in threads) / 1e9
