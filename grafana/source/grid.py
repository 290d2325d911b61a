"""A dashboard's frame: variables, links, annotations, and panels put on Grafana's grid of 24 columns.

Invariant: panels never overlap, and an id is a panel's number in the file.
"""

from .queries import NODE

DATASOURCE = {"type": "prometheus", "uid": "$datasource"}
TAG = "vram-exporter"
# Oldest Grafana that is served, 11.0; a later one brings the file up to its own schema.
SCHEMA = 39

PAGES = {
    "fleet": "Fleet",
    "gpu": "GPU",
    "workloads": "Workloads",
    "exporter": "Exporter",
}


def uid(page):
    return f"vram-exporter-{page}"


def query_variable(name, label, query, description):
    return {
        "name": name,
        "label": label,
        "description": description,
        "type": "query",
        "datasource": DATASOURCE,
        "query": {"query": query, "refId": f"variable-{name}"},
        "definition": query,
        "refresh": 2,
        "sort": 3 if name == "gpu" else 1,
        "multi": True,
        "includeAll": True,
        # Matches a series that lacks the label, too.
        "allValue": ".*",
        "current": {"text": ["All"], "value": ["$__all"]},
        "options": [],
        "regex": "",
        "hide": 0,
        "skipUrlSync": False,
    }


def choice_variable(name, label, choices, chosen, description):
    """`choices` as (text, value); any other value can be typed."""
    options = [{"text": text, "value": value, "selected": value == chosen} for text, value in choices]
    return {
        "name": name,
        "label": label,
        "description": description,
        "type": "custom",
        "query": ", ".join(value if text == value else f"{text} : {value}" for text, value in choices),
        "multi": False,
        "includeAll": False,
        "allowCustomValue": True,
        "current": next({"text": o["text"], "value": o["value"]} for o in options if o["selected"]),
        "options": options,
        "hide": 0,
        "skipUrlSync": False,
    }


DATASOURCE_VARIABLE = {
    "name": "datasource",
    "label": "Data source",
    "description": "The Prometheus that scrapes the exporters.",
    "type": "datasource",
    "query": "prometheus",
    "regex": "",
    "refresh": 1,
    "multi": False,
    "includeAll": False,
    "current": {},
    "options": [],
    "hide": 0,
    "skipUrlSync": False,
}
CLUSTER = query_variable(
    "cluster",
    "Cluster",
    "label_values(vram_exporter_build_info, cluster)",
    "The external label cluster. Empty where Prometheus sets none: leave it at All.",
)
INSTANCE = query_variable(
    "instance",
    "Node",
    'label_values(vram_exporter_build_info{cluster=~"$cluster"}, instance)',
    "The label instance: the node, as the scrape configuration names it.",
)
GPU = query_variable("gpu", "GPU", f"label_values(gpu_info{{{NODE}}}, gpu)", "NVML's index of the GPU on its node.")
NAMESPACE = query_variable(
    "namespace",
    "Namespace",
    f'label_values({{__name__=~"gpu_workload_memory_peak_bytes|gpu_allocation_info",{NODE}}}, namespace)',
    "Kubernetes' namespace of the holder. Empty without Kubernetes: leave it at All.",
)
WORKLOAD = query_variable(
    "workload",
    "Workload",
    f'label_values(gpu_workload_memory_peak_bytes{{{NODE},gpu=~"$gpu",namespace=~"$namespace"}}, workload)',
    "Container of a pod, other container, batch job, systemd unit or user.",
)
TOP = choice_variable(
    "top", "Show", [(n, n) for n in ("5", "10", "20", "50")], "10", "How many rows or lines the longest lists have."
)
IDLE = choice_variable(
    "idle",
    "Idle after",
    [("5 min", "300"), ("30 min", "1800"), ("1 h", "3600"), ("8 h", "28800"), ("1 d", "86400")],
    "3600",
    "A process that has not worked on the GPU for so long counts as idle. Seconds.",
)
LOOKBACK = choice_variable(
    "lookback",
    "Look back",
    [("1 day", "1d"), ("1 week", "1w"), ("4 weeks", "4w")],
    "1w",
    "How far right-sizing looks back for the highest peak.",
)

SEVERITIES = {"critical": "red", "warning": "orange", "info": "blue"}


def alerts(names, select, *severities):
    """Thin lines where alerts began to fire. An annotation for as long as an alert fires would cover the graphs when they
    are needed. `names` is a regular expression of the page's own alerts; `select` filters them as its panels."""
    return [
        {
            "name": f"Alerts: {severity}",
            "datasource": DATASOURCE,
            "enable": True,
            "hide": False,
            "iconColor": SEVERITIES[severity],
            "expr": named(began(f'{select},alertname=~"{names}",severity="{severity}"')),
            # The least; over a longer range a step is $__interval.
            "step": "60s",
            "titleFormat": "{{alertname}}",
            "textFormat": "{{about}}",
            "tagKeys": "severity",
            "useValueForTime": False,
        }
        for severity in severities
    ]


def began(select):
    """Firing in this step and not in the one before. By the minute, for an alert may be shorter than a step."""
    firing = f'max_over_time(ALERTS{{{select},alertstate="firing"}}[$__interval:1m]'
    return f"({firing}) unless {firing} offset $__interval))"


def named(expression):
    """With the label `about`: whatever of node, GPU, MIG device, process and workload or pod the alert has. A label that is
    absent would be written by its name."""
    gpu = f'label_replace({expression}, "on", "GPU $1", "gpu", "(.+)")'
    owner = f'label_replace(label_replace({gpu}, "owner", "$1", "pod", "(.+)"), "owner", "$1", "workload", "(.+)")'
    return f'label_join({owner}, "about", " ", "instance", "on", "profile", "process", "owner")'


def link(page):
    return {
        "title": PAGES[page],
        "type": "link",
        "url": f"/d/{uid(page)}",
        "tooltip": f"{PAGES[page]}, with the same choice and time",
        "icon": "dashboard",
        "tags": [],
        "asDropdown": False,
        "includeVars": True,
        "keepTime": True,
        "targetBlank": False,
    }


def row(title):
    return {"type": "row", "title": title, "collapsed": False, "panels": []}


def place(panels):
    """Left to right, and on a new line where one does not fit; a line is as high as its highest panel."""
    x = y = height = 0
    placed = []
    for number, panel in enumerate(panels, start=1):
        panel = dict(panel)
        w, h = (24, 1) if panel["type"] == "row" else panel.pop("size")
        if x + w > 24:
            x, y, height = 0, y + height, 0
        panel = {"id": number, **panel, "gridPos": {"x": x, "y": y, "w": w, "h": h}}
        x, height = x + w, max(height, h)
        placed.append(panel)
    return placed


def dashboard(page, description, variables, annotations, panels, time="now-1h"):
    return {
        "uid": uid(page),
        "title": f"GPU memory / {PAGES[page]}",
        "description": description,
        "tags": [TAG, "gpu"],
        "schemaVersion": SCHEMA,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": time, "to": "now"},
        "timepicker": {},
        "timezone": "",
        "weekStart": "",
        "fiscalYearStartMonth": 0,
        "liveNow": False,
        "links": [link(other) for other in PAGES if other != page],
        "annotations": {"list": annotations},
        "templating": {"list": [DATASOURCE_VARIABLE, CLUSTER, INSTANCE, *variables]},
        "panels": place(panels),
    }
