"""The command line, and the check that everything that the benchmark needs is present on this machine."""

import argparse
import os
import platform
import shutil
import sys
from pathlib import Path

import subjects

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("peers", "calls", "growth")
BARE, STATIC = "bare", "static"
SUBJECTS = (*subjects.BUILDS, *subjects.PEERS, BARE, STATIC)


def static_program(options):
    """The path of the static-file server: the given one, or the one next to the exporter; None if there is none."""
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
        raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown) or 'nothing'}; allowed are {', '.join(allowed)}")
    return chosen


def parse(described):
    parser = argparse.ArgumentParser(description=described, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--exporter", type=Path, default=ROOT / "target/release/vram-exporter")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--simulator", type=Path, metavar="FILE", help="libnvml_sim.so; without it a real GPU is measured")
    parser.add_argument("--nvml", metavar="FILE", help="the driver's library, if the loader does not find it")
    parser.add_argument("--gpus", type=int, default=8, help="number of simulated GPUs")
    parser.add_argument("--processes", type=int, help="processes on each simulated GPU (default: 64), or on the real GPU 0 (default: 16)")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--settle", type=float, default=1.5, help="seconds between the first figures and the measurement")
    parser.add_argument("--window", type=float, default=6.0, help="seconds over which the CPU time is counted")
    parser.add_argument("--spikes", type=int, default=4, help="number of spikes in each run")
    parser.add_argument("--scrape-seconds", type=float, default=0.7, help="seconds for each kind of scrape")
    parser.add_argument("--starts", type=int, default=3, help="number of starts of the exporter and of the bare program in each run")
    parser.add_argument("--growth-runs", type=int, default=1, metavar="N", help="runs of each point of the growth measurement")
    parser.add_argument("--corner", action="store_true", help="measure only the far corner of the growth measurement")
    parser.add_argument("--only", type=lambda text: names(text, PARTS), default=["peers", "calls"], help=", ".join(PARTS))
    parser.add_argument("--subjects", type=lambda text: names(text, SUBJECTS), default=[subjects.OURS, *subjects.PEERS, BARE, STATIC], help=", ".join(SUBJECTS))
    parser.add_argument("--before", type=Path, metavar="PATH", help="another build of the exporter, for the subject before")
    parser.add_argument("--nvitop", metavar="PATH", help="nvitop-exporter, or a folder with its Python packages")
    parser.add_argument("--all-smi", metavar="PATH")
    parser.add_argument("--nvidia-gpu-exporter", metavar="PATH")
    parser.add_argument("--static", type=Path, metavar="PATH", help="the program that serves a static file")
    parser.add_argument("--cc", default="gcc")
    parser.add_argument("--quick", action="store_true", help="make small and short measurements, and judge nothing")
    parser.error = lambda message: refuse(f"{message}; see --help", 64)
    options = parser.parse_args()
    options.out, options.exporter = options.out.resolve(), options.exporter.resolve()
    if "growth" in options.only and not options.simulator:
        parser.error("growth is measured on the simulator only")
    if options.corner and (options.quick or "growth" not in options.only):
        parser.error("--corner needs --only growth, and excludes --quick")
    if options.quick:
        options.gpus = min(options.gpus, 2)
    options.processes = options.processes or (16 if options.quick or not options.simulator else 64)
    options.static = static_program(options)
    return options


def check(options):
    """Exits with a one-line message if something that the benchmark needs is missing."""
    if not (options.exporter.is_file() and os.access(options.exporter, os.X_OK)):
        refuse(f"there is no exporter to start at {options.exporter} (cargo build --release, or --exporter)", 64)
    if options.simulator and not options.simulator.is_file():
        refuse(f"the simulator is not at {options.simulator}", 64)
    if not shutil.which(options.cc):
        refuse(f"{options.cc} is not in PATH: it builds the bare program and the client that measures the times", 1)


def missing_parts(options):
    """The requested parts that cannot run here, by name, each with the reason; they are reported and left out."""
    if "calls" in options.only and platform.machine() != "x86_64":
        options.only = [part for part in options.only if part != "calls"]
        reason = f"driver calls are counted on x86_64 only, and this is {platform.machine()}"
        subjects.tell_missing("calls", reason, must=False)
        return {"calls": reason}
    return {}
