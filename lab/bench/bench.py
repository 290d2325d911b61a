"""Measures the exporter, its peers and the bare limit, on one machine, in one run.

    bench.py --exporter BIN --out DIR --simulator libnvml_sim.so [--gpus 8 --processes 64]
    bench.py --exporter BIN --out DIR [--processes 16]          a real GPU
    bench.py ... --quick                                        a few seconds; judges nothing

Each run starts each subject fresh and alone, and begins with a different subject. Writes DIR/results.json with every figure of every run
and DIR/results.md with the medians, their ratios and the outcome of the goals; both are updated after each run. A missed goal is only
reported; the exit status is 1 if a figure could not be measured, and 64 for an invalid argument."""

import contextlib
import signal
import subprocess
import sys
import time
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests/judges"))

import calls
import growth
import limit
import machine
import measure
import report
import subjects
from arguments import BARE, STATIC, check, missing_parts, parse, refuse


@dataclass
class Plan:
    """The durations of the parts, in seconds."""

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
    result = measure.run(subject, there, plan, options.out, options.scraper, static, unscraped=name in subjects.BUILDS)
    if name in subjects.BUILDS:
        result["start_ms"] = [result["start_ms"], *(measure.start_only(subject, there, options.out) for _ in range(plan.starts - 1))]
    return result


def rotated(names, number):
    """Begins each run with a different subject, so that none is always the first or the last."""
    first = number % len(names) if names else 0
    return names[first:] + names[:first]


def compare(found, there, options, plan, results, save):
    """Stores the measurements of every run of every subject in `results`, and saves them after each. A subject that shows nothing is left
    out of the following runs, because it would use up its time limit again."""
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


def build(options):
    try:
        options.bare = machine.build(options.out / "bare", machine.BARE, options.cc)
        options.scraper = machine.build(options.out / "client", machine.SCRAPER, options.cc)
    except subprocess.CalledProcessError as error:
        refuse(f"{options.cc} ended with status {error.returncode}; its output is above", 1)


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


def take(options, found, results, save):
    """Measures every part and stores the figures in `results`."""
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
    # Leaving this function stops all the programs it started, even after SIGTERM.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    options = parse(__doc__)
    check(options)
    options.out.mkdir(parents=True, exist_ok=True)
    build(options)
    found, missing = subjects.find([name for name in options.subjects if name in subjects.KINDS], options)
    if STATIC in options.subjects and not options.static:
        missing[STATIC] = "it is not built (cargo build --release --package bench --bin static_file)"
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
