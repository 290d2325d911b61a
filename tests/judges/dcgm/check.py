"""Checks that programs made for dcgm-exporter get data from the exporter: every expression of the official dashboard, of autoscalers, of
OpenCost and of Kruize is evaluated by a real Prometheus against four simulated machines (idle, busy, MIG, shared GPUs in a cluster).

    python3 tests/judges/dcgm/check.py --exporter target/release/vram-exporter

An expression must return data for exactly the machines that expressions.toml lists for it, with the labels by which it groups.
"""

import re
import shutil
import sys
import tomllib
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import fleet
from harness import arguments, finish, skipped

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
        found = values(f'count by (Hostname) (DCGM_FI_DEV_GPU_TEMP{{job="honored", instance="{machine}"}})', "Hostname")
        if list(found) != [f"node-{machine}"]:
            yield f"Hostname on {machine}: {found}"


def main():
    exporter = arguments(__doc__).parse_args().exporter
    count = sum(len(program["expressions"]) for program in EXPRESSIONS["program"])
    if not shutil.which("prometheus"):
        return skipped(f"prometheus is not installed: {count} expressions were not evaluated")
    found = []
    with fleet.running(exporter) as prometheus:
        for program in EXPRESSIONS["program"]:
            for name, machines, expression in program["expressions"]:
                problems = problems_of(name, expression, EXPRESSIONS["machines"][machines], program["job"], prometheus)
                found += [f"{program['name']}: {problem}" for problem in problems]
            print(f"{program['name']}: {len(program['expressions'])} expressions on {len(fleet.MACHINES)} machines")
        found += value_problems(prometheus)
    return finish(found)


if __name__ == "__main__":
    sys.exit(main())
