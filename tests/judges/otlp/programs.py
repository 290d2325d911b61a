"""Starts the programs of these checks and waits for them."""

import contextlib
import json
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request

PATIENCE = 60


def free_port():
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return bound.getsockname()[1]


@contextlib.contextmanager
def started(command, log):
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def wait_until(ready, what, log):
    end = time.monotonic() + PATIENCE
    while True:
        with contextlib.suppress(OSError, urllib.error.URLError):
            if answer := ready():
                return answer
        if time.monotonic() > end:
            log.seek(0)
            raise SystemExit(f"not within {PATIENCE} s: {what}\n{log.read().decode(errors='replace')[-3000:]}")
        time.sleep(0.1)


def get(url):
    with urllib.request.urlopen(url, timeout=10) as answer:
        return answer.read().decode()


def query(port, expression):
    """The result of an instant query."""
    answer = json.loads(get(f"http://127.0.0.1:{port}/api/v1/query?" + urllib.parse.urlencode({"query": expression})))
    if answer["status"] != "success":
        raise SystemExit(answer)
    return answer["data"]["result"]
