"""Measures the exporter beside its peers and beside the limit, on one machine, in one run.

    bench.py --exporter BIN --out DIR --simulator libnvml_sim.so [--gpus 8 --processes 64]
    bench.py --exporter BIN --out DIR [--processes 16]          a real GPU
    bench.py ... --quick                                        a few seconds; judges nothing

Each subject is started fresh for each run, alone, in another order each time. Writes DIR/results.json with every figure of every run
and DIR/results.md with the medians, their ratios and what became of the goals. A goal that is missed is told and fails nothing; a
figure that could not be taken ends the program with 1."""

import argparse
import contextlib
import random
import sys
import time
import traceback
from dataclasses import dataclass
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


def compare(found, there, options, plan, failures):
    """Every run of every subject, the order another in each round."""
    names = [*found, *([BARE] if BARE in options.subjects else [])]
    taken = []
    for number in range(plan.runs):
        order = random.Random(number).sample(names, len(names))
        for name in order:
            begun = time.monotonic()
            try:
                taken.append({"run": number, **one(name, found, there, options, plan)})
            except Exception as error:
                traceback.print_exc()
                failures.append(f"{name}, run {number + 1}: {type(error).__name__}: {error}")
            print(f"   run {number + 1} of {plan.runs}: {name}, {time.monotonic() - begun:.1f} s", flush=True)
    return taken


def static_program(options):
    """Where the static file's server is: named, or beside the exporter; None where it is not."""
    if STATIC not in options.subjects:
        return None
    beside = options.exporter.resolve().parent
    return next((place for place in (options.static, beside / "static_file") if place and place.is_file()), None)


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
    parser.add_argument("--static", type=Path, metavar="PATH", help="the program, or the folder into which cargo built it")
    parser.add_argument("--cc", default="gcc")
    parser.add_argument("--quick", action="store_true", help="small and short; what is measured is judged by nobody")
    options = parser.parse_args()
    if "growth" in options.only and not options.simulator:
        parser.error("growth is studied on the simulator only")
    if options.quick:
        options.gpus = min(options.gpus, 2)
    options.processes = options.processes or (16 if options.quick or not options.simulator else 64)
    options.static = static_program(options)
    return options


@contextlib.contextmanager
def the_machine(options):
    if not options.simulator:
        with machine.RealMachine(options.nvml, options.processes) as there:
            yield there
        return
    with machine.Sleepers(options.bare, options.gpus * options.processes + 1) as sleepers:
        yield machine.SimulatedMachine(options.out, options.simulator, options.gpus, options.processes, sleepers)


def main():
    options = parse()
    options.out.mkdir(parents=True, exist_ok=True)
    options.bare = machine.build(options.out / "bare", machine.BARE, options.cc)
    options.scraper = machine.build(options.out / "client", machine.SCRAPER, options.cc)
    found, missing = subjects.find([name for name in options.subjects if name in subjects.KINDS], options)
    if STATIC in options.subjects and not options.static:
        missing[STATIC] = "it is not built (cargo build --release --features work --bin static_file)"
        subjects.tell_missing(STATIC, missing[STATIC], must=subjects.all_must())
    found = {subject.name: subject for subject in found}
    results, failures, begun = {"missing": missing}, [], time.monotonic()
    with the_machine(options) as there:
        results["about"] = report.about(options, there, found)
        if "peers" in options.only:
            results["runs"] = compare(found, there, options, plan(options), failures)
        if "calls" in options.only:
            results["calls"] = calls.of_all(found, there, options, failures)
    if "growth" in options.only:
        results["growth"] = growth.study(options, plan(options), failures)
    results |= {"seconds": round(time.monotonic() - begun), "failures": failures, "quick": options.quick}
    report.write(options.out, results)
    print("\n".join(f"FAILED: {line}" for line in failures) or f"every figure was taken; see {options.out}/results.md")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
