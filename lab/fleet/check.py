"""Checks the fleet in its smallest size: that a machine of it is the real exporter, and that a real Prometheus with the shipped scrape job
and rules takes it, alone and as two shards.

    python3 lab/fleet/check.py --exporter target/release/vram-exporter

Invariant: what is compared with the fleet was sent by the exporter in the same run.
"""

import contextlib
import shutil
import sys
import tempfile
import time
from pathlib import Path

import engines
import record
from equality import differences, own_names
from harness import arguments, finish, skipped, until
from template import lines_of

SHAPES = ["1x4", "2mig", "demo"]
MIX = ",".join(SHAPES)
MACHINES = 6
FRAMES = 4
# Absent for a process of which the driver has no sample, so it is there for some of the processes at each scrape.
AT_TIMES = "gpu_process_sm_utilization_ratio"


def series(text):
    return [line for line, sample in lines_of(text) if sample]


def equality_problems(recordings, fleet, start):
    """Machine 0 is the recording to the byte; the others are it with other identities."""
    texts = {}
    for at in range(MACHINES):
        recording = recordings[SHAPES[at % len(SHAPES)]]
        for kind, key in (("metrics", "frames"), ("dcgm", "dcgm")):
            for moment, recorded in enumerate(recording[key]):
                served = texts[at, kind] = fleet.get(f"/machine/{at}/{kind}?at={moment * recording['every']}")
                shift = round(start - recording["epoch"], 3)
                found = list(differences(recorded, served, shift))
                if at == 0 and shift == 0 and served != recorded:
                    found.append("not the recorded bytes")
                yield from (f"machine {at}, {kind}, moment {moment}: {problem}" for problem in found[:3])
    for at in range(MACHINES):
        for other in range(at):
            shared = own_names(texts[at, "metrics"]) & own_names(texts[other, "metrics"])
            if shared:
                yield f"machines {other} and {at} share {sorted(shared)[:3]}"


def fresh_problems(exporter, recordings, fleet):
    """A new scrape of the real exporter on the first shape has the families and the series of machine 0."""
    shape = SHAPES[0]
    again = record.record(exporter, [shape], 1, 2)[shape]["frames"][-1]
    served = fleet.get("/machine/0/metrics?at=1")
    found = [[sample for _, sample in lines_of(text) if sample] for text in (again, served)]
    names = [{(name, "" if name == AT_TIMES else labels) for name, labels, *_ in samples} for samples in found]
    kinds = [[line for line, sample in lines_of(text) if not sample] for text in (again, served)]
    if kinds[0] != kinds[1]:
        yield "the exporter and machine 0 have other HELP and TYPE lines"
    yield from (f"the exporter and machine 0 do not both have {one}" for one in sorted(map(str, names[0] ^ names[1]))[:5])


def stored_problems(prometheus, fleet):
    """Every series of every machine is stored, and nothing was refused."""
    for at in range(MACHINES):
        expected = {len(series(fleet.get(f"/machine/{at}/metrics?at={t}"))) for t in range(FRAMES)}
        node = f"node-{at:05}"
        scraped = prometheus.api.instant(f'scrape_samples_post_metric_relabeling{{instance="{node}"}}')
        values = {int(float(one["value"][1])) for one in scraped}
        if len(values) != 1 or not values <= expected:
            yield f"{node}: {values} series are stored, the fleet serves {expected}"
    lost = ("out_of_order", "duplicate_timestamp", "out_of_bounds", "exceeded_sample_limit")
    for name in lost:
        total = prometheus.own(f"prometheus_target_scrapes_{'sample_' if name != 'exceeded_sample_limit' else ''}{name}_total")
        if total != 0:
            yield f"Prometheus counts {total} of {name}"


def prometheus_problems(rig, fleet):
    rules = engines.shipped_rules(rig.folder / "rules", "2s")
    whole = rig.prometheus("whole", fleet, every="1s", rules=rules)
    shards = [rig.prometheus(f"shard-{at}", fleet, every="1s", rules=rules, shard=at, shards=2) for at in range(2)]
    everything = [whole, *shards]
    until("a scrape of the whole fleet", lambda: engines.count(whole.api, "up == 1") == MACHINES)
    # The slowest of the rules read the results of others.
    time.sleep(10)
    yield from stored_problems(whole, fleet)
    for engine in everything:
        yield from (f"{engine.folder.name}: {problem}" for problem in engines.rule_problems(engine.api))
    seen = [[one["metric"]["instance"] for one in shard.api.instant("up == 1")] for shard in shards]
    if sorted(seen[0] + seen[1]) != [f"node-{at:05}" for at in range(MACHINES)] or not all(seen):
        yield f"the shards do not divide the machines: {seen}"
    for name in ("instance:gpu_memory_used_bytes:sum", "workload:gpu_workload_memory_used_bytes:sum"):
        total, parts = engines.count(whole.api, name), [engines.count(shard.api, name) for shard in shards]
        if not total or sum(parts) != total:
            yield f"{name}: {total} series in the whole, {parts} in the shards"


def main():
    parser = arguments(__doc__)
    exporter = parser.parse_args().exporter
    problems = []
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        recordings = record.record(exporter, SHAPES, 1, FRAMES)
        for shape, recording in recordings.items():
            record.write(recording, folder / f"{shape}.json.gz")
        rig = engines.Rig(stack, folder)
        start = recordings[SHAPES[0]]["epoch"]
        fleet = rig.fleet(folder, MACHINES, MIX, f"--start={start!r}")
        problems += equality_problems(recordings, fleet, start)
        problems += fresh_problems(exporter, recordings, fleet)
        if shutil.which("prometheus"):
            problems += prometheus_problems(rig, fleet)
        elif skipped("prometheus is not installed"):
            problems.append("prometheus is not installed")
    total = sum(len(series(recordings[SHAPES[at % len(SHAPES)]]["frames"][-1])) for at in range(MACHINES))
    print(f"{MACHINES} machines of {len(SHAPES)} shapes, {total} series")
    return finish(problems)


if __name__ == "__main__":
    sys.exit(main())
