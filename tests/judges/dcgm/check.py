"""Checks that programs made for dcgm-exporter get data from the exporter: every expression of dashboards, autoscalers, cost tools, consoles
and alerts is evaluated by a real Prometheus against four simulated machines (idle, busy, MIG, shared GPUs in a cluster), and the exporter
reads the lists of fields that programs have dcgm-exporter read.

    python3 tests/judges/dcgm/check.py --exporter target/release/vram-exporter

An expression must return data for exactly the machines that expressions.toml lists for it, with the labels by which it groups. One that
returns nothing anywhere must ask for a field for which the table of missing fields in docs/from-dcgm.md has a reason, and so must every
field of a list that is not served. The page's table of consumers must have the figures; UPDATE_GOLDEN=1 writes it.
"""

import fnmatch
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import fleet
from harness import arguments, finish, skipped

PAGE = Path(__file__).resolve().parents[3] / "docs/from-dcgm.md"
CONSUMERS = "\n| consumer | expressions or fields | answered | not answered |\n|---|---|---|---|\n"
MISSING = "\n| fields | why they are missing |\n|---|---|\n"
LISTS = tomllib.loads((fleet.HERE / "lists.toml").read_text())["list"]
EXPRESSIONS = tomllib.loads((fleet.HERE / "expressions.toml").read_text())
WINDOW = "10s"
# Labels by which an expression may group although no series has them: in a cluster, Prometheus adds cluster_id, and dcgm-exporter itself
# has no label uid.
ELSEWHERE = {"cluster_id", "uid"}
# Labels that only a MIG instance has.
INSTANCE = {"GPU_I_PROFILE", "GPU_I_ID"}


def filled(expression, machine, job):
    text = expression.replace("{window}", WINDOW).replace('gpu=~"$gpu"', 'gpu=~".*"')
    return re.sub(r'instance=~?"\$instance"', f'instance="{machine}", job="{job}"', text)


def part(mark):
    """The rows of a table of the page."""
    return PAGE.read_text().split(mark)[1].split("\n\n")[0]


def missing_fields(names):
    """Those of the names for which the page has a reason."""
    patterns = [pattern for row in part(MISSING).splitlines() for pattern in re.findall("`([^`]+)`", row.split(" | ")[0])]
    return [name for name in names if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)]


def fields_of(expression):
    return sorted(set(re.findall(r"\bDCGM_[A-Z0-9_]+", expression)))


def list_of(entry, folder):
    """A list of fields as a collectors file, and its names."""
    kinds = [("gauge", entry["numbers"]), ("label", entry["labels"])]
    lines = [(f"DCGM_FI_{name}", kind) for kind, names in kinds for name in names.split()]
    path = Path(folder) / "counters.csv"
    path.write_text("".join(f"{name} ,{kind} ,\n" for name, kind in lines))
    return path, list(dict.fromkeys(name for name, _ in lines))


def read_list(entry, exporter):
    """What the exporter says about a list of fields: the names, those that it does not serve, and problems."""
    with tempfile.TemporaryDirectory() as folder:
        path, names = list_of(entry, folder)
        flags = ["--check-config", "--dcgm.listen-address=127.0.0.1:0", f"--dcgm.collectors-file={path}"]
        flags += ["--telemetry.energy=true", "--telemetry.performance-state=true"]
        done = subprocess.run([exporter, *flags], capture_output=True, text=True, timeout=60)
    said = [line for line in done.stderr.splitlines() if "are not served" in line]
    unserved = [name for name in names if any(re.search(rf"\b{name} \(", line) for line in said)]
    problems = [] if done.returncode == 0 else [f"{entry['name']}: the list is refused: {done.stderr}"]
    problems += [f"{entry['name']}: {name} is not served, and the page has no reason" for name in unserved if not missing_fields([name])]
    return names, unserved, problems


def row(name, count, unanswered):
    """A row of the page's table."""
    return f"| {name} | {count} | {count - len(unanswered)} | {', '.join(unanswered)} |"


def page_problems(rows):
    found, text = "\n".join(rows), PAGE.read_text()
    if part(CONSUMERS) == found:
        return []
    if os.environ.get("UPDATE_GOLDEN") == "1":
        PAGE.write_text(text.replace(CONSUMERS + part(CONSUMERS), CONSUMERS + found))
        return []
    return [f"{PAGE.name}: the table of consumers differs; UPDATE_GOLDEN=1 writes it:\n{found}"]


def groups(expression):
    return {label.strip() for found in re.findall(r"\bby \(([^)]*)\)", expression) for label in found.split(",")}


def problems_of(name, expression, expected, job, prometheus):
    for machine, _, _ in fleet.MACHINES:
        text = filled(expression, machine, job)
        try:
            result = prometheus.instant(text)
        except ValueError as error:
            yield f"{name} on {machine}: {error}\n    {text}"
            continue
        if bool(result) != (machine in expected):
            yield f"{name} on {machine}: {len(result)} series, expected {'some' if machine in expected else 'none'}\n    {text}"
        wanted = groups(expression) - ELSEWHERE - (set() if machine == "mig" else INSTANCE)
        # An outer sum drops the labels by which an inner one groups: then the fields themselves must have them.
        if result and not any(series["metric"] for series in result):
            asked = (f'{field}{{instance="{machine}", job="{job}"}}' for field in fields_of(expression))
            result = [series for query in asked for series in prometheus.instant(query)]
        for series in result:
            if not wanted <= set(series["metric"]):
                yield f"{name} on {machine}: no label {sorted(wanted - set(series['metric']))}\n    {text}"
                break


def value_problems(prometheus):
    """The figures of shared GPUs and MIG instances, which the scenarios determine."""

    def values(expression, label):
        return {series["metric"].get(label): float(series["value"][1]) for series in prometheus.instant(expression)}

    # Each process has a context of 520 MiB.
    shared = values('DCGM_FI_DEV_FB_USED{job="honored", instance="sharing", gpu="1", pod!=""}', "pod")
    if shared != {"serve-0": 40 * 1024 + 520, "serve-1": 20 * 1024 + 520, "notebook": 0}:
        yield f"memory of the pods that share a GPU: {shared}"
    whole = values('DCGM_FI_DEV_FB_USED{job="honored", instance="sharing", pod=""}', "gpu")
    if not sum(shared.values()) <= whole.get("1", 0) <= sum(shared.values()) + 64:
        yield f"memory of the shared GPU: {whole}, of its pods: {shared}"
    sliced = values('DCGM_FI_DEV_FB_USED{job="honored", instance="mig"}', "GPU_I_PROFILE")
    if set(sliced) != {"3g.40gb", "2g.20gb", "1g.10gb"} or not 29 * 1024 < sliced["3g.40gb"] < 30 * 1024:
        yield f"memory of the MIG instances: {sliced}"
    for machine, _, _ in fleet.MACHINES:
        for label in ("Hostname", "hostname"):
            found = values(f'count by ({label}) (DCGM_FI_DEV_GPU_TEMP{{job="honored", instance="{machine}"}})', label)
            if list(found) != [f"node-{machine}"]:
                yield f"{label} on {machine}: {found}"


def main():
    exporter = arguments(__doc__).parse_args().exporter
    count = sum(len(program["expressions"]) for program in EXPRESSIONS["program"])
    if not shutil.which("prometheus"):
        return skipped(f"prometheus is not installed: {count} expressions were not evaluated")
    found, rows = [], []
    with fleet.running(exporter) as prometheus:
        for program in EXPRESSIONS["program"]:
            for name, machines, expression in program["expressions"]:
                problems = problems_of(name, expression, EXPRESSIONS["machines"][machines], program["job"], prometheus)
                found += [f"{program['name']}: {problem}" for problem in problems]
                if machines == "missing" and not missing_fields(fields_of(expression)):
                    found.append(f"{program['name']}: {name}: the page has no reason for any of {fields_of(expression)}")
            unanswered = [name for name, machines, _ in program["expressions"] if machines == "missing"]
            rows.append(row(program["name"], len(program["expressions"]), unanswered))
            print(f"{program['name']}: {len(program['expressions'])} expressions on {len(fleet.MACHINES)} machines")
        found += value_problems(prometheus)
    for entry in LISTS:
        names, unserved, problems = read_list(entry, exporter)
        found += problems
        rows.append(row(f"{entry['name']} (list of fields)", len(names), [f"`{name}`" for name in unserved]))
        print(f"{entry['name']}: {len(names)} fields, {len(unserved)} not served")
    return finish(found + page_problems(rows))


if __name__ == "__main__":
    sys.exit(main())
