"""The command `vram-run`: starts a command with the client in each Python process under it, or adds the client to a running process.

Invariant: the command replaces this process, so signals, the exit status and the standard streams are those of the command.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from typing import Dict, List, Mapping, NoReturn, Optional

from ._version import __version__

_PACKAGE = os.path.dirname(os.path.abspath(__file__))
BOOTSTRAP = os.path.join(_PACKAGE, "_bootstrap")

_ATTACH = """\
import sys
from importlib.util import module_from_spec, spec_from_file_location
if "vram_exporter" not in sys.modules:
    _spec = spec_from_file_location("vram_exporter", {init!r}, submodule_search_locations=[{package!r}])
    sys.modules["vram_exporter"] = module_from_spec(_spec)
    try:
        _spec.loader.exec_module(sys.modules["vram_exporter"])
    except BaseException:
        sys.modules.pop("vram_exporter", None)
        raise
import vram_exporter
vram_exporter.start(socket={socket!r}, interval={interval!r}, sites={sites!r}, snapshots={snapshots!r})
"""


def main(arguments: Optional[List[str]] = None) -> NoReturn:
    """Runs the command line. Exits with status 2 if it is invalid, with 126 or 127 as a shell does, or with 1 if attaching failed."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.snapshots is not None and not (options.sites or (options.pid is None and os.environ.get("VRAM_EXPORTER_SITES") == "1")):
        parser.error("--snapshots needs --sites")
    if options.pid is not None:
        if options.command:
            parser.error("--pid takes no command")
        sys.exit(_attach(options.pid, options.socket, options.interval, options.sites, options.snapshots))
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not command:
        parser.error("a command or --pid is required")
    try:
        os.execvpe(command[0], command, environment(os.environ, options.socket, options.interval, options.sites, options.snapshots))
    except OSError as error:
        print("vram-run: %s: %s" % (command[0], error.strerror or error), file=sys.stderr)
        sys.exit(127 if isinstance(error, FileNotFoundError) else 126)


def environment(
    inherited: Mapping[str, str], socket: Optional[str] = None, interval: Optional[float] = None, sites: bool = False, snapshots: Optional[str] = None
) -> Dict[str, str]:
    """The environment in which a Python process, and each one that inherits it, starts the client."""
    made = dict(inherited)
    # An empty variable adds nothing to Python's path, but an empty part of it adds the current folder.
    text = made.get("PYTHONPATH", "")
    parts = [part for part in text.split(os.pathsep) if part != BOOTSTRAP] if text else []
    made["PYTHONPATH"] = os.pathsep.join([BOOTSTRAP] + parts)
    made["VRAM_EXPORTER_ARM"] = "1"
    if socket is not None:
        made["VRAM_EXPORTER_SOCKET"] = _absolute(socket)
    if interval is not None:
        made["VRAM_EXPORTER_INTERVAL"] = repr(interval)
    if sites:
        made["VRAM_EXPORTER_SITES"] = "1"
    if snapshots is not None:
        made["VRAM_EXPORTER_SNAPSHOTS"] = os.path.abspath(snapshots)
    return made


def _absolute(paths: str) -> str:
    """A list of paths, separated by `os.pathsep`, each of them absolute."""
    return os.pathsep.join(os.path.abspath(path) for path in paths.split(os.pathsep) if path)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="vram-run",
        usage="vram-run [--socket PATH] [--interval SECONDS] [--sites [--snapshots FOLDER]] COMMAND...\n"
        "       vram-run [--socket PATH] [--interval SECONDS] [--sites [--snapshots FOLDER]] --pid PID",
        description="Starts COMMAND with the client in each Python process under it. The client reports the GPU memory of PyTorch, JAX and "
        "TensorFlow to vram-exporter. COMMAND itself is unchanged; it replaces this process.",
    )
    parser.add_argument("--socket", metavar="PATH", help="the exporter's socket, or several separated by colons (default: $VRAM_EXPORTER_SOCKET, then /run/vram-exporter/allocator.sock)")
    parser.add_argument("--interval", metavar="SECONDS", type=_interval, help="the time between two readings, 0.01 to 1.5 (default: what the exporter suggests)")
    parser.add_argument("--sites", action="store_true", help="also report which lines of a PyTorch or JAX program hold the memory, with the names of files and functions")
    parser.add_argument("--snapshots", metavar="FOLDER", help="also write a file for https://pytorch.org/memory_viz when an allocation of PyTorch fails; needs --sites")
    parser.add_argument("--pid", metavar="PID", type=int, help="add the client to a running process of the same version of CPython, 3.14 or newer")
    parser.add_argument("--version", action="version", version="vram-run " + __version__)
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="COMMAND", help=argparse.SUPPRESS)
    return parser


def _interval(text: str) -> float:
    try:
        interval = float(text)
    except ValueError:
        interval = 0.0
    if not 0.01 <= interval <= 1.5:
        raise argparse.ArgumentTypeError("%r is not a number of seconds from 0.01 to 1.5" % text)
    return interval


def _attach(pid: int, socket: Optional[str], interval: Optional[float], sites: bool, snapshots: Optional[str]) -> int:
    remote_exec = getattr(sys, "remote_exec", None)
    if remote_exec is None:
        print(
            "vram-run: --pid needs CPython 3.14 or newer here and in the process; this is %d.%d. Start the process with "
            "`vram-run COMMAND` instead." % sys.version_info[:2],
            file=sys.stderr,
        )
        return 1
    if not os.path.exists("/proc/%d" % pid):
        print("vram-run: cannot attach to process %d: no such process" % pid, file=sys.stderr)
        return 1
    script = _ATTACH.format(
        init=os.path.join(_PACKAGE, "__init__.py"),
        package=_PACKAGE,
        socket=None if socket is None else _absolute(socket),
        interval=interval,
        sites=sites or None,
        snapshots=None if snapshots is None else os.path.abspath(snapshots),
    )
    # The process reads the file later, at an unknown time, so the file must remain. It contains no secret, and is readable by everyone
    # because the process may run as another user.
    descriptor, path = tempfile.mkstemp(prefix="vram-run-", suffix=".py")
    with os.fdopen(descriptor, "w") as file:
        file.write("import os\ntry:\n    os.unlink(%r)\nexcept OSError:\n    pass\n" % path + script)
        os.chmod(path, 0o644)
    try:
        remote_exec(pid, path)
    except (OSError, RuntimeError, ValueError) as error:
        os.unlink(path)
        # CPython's error does not state that the process contains no interpreter.
        reason = "it is not a process of CPython %d.%d" % sys.version_info[:2] if "PyRuntime" in str(error) else error
        print("vram-run: cannot attach to process %d: %s" % (pid, reason), file=sys.stderr)
        return 1
    return 0
