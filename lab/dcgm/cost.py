"""Measures how long a scrape takes on both listeners of one exporter, side by side: on a new connection for each request, on one
connection, and compressed. Prints the median and the 99th percentile of each and their ratio; a slow scrape is not a failure.

    python3 lab/dcgm/cost.py --exporter target/release/vram-exporter [--requests 1000] [--scenario eight-h200]

The two listeners take turns, so that whatever else the machine does affects both. The GPUs are simulated: a scrape makes no driver call, so
its time does not depend on them.
"""

import gzip
import http.client
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests/judges"))

from harness import arguments, free_port, get, until
from harness.exporter import Exporter

MODES = [("new connection", False, False), ("keep-alive", True, False), ("keep-alive, gzip", True, True)]


class Listener:
    def __init__(self, port):
        self.port = port
        self.connection = None

    def scrape(self, kept, compressed):
        """The time in ms from before the connection to the last byte, and the text."""
        begin = time.perf_counter()
        if self.connection is None:
            self.connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        headers = {"Accept-Encoding": "gzip"} if compressed else {}
        self.connection.request("GET", "/metrics", headers=headers | ({} if kept else {"Connection": "close"}))
        answer = self.connection.getresponse()
        body = answer.read()
        if not kept:
            self.connection.close()
            self.connection = None
        taken = 1000 * (time.perf_counter() - begin)
        if answer.status != 200:
            raise SystemExit(f"port {self.port}: status {answer.status}")
        return taken, gzip.decompress(body) if answer.getheader("Content-Encoding") == "gzip" else body


def percentile(values, share):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def measure(exporter, scenario, requests):
    other = free_port()
    with Exporter(exporter, f"--demo={scenario}", f"--dcgm.listen-address=127.0.0.1:{other}") as running:
        until("the exporter's families", lambda: "DCGM_FI_DEV_FB_USED{" in get(f"http://127.0.0.1:{other}/metrics"), log=running.output)
        print(f"{scenario}, {requests} requests each, ms")
        print(f"{'':18}{'/metrics':>26}{'dcgm':>26}{'dcgm / own':>18}")
        for name, kept, compressed in MODES:
            listeners = {"own": Listener(running.port), "dcgm": Listener(other)}
            times = {key: [] for key in listeners}
            sizes = {}
            for _ in range(requests):
                for key, listener in listeners.items():
                    taken, body = listener.scrape(kept, compressed)
                    times[key].append(taken)
                    sizes[key] = body.count(b"\n")
            figures = {key: (percentile(taken, 0.5), percentile(taken, 0.99)) for key, taken in times.items()}
            row = "".join(f"{f'p50 {p50:.2f}  p99 {p99:.2f}':>26}" for p50, p99 in figures.values())
            ratios = [figures["dcgm"][at] / figures["own"][at] for at in (0, 1)]
            print(f"{name:18}{row}{f'{ratios[0]:.2f}  {ratios[1]:.2f}':>18}")
        print(f"lines: {sizes['own']} and {sizes['dcgm']}")


def main():
    parser = arguments(__doc__)
    parser.add_argument("--requests", type=int, default=1000, help="requests for each listener and mode")
    parser.add_argument("--scenario", action="append", help="a scenario of the simulator; may be repeated")
    given = parser.parse_args()
    for scenario in given.scenario or ["idle-h200", "eight-h200"]:
        measure(given.exporter, scenario, given.requests)
    return 0


if __name__ == "__main__":
    sys.exit(main())
