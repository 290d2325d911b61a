"""The lower bounds: a C program that only calls the driver, and a static file served by the exporter's web server."""

import json
import os
import select
import subprocess
import time
from pathlib import Path

import proc
from harness import end, undone_on_failure

WAIT = 60.0


def line(process, what):
    """The next output line of a program, within a minute."""
    if not select.select([process.stdout], [], [], WAIT)[0]:
        raise RuntimeError(f"{what} printed nothing for {WAIT:.0f} s")
    said = process.stdout.readline()
    if not said:
        raise RuntimeError(f"{what} ended with status {process.wait()}")
    return said.decode().strip()


class Program:
    """A helper program that writes lines to its output and exits when its input is closed."""

    def __init__(self, command, environment=None):
        self.process = subprocess.Popen(
            list(map(str, command)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, **(environment or {})}
        )
        self.begun, self.name = time.perf_counter(), Path(command[0]).name

    def __enter__(self):
        return self

    def __exit__(self, *_):
        end(self.process)

    @property
    def pid(self):
        return self.process.pid

    def line(self):
        return line(self.process, self.name)


class StaticFile(Program):
    """Serves the given text at `address` with the exporter's web server."""

    def __init__(self, program, text, out):
        file = Path(out) / "static.prom"
        file.write_text(text)
        super().__init__([program, file])
        self.address = None

    @undone_on_failure
    def __enter__(self):
        self.address = int(self.line().rpartition(":")[2])


def first_ms(bare, machine):
    """The time from the start of the bare program to the line that it prints after nvmlInit and one sample of every GPU."""
    with Program([bare, machine.library, "first"], machine.environment()) as program:
        answer = program.line()
        took = 1000 * (time.perf_counter() - program.begun)
    if len(json.loads(answer)["used"]) != machine.gpus:
        raise RuntimeError(f"the bare program printed {answer}")
    return took


def resident_after_init(bare, machine):
    """Memory in KiB by field name, after nvmlInit."""
    with Program([bare, machine.library, "init"], machine.environment()) as program:
        program.line()
        return proc.memory(program.pid)


def same(bare, machine, plan, hz):
    """The cost of making the exporter's driver calls at its rates from the bare program: share of one core, and memory in KiB."""
    longest = 10 * (plan.settle + plan.window) + 60
    with Program([bare, machine.library, "same", hz, longest], machine.environment()) as program:
        program.line()
        time.sleep(plan.settle)
        clock = proc.Clock(program.pid)
        time.sleep(plan.window)
        found = {"cpu": clock.share(with_children=False), "memory_steady": proc.memory(program.pid)}
        program.process.stdin.close()
        found |= json.loads(program.line())
    if found["failed_calls"]:
        raise RuntimeError(f"{found['failed_calls']} calls of the bare loop failed")
    return found


def run(bare, machine, plan):
    found = {"subject": "bare", "at": time.time(), "first_ms": [first_ms(bare, machine) for _ in range(plan.starts)]}
    return found | {"init": resident_after_init(bare, machine)} | same(bare, machine, plan, 100)
