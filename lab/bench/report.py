"""The runs as tables: medians with minimum and maximum, ratios to ours, the goals; and everything as JSON."""

import datetime
import json
import os
import platform

import calls
import goals
from figures import Figure, median, ratio
from scrapes import KINDS

SUBJECTS = ("ours", "again", "before", "nvitop", "all-smi", "nvidia_gpu_exporter", "bare", "static")
MIB = 1 / 1024
# Figure name → its path in the result of a run, and the factor that converts it to the unit shown.
PLACES = {
    "cpu": (("cpu",), 100),
    "cpu unscraped": (("cpu_unscraped",), 100),
    "memory": (("memory_steady", "rss"), MIB),
    "anon": (("memory_steady", "anon"), MIB),
    "file": (("memory_steady", "file"), MIB),
    "shmem": (("memory_steady", "shmem"), MIB),
    "children": (("memory_steady", "children"), MIB),
    "after init": (("init", "rss"), MIB),
    "series": (("sizes", "series"), 1),
    "processes": (("sizes", "processes"), 1),
    "bytes": (("sizes", "bytes"), 1),
    "gzip bytes": (("sizes", "gzip bytes"), 1),
}
TIMES = {f"{kind} {share}": ("scrape", kind, share) for kind in KINDS for share in ("p50", "p99")}
ROWS = {
    "cpu": "CPU, one scrape a second, % of a core",
    "cpu unscraped": "CPU, no scrape, %",
    "memory": "resident memory, steady, MiB",
    "anon": "of it anonymous",
    "file": "of which files",
    "shmem": "of it shared",
    "highest": "resident memory, maximum, MiB",
    "children": "of which children",
    "after init": "resident after nvmlInit alone, MiB",
    **{name: f"scrape, {name}, ms" for name in TIMES},
    "series": "series",
    "processes": "pids shown",
    "bytes": "bytes",
    "gzip bytes": "bytes with gzip",
    "start": "start to first data, ms",
}
# Figures whose ratio to ours is meaningless.
NO_RATIO = {"series", "processes", "bytes", "gzip bytes", "children", "shmem", "file", "after init"}


def at(run, place):
    for key in place:
        run = (run or {}).get(key)
    return run


def highest(run):
    """MiB: the larger of a subject's maximum after all scrapes and its maximum with its children."""
    marks = [at(run, (when, "highest")) for when in ("memory_steady", "memory_after_scrapes")]
    return max((mark * MIB for mark in marks if mark is not None), default=None)


def start(run):
    times = run.get("start_ms", run.get("first_ms"))
    return median(times) if isinstance(times, list) else times


def table(runs):
    """The figures by subject, then by name."""
    found = {}
    for subject in SUBJECTS[:-1]:
        mine = [run for run in runs if run["subject"] == subject]
        if not mine:
            continue
        scaled = lambda place, by: [v * by if (v := at(run, place)) is not None else None for run in mine]
        of = {name: Figure.of(scaled(place, by)) for name, (place, by) in PLACES.items()}
        of |= {name: Figure.of(scaled(place, 1)) for name, place in TIMES.items()}
        of |= {"highest": Figure.of(map(highest, mine)), "start": Figure.of(map(start, mine))}
        spikes = [series for run in mine for series in run.get("spikes", [])]
        of |= {"spikes": sum(1 for series in spikes if series), "spikes made": len(spikes) or None}
        found[subject] = of
    beside = [run for run in runs if run.get("static")]
    if beside:
        places = {name: ("static", *place[1:]) for name, place in TIMES.items()}
        found["static"] = {name: Figure.of([at(run, place) for run in beside]) for name, place in places.items()}
    return found


def number(value):
    return f"{value:.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:.3g}"


def cell(figure, ours, name, subject):
    """`median (minimum to maximum)`, and the ratio to ours."""
    if figure is None:
        return ""
    spread = f" ({number(figure.least)} to {number(figure.greatest)})" if figure.runs > 1 and figure.least != figure.greatest else ""
    times = None if subject == "ours" or name in NO_RATIO else ratio(figure, ours)
    return number(figure.median) + spread + (f" [{times:.2f}]" if times is not None else "")


def comparison(figures):
    subjects = [subject for subject in SUBJECTS if subject in figures]
    lines = ["| | " + " | ".join(subjects) + " |", "|---" * (len(subjects) + 1) + "|"]
    for name, title in ROWS.items():
        of = {subject: figures[subject].get(name) for subject in subjects}
        if any(of.values()):
            cells = [cell(of[subject], of.get("ours"), name, subject) for subject in subjects]
            lines.append(f"| {title} | " + " | ".join(cells) + " |")
    made = {subject: figures[subject].get("spikes made") for subject in subjects}
    if any(made.values()):
        cells = [f"{figures[subject]['spikes']} of {made[subject]}" if made[subject] else "" for subject in subjects]
        lines.append("| spikes of 20 ms caught | " + " | ".join(cells) + " |")
    return lines


def goal_lines(judged):
    lines = ["| goal | target | result | met |", "|---|---|---|---|"]
    words = {True: "met", False: "**missed**"}
    return lines + [f"| {goal.what} | {goal.goal} | {goal.figure} | {words.get(goal.met, goal.unjudged)} |" for goal in judged]


def call_lines(counted, tolerance, quick):
    names = sorted({name for of in counted.values() for name in of})
    lines = ["| driver calls a second | " + " | ".join(counted) + " |", "|---" * (len(counted) + 1) + "|"]
    for name in names:
        lines.append(f"| {name} | " + " | ".join(number(of[name]) if name in of else "" for of in counted.values()) + " |")
    lines.append("| all | " + " | ".join(number(sum(of.values())) for of in counted.values()) + " |")
    # In a short window, a single round more or less changes the number of calls considerably.
    if "ours" in counted and "bare" in counted and not quick:
        found = calls.differences(counted["ours"], counted["bare"], tolerance)
        differing = "; ".join(f"{name} ({number(one)} and {number(other)})" for name, one, other in found) or "none"
        apart = f"a tenth and {number(tolerance)} a second (a round and a half of every GPU in the window)"
        lines += ["", f"Calls that the bare loop makes more or less often than the exporter, by more than {apart}: {differing}."]
    return lines


def markdown(results):
    lines = [", ".join(f"{key}: {value}" for key, value in results.get("about", {}).items()), ""]
    lines += [f"{name} was not measured: {reason}." for name, reason in results["missing"].items()] + [""]
    if results.get("runs"):
        lines += ["Medians over the runs (minimum to maximum) [ratio to ours].", ""]
        lines += comparison(table(results["runs"])) + [""]
    if results.get("calls"):
        lines += call_lines(results["calls"], results["calls_tolerance"], results["quick"]) + [""]
    if results.get("growth"):
        lines += results["growth"]["lines"] + [""]
    if results.get("goals"):
        lines += goal_lines([goals.Goal(**goal) for goal in results["goals"]]) + [""]
    lines += [f"FAILED: {line}" for line in results["failures"]]
    return "\n".join(lines) + "\n"


def cpu_model():
    with open("/proc/cpuinfo") as file:
        return next((line.partition(":")[2].strip() for line in file if line.startswith("model name")), platform.machine())


def about(options, machine, found, plan):
    versions = {subject.name: subject.version for subject in found.values()}
    run = {"date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")} | machine.about()
    run |= {"cpu": cpu_model(), "cores": os.cpu_count(), "kernel": platform.release(), "python": platform.python_version()}
    run |= {"plan": ", ".join(f"{name} {value}" for name, value in vars(plan).items())}
    return run | versions | {"binary_bytes": options.exporter.stat().st_size}


def judged(results):
    """The results of the goals whose figures were measured. A quick run has none; with too few runs, the results have no verdict."""
    if results["quick"]:
        return []
    about, grown, runs = results["about"], results.get("growth", {}), results.get("runs", [])
    of_runs = goals.judge(table(runs), about["driver"] == "simulated", about["binary_bytes"]) if runs else []
    of_growth = [goals.Goal(**goal) for goal in grown.get("goals", [])]
    of_runs = goals.of_enough(of_runs, sum(run["subject"] == "ours" for run in runs))
    of_growth = goals.of_enough(of_growth, min((len(point["runs"]) for point in grown.get("points", [])), default=0))
    return [vars(goal) for goal in [*of_runs, *of_growth]]


def write(out, results):
    """Writes the results so far, and returns them as text."""
    results["goals"] = judged(results)
    (out / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    text = markdown(results)
    (out / "results.md").write_text(text)
    return text
