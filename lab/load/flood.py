"""Fifty honest scrapers, alone and alongside hostile clients: are they answered or refused in time, and does the memory
lane keep its rate?

    flood.py [--exporter target/release/vram-exporter] [--seconds 15] [--out DIR] [--flag=--web.max-requests=40] [--no-judge]

One run has these phases on loopback, one after the other: quiet; 200 silent clients and 200 clients that do not read; quiet; slow
senders, endless headers, pipelined requests, garbage and half-closed connections; quiet. The exit status is 1 if
- an honest scrape was neither answered nor refused within the limit;
- the share of a quiet phase's scrapes that were answered is below --least-answered;
- the memory lane missed a larger share of its ticks than in the worst quiet phase plus --ticks-allowed;
- memory or the number of file descriptors in the last quiet phase is still above that of the first quiet phase; or
- memory in the last quiet phase is above that of the quiet phase between the crowds."""

import json
import resource
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "tests/judges"))
sys.path.append(str(HERE.parents[1] / "tests/judges/load"))
sys.path.append(str(HERE.parent / "soak"))

import harness
import rude
import trend
import vitals
from harness.exporter import Exporter, Machine

QUIET = {}
HELD = {"silent": 200, "deaf": 200}
RUDE = {"slow": 40, "huge headers": 20, "pipelined": 10, "garbage": 40, "half-closed": 40}
PHASES = (("quiet", QUIET), ("silent and deaf", HELD), ("quiet again", QUIET), ("rude", RUDE), ("quiet at last", QUIET))
COLUMNS = ("phase", "honest scrapes", "answered", "refused", "late", "broken", "p50 ms", "p99 ms", "longest ms", "missed ticks")
COLUMNS += ("machine idle", "RSS MiB", "fds", "threads")
OUTCOMES = ("answered", "refused", "late", "broken")
# How much more memory and how many more file descriptors the last quiet phase may use than the earlier ones. The allocator keeps the memory
# of the first crowd's concurrent responses. The second crowd must need almost no additional memory; otherwise there is a leak.
MEMORY_KEPT_MIB = 16
MEMORY_GROWN_MIB = 3
FDS_KEPT = 5
# The time that a server needs to close dead connections.
PAUSE = 2.0
# The time in which the exporter's start settles.
SETTLE = 3


@dataclass
class Phase:
    name: str
    hostile: dict
    records: list = field(default_factory=list)
    samples: list = field(default_factory=list)
    became: dict = field(default_factory=dict)
    ticks: float = 0
    missed: float = 0
    idle: float = 0

    def count(self, outcome):
        return sum(1 for record in self.records if record["outcome"].startswith(outcome))

    def missed_share(self):
        return self.missed / max(1, self.ticks + self.missed)

    def took(self):
        return [record["took"] for record in self.records if record["outcome"] in ("answered", "refused")]

    def highest(self, key):
        return max((sample[key] for sample in self.samples), default=0)


def lane(port):
    """(ticks, missed ticks) of the memory lane. The request is repeated until there is a response."""
    lines = harness.until("an answer of the exporter", lambda: harness.get(f"http://127.0.0.1:{port}/metrics", timeout=5), 30, 0.5).splitlines()
    names = ('vram_exporter_lane_duration_seconds_count{lane="memory"}', 'vram_exporter_missed_ticks_total{lane="memory",gpu="0"}')
    return [next(float(line.split()[-1]) for line in lines if line.startswith(name)) for name in names]


def processor():
    """(idle, all) clock ticks of the whole machine."""
    with open("/proc/stat") as file:
        numbers = [int(number) for number in file.readline().split()[1:9]]
    return numbers[3] + numbers[4], sum(numbers)


def run_phase(phase, process, port, options, out):
    procfs = out.resolve() / "proc"
    file = out / f"honest-{phase.name.replace(' ', '-')}.jsonl"
    before, idle_before = lane(port), processor()
    over = threading.Event()
    crowd = threading.Thread(target=lambda: phase.became.update(rude.run(port, phase.hostile, over)))
    crowd.start()
    # The crowd is connected before the honest scrapers start.
    time.sleep(1.0)
    command = [sys.executable, str(HERE / "honest.py"), f"--port={port}", f"--count={options.scrapers}", f"--limit={options.limit}"]
    honest = subprocess.Popen([*command, f"--seconds={options.seconds}", f"--out={file}"])
    try:
        while honest.poll() is None:
            if (sample := vitals.read(process.pid, procfs)) is not None:
                phase.samples.append(sample)
            time.sleep(0.5)
    finally:
        honest.kill()
        honest.wait()
        over.set()
        crowd.join()
    idle, everything = (end - begin for begin, end in zip(idle_before, processor()))
    phase.idle = idle / max(1, everything)
    phase.records = [json.loads(line) for line in file.read_text().splitlines()]
    after = lane(port)
    phase.ticks, phase.missed = (end - begin for begin, end in zip(before, after))
    time.sleep(PAUSE)


def judge(phases, options):
    """The violated conditions, one line each."""
    calm = [phase for phase in phases if not phase.hostile]
    worst = max(phase.missed_share() for phase in calm)
    if worst > options.noise_allowed:
        yield f"the machine is too busy to judge: {worst:.2%} of the ticks were missed in a quiet phase"
    for phase in phases:
        wrong = [record["outcome"] for record in phase.records if record["outcome"] not in ("answered", "refused")]
        if wrong:
            yield f"{phase.name}: {len(wrong)} of {len(phase.records)} honest scrapes, first: {wrong[0]}"
        if not phase.records or (not phase.hostile and phase.count("answered") < options.least_answered * len(phase.records)):
            yield f"{phase.name}: only {phase.count('answered')} of {len(phase.records)} honest scrapes were answered"
        if phase.hostile and phase.missed_share() > worst + options.ticks_allowed:
            allowed = f"{worst:.2%} in the worst quiet phase and {options.ticks_allowed:.2%} allowed"
            yield f"{phase.name}: {phase.missed_share():.2%} of the memory lane's ticks were missed, {allowed}"
    first, last = calm[0], calm[-1]
    if not last.samples or not first.samples:
        yield "the exporter's memory could not be read"
        return
    if last.samples[-1]["rss"] > first.highest("rss") + MEMORY_KEPT_MIB * 1024:
        yield f"{(last.samples[-1]['rss'] - first.highest('rss')) / 1024:.1f} MiB were kept after the flood"
    between = calm[1]
    if between.samples and last.samples[-1]["rss"] > between.highest("rss") + MEMORY_GROWN_MIB * 1024:
        yield f"{(last.samples[-1]['rss'] - between.highest('rss')) / 1024:.1f} MiB more were kept after the second crowd than after the first"
    if last.samples[-1]["fds"] > first.highest("fds") + FDS_KEPT:
        yield f"{last.samples[-1]['fds'] - first.highest('fds')} file descriptors more after the flood"


def table(phases):
    text = "| " + " | ".join(COLUMNS) + " |\n" + "|---" * len(COLUMNS) + "|\n"
    for phase in phases:
        took = phase.took()
        longest = (trend.quantile(took, 0.5), trend.quantile(took, 0.99), max(took)) if took else ()
        times = [f"{1000 * value:.1f}" for value in longest] or ["-"] * 3
        cells = [phase.name, len(phase.records), *(phase.count(outcome) for outcome in OUTCOMES), *times]
        cells += [f"{phase.missed:.0f} ({phase.missed_share():.2%})", f"{phase.idle:.0%}", f"{phase.highest('rss') / 1024:.1f}"]
        cells += [phase.highest("fds"), phase.highest("threads")]
        text += "| " + " | ".join(map(str, cells)) + " |\n"
    lines = [f"{phase.name}: {name}: {what}" for phase in phases for name, what in phase.became.items()]
    return text + "\n" + "\n".join(lines) + "\n"


def parse():
    parser = harness.arguments(__doc__, simulator=True)
    parser.add_argument("--scenario", default="eight-h200")
    parser.add_argument("--seconds", type=float, default=15.0, help="duration of each phase")
    parser.add_argument("--scrapers", type=int, default=50)
    parser.add_argument("--limit", type=float, default=1.0, help="seconds within which an honest scrape must be answered")
    parser.add_argument("--least-answered", type=float, default=0.5, help="share of a quiet phase's scrapes that must be answered")
    beyond = "share of the ticks that may be missed beyond the worst quiet phase"
    parser.add_argument("--ticks-allowed", type=float, default=0.005, help=beyond)
    parser.add_argument("--noise-allowed", type=float, default=0.02, help="share of the ticks that may be missed in a quiet phase")
    parser.add_argument("--rate", type=int, default=100)
    parser.add_argument("--nofile", type=int, help="the exporter's limit on file descriptors; by default this program's own")
    parser.add_argument("--flag", action="append", default=[], help="one more flag for the exporter: --flag=--web.max-requests=40")
    parser.add_argument("--without", action="append", default=[], choices=list(rude.KINDS), help="leave out this kind, to see its cost")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--no-judge", action="store_true", help="only measure")
    return parser.parse_args()


def main():
    options = parse()
    out = options.out or Path(tempfile.mkdtemp(prefix="flood-"))
    machine = Machine(out, harness.simulator_of(options), options.scenario, control=None)
    exporter = Exporter(
        options.exporter, f"--memory.rate={options.rate}", *machine.flags, *options.flag, log=out / "exporter.log", environment=machine.environment
    )
    crowds = ((name, {kind: count for kind, count in crowd.items() if kind not in options.without}) for name, crowd in PHASES)
    phases = [Phase(*each) for each in crowds]
    own, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    # The exporter gets this program's original limit; this program itself needs more.
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(options.nofile or own, most), most))
    with exporter:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, max(own, 4096)), most))
        time.sleep(SETTLE)
        for phase in phases:
            run_phase(phase, exporter.process, exporter.port, options, out)
        alive = exporter.process.poll() is None
    wrong = list(judge(phases, options)) + ([] if alive else ["the exporter ended"])
    print(table(phases))
    print("\n".join(f"NO: {line}" for line in wrong) or "every bound holds")
    summary = [asdict(phase) | {"records": None, "samples": None, "outcomes": {o: phase.count(o) for o in OUTCOMES}} for phase in phases]
    (out / "flood.json").write_text(json.dumps({"phases": summary, "wrong": wrong, "flags": options.flag}, indent=1) + "\n")
    (out / "flood.md").write_text(table(phases))
    sys.exit(1 if wrong and not options.no_judge else 0)


if __name__ == "__main__":
    main()
