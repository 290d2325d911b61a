"""An exporter counts once: compares each query of each dashboard on a server that has every series once with the same query on servers that
have them several times. The data are the machines of history.py and golden scrapes.

Two jobs and two Prometheus replicas that have scraped the same exporters change no number, no line and no row. If two jobs call each node by a
name of their own, a node and its GPUs have a row for each name; sums and counts without a node's name do not change, except for PER_NAME.
"""

import math
import re
import shutil
import tempfile
import time
import zlib
from pathlib import Path

import dashboards
import history
import week
from harness.exporter import samples
from history import HOUR, MINUTE

SPAN, RANGE = 2 * HOUR, HOUR
SECOND = "second-"
JOB, ENDED = "vram-exporter", "user:ended"
# All workloads and, on their dashboard, three that are not among those with the highest peaks: one that has ended, one that is idle, and one
# that was only given a device.
EVERY, CHOSEN = {}, {"workload": f"{ENDED}|small|ml/idle-0/main"}
# The groups of rules whose series the dashboards read.
RECORDED = ("vram-exporter.gpu", "vram-exporter.sizing", "vram-exporter.workload", "vram-exporter.idle")
# A graph is compared at these seconds before the end, everything else at the first of them.
MOMENTS = (0, 20 * MINUTE)
# Counts of nodes, and of what is counted for each node, by the file and the title of the panel.
PER_NAME = {
    ("fleet.json", "Firing"): "an alert names the node",
    ("fleet.json", "Silent nodes"): "two names are two nodes",
    ("workloads.json", "Workloads"): "a workload counts once for each node",
    ("exporter.json", "Exporters up"): "two names are two exporters",
    ("exporter.json", "Silent"): "two names are two exporters",
    ("exporter.json", "Faults"): "a fault has no label of a device",
    ("exporter.json", "Faults by source"): "a fault has no label of a device",
    ("exporter.json", "Lost memory calls"): "a lost call has no label of a device",
}


# Machines whose scrapes are in tests/golden, by the name of the node. What neither these nor the week have is in more.prom.
SCRAPED = {"busy": "busy-h200", "hostile": "hostile-names", "mig": "mig-a100"}
MORE = Path(__file__).with_name("more.prom")
# The alerts about the scrapes of a job, which are the only ones with a job.
ABOUT_JOBS = {"VramExporterDown", "VramExporterPeakWindowTooShort"}
# The families of counters whose series begin with their first event.
BEGINS_LATER = {"gpu_xid_errors_total", "gpu_workload_memory_refused_requests_total", "gpu_workload_memory_retried_requests_total"}
GROWING = re.compile(r".*_(total|sum|count|bucket)")
# A number that the golden files leave out.
LEFT_OUT = "<…>"


def read(path, node):
    """The series of a scrape. A counter grows by one each second."""
    for line in path.read_text().splitlines():
        if line.startswith("#"):
            continue
        [(family, labels, number)] = samples(line.replace(LEFT_OUT, str(zlib.crc32(line.encode()) % 1000)))
        value = history.Ago(3 * history.DAY) if "_start_time_" in family else number
        if GROWING.fullmatch(family):
            value = lambda before, number=number: number + SPAN - before  # noqa: E731
        if family in BEGINS_LATER:
            # It begins with the first event, this many minutes before the end.
            value = lambda before, number=number: 1 if before < number * MINUTE else None  # noqa: E731
        yield family, {"instance": node, **labels}, value


def alerts():
    """Every shipped alert, about a workload on a GPU."""
    about = {"instance": "known", "gpu": "0", "uuid": "GPU-0", "workload": "peaking"}
    for rule in dashboards.alert_rules():
        labels = {"alertname": rule["alert"], **rule["labels"], **about, **({"job": JOB} if rule["alert"] in ABOUT_JOBS else {})}
        yield "ALERTS", {**labels, "alertstate": "firing"}, 1
        yield "ALERTS_FOR_STATE", labels, history.Ago(HOUR)


def machines():
    scraped = [entry for node, name in SCRAPED.items() for entry in read(dashboards.ROOT / f"tests/golden/{name}.prom", node)]
    for family, labels, value in (*history.series(), *scraped, *read(MORE, "known")):
        if family != "ALERTS":
            yield family, {**labels, "job": JOB}, value
    # A workload that has ended, one that grows, two incidents, and the exporter that has not been scraped for a while.
    for family, labels, value in history.workload(ENDED, history.gpu(2), 9 * history.GIB):
        yield family, {**labels, "job": JOB}, lambda before, value=value: value if before > 40 * MINUTE else None
    for family, labels, value in history.workload("growing", history.gpu(4, instance="filling"), history.filling):
        yield family, {**labels, "job": JOB}, value
    for number in (0, 3):
        yield "gpu_memory_last_incident_timestamp_seconds", {**history.gpu(number), "kind": "near_limit", "job": JOB}, history.Ago(12 * MINUTE)
    yield "up", {"instance": "silent", "job": JOB}, lambda before: int(before > history.SILENT)
    yield from alerts()


def jobs_and_replicas():
    """Two replicas of one job, and one of another. What rules have made has no job, and is there once."""
    for extra in ({"prometheus_replica": "a"}, {"prometheus_replica": "b"}, {"job": f"{SECOND}{JOB}"}):
        for family, labels, value in machines():
            if "job" in labels:
                yield family, {**labels, **extra}, value
            elif extra.get("prometheus_replica") == "a":
                yield family, labels, value


def names_of_nodes():
    yield from machines()
    for family, labels, value in machines():
        yield family, {**labels, "instance": f"{SECOND}{labels['instance']}"}, value


def stored(folder, series, end):
    """Writes the data, and what the rules make of them."""
    folder.mkdir()
    history.backfill(folder, series, end, SPAN)
    # Twice, because in the first pass a rule does not see what other rules record.
    for _ in range(2):
        with history.serving(folder) as prometheus:
            history.record(folder, prometheus.port, end, SPAN, RECORDED)


def answers(found, prometheus, end):
    """By file, title, query, choice and moment: the query, and the labels and values of the answer."""
    result = {}
    for name, dashboard in found.items():
        choices = [EVERY, CHOSEN] if name == "workloads.json" else [EVERY]
        for panel in dashboards.panels(dashboard):
            for target in panel["targets"]:
                moments = MOMENTS if target["range"] else MOMENTS[:1]
                for chosen, before in ((chosen, before) for chosen in choices for before in moments):
                    expression = week.filled(target["expr"], dashboard, RANGE, MINUTE, **chosen)
                    try:
                        series = prometheus.instant(expression, time=end - before)
                        listed = [(tuple(sorted(one["metric"].items())), float(one["value"][1])) for one in series]
                    except ValueError as error:
                        listed = [((("error", str(error)),), math.inf)]
                    result[name, panel["title"], target["refId"], len(chosen), before] = (target["expr"], listed)
    return result


def close(one, other):
    return math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-9) or (math.isnan(one) and math.isnan(other))


def differs(expression, once, several):
    """The values must be equal and, unless the query chooses among equal values, the labels."""
    if len(once) != len(several):
        return True
    if "topk(" in expression or "bottomk(" in expression:
        return not all(close(one, other) for one, other in zip(sorted(value for _, value in once), sorted(value for _, value in several)))
    values = dict(several)
    return any(labels not in values or not close(value, values[labels]) for labels, value in once)


def shown(listed):
    texts = (f"{{{', '.join(f'{key}={text}' for key, text in labels)}}} {value:g}" for labels, value in sorted(listed)[:2])
    return f"{len(listed)} x {'; '.join(texts)}"


def problems(found):
    end = int(time.time()) // MINUTE * MINUTE
    kinds = {"once": machines, "two jobs and two replicas": jobs_and_replicas, "two names of each node": names_of_nodes}
    known = {}
    with tempfile.TemporaryDirectory() as name:
        for kind, series in kinds.items():
            # One path for all of them, because the path of a rule's file decides when the rule is evaluated.
            folder = Path(name, "server")
            stored(folder, series(), end)
            with history.serving(folder) as prometheus:
                known[kind] = answers(found, prometheus, end)
            shutil.rmtree(folder)
    once, needed = known.pop("once"), set()
    for (name, title, reference, *_), (_, listed) in once.items():
        yield from (f"{name}: {title} {reference}: {labels}" for labels, value in listed if labels and labels[0][0] == "error")
    answered = {place[:3] for place, (_, listed) in once.items() if listed}
    silent = {place[:3] for place in once} - answered
    yield from (f"{' '.join(place)} has no answer, so nothing is known about it" for place in sorted(silent))
    for kind, several in known.items():
        compared = 0
        for (name, title, reference, chosen, before), (expression, listed) in once.items():
            names = any("instance" in dict(labels) for labels, _ in listed)
            if kind == "two names of each node" and names:
                continue
            compared += bool(listed)
            other = several[name, title, reference, chosen, before][1]
            if differs(expression, listed, other):
                if kind == "two names of each node" and (name, title) in PER_NAME:
                    needed.add((name, title))
                    continue
                yield f"{name}: {title} {reference}, {kind}, {before} s before the end: {shown(other)}, not {shown(listed)}"
        print(f"{kind}: {compared} answers compared")
    yield from (f"an exception that is not needed: {key}" for key in PER_NAME.keys() - needed)
