"""Measures the memory of the recorder in a storm of short-lived processes: two exporters on identical simulated machines, one with
a recorder and one without.

    recorder.py [--minutes 60] [--births 150] [--alone] [--exporter target/release/vram-exporter] [--out DIR]

Eight GPUs, each with --lasting processes that keep running, and by default 150 process starts and 150 exits a second. Every 5 s the resident
memory of both exporters is read from /proc, and every 15 s both are scraped. Writes recorder.json to DIR and exits with status 1 if the
difference between their means in the second half is above the recorder's limit, if the difference grows, or if processes were not recorded.

Each exporter uses most of a core. With --alone, only the one with a recorder runs, and its own growth is judged instead of the difference.

The simulator runs in both processes. Nothing here is a measurement of a GPU."""

import contextlib
import json
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests/judges"))

import harness
import trend
import vitals
from harness.exporter import Exporter, value

MIB = 1 << 20
EVERY = 5.0
SCRAPE_EVERY = 15.0
GPUS = 8
# Each short-lived process starts again after this time, and runs for half of it.
ROUND_MS = 2000


def scenario(options):
    """`options.births` process starts a second across all GPUs, and as many ends."""
    parts = [f'seed = 60\n\n[[gpu]]\nmodel = "H200"\ncount = {GPUS}\n']
    for gpu in range(GPUS):
        parts.append(
            f'[[process]]\ngpu = {gpu}\ncount = {options.lasting}\ncommand = ["serve.py"]\nuser = "serve"\nmemory = "512MiB"\n'
            f'cgroup = "0::/system.slice/serve-{{n}}.service"\n'
        )
    short = options.births * ROUND_MS // 1000
    for number in range(short):
        start = number * ROUND_MS // short
        parts.append(
            f'[[process]]\ngpu = {number % GPUS}\nstart = "{start}ms"\nend = "{start + ROUND_MS // 2}ms"\nrepeat = "{ROUND_MS}ms"\n'
            f'command = ["trial_{number % 40}.py"]\nuser = "user{number % 12}"\nmemory = "{64 + number}MiB"\n'
            f'cgroup = "0::/system.slice/job{number % 40}.service"\n'
        )
    return "\n".join(parts)


def exporter(options, limit_mib):
    folder = options.out / f"recorder-{limit_mib}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "scenario.toml").write_text(scenario(options))
    flags = [f"--demo={folder / 'scenario.toml'}", "--memory.rate=100", f"--recorder.max-memory-mib={limit_mib}", "--recorder.log-ended-processes=false"]
    return Exporter(options.exporter, *flags, log=folder / "exporter.log", environment={"TMPDIR": "/dev/shm"})


def observe(exporters, seconds):
    """The resident memory of each process over time in KiB, and each exporter's first and last scrape in the second half."""
    begun, seen, scraped, scrapes = time.time(), [], 0.0, []
    while (now := time.time()) < begun + seconds:
        read = [vitals.read(exporter.pid) for exporter in exporters]
        if None in read:
            raise SystemExit("an exporter has ended; see its log")
        seen.append((now - begun, *(each["rss"] for each in read)))  # The exporter with a recorder is the first.
        if now - scraped >= SCRAPE_EVERY:
            scraped = now
            # Scrapes begin at the start, so that the memory that the first one needs is not taken for growth.
            latest = [exporter.scrape() for exporter in exporters]
            scrapes = [*scrapes[:1], latest] if now >= begun + seconds / 2 else []
        time.sleep(max(0.0, EVERY - (time.time() - begun) % EVERY))
    return seen, scrapes


def judge(samples, scrapes, options):
    first, last = (of[0] for of in scrapes)
    half = [sample for sample in samples if sample[0] >= samples[-1][0] / 2]
    resident = {name: statistics.mean(column) / 1024 for name, column in zip(("on", "off"), list(zip(*half))[1:])}
    more = resident["on"] - resident["off"] if "off" in resident else None
    slope = trend.slope([(sample[0], sample[1] - (sample[2] if more is not None else 0)) for sample in half], 60.0)
    stalled = value(last, "vram_exporter_faults_by_reason_total", reason="stalled")
    dropped = value(last, "vram_exporter_recorder_dropped_total") - value(first, "vram_exporter_recorder_dropped_total")
    each_second = dropped / (samples[-1][0] / 2)
    figures = {
        "minutes": samples[-1][0] / 60,
        "resident_mib": resident,
        "more_mib": more,
        "slope_mib_per_hour": [bound / 1024 for bound in (slope.per_hour, slope.low, slope.high)],
        "counted_mib": value(last, "vram_exporter_recorder_bytes") / MIB,
        "dropped_each_second": each_second,
        "stalled": stalled,
    }
    problems = []
    if more is not None and more > options.limit:
        problems.append(f"the recorder makes the exporter {more:.1f} MiB larger; the limit is {options.limit} MiB")
    if slope.low / 1024 > options.growth:
        problems.append(f"the {'memory' if more is None else 'difference'} grows by {slope.per_hour / 1024:.1f} MiB an hour")
    # Once the recorder is full, at least one process and one event are dropped for each process start.
    if each_second < options.births:
        problems.append(f"only {each_second:.0f} entries a second were dropped: the storm was too weak")
    if stalled:
        problems.append(f"driver calls stalled {stalled:.0f} times: the machine is too slow for this simulation")
    return figures, problems


def main():
    parser = harness.arguments(__doc__)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--births", type=int, default=150)
    parser.add_argument("--lasting", type=int, default=64, help="the processes of each GPU that keep running")
    parser.add_argument("--alone", action="store_true", help="run only the exporter with a recorder")
    parser.add_argument("--limit", type=int, default=16, help="the recorder's limit in MiB")
    parser.add_argument("--growth", type=float, default=2, help="the allowed growth in MiB an hour")
    parser.add_argument("--out", type=Path, default=Path("recorder-soak"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        running = [stack.enter_context(exporter(options, limit)) for limit in ((options.limit,) if options.alone else (options.limit, 0))]
        samples, scrapes = observe(running, options.minutes * 60)
    figures, problems = judge(samples, scrapes, options)
    (options.out / "recorder.json").write_text(json.dumps({"figures": figures, "samples": samples}, indent=1))
    print(json.dumps(figures, indent=1))
    return harness.finish(problems)


if __name__ == "__main__":
    sys.exit(main())
