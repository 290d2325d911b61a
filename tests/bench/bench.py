"""Measures the exporter beside its peers and beside the limit, on one machine, in one run.

    bench.py --exporter BIN --out DIR --simulator libnvml_sim.so [--gpus 8 --processes 64]
    bench.py --exporter BIN --out DIR [--processes 16]          a real GPU
    bench.py ... --quick                                        a few seconds; judges nothing

Each subject is started fresh for each run, alone, another one first each time. Writes DIR/results.json with every figure of every run
and DIR/results.md with the medians, their ratios and what became of the goals, after each run what there is by then. A goal that is
missed is told and fails nothing; a figure that could not be taken ends the program with 1, a wrong argument with 64."""

import argparse
import contextlib
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path

import calls
import growth
import limit
import machine
import measure
import report
import subjects

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PARTS = ("peers", "calls", "growth")
BARE, STATIC = "bare", "static"
SUBJECTS = (subjects.OURS, *subjects.PEERS, BARE, STATIC)


@dataclass
class Plan:
    """How long what takes, in seconds."""

    runs: int
    settle: float
    window: float
    spikes: int
    spike_every: float
    scrape_seconds: float
    starts: int


def plan(options):
    if options.quick:
        return Plan(1, 0.5, 2, 2, 1.1, 0.2, 1)
    return Plan(options.runs, options.settle, options.window, options.spikes, 1.1, options.scrape_seconds, options.starts)


def one(name, found, there, options, plan):
    """One run of one subject."""
    if name == BARE:
        return limit.run(options.bare, there, plan)
    subject, static = found[name], None
    if name == subjects.OURS and options.static:
        static = lambda text: limit.StaticFile(options.static, text, options.out)
    result = measure.run(subject, there, plan, options.out, options.scraper, static, unscraped=name == subjects.OURS)
    if name == subjects.OURS:
        result["start_ms"] = [result["start_ms"], *(measure.start_only(subject, there, options.out) for _ in range(plan.starts - 1))]
    return result


def rotated(names, number):
    """Another one first in each run, so that nobody is always the first or the last."""
    first = number % len(names) if names else 0
    return names[first:] + names[:first]


def compare(found, there, options, plan, results, save):
    """Every run of every subject into `results`, which are saved after each. A subject that shows nothing is left out of what follows:
    it would take its time again."""
    names = [*found, *([BARE] if BARE in options.subjects else [])]
    taken, failures = results.setdefault("runs", []), results["failures"]
    for number in range(plan.runs):
        for name in [name for name in rotated(names, number) if name == BARE or name in found]:
            begun = time.monotonic()
            try:
                taken.append({"run": number, **one(name, found, there, options, plan)})
            except Exception as error:
                traceback.print_exc()
                failures.append(f"{name}, run {number + 1}: {type(error).__name__}: {error}")
                if isinstance(error, measure.ShowsNothing):
                    del found[name]
                    results["missing"][name] = f"it shows nothing, and was left out after run {number + 1}"
            print(f"   run {number + 1} of {plan.runs}: {name}, {time.monotonic() - begun:.1f} s", flush=True)
            save()


def static_program(options):
    """Where the static file's server is: named, or beside the exporter; None where it is not."""
    if STATIC not in options.subjects:
        return None
    beside = options.exporter.parent
    return next((place for place in (options.static and options.static.resolve(), beside / "static_file") if place and place.is_file()), None)


def refuse(sentence, status):
    print(f"FAILED: {sentence}", file=sys.stderr)
    sys.exit(status)


def names(text, allowed):
    chosen = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in chosen if name not in allowed]
    if unknown or not chosen:
        raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown) or 'nothing'}; there are {', '.join(allowed)}")
    return chosen


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--exporter", type=Path, default=ROOT / "target/release/vram-exporter")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--simulator", type=Path, metavar="FILE", help="libnvml_sim.so; without it a real GPU is measured")
    parser.add_argument("--nvml", metavar="FILE", help="the driver's library, where the loader does not find it")
    parser.add_argument("--gpus", type=int, default=8, help="simulated ones")
    parser.add_argument("--processes", type=int, help="on each simulated GPU (64), or on the real GPU 0 (16)")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--settle", type=float, default=1.5, help="seconds between the first figures and the measuring")
    parser.add_argument("--window", type=float, default=6.0, help="seconds over which the CPU time is counted")
    parser.add_argument("--spikes", type=int, default=4, help="in each run")
    parser.add_argument("--scrape-seconds", type=float, default=0.7, help="seconds for each kind of scrape")
    parser.add_argument("--starts", type=int, default=3, help="in each run, of the exporter and of the bare program")
    parser.add_argument("--growth-runs", type=int, default=1, metavar="N", help="of each point")
    parser.add_argument("--only", type=lambda text: names(text, PARTS), default=["peers", "calls"], help=", ".join(PARTS))
    parser.add_argument("--subjects", type=lambda text: names(text, SUBJECTS), default=list(SUBJECTS), help=", ".join(SUBJECTS))
    parser.add_argument("--nvitop", metavar="PATH", help="nvitop-exporter, or a folder with its Python packages")
    parser.add_argument("--all-smi", metavar="PATH")
    parser.add_argument("--nvidia-gpu-exporter", metavar="PATH")
    parser.add_argument("--static", type=Path, metavar="PATH", help="the program that serves a static file")
    parser.add_argument("--cc", default="gcc")
    parser.add_argument("--quick", action="store_true", help="small and short; what is measured is judged by nobody")
    parser.error = lambda message: refuse(f"{message}; see --help", 64)
    options = parser.parse_args()
    options.out, options.exporter = options.out.resolve(), options.exporter.resolve()
    if "growth" in options.only and not options.simulator:
        parser.error("growth is studied on the simulator only")
    if options.quick:
        options.gpus = min(options.gpus, 2)
    options.processes = options.processes or (16 if options.quick or not options.simulator else 64)
    options.static = static_program(options)
    return options


def check(options):
    """Ends the program in a sentence where what it needs is not there."""
    if not (options.exporter.is_file() and os.access(options.exporter, os.X_OK)):
        refuse(f"there is no exporter to start at {options.exporter} (cargo build --release, or --exporter)", 64)
    if options.simulator and not options.simulator.is_file():
        refuse(f"the simulator is not at {options.simulator}", 64)
    if not shutil.which(options.cc):
        refuse(f"{options.cc} is not in PATH: it builds the bare program and the client that takes the times", 1)


def build(options):
    try:
        options.bare = machine.build(options.out / "bare", machine.BARE, options.cc)
        options.scraper = machine.build(options.out / "client", machine.SCRAPER, options.cc)
    except subprocess.CalledProcessError as error:
        refuse(f"{options.cc} ended with status {error.returncode}; what it said stands above", 1)


@contextlib.contextmanager
def the_machine(options):
    if options.simulator:
        with machine.Sleepers(options.bare, options.gpus * options.processes + 1) as sleepers:
            yield machine.SimulatedMachine(options.out, options.simulator, options.gpus, options.processes, sleepers)
        return
    try:
        there = machine.RealMachine(options.nvml, options.processes)
    except (OSError, machine.nvml_abi.NvmlError) as error:
        refuse(f"there is no GPU to measure, and no --simulator: {error}", 1)
    with there:
        yield there


def missing_parts(options):
    """Why a part that is asked for cannot be done here, by name; it is told, and left out."""
    if "calls" in options.only and platform.machine() != "x86_64":
        options.only = [part for part in options.only if part != "calls"]
        reason = f"driver calls are counted on x86_64 only, and this is {platform.machine()}"
        subjects.tell_missing("calls", reason, must=False)
        return {"calls": reason}
    return {}


def take(options, found, results, save):
    """Every part into `results`."""
    the_plan = plan(options)
    results["plan"] = asdict(the_plan) | {"growth_runs": 1 if options.quick else options.growth_runs}
    with the_machine(options) as there:
        results["about"] = report.about(options, there, found, the_plan)
        if "peers" in options.only:
            compare(found, there, options, the_plan, results, save)
        if "calls" in options.only:
            results |= calls.of_all(found, there, options, results["failures"])
    if "growth" in options.only:
        results["growth"] = growth.study(options, the_plan, results["failures"])


def main():
    # What was started is ended by the way out, whoever asks to go.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    options = parse()
    check(options)
    options.out.mkdir(parents=True, exist_ok=True)
    build(options)
    found, missing = subjects.find([name for name in options.subjects if name in subjects.KINDS], options)
    if STATIC in options.subjects and not options.static:
        missing[STATIC] = "it is not built (cargo build --release --features work --bin static_file)"
        subjects.tell_missing(STATIC, missing[STATIC], must=subjects.all_must())
    results = {"missing": missing | missing_parts(options), "failures": [], "quick": options.quick}
    begun = time.monotonic()

    def save():
        results["seconds"] = round(time.monotonic() - begun)
        return report.write(options.out, results)

    take(options, {subject.name: subject for subject in found}, results, save)
    print(save())
    failures = results["failures"]
    print("\n".join(f"FAILED: {line}" for line in failures) or f"every figure was taken; see {options.out}/results.md")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
