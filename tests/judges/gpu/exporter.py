"""A running exporter: starting and stopping it, one scrape as numbers, its CPU time and memory."""

import glob
import gzip
import http.client
import os
import socket
import subprocess
import time

from children import end_process
from prometheus_client.parser import text_string_to_metric_families


class Scrape:
    """The samples of one scrape by metric name."""

    def __init__(self, text):
        self.text = text
        self.samples = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                self.samples.setdefault(sample.name, []).append((sample.labels, sample.value))

    def rows(self, name, **labels):
        """Every (labels, value) of `name` that has these labels."""
        wanted = {key: str(value) for key, value in labels.items()}
        return [row for row in self.samples.get(name, []) if wanted.items() <= row[0].items()]

    def value(self, name, **labels):
        """The only value of `name` with these labels; None if it is absent."""
        rows = self.rows(name, **labels)
        if len(rows) > 1:
            raise ValueError(f"{name}{labels} is not one series but {len(rows)}")
        return rows[0][1] if rows else None


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server:
    """A program that serves /metrics on loopback, started on entry and stopped by its pid on exit."""

    def __init__(self, command, port, log, environment=None, ready_path="/metrics"):
        self.command, self.port, self.log, self.ready_path = command, port, log, ready_path
        self.environment = {**os.environ, **(environment or {})}
        self.process = None

    def __enter__(self):
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=log, env=self.environment)
        try:
            self.wait_ready()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        end_process(self.process)

    @property
    def pid(self):
        return self.process.pid

    def wait_ready(self, limit=30.0):
        deadline = time.monotonic() + limit
        answer = "no connection"
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise RuntimeError(f"{self.command[0]} ended with status {self.process.returncode}, see {self.log}")
            try:
                status, _ = self.get(self.ready_path)
                if status == 200:
                    return
                answer = f"status {status}"
            except OSError as error:
                answer = str(error)
            time.sleep(0.05)
        raise RuntimeError(f"{self.command[0]} is not ready after {limit:.0f} s ({answer}), see {self.log}")

    def get(self, path, headers=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request("GET", path, headers=headers or {})
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def scrape(self):
        status, body = self.get("/metrics")
        if status != 200:
            raise RuntimeError(f"/metrics answered {status}")
        return Scrape(body.decode())

    def timed_get(self, gzipped=False):
        """The milliseconds that one GET takes over a new connection, from connecting to the last byte, and the body's length."""
        request = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        request += b"Accept-Encoding: gzip\r\n\r\n" if gzipped else b"\r\n"
        pieces = []
        begun = time.perf_counter_ns()
        with socket.create_connection(("127.0.0.1", self.port), timeout=10) as connection:
            connection.sendall(request)
            while piece := connection.recv(1 << 18):
                pieces.append(piece)
        took = (time.perf_counter_ns() - begun) / 1e6
        head, _, body = b"".join(pieces).partition(b"\r\n\r\n")
        if b" 200 " not in head.split(b"\r\n", 1)[0]:
            raise RuntimeError(f"/metrics answered {head[:60]!r}")
        if gzipped and b"content-encoding: gzip" in head.lower() and b"chunked" not in head.lower():
            gzip.decompress(body)
        return took, len(body)


class Exporter(Server):
    """vram-exporter on a free port, ready when /readyz returns 200."""

    def __init__(self, setup, name, *flags):
        port = free_port()
        command = [setup.exporter, f"--web.listen-address=127.0.0.1:{port}", f"--nvml.library={setup.library}", *flags]
        super().__init__(command, port, os.path.join(setup.out, f"{name}.log"), ready_path="/readyz")


def cpu_seconds(pid):
    """CPU time of all threads in seconds, from the scheduler's nanoseconds if the kernel provides them, otherwise from
    clock ticks."""
    total = 0
    seen = False
    for path in glob.glob(f"/proc/{pid}/task/*/schedstat"):
        try:
            with open(path) as stat:
                total += int(stat.read().split()[0])
                seen = True
        except (OSError, IndexError):
            continue  # the thread has ended
    if seen and total:
        return total / 1e9
    with open(f"/proc/{pid}/stat") as stat:
        columns = stat.read().rpartition(")")[2].split()
    return (int(columns[11]) + int(columns[12])) / os.sysconf("SC_CLK_TCK")


def resident_kib(pid):
    """VmRSS in KiB."""
    with open(f"/proc/{pid}/status") as status:
        for line in status:
            if line.startswith("VmRSS:"):
                return int(line.split()[1])
    raise RuntimeError(f"/proc/{pid}/status shows no VmRSS")
