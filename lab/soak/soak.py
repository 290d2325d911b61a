"""Runs the exporter for a long time on a busy simulated machine, and checks that its resources stay bounded.

    soak.py [--minutes 60] [--exporter target/release/vram-exporter] [--out DIR]
    soak.py --short --minutes 5

The machine has eight GPUs with 64 processes each, 20 process starts and 20 exits a second, and, at intervals, a fault of a
different kind. The exporter takes 100 samples a second. Three scrapers scrape it: one every 1 s, one every 5 s with gzip, and one
every 15 s over a new connection each time. Every 5 s the exporter's memory, file descriptors and threads are read from /proc. Writes
samples.json, scrapes-*.jsonl, soak.json and soak.md to DIR, and exits with status 1 if a resource grew, a scrape was missed, a counter fell or
an exposition was malformed.

The simulator runs in the exporter's process: its resources are included in all figures. Nothing here is a measurement of a GPU."""

import json
import platform
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests/judges"))

import harness
import machine
import verdict
import vitals
from harness.exporter import Exporter

HERE = Path(__file__).resolve().parent
COUNTS = ("fds", "process_files", "threads")
SETTLE = 3


@dataclass
class Scraper:
    name: str
    every: float
    flags: tuple = ()
    records: list = field(default_factory=list)

    def due(self, seconds):
        return max(1, int(seconds / self.every))


SCRAPERS = (("every 1 s", 1.0, ()), ("every 5 s, gzip", 5.0, ("--gzip",)), ("every 15 s, new connection", 15.0, ("--new-connection",)))


@dataclass
class Observation:
    """The observations of a soak: the input to its verdict."""

    seconds: float
    warm_at: float
    samples: list
    scrapers: list
    alive: bool
    history: list | None = None


def observe(process, port, seconds, warm_up, every, scrapers, out, procfs=None):
    """Scrapes and samples a running exporter for the given time."""
    programs = []
    for number, scraper in enumerate(scrapers):
        command = [sys.executable, str(HERE / "scraper.py"), f"--port={port}", f"--every={scraper.every}", *scraper.flags]
        command += [f"--seconds={seconds}", f"--out={out / f'scrapes-{number}.jsonl'}"]
        programs.append(subprocess.Popen(command))
    begun, samples = time.time(), []
    try:
        # No sample is taken after the scrapers end, because their connections are then closed.
        while time.time() < begun + seconds - every and process.poll() is None:
            if (sample := vitals.read(process.pid, procfs)) is not None:
                samples.append(sample)
            time.sleep(every - (time.time() - begun) % every)
        alive = process.poll() is None
        for program in programs:
            program.wait(timeout=60)
    finally:
        for program in programs:
            program.kill()
            program.wait()
    for number, scraper in enumerate(scrapers):
        scraper.records = [json.loads(line) for line in (out / f"scrapes-{number}.jsonl").read_text().splitlines()]
    return Observation(seconds, begun + warm_up, samples, scrapers, alive)


def soak(options, out):
    faults = (options.fault_seconds, options.calm_seconds, options.minutes * 60, options.only)
    simulated = machine.Machine(out / "machine", options.simulator, *faults)
    flags = ["--memory.rate=100", *simulated.flags, f"--process.linger={options.linger}", f"--memory.peak-window={options.peak_window}"]
    flags += [*options.quick, *options.flag]
    with Exporter(options.exporter, *flags, log=out / "exporter.log", environment=simulated.environment) as running:
        time.sleep(SETTLE)
        scrapers = [Scraper(*each) for each in SCRAPERS]
        seen = observe(running.process, running.port, options.minutes * 60, options.warm_up * 60, options.every, scrapers, out, simulated.procfs)
        begun = time.monotonic()
        status, took = harness.end(running.process, 10), time.monotonic() - begun
    seen.history = simulated.history
    checks = verdict.judge(seen, options.bounds)
    checks.append(verdict.Check("end after SIGTERM", f"status {status} in {took:.2f} s", status == 0 and took < 5))
    return seen, checks


def report(seen, checks, about, out):
    (out / "samples.json").write_text(json.dumps(seen.samples) + "\n")
    figures = {"about": about, "checks": [asdict(check) for check in checks], "faults": seen.history}
    (out / "soak.json").write_text(json.dumps(figures, indent=1) + "\n")
    text = ", ".join(f"{key}: {value}" for key, value in about.items()) + "\n\n" + table(seen) + "\n"
    text += "| check | figure | holds |\n|---|---|---|\n"
    for check in checks:
        figure = check.figure.replace("|", "\\|")
        text += f"| {check.name} | {figure} | {'yes' if check.ok else '**no**'} |\n"
    (out / "soak.md").write_text(text)
    print(text)


def table(seen):
    """Rows that show the course of the run: at the start, after the warm-up, halfway and at the end."""
    judged = [sample for sample in seen.samples if sample["at"] >= seen.warm_at]
    if not judged:
        return ""
    begun = seen.samples[0]["at"]
    chosen = (seen.samples[0], judged[0], judged[len(judged) // 2], judged[-1])
    text = "| minute | RSS MiB | Pss anonymous | Pss of files | fds | files of processes | threads |\n|---|---|---|---|---|---|---|\n"
    for sample in chosen:
        cells = [f"{sample[key] / 1024:.2f}" for key in ("rss", "anon", "file")] + [str(sample[key]) for key in COUNTS]
        text += f"| {(sample['at'] - begun) / 60:.1f} | " + " | ".join(cells) + " |\n"
    highest = [f"{max(sample[key] for sample in judged) / 1024:.2f}" for key in ("rss", "anon", "file")]
    highest += [str(max(sample[key] for sample in judged)) for key in COUNTS]
    return text + "| highest when warm | " + " | ".join(highest) + " |\n"


def parse():
    parser = harness.arguments(__doc__, simulator=True)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--warm-up", type=float, help="minutes that are not judged (default: 30, or half of a shorter run)")
    parser.add_argument("--out", type=Path, help="the folder for the results; a temporary one by default")
    parser.add_argument("--growth", type=float, help="growth in MiB an hour that still counts as flat (default: 2; in a short run 60)")
    parser.add_argument("--short", action="store_true", help="short peak window and linger time, quick faults; does not prove flatness")
    names = [name for name, *_ in machine.episodes(0)]
    parser.add_argument("--only", action="append", choices=names, help="only this fault, to find out what each one costs; may be repeated")
    parser.add_argument("--flag", action="append", default=[], help="one more flag for the exporter, for example --flag=--log.level=debug")
    options = parser.parse_args()
    options.simulator = harness.simulator_of(options)
    options.warm_up = options.warm_up if options.warm_up is not None else min(30.0, options.minutes / 2)
    options.linger, options.peak_window = ("20s", "10s") if options.short else ("5m", "60s")
    options.fault_seconds, options.calm_seconds = (4.0, 10.0) if options.short else (15.0, 30.0)
    options.growth = options.growth or (60.0 if options.short else 2.0)
    options.every = 2.0 if options.short else 5.0
    options.quick = ["--telemetry.interval=500ms", "--telemetry.slow-interval=1s"] if options.short else []
    block = machine.cycle_seconds(options.fault_seconds, options.calm_seconds)
    options.bounds = verdict.Bounds(options.growth, block, options.short)
    return options


def main():
    options = parse()
    for file in (options.exporter, options.simulator):
        if not file.is_file():
            sys.exit(f"soak: {file} is missing")
    out = options.out or Path(tempfile.mkdtemp(prefix="soak-"))
    out.mkdir(parents=True, exist_ok=True)
    date = time.strftime("%Y-%m-%d")
    seen, checks = soak(options, out)
    version = subprocess.run([options.exporter, "--version"], capture_output=True, text=True).stdout.strip()
    about = {"exporter": version, "date": date, "minutes": options.minutes, "warm-up": round(options.warm_up, 1)}
    about |= {"GPUs": f"{machine.GPUS} simulated", "processes": machine.GPUS * machine.PROCESSES, "births a second": machine.BIRTHS}
    about |= {"kernel": platform.release(), "left in": out.name}
    report(seen, checks, about, out)
    sys.exit(0 if all(check.ok for check in checks) else 1)


if __name__ == "__main__":
    main()
