"""What queries and rules cost on stored data of the fleet: part of measure.py.

Invariant: a cost is the processor time of the engine between the question and its answer, with nothing else to do for it.
"""

import contextlib
import json
import shutil
import statistics
import time

import backfill
import engines
import queries

# The data end here, so that a run can be repeated: a Wednesday.
END = 1_795_600_800
LAST_HOUR = 3600
FIRST_NODE = "node-00000"
# Seconds at the end of the data for which all rules are recorded: the last hour without its first minutes, because rules read the past.
RECORDED = 3300
# How often the rules for right-sizing are evaluated.
HALF_HOUR = 1800


def receiver(rig, name="stored"):
    """A Prometheus that takes remote write of any age."""
    return rig.prometheus(name, None, flags=["--web.enable-remote-write-receiver", "--storage.tsdb.retention.time=10y"], past="30d")


def write_url(engine):
    return f"http://127.0.0.1:{engine.port}/api/v1/write"


def recording_rules():
    return [(group, rule) for group in engines.groups() for rule in group["rules"] if "record" in rule]


def fill(engine, recordings, mix, machines, span, end=END, **more):
    """Writes the fleet's past and the recorded series: those of the last hour, and those for right-sizing of the whole span."""
    written = backfill.past(recordings, mix, machines, end - span, **more)
    urls = [write_url(engine)]
    written.write(urls, end - span, end)
    rules = recording_rules()
    if span > LAST_HOUR:
        sizing = [rule for group, rule in rules if group["name"].endswith(".sizing")]
        backfill.write_rules(engine.api, urls, sizing, end - span + LAST_HOUR, end, HALF_HOUR)
    backfill.write_rules(engine.api, urls, [rule for _, rule in rules], end - RECORDED, end, 60)
    return written


def settle(engine):
    """Waits for the compaction that follows a lot of new samples: Prometheus looks for it once a minute."""
    time.sleep(65)
    before = engine.cpu()
    while True:
        time.sleep(3)
        now = engine.cpu()
        if now - before < 0.1:
            return
        before = now


def blocks(engine):
    """Bytes and samples of the blocks that have been written."""
    size = samples = 0
    for meta in (engine.folder / "data").glob("*/meta.json"):
        samples += json.loads(meta.read_text())["stats"].get("numSamples", 0)
        size += sum(path.stat().st_size for path in meta.parent.rglob("*") if path.is_file())
    return {"bytes": size, "samples": samples}


def cost(engine, query, end, repeats=3):
    """Processor seconds and seconds of a query, and the number of series in its result. The mean of the processor time contains the share
    of the engine's garbage collection, which begins with any of the queries."""
    spent, waited, count = [], [], 0
    for _ in range(repeats):
        before, begin = engine.cpu(), time.monotonic()
        count = len(query.ask(engine.api, end))
        waited.append(time.monotonic() - begin)
        spent.append(engine.cpu() - before)
        if spent[-1] > 5:
            break
    return {"cpu": statistics.mean(spent), "wall": statistics.median(waited), "series": count}


def dashboard_costs(engine, span, end=END, pages=None):
    """The costs of each query of the dashboards, and the queries that the engine refused. GPU is opened with one node."""
    for query in queries.of_dashboards(span, pages, queries.lists_at(engine.api, end), FIRST_NODE):
        found = {"page": query.page, "panel": query.panel, "range": query.step is not None, "opened": query.opened}
        try:
            found |= cost(engine, query, end)
        except ValueError as error:
            found["refused"] = str(error)[:200]
        yield found


def rule_costs(engine, end=END):
    """Processor seconds of one evaluation of each group. The ranges are as full as the stored data are long."""
    groups = {}
    for group, query in queries.of_rules():
        one = groups.setdefault(group["name"], {"interval": engines.seconds(group["interval"]), "cpu": 0, "wall": 0, "rules": []})
        found = cost(engine, query, end, repeats=5)
        one["cpu"] += found["cpu"]
        one["wall"] += found["wall"]
        one["rules"].append({"name": query.panel, "cpu": found["cpu"], "series": found["series"]})
    return groups


def measure(folder, recordings, mix, machines, span, pages=None, rules=False):
    with contextlib.ExitStack() as stack:
        rig = engines.Rig(stack, folder)
        engine = receiver(rig, f"stored-{machines}-{span}")
        written = fill(engine, recordings, mix, machines, span)
        settle(engine)
        result = {"machines": machines, "span": span, "series": written.series, "samples": written.series * (span // written.every)}
        result["queries"] = list(dashboard_costs(engine, span, pages=pages))
        if rules:
            result["rules"] = rule_costs(engine)
        result["memory"] = engine.memory("VmHWM")
        # Writes the rest of the data as a block.
        result["blocks"] = blocks(engine)
        place = engine.folder
    shutil.rmtree(place)
    return result
