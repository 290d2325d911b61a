"""What it costs a Prometheus to scrape the fleet: part of measure.py.

Invariant: two servers scrape the same machines at the same time, one with the shipped rules and one without, so that their difference is
the rules' alone. Processor time is counted, and not the time that passes.
"""

import contextlib
import shutil
import time

import engines
from harness import until

def unread(names):
    """A relabeling that drops these families."""
    return [{"source_labels": ["__name__"], "regex": "|".join(sorted(names)), "action": "drop"}]


class Window:
    """What an engine did between two moments."""

    SAMPLES = "prometheus_tsdb_head_samples_appended_total"

    def __init__(self, engine):
        self.engine = engine
        self.begin = self.now()

    def now(self):
        # Debian's 2.42 has one counter, Prometheus 3 one for each type of sample.
        lines = self.engine.get("/metrics").splitlines()
        samples = sum(float(line.split()[-1]) for line in lines if line.startswith(self.SAMPLES))
        return time.monotonic(), self.engine.cpu(), samples

    def result(self):
        passed, cpu, samples = (new - old for new, old in zip(self.now(), self.begin))
        return {"cores": cpu / passed, "samples_per_second": samples / passed, "seconds": passed}


def sizes(engine, empty):
    series = engine.own("prometheus_tsdb_head_series")
    heap, resident = engine.own("go_memstats_heap_inuse_bytes"), engine.memory()
    return {"series": series, "heap": heap, "resident": resident, "peak": engine.memory("VmHWM"), "empty": empty, "disk": engine.disk("data")}


def group_seconds(engine):
    """Seconds of the last evaluation of each group."""
    found = engine.api.ask("rules")["groups"]
    return {group["name"]: group["evaluationTime"] for group in found}


def measure(folder, recordings, mix, machines, minutes, flags=(), with_rules=True, **settings):
    """A fleet that is scraped for a while. The first two minutes, in which everything is new, are measured on their own."""
    with contextlib.ExitStack() as stack:
        rig = engines.Rig(stack, folder / f"live-{machines}")
        fleet = rig.fleet(recordings, machines, ",".join(f"{shape}:{weight}" for shape, weight in mix), *flags)
        running = {"without rules": rig.prometheus("plain", fleet, **settings)}
        if with_rules:
            running["with rules"] = rig.prometheus("ruled", fleet, rules=engines.shipped_rules(rig.folder / "rules"), **settings)
        empty = {name: engine.memory() for name, engine in running.items()}
        until("a scrape of the fleet", lambda: all(engines.count(one.api, "up == 1") == machines for one in running.values()), 180)
        time.sleep(60)
        first = {name: sizes(engine, empty[name]) for name, engine in running.items()}
        windows = {name: Window(engine) for name, engine in running.items()}
        time.sleep(minutes * 60)
        result = {"machines": machines, "first": first}
        for name, engine in running.items():
            result[name] = windows[name].result() | sizes(engine, empty[name])
            result[name]["failed"] = machines - engines.count(engine.api, "up == 1")
        if with_rules:
            result["groups"] = group_seconds(running["with rules"])
            result["rule_problems"] = list(engines.rule_problems(running["with rules"].api))
        place = rig.folder
    shutil.rmtree(place)
    return result
