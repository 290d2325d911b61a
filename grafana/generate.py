#!/usr/bin/env python3
"""Generates dashboards/*.json from source/*.py. Edit only the sources.

python3 grafana/generate.py           # writes the files
python3 grafana/generate.py --check   # names the files that differ, writes nothing, exits with status 1 if any differ
python3 grafana/generate.py --import-form FOLDER
                                      # writes the dashboards to FOLDER in the form in which grafana.com accepts them
"""

import copy
import json
import sys
from pathlib import Path

from source import exporter, fleet, gpu, workloads

FOLDER = Path(__file__).resolve().parent / "dashboards"


# The input for which an importing Grafana asks the user.
INPUT = "DS_PROMETHEUS"
# The names of the panel types in Grafana's list of plugins.
PANELS = {
    "bargauge": "Bar gauge",
    "barchart": "Bar chart",
    "gauge": "Gauge",
    "heatmap": "Heatmap",
    "stat": "Stat",
    "state-timeline": "State timeline",
    "table": "Table",
    "text": "Text",
    "timeseries": "Time series",
}


def files(form=lambda dashboard: dashboard):
    """The name and text of each file."""
    for dashboard in (fleet.DASHBOARD, gpu.DASHBOARD, workloads.DASHBOARD, exporter.DASHBOARD):
        name = dashboard["uid"].removeprefix("vram-exporter-")
        yield f"{name}.json", json.dumps(form(dashboard), indent=2, ensure_ascii=False) + "\n"


def import_form(dashboard):
    """The dashboard with a list of what it needs, and with its data source as an input that the user chooses on import."""
    result = copy.deepcopy(dashboard)
    for variable in result["templating"]["list"]:
        if variable["type"] == "datasource":
            variable["current"] = {"selected": True, "text": f"${{{INPUT}}}", "value": f"${{{INPUT}}}"}
    types = sorted({panel["type"] for panel in result["panels"]} - {"row"})
    needed = {
        "__inputs": [
            {
                "name": INPUT,
                "label": "Prometheus",
                "description": "Prometheus server that scrapes the exporters.",
                "type": "datasource",
                "pluginId": "prometheus",
                "pluginName": "Prometheus",
            }
        ],
        "__elements": {},
        "__requires": [
            {"type": "grafana", "id": "grafana", "name": "Grafana", "version": "11.0.0"},
            {"type": "datasource", "id": "prometheus", "name": "Prometheus", "version": "1.0.0"},
            *({"type": "panel", "id": kind, "name": PANELS[kind], "version": ""} for kind in types),
        ],
    }
    return needed | result


def main(arguments):
    if arguments[:1] == ["--import-form"] and len(arguments) == 2:
        folder = Path(arguments[1])
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files(import_form):
            (folder / name).write_text(text)
        return 0
    if arguments not in ([], ["--check"]):
        print(__doc__, file=sys.stderr)
        return 64
    expected = dict(files())
    found = {path.name: path.read_text() for path in FOLDER.glob("*.json")}
    if not arguments:
        for name, text in expected.items():
            (FOLDER / name).write_text(text)
        for name in found.keys() - expected.keys():
            (FOLDER / name).unlink()
        return 0
    stale = sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))
    for name in stale:
        print(
            f"grafana/dashboards/{name} differs from its source: run python3 grafana/generate.py", file=sys.stderr
        )
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
