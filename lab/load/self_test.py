"""Shows in seconds that the flood's checks can fail: how honest scrapers classify servers that answer, refuse, hang or drop
the connection, and how known phases are judged.

    self_test.py"""

import json
import subprocess
import sys
import tempfile
import threading
import types
from pathlib import Path
from socketserver import StreamRequestHandler, ThreadingTCPServer

import flood
import rude
from harness import finish

HERE = Path(__file__).resolve().parent
BODY = b"5\r\nhello\r\n0\r\n\r\n"
HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
# What a server does with each connection → the outcome that honest scrapers report.
EXPECTED = {"answers": "answered", "is full": "refused", "closes": "refused", "hangs": "late", "breaks off": "broken", "fails": "broken"}


class Connection(StreamRequestHandler):
    def handle(self):
        does = self.server.does
        if does == "closes":
            return
        while line := self.rfile.readline(65537):
            if line == b"\r\n" and not self.answer(does):
                return

    def answer(self, does):
        """Whether the connection stays open."""
        if does == "hangs":
            self.server.over.wait(10)
            return False
        status = {"is full": b"503 Busy", "fails": b"500 No"}.get(does)
        if status:
            self.wfile.write(b"HTTP/1.1 " + status + b"\r\nContent-Length: 0\r\n\r\n")
        else:
            self.wfile.write(HEAD + (BODY[:6] if does == "breaks off" else BODY))
        return does != "breaks off"


class Server(ThreadingTCPServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, does):
        super().__init__(("127.0.0.1", 0), Connection)
        self.does, self.over = does, threading.Event()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def handle_error(self, *_):
        """Ignores a client that has disconnected."""

    def end(self):
        self.over.set()
        self.shutdown()
        self.server_close()


def outcomes(folder):
    """Runs two scrapers for two rounds against each server."""
    for does, expected in EXPECTED.items():
        server, file = Server(does), Path(folder) / does
        command = [sys.executable, str(HERE / "honest.py"), f"--port={server.server_address[1]}", "--count=2", "--every=0.6"]
        subprocess.run([*command, "--seconds=1", "--limit=0.5", f"--out={file}"], check=True, timeout=30)
        server.end()
        found = [json.loads(line)["outcome"] for line in file.read_text().splitlines()]
        if len(found) < 2 or not all(outcome.startswith(expected) for outcome in found):
            yield f"a server that {does} is {found}, not {expected}"


def crowds():
    """Checks that every kind of client connects, and notices that the server closed the connection."""
    server, over = Server("closes"), threading.Event()
    threading.Timer(1.5, over.set).start()
    reported = rude.run(server.server_address[1], {name: 2 for name in rude.KINDS}, over)
    server.end()
    for name, what in reported.items():
        if what["connected"] < 2 or what["ended by the server"] < 2:
            yield f"{name} clients at a server that closes: {what}"


def phase(name, crowd, **changes):
    records = [{"outcome": "answered", "took": 0.01}] * 50
    samples = [{"rss": 20000, "fds": 20, "threads": 6}]
    return flood.Phase(name, crowd, **({"records": records, "samples": samples, "ticks": 1500, "missed": 3} | changes))


def judgements():
    """Checks that the violations are reported, and nothing else."""
    options = types.SimpleNamespace(least_answered=0.5, ticks_allowed=0.005, noise_allowed=0.02)
    late, full = [{"outcome": "late", "took": 1.0}], [{"outcome": "refused", "took": 0.1}] * 50
    cases = {
        "nothing": ({}, {}, None),
        "late": ({"records": late}, {}, "honest scrapes"),
        "no scrape": ({"records": []}, {}, "only 0 of 0"),
        "refused in the flood": ({"records": full}, {}, None),
        "refused in quiet": ({}, {"records": full}, "only 0 of 50"),
        "ticks": ({"missed": 30}, {}, "ticks were missed"),
        "ticks missed in quiet too": ({"missed": 25}, {"missed": 25}, None),
        "a machine that is busy itself": ({}, {"missed": 300}, "too busy to judge"),
        "memory": ({}, {"samples": [{"rss": 40000, "fds": 20, "threads": 6}]}, "MiB were kept"),
        "descriptors": ({}, {"samples": [{"rss": 20000, "fds": 200, "threads": 6}]}, "file descriptors more"),
    }
    for name, (in_flood, after, expected) in cases.items():
        reported = list(flood.judge([phase("quiet", {}), phase("flood", {"silent": 1}, **in_flood), phase("after", {}, **after)], options))
        if expected is None and reported or expected is not None and (len(reported) != 1 or expected not in reported[0]):
            yield f"{name}: {reported}"


def main():
    with tempfile.TemporaryDirectory() as folder:
        wrong = [*outcomes(folder), *crowds(), *judgements()]
    print(f"flood's checks: {len(EXPECTED)} servers, {len(rude.KINDS)} kinds of clients, {len(wrong)} wrong")
    sys.exit(finish(wrong))


if __name__ == "__main__":
    main()
