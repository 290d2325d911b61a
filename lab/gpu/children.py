"""Starts and stops the CUDA processes and programs under test; each is stopped individually, by pid."""

import contextlib
import json
import os
import select
import subprocess
import sys
import time

from harness import end

HERE = os.path.dirname(os.path.abspath(__file__))
CLIENT = os.path.normpath(os.path.join(HERE, "../../clients/python/src"))


class ChildFailed(Exception):
    pass


class Child:
    """A cuda_child.py process, which exchanges JSON lines; `environment` is added to this program's environment. `prefix` is a command that
    runs cuda_child.py; if it is given, `pid` and `process` are those of the prefix. `user` is a uid.
    `script` is the program in this folder, and `program` another one to run in its place."""

    def __init__(self, mode, *args, environment=None, prefix=(), user=None, script="cuda_child.py", program=None):
        self.mode = mode
        program = [program] if program else [sys.executable, os.path.join(HERE, script)]
        # A wrapper command (such as `run`) ends after the command that it wraps, and writes a report.
        self.grace = 30.0 if prefix else 5.0
        self.buffer = b""
        self.process = subprocess.Popen(
            [*prefix, *program, mode, *map(str, args)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **(environment or {})},
            user=user,
        )
        self.pid = self.process.pid

    def hear(self, timeout=120.0):
        """The next message. Raises ChildFailed if the child ends or sends nothing for `timeout` s."""
        deadline = time.monotonic() + timeout
        stdout = self.process.stdout.fileno()
        while b"\n" not in self.buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([stdout], [], [], left)[0]:
                raise ChildFailed(f"the {self.mode} child {self.pid} sent nothing for {timeout:.0f} s")
            piece = os.read(stdout, 65536)
            if not piece:
                raise ChildFailed(f"the {self.mode} child {self.pid} ended with status {self.process.wait()}")
            self.buffer += piece
        line, self.buffer = self.buffer.split(b"\n", 1)
        return json.loads(line)

    def send(self, **order):
        self.process.stdin.write(json.dumps(order).encode() + b"\n")
        self.process.stdin.flush()

    def end(self):
        """Close the stdin of the process to make it exit; kill it if it does not."""
        end(self.process, self.grace)

    def __enter__(self):
        self.hear()
        return self

    def __exit__(self, *_):
        self.end()


def with_client(folder=CLIENT):
    """The environment in which Python finds the client."""
    return {"PYTHONPATH": os.pathsep.join([folder, *filter(None, [os.environ.get("PYTHONPATH")])])}


def reporting(socket, mode, *args, flags=(), environment=None, script="cuda_child.py"):
    """A child that reports to a socket: `vram-run` replaces itself with the child, so `pid` is that of the child. `flags` are those of
    `vram-run`."""
    prefix = [sys.executable, "-m", "vram_exporter", "--socket", socket, *flags]
    return Child(mode, *args, environment={**with_client(), **(environment or {})}, prefix=prefix, script=script)


@contextlib.contextmanager
def ended(child):
    """Ends the child after the `with` block. Unlike the child's own block, it leaves the first message to be heard."""
    try:
        yield child
    finally:
        child.end()


class Crowd:
    """`count` children of one mode, all ready inside the `with` block, all gone after it."""

    def __init__(self, count, mode, *args, environment=None):
        self.children = []
        self.plan = (count, mode, args, environment)

    def __enter__(self):
        count, mode, args, environment = self.plan
        try:
            for _ in range(count):
                self.children.append(Child(mode, *args, environment=environment))
            for child in self.children:
                child.hear()
        except BaseException:
            self.end()
            raise
        return self.children

    def __exit__(self, *_):
        self.end()

    def end(self):
        # The stdin of all children is closed before any of them is waited for, so that they exit together.
        for child in self.children:
            try:
                child.process.stdin.close()
            except OSError:
                pass
        for child in self.children:
            child.end()
