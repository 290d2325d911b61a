"""An exporter counts once: compares each query of each dashboard on a server that has every series once with the same query on servers that
have them several times. The data are some of the made machines of made.py.

    python3 tests/judges/dashboards/once.py

Two jobs and two Prometheus replicas that have scraped the same exporters change no number, no line and no row. If two jobs call each node by a
name of their own, a node and its GPUs have a row for each name; sums and counts without a node's name do not change, except for PER_NAME.
"""

import math
import shutil
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import dashboards
import history
import made
import week
from harness import finish
from nodes import HOUR, MINUTE, counter

SPAN, RANGE = 2 * HOUR, HOUR
SECOND = "second-"
# All workloads and, on their dashboard, one that has ended and one that is idle, which are not among those with the highest peaks.
EVERY, CHOSEN = {}, {"workload": "training/evaluate-28811/main|team-b/notebook-7/jupyter"}
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
}


# Families of a GPU that the made machines do not have, with the labels that tell their series apart.
GAUGES = {
    "gpu_pcie_link_generation": {},
    "gpu_pcie_link_generation_max": {},
    "gpu_pcie_link_width": {},
    "gpu_pcie_link_width_max": {},
    **{f"gpu_{kind}_utilization_ratio": {} for kind in ("memory_bandwidth", "encoder", "decoder")},
    "gpu_memory_temperature_celsius": {},
    "gpu_bar1_memory_used_bytes": {},
    "gpu_bar1_memory_total_bytes": {},
    "gpu_row_remap_failed": {},
    "gpu_row_remap_banks": {"available": ("max", "high", "partial", "low", "none")},
    "gpu_remapped_rows": {"cause": ("correctable", "uncorrectable")},
    "gpu_retired_pages": {"cause": ("double_bit",)},
}
COUNTERS = {
    **{f"gpu_{link}_{way}_bytes_total": {} for link in ("pcie", "nvlink", "c2c") for way in ("received", "transmitted")},
    "gpu_pcie_replays_total": {},
    "gpu_ecc_errors_total": {"type": ("corrected",)},
    "gpu_xid_errors_total": {"xid": ("31",)},
}


def full(node):
    """The node with these families on two of its GPUs, a process without a workload on one, and a fault every hour."""
    for number in (0, 1):
        board = node.boards[number][0]
        for families, value in ((GAUGES, 1), (COUNTERS, counter(1))):
            for family, labels in families.items():
                [(label, values)] = labels.items() or [("", ("",))]
                for text in values:
                    node.add(family, value, **board, **({label: text} if label else {}))
    process = {**node.boards[1][0], "pid": "7", "process": "stray"}
    node.add("gpu_process_memory_used_bytes", 3 << 30, **process)
    node.add("gpu_process_sm_utilization_ratio", 0.5, **process)
    node.add("vram_exporter_faults_total", counter(1 / HOUR), source="nvml")
    return node


def divided(node):
    """The node with the activity of a MIG device."""
    device = node.boards[1, 0][0]
    node.add("gpu_mig_engine_active_seconds_total", counter(0.5), engine="sm", **device)
    node.add("gpu_mig_pipe_active_seconds_total", counter(0.3), pipe="tensor", **device)
    node.add("gpu_mig_memory_bandwidth_active_seconds_total", counter(0.2), **device)
    return node


def machines():
    for node in (full(made.node_a()), divided(made.node_b()), made.node_e(), made.silent()):
        yield from node.finished()
    yield from made.alerts()


def jobs_and_replicas():
    """Two replicas of one job, and one of another. What rules have made has no job, and is there once."""
    for extra in ({"prometheus_replica": "a"}, {"prometheus_replica": "b"}, {"job": f"{SECOND}{made.JOB}"}):
        for family, labels, *rest in machines():
            if "job" in labels:
                yield family, {**labels, **extra}, *rest
            elif extra.get("prometheus_replica") == "a":
                yield family, labels, *rest


def names_of_nodes():
    yield from machines()
    for family, labels, *rest in machines():
        yield family, {**labels, "instance": f"{SECOND}{labels['instance']}"}, *rest


def stored(folder, series, end):
    """Writes the data, and what the rules make of them."""
    folder.mkdir()
    made.backfill(folder, series, end, SPAN, MINUTE)
    # Twice, because in the first pass a rule does not see what other rules record.
    for _ in range(2):
        with history.serving(folder) as prometheus:
            history.record(folder, prometheus.port, end, SPAN, made.RECORDED)


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


def main():
    return finish(problems(dashboards.read()))


if __name__ == "__main__":
    sys.exit(main())
