"""What the tests share: programs in processes of their own, with the stand-in for PyTorch and a recording server."""

import atexit
import importlib
import importlib.util
import os
import subprocess
import sys
import tempfile
import textwrap
import unittest
from unittest import mock

from .recording_server import RecordingServer

TESTS = os.path.dirname(os.path.abspath(__file__))
SOURCE = os.path.join(os.path.dirname(TESTS), "src")
STANDIN = os.path.join(TESTS, "standin")
DEVICE = "GPU-05b7b3b8-a000-0000-0000-000000000000"
SECOND_DEVICE = "GPU-05b7b3b8-a000-0000-0000-000000000001"
MIB = 1 << 20

# The time after which a program that hangs is killed, in seconds.
LIMIT = 120


def environment(**variables):
    """The environment of a program, without any trace of the client except its source."""
    made = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "VRAM_EXPORTER", "STANDIN", "PYTORCH", "CUDA"))}
    made["PYTHONPATH"] = os.pathsep.join([SOURCE, STANDIN])
    made.update(variables)
    return made


_skips = []


def report_skip(test, why):
    """Says at once that a test, or a part of it, does not run. unittest itself shows no reason unless it is verbose."""
    _skips.append(test.id())
    print("SKIPPED: %s: %s" % (test.id(), why), file=sys.stderr)


def skip(test, why):
    """Visibly skips a test."""
    report_skip(test, why)
    test.skipTest(why)


@atexit.register
def _count_skips():
    """Follows unittest's own summary."""
    if _skips:
        print("SKIPPED: %d tests did not run, or not as a whole" % len(set(_skips)), file=sys.stderr)


def standin(test, initialise=True, **variables):
    """The stand-in for PyTorch in this very process, until the test ends."""
    torch = _standin(test, "torch", **variables)
    if initialise:
        torch.cuda.init()
    return torch


def standin_jax(test, **variables):
    """The stand-in for JAX in this very process, until the test ends."""
    return _standin(test, "jax", **variables)


def _standin(test, framework, **variables):
    for patch in (mock.patch.dict(sys.modules), mock.patch.object(sys, "path", [STANDIN] + sys.path), mock.patch.dict(os.environ, variables)):
        patch.start()
        test.addCleanup(patch.stop)
    for name in [name for name in sys.modules if name.partition(".")[0] in ("torch", "transformers", "jax")]:
        del sys.modules[name]
    return importlib.import_module(framework)


def installed(name):
    """Whether a package is installed."""
    return importlib.util.find_spec(name) is not None


class Case(unittest.TestCase):
    """A test with a folder and with programs, all of which end with the test."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="v")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.path = os.path.join(self.folder, "s")

    def missing(self, what, tool=False):
        """Visibly skips a test for which something is missing. If every tool is required, a missing tool is a failure."""
        if tool and os.environ.get("VRAM_EXPORTER_TEST_REQUIRE_ALL") == "1":
            self.fail("missing: " + what)
        skip(self, "missing: " + what)

    def server(self, **behaviour):
        server = RecordingServer(self.path, **behaviour)
        self.addCleanup(server.close)
        return server

    def write(self, name, text):
        path = os.path.join(self.folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as file:
            file.write(textwrap.dedent(text))
        return path

    def program(self, text, *words, command=None, **variables):
        """Starts a program; `text` is its source. It gets the socket's path and communicates over standard input and output."""
        variables = {"VRAM_EXPORTER_SOCKET": self.path, **variables}
        command = command or [sys.executable, "-c", textwrap.dedent(text), *words]
        process = subprocess.Popen(command, env=environment(**variables), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=self.folder)

        def end():
            if process.poll() is None:
                process.kill()
            process.communicate()

        self.addCleanup(end)
        return process

    def finish(self, process):
        """Waits for a program to end. Returns its standard output; fails unless it succeeded without any error output."""
        out, err = process.communicate(timeout=LIMIT)
        self.assertEqual((process.returncode, err), (0, ""), "output: " + out)
        return out

    def run_program(self, text, *words, **variables):
        return self.finish(self.program(text, *words, **variables))

    def go_on(self, process):
        process.stdin.write("\n")
        process.stdin.flush()
