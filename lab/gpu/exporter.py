"""A running exporter: one scrape as numbers, and the time of a scrape."""

import gzip
import http.client
import os
import socket
import time

import harness
from harness import free_port
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


class Server(harness.Server):
    """A program that serves /metrics on loopback."""

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
        super().__init__(command, port, log=os.path.join(setup.out, f"{name}.log"))
