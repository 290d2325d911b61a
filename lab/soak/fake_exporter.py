"""A stand-in for the exporter: either correct, so that the soak must pass it, or with one fault, so that the soak must
fail it.

    fake_exporter.py PORT FAULT"""

import os
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

FAULTS = ("honest", "memory", "descriptors", "threads", "reset", "reset-after-absence", "twice", "malformed", "refuses", "late", "dies")
EXPOSITION = """# HELP gpu_up Whether the GPU answers.
# TYPE gpu_up gauge
gpu_up{{gpu="0"}} 1
# HELP scrapes_total Scrapes.
# TYPE scrapes_total counter
{counter}# HELP took_seconds How long.
# TYPE took_seconds histogram
took_seconds_bucket{{le="1"}} {scrapes}
took_seconds_bucket{{le="+Inf"}} {scrapes}
took_seconds_sum {scrapes}
took_seconds_count {scrapes}
"""

scrapes = 0
one_at_a_time = threading.Lock()


def exposition(fault, number):
    """The exposition of the scrape with this number."""
    counted = number % 7 if fault == "reset" else number
    counter = f'scrapes_total{{code="200",path="/"}} {counted}\n'
    if fault == "reset-after-absence":
        counter = counter if number < 4 else "" if number < 8 else 'scrapes_total{code="200",path="/"} 1\n'
    if fault == "twice" and number > 4:
        counter += f'scrapes_total{{path="/",code="200"}} {counted}\n'
    if fault == "malformed" and number > 4:
        counter += f'scrapes_total{{code="a"b"}} {counted}\n'
    return EXPOSITION.format(counter=counter, scrapes=number)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    fault = "honest"

    def do_GET(self):
        global scrapes
        with one_at_a_time:
            scrapes += 1
            body = exposition(self.fault, scrapes).encode()
            status = 503 if self.fault == "refuses" and scrapes % 5 == 0 else 200
            late = self.fault == "late" and scrapes % 5 == 0
        if late:
            time.sleep(1.5)
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_):
        """Ignores a scraper that disconnected before its response."""


def misbehave(fault):
    """Applies the faults that need no scrape."""
    kept = []
    begun = time.monotonic()
    while True:
        time.sleep(0.1)
        if fault == "memory":
            kept.append(b"x" * (1 << 20))
        elif fault == "descriptors":
            kept.append(os.open("/dev/null", os.O_RDONLY))
        elif fault == "threads":
            kept.append(threading.Thread(target=time.sleep, args=(60,), daemon=True))
            kept[-1].start()
        elif fault == "dies" and time.monotonic() > begun + 4:
            os._exit(3)


def main():
    port, Handler.fault = int(sys.argv[1]), sys.argv[2]
    server = Server(("127.0.0.1", port), Handler)
    threading.Thread(target=misbehave, args=(Handler.fault,), daemon=True).start()
    server.serve_forever()


if __name__ == "__main__":
    main()
