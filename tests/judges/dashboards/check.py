"""Checks every dashboard in grafana/dashboards: its structure and the families that it names; that each of its queries returns
data from a real Prometheus, with the variables set to "All" and to single values; that it shows a week of known data correctly; and that an
exporter that a server has several times counts once.

    python3 tests/judges/dashboards/check.py --exporter target/release/vram-exporter
"""

import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import dashboards
import lint
import machines
import once
import week
from harness import arguments, finish, skipped

NO_PROBES = "simulated processes call no driver; once.py has these series"
# (file, panel, refId): why the query returns no data. The check fails if one of these queries does return data.
EMPTY = {
    ("fleet.json", "Time to full", "A"): "this needs 45 minutes of data; week.py checks it",
    ("fleet.json", "Time to full", "B"): "this needs 45 minutes of data; week.py checks it",
    ("fleet.json", "Idle memory by workload", "A"): "no process has been idle for an hour; week.py checks it",
    ("workloads.json", "By namespace", "H"): "no process has been idle for an hour",
    ("workloads.json", "Refused and retried requests", "A"): NO_PROBES,
    ("workloads.json", "Refused and retried requests", "B"): NO_PROBES,
    ("workloads.json", "Time in memory calls", "A"): NO_PROBES,
    ("exporter.json", "Probes on memory calls", "A"): NO_PROBES,
    ("exporter.json", "Probes on memory calls", "B"): NO_PROBES,
    ("exporter.json", "Lost memory calls", "A"): NO_PROBES,
    ("gpu.json", "Memory by workload", "C"): "every process of the scenarios has a workload",
    ("gpu.json", "NVLink and C2C traffic", "C"): "no scenario has a C2C link",
    ("gpu.json", "NVLink and C2C traffic", "D"): "no scenario has a C2C link",
    ("gpu.json", "Errors", "B"): "no scenario adds ECC errors while it runs",
    ("gpu.json", "Errors", "C"): "no scenario adds PCIe replays while it runs",
}
# Queries that return no data for "All" but return data for at least one choice, and the reason.
CHOSEN = {
    ("workloads.json", "Ladder", "B"): "the workload with the highest peak has no budget",
    ("workloads.json", "Peak of the workloads, and allocatable memory", "B"): "only for at most 8 devices",
}
# Labels in columns or legends that may be absent everywhere: no alert about a workload fires within seconds, and no scenario here has claims
# (week.py and once.py have).
OPTIONAL = {"cluster", "about", "claim"}
# Selections that a user might make. Every query must return data for "All", and for at least one of these. A GPU is given by its index.
CHOICES = [
    {"cluster": ".*", "instance": "busy", "gpu": "3", "namespace": ".*", "workload": ".*"},
    {"cluster": ".*", "instance": "busy", "gpu": "0|1", "namespace": "first", "workload": "first"},
    {"cluster": "b", "job": "vram-exporter", "instance": "mig", "gpu": "0", "mig": "first", "namespace": ".*", "workload": "first"},
    {"cluster": ".*", "instance": "busy", "gpu": "4|5", "namespace": ".*", "workload": ".*"},
    {"cluster": ".*", "instance": "broken", "gpu": "0|1", "namespace": ".*", "workload": ".*"},
    {"cluster": ".*", "instance": "gone|down", "namespace": ".*", "workload": ".*"},
]
# Values of the text variables. In a test no process is idle for an hour.
TYPED = {"idle": "1", "size": "1"}
TIMES = {"__rate_interval": "10s", "__interval": "2s", "__interval_ms": "2000", "__range": "30s", "__range_s": "30"}


def filled(text, values):
    return re.sub(r"\$\{?(\w+)\}?", lambda match: values.get(match.group(1), match.group(0)), text)


def values_of(dashboard, choice, prometheus):
    """The value of each variable, from `choice`; `first` means the first value that the variable's query finds."""
    values = dict(TIMES)
    for variable in dashboards.variables(dashboard):
        name = variable["name"]
        if variable["type"] == "query":
            values[name] = choice.get(name, ".*")
            if dashboards.listed(variable):
                values[name] = "|".join(map(escaped, variable_values(variable, values, prometheus)))
            elif values[name] == "first":
                found = variable_values(variable, values, prometheus)
                values[name] = escaped(found[0]) if found else ".*"
            elif name == "gpu" and values[name] != ".*":
                found = prometheus.instant(f'gpu_info{{instance=~"{choice["instance"]}",gpu=~"{values[name]}"}}')
                values[name] = "|".join(series["metric"]["uuid"] for series in found)
        elif variable["type"] == "custom":
            values[name] = TYPED.get(name, variable["current"]["value"])
    return values


def escaped(text):
    """The text as Grafana puts a value of a variable into a query: escaped for the regular expression, and for the string in PromQL."""
    return re.sub(r"[\\^$*+?.()|{}\[\]]", r"\\\\\g<0>", text)


def named_groups(regex):
    """Grafana's regular expression, which is JavaScript's, as one of Python's."""
    return re.compile(regex.strip("/").replace("(?<", "(?P<"))


def variable_values(variable, values, prometheus):
    query = variable["query"]["query"]
    of_series = re.fullmatch(r"query_result\((.*)\)", query)
    if not of_series:
        selector, label = re.fullmatch(r"label_values\((.*), (\w+)\)", query).groups()
        return prometheus.label_values(label, filled(selector, values))
    found = set()
    for series in prometheus.instant(filled(of_series.group(1), values)):
        text = dashboards.series_text(series["metric"])
        match = named_groups(variable["regex"]).search(text)
        if not match or not match[1].strip(" ·#"):
            raise ValueError(f"the variable {variable['name']} takes no text and value from {text}")
        found.add(match.groupdict().get("value", match[1]))
    return sorted(found)


def returned(target, values, prometheus):
    expression = filled(target["expr"], values)
    try:
        return prometheus.instant(expression) if target["instant"] else prometheus.ranged(expression)
    except ValueError as error:
        raise ValueError(f"{error}\n    {expression}") from None


def labels_shown(panel, target):
    """Labels in the legend of a query."""
    return set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) if panel["type"] != "table" else set()


def columns(panel):
    """Labels that have a column in a table."""
    overrides = panel["fieldConfig"]["overrides"] if panel["type"] == "table" else []
    return {o["matcher"]["options"] for o in overrides if not o["matcher"]["options"].startswith("Value")} - OPTIONAL


def panel_problems(name, panel, choices, prometheus):
    shown = set()
    for target in panel["targets"]:
        key = (name, panel["title"], target["refId"])
        results = [returned(target, values, prometheus) for values in choices]
        labels = {label for result in results for series in result for label in series["metric"]}
        shown |= labels
        reason = EMPTY.get(key)
        if reason:
            print(f"excepted  {' / '.join(key)}: {reason}")
            if any(results):
                yield f"{target['refId']} returns data, but is listed as an exception"
            continue
        if bool(results[0]) == (key in CHOSEN):
            found = "data, but is listed as an exception," if results[0] else "nothing"
            yield f"{target['refId']} returns {found} with All\n    {filled(target['expr'], choices[0])}"
        if not any(results[1:]):
            yield f"{target['refId']} returns nothing for any single choice"
        missing = labels_shown(panel, target) - labels
        if missing:
            yield f"{target['refId']} has labels in its legend that no series has: {sorted(missing)}"
    if columns(panel) - shown and not all((name, panel["title"], target["refId"]) in EMPTY for target in panel["targets"]):
        yield f"columns of labels that no series has: {sorted(columns(panel) - shown)}"


def dashboard_problems(name, dashboard, prometheus):
    choices = [values_of(dashboard, choice, prometheus) for choice in [{}, *CHOICES]]
    for variable in dashboards.variables(dashboard):
        if variable["type"] == "query" and not variable_values(variable, choices[0], prometheus):
            yield f"variable {variable['name']} has no values"
    for annotation in dashboard["annotations"]["list"]:
        prometheus.instant(filled(annotation["expr"], choices[0]))
    for panel in dashboards.panels(dashboard):
        try:
            yield from (f"{panel['title']}: {p}" for p in panel_problems(name, panel, choices, prometheus))
        except ValueError as error:
            yield f"{panel['title']}: {error}"


def expressions(dashboard):
    yield from (target["expr"] for panel in dashboards.panels(dashboard) for target in panel["targets"])
    yield from (annotation["expr"] for annotation in dashboard["annotations"]["list"])
    queries = (variable.get("query") for variable in dashboards.variables(dashboard))
    for query in queries:
        if isinstance(query, dict):
            found = re.fullmatch(r"label_values\((.*), \w+\)|query_result\((.*)\)", query["query"])
            yield found.group(1) or found.group(2)


def file_problems(found):
    known = dashboards.known_families()
    for name, dashboard in found.items():
        yield from (f"{name}: {problem}" for problem in dashboards.problems(name, dashboard))
        for expression in expressions(dashboard):
            unknown = dashboards.families(expression) - known
            if unknown:
                yield f"{name}: {sorted(unknown)} neither in the documentation nor in a golden scrape: {expression}"
    yield from dashboards.link_problems(found)
    places = {
        (name, p["title"], t["refId"]) for name, d in found.items() for p in dashboards.panels(d) for t in p["targets"]
    }
    yield from (f"exception for a query that does not exist: {key}" for key in (EMPTY.keys() | CHOSEN.keys()) - places)


def freshness_problems():
    command = [sys.executable, dashboards.ROOT / "grafana/generate.py", "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    return done.stderr.splitlines() if done.returncode else []


def import_problems(found):
    """The import form of each dashboard asks for exactly the data source, lists the types of its panels, and is otherwise the dashboard."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, dashboards.ROOT / "grafana/generate.py", "--import-form", folder]
        subprocess.run(command, check=True, timeout=60)
        forms = {path.name: json.loads(path.read_text()) for path in Path(folder).glob("*.json")}
    if forms.keys() != found.keys():
        yield f"import forms: {sorted(forms)}"
    for name, form in forms.items():
        inputs, required = form.pop("__inputs"), form.pop("__requires")
        form.pop("__elements")
        if [(entry["name"], entry["type"], entry["pluginId"]) for entry in inputs] != [("DS_PROMETHEUS", "datasource", "prometheus")]:
            yield f"import form of {name}: inputs {inputs}"
        kinds = {entry["id"] for entry in required if entry["type"] == "panel"}
        if kinds != {panel["type"] for panel in dashboards.panels(form)}:
            yield f"import form of {name}: panel types {sorted(kinds)}"
        if {entry["id"] for entry in required if entry["type"] != "panel"} != {"grafana", "prometheus"}:
            yield f"import form of {name}: requires {required}"
        # What Grafana does on import: it replaces the input by the uid of the data source that the user chose.
        imported = json.loads(json.dumps(form).replace("${DS_PROMETHEUS}", "chosen"))
        [source] = [variable for variable in dashboards.variables(imported) if variable["type"] == "datasource"]
        if source["current"].get("value") != "chosen":
            yield f"import form of {name}: the data source is not the chosen one"
        source["current"] = {}
        if imported != found.get(name):
            yield f"import form of {name}: differs from the dashboard in more than its data source"


def main():
    exporter = arguments(__doc__).parse_args().exporter
    found = dashboards.read()
    problems = [*freshness_problems(), *file_problems(found), *lint.problems(found), *import_problems(found)]
    if not found:
        problems.append("no dashboard")
    queries = sum(len(panel["targets"]) for d in found.values() for panel in dashboards.panels(d))
    if shutil.which("prometheus"):
        with machines.running(exporter) as prometheus:
            for name, dashboard in found.items():
                problems += (f"{name}: {p}" for p in dashboard_problems(name, dashboard, prometheus))
        problems += week.problems(found)
        problems += once.problems(found)
        print(f"{len(found)} dashboards, {queries} queries, each with All and {len(CHOICES)} choices")
    elif skipped(f"prometheus is not installed: {queries} queries were not run"):
        problems.append("prometheus is not installed")
    return finish(problems)


if __name__ == "__main__":
    sys.exit(main())
