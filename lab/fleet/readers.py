"""Which families do the shipped rules and dashboards read, and how many series of a machine does each of them have?

    readers.py --recordings FOLDER [SHAPE…]      prints a table for each recording that record.py wrote

Invariant: a family counts as read only if its name is in an expression of a shipped rule, panel, variable or annotation.
"""

import argparse
import collections
import re
import sys
from pathlib import Path

import engines
import record
from template import labels_of, lines_of

import dashboards

# Labels that get a new value with each process, and with each pod.
OF_A_PROCESS, OF_A_POD = {"pid"}, {"pod", "pod_uid", "container_id", "workload", "slurm_job"}


def expressions():
    """(reader, PromQL) of everything that is shipped: alerts, recording rules, and the dashboards by their names."""
    for group in engines.groups():
        for rule in group["rules"]:
            yield "alerts" if "alert" in rule else "recording rules", rule["expr"]
    for name, dashboard in dashboards.read().items():
        page = name.removesuffix(".json")
        texts = [target["expr"] for panel in dashboards.panels(dashboard) for target in panel["targets"]]
        texts += [one["expr"] for one in dashboard["annotations"]["list"] if one.get("expr")]
        for variable in dashboards.variables(dashboard):
            query = variable.get("query")
            if variable["type"] == "query":
                texts.append(re.sub(r"label_values\((.*),\s*\w+\)", r"\1", query["query"] if isinstance(query, dict) else query))
        yield from ((page, text) for text in texts)


def readers():
    """The readers of each family."""
    found = collections.defaultdict(set)
    for reader, text in expressions():
        for family in dashboards.families(text):
            found[family].add(reader)
    return found


def level(labels):
    """What a series is about. Each family belongs to one level only."""
    names = {name for name, _ in labels}
    if "pid" in names or "process" in names:
        return "process"
    if "workload" in names:
        return "workload"
    if "pod" in names:
        return "allocation"
    if "mig_uuid" in names:
        return "MIG device"
    return "GPU" if "gpu" in names else "exporter and machine"


class Family:
    def __init__(self, name):
        self.name, self.series, self.bytes = name, 0, 0
        self.levels, self.labels = collections.Counter(), set()

    def add(self, line, labels):
        self.series += 1
        self.bytes += len(line) + 1
        self.levels[level(labels)] += 1
        self.labels |= {name for name, _ in labels}

    @property
    def level(self):
        return self.levels.most_common(1)[0][0]


def families(text):
    """The families of an exposition, by name; the series of a histogram count under their own names."""
    found = {}
    for line, sample in lines_of(text):
        if sample:
            found.setdefault(sample[0], Family(sample[0])).add(line, labels_of(sample[1]))
    return found


def shown(names):
    return ", ".join(sorted(names)) or "**none**"


def table(text, least=1):
    known = readers()
    found = sorted(families(text).values(), key=lambda one: -one.series)
    yield "| family | level | series | bytes of a scrape | read by | changes with |"
    yield "|---|---|---|---|---|---|"
    for one in found:
        if one.series >= least:
            churns = ["each process"] * bool(one.labels & OF_A_PROCESS) + ["each pod"] * bool(one.labels & OF_A_POD)
            changes = ", ".join(churns) or "-"
            yield f"| `{one.name}` | {one.level} | {one.series} | {one.bytes} | {shown(known.get(one.name, ()))} | {changes} |"
    levels = collections.Counter()
    for one in found:
        levels.update(one.levels)
    yield ""
    yield f"{sum(one.series for one in found)} series: " + ", ".join(f"{name} {count}" for name, count in levels.most_common())
    unread = [one for one in found if not known.get(one.name)]
    yield f"read by no shipped rule or dashboard: {sum(one.series for one in unread)} series of {len(unread)} families"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recordings", required=True, type=Path, help="the folder that record.py wrote")
    parser.add_argument("--least", type=int, default=4, help="leave out families with fewer series")
    parser.add_argument("shape", nargs="*", default=["8x64"])
    given = parser.parse_args()
    for shape in given.shape:
        path = given.recordings / f"{shape}.json.gz"
        if not path.exists():
            parser.error(f"{path} does not exist")
        print(f"\n## {shape}\n")
        print("\n".join(table(record.read(path)["frames"][-1], given.least)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
