"""The frame of a dashboard: variables, links, annotations, and the placement of panels on Grafana's 24-column grid.

Invariant: panels never overlap, and the id of a panel is its number in the file.
"""

from .queries import NODE

DATASOURCE = {"type": "prometheus", "uid": "$datasource"}
TAG = "vram-exporter"
# The schema version of Grafana 11.0, the oldest supported release. Later versions migrate the file to their own schema.
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
        # Also matches series without the label.
        "allValue": ".*",
        "current": {"text": ["All"], "value": ["$__all"]},
        "options": [],
        "regex": "",
        "hide": 0,
        "skipUrlSync": False,
    }


def choice_variable(name, label, choices, chosen, description):
    """`choices` are pairs of text and value; the user can enter other values."""
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
    "description": "Prometheus server that scrapes the exporters.",
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
    "External label cluster. The list is empty if Prometheus does not set the label: leave it at All.",
)
INSTANCE = query_variable(
    "instance",
    "Node",
    'label_values(vram_exporter_build_info{cluster=~"$cluster"}, instance)',
    "Label instance: name of the node in the scrape configuration.",
)
GPU = query_variable("gpu", "GPU", f"label_values(gpu_info{{{NODE}}}, gpu)", "NVML index of the GPU on its node.")
NAMESPACE = query_variable(
    "namespace",
    "Namespace",
    f'label_values({{__name__=~"gpu_workload_memory_peak_bytes|gpu_allocation_info",{NODE}}}, namespace)',
    "Kubernetes namespace of the workload. The list is empty without Kubernetes: leave it at All.",
)
WORKLOAD = query_variable(
    "workload",
    "Workload",
    f'label_values(gpu_workload_memory_peak_bytes{{{NODE},gpu=~"$gpu",namespace=~"$namespace"}}, workload)',
    "Workload that holds memory: container of a pod, other container, batch job, systemd unit or user.",
)
TOP = choice_variable(
    "top",
    "Top",
    [(n, n) for n in ("5", "10", "20", "50")],
    "10",
    "Maximum number of rows or lines in the longest lists.",
)
IDLE = choice_variable(
    "idle",
    "Idle after",
    [("5 min", "300"), ("30 min", "1800"), ("1 h", "3600"), ("8 h", "28800"), ("1 d", "86400")],
    "3600",
    "Time in seconds after which a process that has not worked on the GPU counts as idle.",
)
LOOKBACK = choice_variable(
    "lookback",
    "Lookback",
    [("1 day", "1d"), ("1 week", "1w"), ("4 weeks", "4w")],
    "1w",
    "Time range in which right-sizing looks for the highest peak.",
)

SEVERITIES = {"critical": "red", "warning": "orange", "info": "blue"}


def alerts(names, select, *severities):
    """Thin lines at the times when alerts started firing. Annotations over the whole duration of an alert would cover
    the graphs during an incident. `names` is a regular expression for the dashboard's alerts; `select` filters them
    as it does the panels."""
    return [
        {
            "name": f"Alerts: {severity}",
            "datasource": DATASOURCE,
            "enable": True,
            "hide": False,
            "iconColor": SEVERITIES[severity],
            "expr": named(began(f'{select},alertname=~"{names}",severity="{severity}"')),
            # The minimum; over a longer range the step is $__interval.
            "step": "60s",
            "titleFormat": "{{alertname}}",
            "textFormat": "{{about}}",
            "tagKeys": "severity",
            "useValueForTime": False,
        }
        for severity in severities
    ]


def began(select):
    """Firing in this step, but not in the previous one. The subquery has a step of one minute, because an alert may be
    shorter than a step of the graph."""
    firing = f'max_over_time(ALERTS{{{select},alertstate="firing"}}[$__interval:1m]'
    return f"({firing}) unless {firing} offset $__interval))"


def named(expression):
    """Adds the label `about`: the node, GPU, MIG device, process, and workload or pod of the alert, as far as the
    alert has them. If the text named a label that the alert lacks, Grafana would show the label's name."""
    gpu = f'label_replace({expression}, "on", "GPU $1", "gpu", "(.+)")'
    owner = f'label_replace(label_replace({gpu}, "owner", "$1", "pod", "(.+)"), "owner", "$1", "workload", "(.+)")'
    return f'label_join({owner}, "about", " ", "instance", "on", "profile", "process", "owner")'


def link(page):
    return {
        "title": PAGES[page],
        "type": "link",
        "url": f"/d/{uid(page)}",
        "tooltip": f"{PAGES[page]} dashboard with the same variables and time range",
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
    """Places panels from left to right, and on a new row if a panel does not fit. The height of a row is that of its
    tallest panel."""
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
