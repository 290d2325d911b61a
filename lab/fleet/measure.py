"""Measures what a fleet costs a real Prometheus, and writes the results as JSON, from which tables.py makes the tables of RESULTS.md and docs/fleet.md.

    measure.py --exporter target/release/vram-exporter --out FOLDER [--only live,rules] [--machines 10,30,100] [--minutes 6]

| part | what is measured |
|---|---|
| live | scraping: samples, series, memory, processor time, with the shipped rules and without |
| variants | the same with fewer series, with dcgm-exporter's families, and with short-lived processes |
| rules | one evaluation of each group over three hours of stored data |
| queries | every query of every dashboard over stored data: 1 h, 6 h, 24 h and 14 d, as far as --samples allows |

The machines are simulated and their values are recorded from the real exporter; Prometheus and its work are real. Costs are processor
seconds, which hardly depend on what else the machine runs.
"""

import concurrent.futures
import json
import os
import platform
import shutil
import sys
import tempfile
import time
from pathlib import Path

import live
import readers
import record
import stored
from engines import run
from harness import arguments

SHAPE, FRAMES, EVERY = "8x64", 10, 15
# What the exporters of a variant are started with, and the shape if it is not SHAPE.
RECORDINGS = {
    "defaults": (SHAPE, []),
    "process.series=false": (SHAPE, ["--process.series=false"]),
    "one process on each GPU": ("8x1", []),
    "eight processes on each GPU": ("8x8", []),
}
PIDS_PER_HOUR, PROCESSES = 10_000, 512
RULE_SPAN = 3 * 3600
# Span, machines, and their numbers. The samples are machines × series × scrapes; a size beyond --samples is left out.
SIZES = [
    (3600, "one process on each GPU", [10, 30, 100]),
    (3600, "defaults", [10, 30, 100]),
    (6 * 3600, "one process on each GPU", [3, 10, 30]),
    (6 * 3600, "defaults", [3, 10]),
    (86400, "defaults", [1, 3, 10]),
    (14 * 86400, "eight processes on each GPU", [1, 3]),
]


def environment(exporter):
    versions = run("prometheus", "--version").split("\n")[0]
    return {
        "date": time.strftime("%Y-%m-%d"),
        "prometheus": versions.split("version ")[1].split(" ")[0],
        "exporter": run(exporter, "--version").strip(),
        "python": platform.python_version(),
        "cores": len(os.sched_getaffinity(0)),
        "load": Path("/proc/loadavg").read_text().split()[0],
        "command": " ".join(sys.argv),
    }


def recorded(exporter, folder):
    """The recordings, by variant; those that are there already are kept."""
    for name, (shape, flags) in RECORDINGS.items():
        place = folder / name
        if not (place / f"{shape}.json.gz").exists():
            place.mkdir(parents=True, exist_ok=True)
            for one, recording in record.record(exporter, [shape], EVERY, FRAMES, flags).items():
                record.write(recording, place / f"{one}.json.gz")
    return {name: (folder / name, [(shape, 1)]) for name, (shape, _) in RECORDINGS.items()}


def sent(place, mix):
    """Series and bytes of a scrape, as they are and with the exporter's gzip, of both listeners."""
    recording = record.read(place / f"{mix[0][0]}.json.gz")
    for at, kind in enumerate(("frames", "dcgm")):
        text = recording[kind][-1]
        series = sum(not line.startswith("#") for line in text.splitlines())
        yield {"series": series, "bytes": len(text.encode()), "compressed": recording["compressed"][at]}


def variants(folder, places, machines, minutes):
    place, mix = places["defaults"]
    read = readers.readers()
    known = set(readers.families(record.read(place / f"{mix[0][0]}.json.gz")["frames"][-1]))
    needed = {name for name in known if read.get(name, set()) & {"alerts", "recording rules", "fleet"}}
    lifetime = machines * PROCESSES * 3600 // PIDS_PER_HOUR
    cases = {
        "defaults": (*places["defaults"], {}),
        "process.series=false": (*places["process.series=false"], {}),
        "one process on each GPU": (*places["one process on each GPU"], {}),
        "families that nothing reads are dropped": (place, mix, {"relabel": live.unread(known - set(read))}),
        "only what alerts, rules and the fleet's dashboard read": (place, mix, {"relabel": live.unread(known - needed)}),
        "dcgm-exporter's default families": (place, mix, {"sd": "/sd/dcgm"}),
        f"{PIDS_PER_HOUR} new processes an hour": (place, mix, {"flags": [f"--processes={lifetime}"]}),
    }
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        futures = {}
        for at, (name, (where, shapes, settings)) in enumerate(cases.items()):
            futures[name] = pool.submit(
                live.measure, folder / str(at), where, shapes, machines, minutes, with_rules=False, **settings
            )
        return {name: future.result() for name, future in futures.items()}


def stored_parts(folder, places, limit, sizes):
    for span, variant, counts in SIZES:
        place, mix = places[variant]
        series = next(sent(place, mix))["series"]
        for machines in sizes or counts:
            if machines * series * span / EVERY <= limit:
                yield stored.measure(folder, place, mix, machines, span) | {"variant": variant}
                print(f"queries over {span / 3600:.0f} h of {machines} machines, {variant}: done", flush=True)


def parts(given, folder):
    """(name of the file, its content)."""
    places = recorded(given.exporter, given.out / "recordings")
    place, mix = places["defaults"]
    yield "environment", environment(given.exporter)
    yield "sent", {name: list(sent(*where)) for name, where in places.items()}
    sizes = given.machines
    if "live" in given.only:
        for machines in sizes or [10, 30, 100]:
            yield f"live-{machines}", live.measure(folder, place, mix, machines, given.minutes)
    if "variants" in given.only:
        yield "variants", variants(folder, places, 10, given.minutes)
    if "rules" in given.only:
        for machines in sizes or [3, 10, 30]:
            yield f"rules-{machines}", stored.measure(folder, place, mix, machines, RULE_SPAN, pages=(), rules=True)
    if "queries" in given.only:
        found = []
        for one in stored_parts(folder, places, given.samples, sizes):
            found.append(one)
            yield "queries", found


def main():
    parser = arguments(__doc__)
    parser.add_argument("--out", required=True, type=Path, help="the folder for the results")
    parser.add_argument("--only", type=lambda text: text.split(","), default=["live", "variants", "rules", "queries"])
    parser.add_argument("--machines", type=lambda text: [int(one) for one in text.split(",")], help="instead of each part's own sizes")
    parser.add_argument("--minutes", type=float, default=6, help="how long each fleet is scraped, after a minute to settle")
    parser.add_argument("--samples", type=float, default=4e8, help="the most samples to store for a measurement of queries")
    given = parser.parse_args()
    unknown = set(given.only) - {"live", "variants", "rules", "queries"}
    if unknown:
        parser.error(f"--only: {', '.join(sorted(unknown))} is not a part")
    given.out.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=given.out))
    try:
        for name, content in parts(given, folder):
            (given.out / f"{name}.json").write_text(json.dumps(content, indent=1))
            print(f"{name}.json", flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
