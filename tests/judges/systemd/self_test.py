#!/usr/bin/env python3
"""Shows that check.py has the exit status 77 only where the machine does not permit systemd to run, and 1 for every other failure.

    self_test.py

Needs neither root nor systemd: the machine is replaced by one that fails in a given way.
"""

import contextlib
import io
import os
import sys
from unittest import mock

import check
from machine import CannotBoot, NotInstalled


class Booted:
    """A machine that starts."""

    def __init__(self, *_):
        pass

    def __enter__(self):
        return mock.Mock(run=lambda *_, **__: mock.Mock(stdout="systemd 252\n"))

    def __exit__(self, *_):
        pass


def failing(error):
    """A machine that does not start."""

    class Failing(Booted):
        def __enter__(self):
            raise error

    return Failing


def status(machine, *options, require_all="", exporter="/bin/sh"):
    """The exit status of check.py."""
    command = ["check.py", "--exporter", exporter, "--simulator", "/bin/sh", *options]
    environment = {"VRAM_EXPORTER_TEST_REQUIRE_ALL": require_all}
    with mock.patch.object(check, "Machine", machine), mock.patch.object(sys, "argv", command), mock.patch.dict(os.environ, environment):
        with contextlib.redirect_stdout(io.StringIO()):
            try:
                return check.main()
            except SystemExit as error:
                return error.code if isinstance(error.code, int) else 1
            except OSError:
                return 1


def main():
    refused, missing, broken = (failing(error) for error in (CannotBoot("no cgroup"), NotInstalled("curl"), SystemExit("a unit failed")))
    cases = (
        ("it boots", status(Booted, "--can-boot"), 0),
        ("the machine refuses", status(refused, "--can-boot"), 77),
        ("the machine refuses, and everything is required", status(refused, require_all="1"), 77),
        ("the machine refuses, and nothing is required", status(refused), 0),
        ("a program is missing", status(missing, "--can-boot"), 1),
        ("a program is missing, and nothing is required", status(missing), 0),
        ("a unit of the machine fails", status(broken, "--can-boot"), 1),
        ("there is no exporter", status(Booted, "--can-boot", exporter="/no/such/exporter"), 1),
    )
    wrong = [f"{what}: status {seen}, not {wanted}" for what, seen, wanted in cases if seen != wanted]
    print("\n".join(wrong) or f"{len(cases)} exit statuses")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
