"""The subjects: how each is found and started, and which of its metric families shows a GPU's memory. A missing subject is reported. It
is an error only if continuous integration installs that subject."""

import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from harness import end, free_port

REQUIRED = ("nvitop", "all-smi")
OURS, NVITOP, ALL_SMI, NVIDIA_GPU_EXPORTER = "ours", "nvitop", "all-smi", "nvidia_gpu_exporter"
# The same program once more, as a control, and another build of it.
AGAIN, BEFORE = "again", "before"
BUILDS = (OURS, AGAIN, BEFORE)
PEERS = (NVITOP, ALL_SMI, NVIDIA_GPU_EXPORTER)


class Missing(Exception):
    """Why a subject cannot be measured here."""


@dataclass
class Subject:
    name: str
    command: list
    # The family that shows the memory in use of each GPU.
    used: str
    version: str
    environment: dict = field(default_factory=dict)
    # The subject runs child processes, and their cost is added to its own.
    children: bool = False
    # The subject listens on `{address}`, a socket file instead of a port.
    socket_file: bool = False

    def start(self, machine, out):
        return Running(self, machine, out)


class Running:
    """A running subject: its process and its address. Terminated by pid."""

    def __init__(self, subject, machine, out):
        self.subject = subject
        self.address = str(Path(out).resolve() / f"{subject.name}.sock") if subject.socket_file else free_port()
        environment = {**os.environ, **machine.environment(), **subject.environment}
        command = [part.replace("{address}", str(self.address)) for part in subject.command]
        command = [part.replace("{library}", str(machine.library)) for part in command]
        with open(Path(out) / f"{subject.name}.log", "ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        # Popen returns when the child has loaded the program.
        self.begun = time.perf_counter()

    @property
    def pid(self):
        return self.process.pid

    def alive(self):
        if self.process.poll() is not None:
            raise RuntimeError(f"{self.subject.name} ended with status {self.process.returncode}; see its log")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        end(self.process)


def program(given, name):
    """The path given, or the program found in PATH."""
    found = given or shutil.which(name)
    if not found:
        raise Missing(f"{name} is not in PATH")
    if not os.access(found, os.X_OK):
        raise Missing(f"{found} is not a program")
    return found


def version_of(command, environment=None):
    try:
        answer = subprocess.run(command, env={**os.environ, **(environment or {})}, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Missing(f"{command[0]} does not report its version: {error}") from error
    if answer.returncode:
        raise Missing(f"{command[0]} does not report its version: {(answer.stderr or answer.stdout).strip()[-200:]}")
    return next(iter((answer.stdout or answer.stderr).strip().splitlines()), "unknown")


def ours(options, flags=()):
    return build(OURS, options.exporter, flags)


def build(name, exporter, flags=()):
    """A build of the exporter."""
    command = [str(exporter), "--web.listen-address=127.0.0.1:{address}", "--nvml.library={library}", *flags]
    return Subject(name, command, "gpu_memory_used_bytes", version_of([str(exporter), "--version"]))


def before(options):
    if not options.before:
        raise Missing("--before names no other build")
    return build(BEFORE, options.before)


def nvitop(options):
    """A program, or a folder with its Python packages."""
    environment = {}
    if options.nvitop and os.path.isdir(options.nvitop):
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [options.nvitop, os.environ.get("PYTHONPATH")]))
        command = [sys.executable, "-m", "nvitop_exporter"]
    else:
        command = [program(options.nvitop, "nvitop-exporter")]
    version = version_of([*command, "--version"], environment)
    command += ["--bind-address", "127.0.0.1", "--port", "{address}", "--interval", "1"]
    return Subject(NVITOP, command, "gpu_memory_used_MiB", version, environment)


def all_smi(options):
    found = program(options.all_smi, "all-smi")
    # It listens on all interfaces or on a socket file; the socket file is private, and faster.
    command = [found, "api", "--port", "0", "--socket", "{address}", "--processes", "--interval", "1"]
    return Subject(ALL_SMI, command, "all_smi_gpu_memory_used_bytes", version_of([found, "--version"]), socket_file=True)


def nvidia_gpu_exporter(options):
    if options.simulator:
        raise Missing("it reads nvidia-smi, which the simulator does not have")
    found = program(options.nvidia_gpu_exporter, "nvidia_gpu_exporter")
    command = [found, "--web.listen-address=127.0.0.1:{address}"]
    # Its routes need the pattern syntax of Go 1.22, which is disabled in a build whose go.mod names an older version.
    environment = {"GODEBUG": "httpmuxgo121=0"}
    version = version_of([found, "--version"], environment)
    return Subject(NVIDIA_GPU_EXPORTER, command, "nvidia_smi_memory_used_bytes", version, environment, children=True)


KINDS = {OURS: ours, AGAIN: lambda options: build(AGAIN, options.exporter), BEFORE: before, NVITOP: nvitop, ALL_SMI: all_smi, NVIDIA_GPU_EXPORTER: nvidia_gpu_exporter}


def all_must():
    """Whether everything that continuous integration installs is required."""
    return os.environ.get("VRAM_EXPORTER_TEST_REQUIRE_ALL") == "1"


def tell_missing(name, reason, must):
    """Reports what is left out and why; exits the program if the subject is required."""
    if must:
        sys.exit(f"FAILED: {name}: {reason}")
    print(f"SKIPPED: {name}: {reason}", flush=True)


def find(names, options):
    """The available subjects and, by name, the reasons why the others are missing."""
    found, missing = [], {}
    for name in names:
        try:
            found.append(KINDS[name](options))
        except Missing as reason:
            tell_missing(name, reason, must=name == OURS or name in REQUIRED and all_must())
            missing[name] = str(reason)
    return found, missing
