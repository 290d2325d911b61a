"""Measures what the dashboards cost Prometheus: the time of each query with 100 and 500 workloads, and what it would be with 1000 machines.

    python3 lab/dashboards/cost.py [--workloads=100,500] [--minutes=370] [--step=30]

The data is that of made_fleet.py: machines with eight GPUs, and one workload on each GPU. Every query runs once to warm up and then
three times, with all variables set to All and the range that the dashboard opens with. The median of Prometheus' processor time
counts, because it does not depend on what else runs on the machine. For 1000 machines, the time is
extrapolated in a straight line through the two measured points, and never below the larger one. Nothing here is a limit that a check
enforces, because times depend on the machine.
"""

import argparse
import re
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests/judges"))
sys.path.append(str(Path(__file__).resolve().parents[2] / "tests/judges/dashboards"))

import dashboards
import history
import made
import made_fleet
import week
from harness import cpu_seconds

MACHINES, GPUS = 1000, 8
# The smallest steps that panels set.
INTERVALS = {"1m": 60, "90s": 90, "2m": 120, "5m": 300}
RUNS = 3


def measured(prometheus, expression, target, end, span, step):
    """Milliseconds of processor time and samples of one run."""
    began = cpu_seconds(prometheus.pid)
    when = {"time": end} if target["instant"] else {"start": end - span, "end": end, "step": step}
    path = "query" if target["instant"] else "query_range"
    stats = prometheus.ask(path, query=expression, stats="all", **when)["stats"]
    return 1000 * (cpu_seconds(prometheus.pid) - began), stats["samples"]["totalQueryableSamples"]


def opened(dashboard):
    """The queries that run when the dashboard is opened: not those in collapsed rows."""
    for panel in dashboard["panels"]:
        if panel["type"] != "row":
            yield from ((panel, target) for target in panel["targets"])


def lists(dashboard, prometheus, end, span, step, chosen):
    """The values of the variables that the user does not see."""
    values = {}
    for variable in filter(dashboards.listed, dashboards.variables(dashboard)):
        query = variable["query"]["query"].removeprefix("query_result(")[:-1]
        series = prometheus.instant(week.filled(query, dashboard, span, step, **chosen, **values), time=end)
        texts = (dashboards.series_text(one["metric"]) for one in series)
        values[variable["name"]] = "|".join(re.search(variable["regex"].strip("/"), text)[1] for text in texts)
    return values


def costs(found, workloads, minutes, step):
    """The median time in milliseconds and the samples of each query."""
    end, span = int(time.time()) // 60 * 60, minutes * 60
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        made.backfill(folder, made_fleet.of_size(workloads), end, span, step)
        with history.serving(folder) as prometheus:
            result = {}
            for file, dashboard in found.items():
                span = {"now-1h": 3600, "now-6h": 6 * 3600}[dashboard["time"]["from"]]
                # GPU opens with one node.
                chosen = {"instance": "node-0001"} if file == "gpu.json" else {}
                chosen |= lists(dashboard, prometheus, end, span, step, chosen)
                for panel, target in opened(dashboard):
                    grain = max(week.step_of(panel, span), INTERVALS.get(panel.get("interval"), step))
                    expression = week.filled(target["expr"], dashboard, span, grain, **chosen)
                    runs = [measured(prometheus, expression, target, end, span, grain) for _ in range(RUNS + 1)][1:]
                    key = (file, panel["title"], target["refId"])
                    result[key] = statistics.median(ms for ms, _ in runs), runs[0][1]
            print(f"{workloads} workloads: {len(result)} queries", flush=True)
            return result


def extrapolated(file, small, large, sizes):
    """Milliseconds with 1000 machines that are as full as those measured. GPU shows one node, however many there are."""
    if file == "gpu.json":
        return large
    growth = max(0, large - small) / (sizes[1] - sizes[0])
    return max(large, large + growth * (MACHINES * GPUS - sizes[1]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", default="100,500", help="two sizes (default: 100,500)")
    parser.add_argument("--minutes", type=int, default=370, help="length of the data (default: 370)")
    parser.add_argument("--step", type=int, default=30, help="seconds between two scrapes (default: 30)")
    options = parser.parse_args()
    sizes = [int(size) for size in options.workloads.split(",")]
    found = dashboards.read()
    small, large = (costs(found, size, options.minutes, options.step) for size in sizes)
    rows = [
        (*key, small[key][0], large[key][0], extrapolated(key[0], small[key][0], large[key][0], sizes), large[key][1])
        for key in small
    ]
    for file in found:
        of_page = [row for row in rows if row[0] == file]
        sums = [sum(row[column] for row in of_page) for column in (3, 4, 5)]
        worst = max(of_page, key=lambda row: row[5])
        print(
            f"{file}: {len(of_page)} queries, together {sums[0]:.0f} ms with {sizes[0]} and {sums[1]:.0f} ms with {sizes[1]} workloads, "
            f"{sums[2]:.0f} ms extrapolated; slowest: {worst[1]} {worst[2]}: {worst[3]:.0f}, {worst[4]:.0f}, {worst[5]:.0f} ms"
        )
    print(f"\nslowest queries (ms with {sizes[0]}, ms with {sizes[1]}, ms extrapolated, samples):")
    for file, title, reference, first, second, third, samples in sorted(rows, key=lambda row: -row[5])[:25]:
        print(f"{first:8.0f} {second:8.0f} {third:8.0f} {samples:10} {file} {title} {reference}")


if __name__ == "__main__":
    main()
