"""Counts the instructions that a memory-lane tick and a scrape of the `busy-h200` scenario in each format execute, and fails if they differ too much from baseline.json.

    check.py [--program FILE] [--runs 1] [--update]

The program `work`, a release build, runs under valgrind's callgrind on a simulated machine; the simulator's instructions are not counted.
Instruction counts do not depend on the machine's load, so one run is enough. Exits with status 1 if a figure is more than a tenth
above the one in baseline.json, or more than a tenth below it: a baseline that is too high must be lowered, because it would hide the next increase.
--update writes the figures into baseline.json."""

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness import ROOT, finish, skipped

HERE = Path(__file__).resolve().parent
KNOWN = HERE / "baseline.json"
ALLOWED = 0.10
# The steps to count: name in the program → description, and the number of steps in the first part of the run.
FIGURES = {
    "still": ("a tick over 8 GPUs whose memory stays the same", 1000),
    "moving": ("a tick over 8 GPUs whose memory changes", 1000),
    "recorded": ("the same with a recorder, to which every change is passed on", 1000),
    "scrape": ("a scrape of busy-h200 in the text format", 40),
    "openmetrics": ("the same in OpenMetrics", 40),
}
# A function that only `work` calls: before the first counted step, after the first part and at the end.
MARK = "getppid"
# The simulator's part of a tick, where a real driver would run.
LEFT_OUT = "nvmlDeviceGetMemoryInfo_v2"
# How much the instructions per step may differ between the first part and the second, which has twice as many steps.
STEADY = 0.02
# The time limit of one count, in seconds.
PATIENCE = 300


class Unusable(Exception):
    """The count gives no valid figure."""


def build():
    """Builds the program with cargo, keeping its symbols: they identify the simulator's code, which is linked in but not counted."""
    command = ["cargo", "rustc", "--release", "--locked", "--package", "guard", "--bin", "work", "--message-format=json-render-diagnostics"]
    command += ["--", "-C", "strip=none"]
    built = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
    for line in built.splitlines():
        message = json.loads(line)
        if message.get("executable") and message["target"]["name"] == "work":
            return message["executable"]
    raise Unusable("cargo built no program")


def parts(text):
    """The instructions in each part that ends with a mark, from callgrind's output."""
    found = []
    for part in re.split(r"^part: ", text, flags=re.MULTILINE)[1:]:
        total = re.search(r"^totals: (\d+)$", part, re.MULTILINE)
        if total and f"Trigger: --dump-before={MARK}" in part:
            found.append(int(total[1]))
    return found


def per_step(counted, times):
    """The instructions of one step. The program marks `times` steps, then twice as many; the cost of starting and ending the
    count is the same in both parts and cancels out."""
    if len(counted) != 3:
        raise Unusable(f"{len(counted)} marks instead of 3")
    _, once, twice = counted
    figure = (twice - once) / times
    if figure <= 0 or abs(once / times - figure) > STEADY * figure:
        raise Unusable(f"not steady: {once / times:.0f} instructions a step at first, {figure:.0f} thereafter")
    return figure


def count(program, name, times):
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "counted"
        command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}", "--combine-dumps=yes", f"--dump-before={MARK}"]
        command += [f"--toggle-collect={LEFT_OUT}", "--collect-atstart=yes", program, name, str(times)]
        ran = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=PATIENCE)
        if ran.returncode != 0:
            raise Unusable(f"{' '.join(command)} ended with {ran.returncode}:\n{ran.stdout}")
        return per_step(parts(out.read_text()), times)


def problems(known, found):
    """The problems with the figures, one line each."""
    for name in sorted(known.keys() | found.keys()):
        if name not in known or name not in found:
            yield f"{name}: in baseline.json {known.get(name)}, found {found.get(name)}: accept this with --update"
            continue
        now, before = found[name], known[name]
        change = f"{before:.0f} instructions became {now:.0f} ({now / before - 1:+.1%})"
        if now > before * (1 + ALLOWED):
            yield f"{name}: {change}, a growth of more than {ALLOWED:.0%}: if the change is worth it, run --update"
        elif now < before * (1 - ALLOWED):
            yield f"{name}: {change}: lower the baseline with --update"


def version(*command):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--program", help="the program `work`; without it, cargo builds it")
    options.add_argument("--runs", type=int, default=1, help="number of runs; more than one shows how much the figures vary")
    options.add_argument("--update", action="store_true", help="write the figures into baseline.json")
    options = options.parse_args()
    if not shutil.which("valgrind"):
        return skipped("valgrind is not installed: no instruction was counted")

    tools = {"rustc": version("rustc", "--version"), "valgrind": version("valgrind", "--version")}
    program = options.program or build()
    runs = [{name: round(count(program, name, times)) for name, (_, times) in FIGURES.items()} for _ in range(options.runs)]
    found = runs[0]
    for name, (what, _) in FIGURES.items():
        spread = max(run[name] for run in runs) / min(run[name] for run in runs) - 1
        repeated = f", {options.runs} runs within {spread:.2%}" if options.runs > 1 else ""
        print(f"{found[name]:>12,} instructions: {what}{repeated}")
    if options.update:
        KNOWN.write_text(json.dumps(tools | {"instructions": found}, indent=2) + "\n")
        return 0
    known = json.loads(KNOWN.read_text())
    wrong = list(problems(known["instructions"], found))
    if wrong:
        wrong += [f"the known figures are from {known[tool]}, this is {now}" for tool, now in tools.items() if known[tool] != now]
    return finish(wrong)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (Unusable, subprocess.SubprocessError) as problem:
        sys.exit(f"nothing was counted: {problem}")
