"""How the exporter's cost grows with GPUs, with processes and with the rate, on the simulator: three lines through one point, and the
far corner. CPU is measured without scrapes; scrapes are plain text, with gzip alongside.

The simulator runs in the measured process. The bare loop is therefore measured at each point too, to show the simulator's share."""

import random
import traceback
from dataclasses import dataclass, replace

import client
import exposition
import goals
import limit
import machine
import measure
import proc
import subjects
from figures import Figure, line, plane
from scrapes import scrape_times

GPUS, PROCESSES, RATES = (1, 2, 4, 8, 16), (0, 16, 64, 256, 512), (1, 10, 100, 1000)
CENTRE = (8, 64, 100)
CORNER = (16, 512, 100)
# More processes than any point has.
NO_LIMIT = 65536
DEFAULT_LIMIT = 256
CORNER_P99_MS = 10
# The allowed ratio of the corner's cost to the cost on the plane through the lines.
BEYOND_LINEAR = 1.2
FIGURES = {
    "cpu": "CPU without a scrape, %",
    "memory": "memory, MiB",
    "p50": "plain scrape p50, ms",
    "p99": "plain scrape p99, ms",
    "gzip p50": "scrape with gzip p50, ms",
    "gzip p99": "scrape with gzip p99, ms",
    "bytes": "bytes of plain text",
    "bare cpu": "bare CPU, %",
    "bare memory": "bare memory, MiB",
}
COLUMNS = ("GPUs", "processes a GPU", "Hz", "limit", "series", *FIGURES.values())


@dataclass(frozen=True)
class Point:
    gpus: int
    processes: int
    hz: int
    limit: int = NO_LIMIT


def points(quick, corner=False):
    if quick:
        return [Point(1, 0, 100), Point(1, 16, 100), Point(2, 16, 10)]
    corners = [Point(*CORNER), Point(*CORNER, DEFAULT_LIMIT)]
    if corner:
        return corners
    gpus, processes, hz = CENTRE
    found = [Point(number, processes, hz) for number in GPUS]
    found += [Point(gpus, number, hz) for number in PROCESSES]
    found += [Point(gpus, processes, number) for number in RATES]
    return list(dict.fromkeys([*found, *corners]))


def measured(point, options, plan, sleepers):
    """The figures at one point."""
    there = machine.SimulatedMachine(options.out, options.simulator, point.gpus, point.processes, sleepers)
    # Without processes, the rate would fall to the idle rate.
    flags = [f"--memory.rate={point.hz}", f"--memory.idle-rate={point.hz}", f"--process.series-limit={point.limit}"]
    with subjects.ours(options, flags).start(there, options.out) as running:
        measure.first_data(running, point.gpus)
        text = settled(running, point, plan)
        cpu = measure.cpu_share(running, plan.window, None)
        found = {"cpu": 100 * cpu, "memory": proc.memory(running.pid)["rss"] / 1024, "series": exposition.count(text)}
        taken = scrape_times(options.scraper, {"it": running.address}, ("new", "new, gzip"), 2 * plan.scrape_seconds)["it"]
        found |= {"bytes": measure.sizes(running)["bytes"], "p50": taken["new"]["p50"], "p99": taken["new"]["p99"]}
        found |= {"gzip p50": taken["new, gzip"]["p50"], "gzip p99": taken["new, gzip"]["p99"], "scrapes": taken["new"]["count"]}
    bare = limit.same(options.bare, there, plan, point.hz)
    return found | {"bare cpu": 100 * bare["cpu"], "bare memory": bare["memory_steady"]["rss"] / 1024}


def settled(running, point, plan):
    """Returns a scrape that shows every expected process."""
    wanted = min(point.processes, point.limit) * point.gpus
    for _ in range(20):
        measure.each_second(plan.settle, lambda: None)
        text = client.get(running.address).text
        shown = sum(1 for name, labels, _ in exposition.samples(text) if name == "gpu_process_memory_used_bytes")
        if shown >= wanted:
            return text
    raise RuntimeError(f"{point} shows {shown} processes, not {wanted}")


def study(options, plan, failures):
    """Every point, `--growth-runs` times, each time in a different order."""
    wanted = points(options.quick, options.corner)
    taken = {point: [] for point in wanted}
    most = max(point.gpus * point.processes for point in wanted)
    with machine.Sleepers(options.bare, most + 1) as sleepers:
        for number in range(1 if options.quick else options.growth_runs):
            for point in random.Random(number).sample(wanted, len(wanted)):
                try:
                    taken[point].append(measured(point, options, plan, sleepers))
                    print(f"   {point}", flush=True)
                except Exception as error:
                    traceback.print_exc()
                    failures.append(f"growth, {point}: {type(error).__name__}: {error}")
    medians = {point: medians_of(runs) for point, runs in taken.items() if runs}
    entries = [{**vars(point), "runs": runs} for point, runs in taken.items()]
    judged = [] if options.quick else [vars(goal) for goal in judge(medians)]
    return {"points": entries, "lines": lines(medians), "goals": judged}


def medians_of(runs):
    return {name: Figure.of([run[name] for run in runs]).median for name in runs[0]}


def along(medians, gpus=None, processes=None, hz=None):
    """The points of a line through the centre: (the varying number, figures); the number whose argument is None varies."""
    unlimited = [(point, of) for point, of in medians.items() if point.limit == NO_LIMIT]
    fixed = {key: value for key, value in (("gpus", gpus), ("processes", processes), ("hz", hz)) if value is not None}
    free = next(key for key in ("gpus", "processes", "hz") if key not in fixed)
    return sorted(
        ((getattr(point, free), of) for point, of in unlimited if all(getattr(point, key) == value for key, value in fixed.items())),
        key=lambda pair: pair[0],
    )


def costs(medians):
    """(what varies, figure, the line's (base, cost of each, largest deviation), the cost of one more between neighbours) for each line
    and figure."""
    gpus, processes, hz = CENTRE
    ways = {
        f"GPU with {processes} processes": along(medians, processes=processes, hz=hz),
        f"process on each of {gpus} GPUs": along(medians, gpus=gpus, hz=hz),
        "Hz": along(medians, gpus=gpus, processes=processes),
    }
    for way, line_points in ways.items():
        for name, title in FIGURES.items():
            costs_at = [(number, of[name]) for number, of in line_points]
            fitted = line(costs_at)
            if fitted and (way != "Hz" or "cpu" in name):
                yield way, title, fitted, steps(costs_at)


def steps(costs_at):
    """The cost of one more between each pair of neighbours in (number, cost)."""
    return [(cost - before) / (number - least) for (least, before), (number, cost) in zip(costs_at, costs_at[1:])]


def judge(medians):
    corner = medians.get(Point(*CORNER))
    rest = {point: of for point, of in medians.items() if point.limit == NO_LIMIT and point.hz == CENTRE[2] and of is not corner}
    what = f"{CORNER[0]} GPUs with {CORNER[1]} processes each"
    for name in ("cpu", "memory", "p50", "bytes"):
        fitted = plane([(point.gpus, point.gpus * point.processes, of[name]) for point, of in rest.items()])
        goal = f"at most {BEYOND_LINEAR} times the extrapolation from the smaller ones"
        if corner is None or fitted is None:
            yield goals.Goal(f"growth: {FIGURES[name]}, of {what}", goal, "not measured", None)
            continue
        base, each_gpu, each_process = fitted
        foretold = base + CORNER[0] * each_gpu + CORNER[0] * CORNER[1] * each_process
        figure = f"{corner[name]:.4g} against {foretold:.4g}: {corner[name] / foretold:.2f} times"
        yield goals.Goal(f"growth: {FIGURES[name]}, of {what}", goal, figure, corner[name] <= BEYOND_LINEAR * foretold)
    p99 = corner and Figure.of([corner["p99"]])
    goal = goals.at_most(f"growth: {FIGURES['p99']}, of {what}", f"under {CORNER_P99_MS} ms", p99, CORNER_P99_MS, "ms")
    yield replace(goal, figure=f"{goal.figure}; with gzip {corner['gzip p99']:.3g} ms") if corner else goal


def lines(medians):
    table = ["| " + " | ".join(COLUMNS) + " |", "|---" * len(COLUMNS) + "|"]
    for point, of in sorted(medians.items(), key=lambda pair: tuple(vars(pair[0]).values())):
        limited = "default" if point.limit == DEFAULT_LIMIT else "none"
        cells = [point.gpus, point.processes, point.hz, limited, round(of["series"])]
        cells += [f"{of[name]:.0f}" if name == "bytes" else f"{of[name]:.3g}" for name in FIGURES]
        table.append("| " + " | ".join(map(str, cells)) + " |")
    table += ["", "| one more | of | costs | at none | farthest from the line | between neighbours |", "|---|---|---|---|---|---|"]
    for way, title, (base, each, off), between in costs(medians):
        table.append(f"| {way} | {title} | {each:.3g} | {base:.3g} | {off:.0%} | {', '.join(f'{step:.3g}' for step in between)} |")
    return table
