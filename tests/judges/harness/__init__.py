"""What the judges share: free ports, waiting, programs that are started and ended, HTTP requests, and how a judge reports its result.

A judge puts this folder's parent at the head of the path before the import: `sys.path.insert(0, str(Path(__file__).resolve().parents[1]))`.
Needs only the standard library. Invariant: a program that is started here is ended with its `with` block, by its handle.
"""

import argparse
import contextlib
import functools
import http.client
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
# How many seconds any wait may take. The limit is generous, because the machine may be busy.
PATIENCE = 60
# What a server that is not ready yet answers with; a JSON text that is not complete is a ValueError.
NOT_READY = (OSError, http.client.HTTPException, ValueError)


class Late(AssertionError):
    """What was waited for did not happen within the limit."""


def free_port(given=set()):
    """A port that nothing uses, and that this program has not got before: the kernel may offer a port again."""
    while True:
        with socket.socket() as bound:
            bound.bind(("127.0.0.1", 0))
            port = bound.getsockname()[1]
        if port not in given:
            given.add(port)
            return port


def listens(port):
    with socket.create_connection(("127.0.0.1", port), timeout=5):
        return True


def until(what, ask, limit=PATIENCE, pause=0.1, log=None):
    """Repeats the call until it returns a true value, and returns that value. The end of the log is part of the error."""
    end = time.monotonic() + limit
    while True:
        try:
            answer = ask()
            if answer:
                return answer
        except NOT_READY as error:
            answer = error
        if time.monotonic() > end:
            raise Late(f"not within {limit:g} s: {what}; the last answer was {answer!r:.300}\n{tail(log)}".rstrip())
        time.sleep(pause)


def tail(log, size=3000):
    """The end of a log: a path, or an open file, whose position does not change."""
    if log is None:
        return ""
    if isinstance(log, (str, Path)):
        return Path(log).read_bytes()[-size:].decode(errors="replace")
    return os.pread(log.fileno(), size, max(0, os.fstat(log.fileno()).st_size - size)).decode(errors="replace")


def end(process, grace=20):
    """Closes the input of a program, or sends SIGTERM to a program without an input, and kills it after `grace` seconds. Returns its status."""
    if process.stdin:
        with contextlib.suppress(OSError):
            process.stdin.close()
    else:
        process.terminate()
    try:
        process.wait(grace)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout:
        process.stdout.close()
    return process.returncode


def undone_on_failure(enter):
    """Makes an `__enter__` that fails half way end what it has begun, with `__exit__`. It returns the object itself."""
    @functools.wraps(enter)
    def entered(self):
        try:
            enter(self)
        except BaseException:
            self.__exit__()
            raise
        return self

    return entered


@contextlib.contextmanager
def started(command, log, **options):
    """A running program that writes to the open file `log`."""
    process = subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=log, stderr=log, **options)
    try:
        yield process
    finally:
        end(process)


class Server:
    """A program that serves HTTP on a loopback port. In the `with` block it runs, and `ready` returns status 200; without `ready` nothing is
    waited for. `environment` is added to this program's environment; `log` is a path, of a temporary file by default."""

    def __init__(self, command, port, ready="/readyz", log=None, environment=None, limit=PATIENCE):
        self.command, self.port, self.ready, self.limit = [str(word) for word in command], port, ready, limit
        self.log, self.environment, self.output, self.process = log, {**os.environ, **(environment or {})}, None, None

    @undone_on_failure
    def __enter__(self):
        self.output = open(self.log, "a+b") if self.log else tempfile.TemporaryFile()
        self.start()

    def __exit__(self, *_):
        if self.process:
            end(self.process)
        if self.output:
            self.output.close()

    def start(self):
        """Starts the program, or starts it again after it has ended."""
        self.process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=self.output, stderr=self.output, env=self.environment)
        if self.ready:
            until(f"{self.name} is ready", self.is_ready, self.limit, pause=0.05, log=self.output)

    def is_ready(self):
        self.must_run()
        return request(self.url + self.ready)[0] == 200

    def must_run(self):
        if self.process.poll() is not None:
            raise AssertionError(f"{self.name} ended with status {self.process.returncode}: {tail(self.output)}")

    @property
    def name(self):
        return Path(self.command[0]).name

    @property
    def pid(self):
        return self.process.pid

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def get(self, path, **options):
        self.must_run()
        return get(self.url + path, **options)

    def logged(self):
        """Everything in the log."""
        return tail(self.output, 1 << 30)


def request(url, method="GET", body=None, headers=None, timeout=60, context=None):
    """The status, the headers and the content of an answer with any status."""
    asked = urllib.request.Request(url, body, headers or {}, method=method)
    try:
        with urllib.request.urlopen(asked, timeout=timeout, context=context) as answer:
            return answer.status, answer.headers, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers, error.read()


def get(url, **options):
    """The text of an answer with a status of success; an OSError otherwise."""
    status, _, content = request(url, **options)
    if status >= 300:
        raise OSError(f"{url}: status {status}: {content[:300]!r}")
    return content.decode()


def cpu_seconds(pid):
    """Processor time of all live threads, in nanoseconds if the kernel counts them, otherwise in clock ticks. Unlike the time that passes, it
    hardly depends on what else runs on the machine."""
    total = 0
    for stat in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        with contextlib.suppress(OSError, IndexError):  # The thread has ended.
            total += int(stat.read_text().split()[0])
    if total:
        return total / 1e9
    columns = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(columns[11]) + int(columns[12])) / os.sysconf("SC_CLK_TCK")


def waited_seconds(pid):
    """How long all live threads have been ready to run while the processors did something else; 0 if the kernel does not count it."""
    total = 0
    for stat in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        with contextlib.suppress(OSError, IndexError):  # The thread has ended.
            total += int(stat.read_text().split()[1])
    return total / 1e9


def resident_kib(pid, field="VmRSS"):
    """A line of the status of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field + ":"))


def arguments(description, simulator=False):
    """A parser of arguments with --exporter, and --simulator if asked for. `simulator_of` returns the library."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--exporter", type=Path, default=ROOT / "target/release/vram-exporter", help="path of the exporter")
    if simulator:
        made.add_argument("--simulator", type=Path, help="libnvml_sim.so; by default in the exporter's deps folder")
    return made


def simulator_of(options):
    return getattr(options, "simulator", None) or options.exporter.resolve().parent / "deps/libnvml_sim.so"


def everything_required():
    return bool(os.environ.get("VRAM_EXPORTER_TEST_REQUIRE_ALL"))


def skipped(what):
    """Reports what could not be judged. Returns the exit status: an error if everything is required."""
    print(f"SKIPPED: {what}", flush=True)
    return 1 if everything_required() else 0


def finish(problems):
    """Prints the problems. Returns the exit status."""
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0
