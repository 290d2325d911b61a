"""The frame of a dashboard: variables, links, annotations, and the placement of panels on Grafana's 24-column grid.

Invariant: panels never overlap, and the id of a panel is its number in the file.
"""

import itertools

from .queries import NODE, of_rules

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


def query_variable(name, label, query, description, regex="", every=True):
    """`every`: whether "All" can be chosen. A query_result needs a `regex` that takes text and value from a series."""
    return {
        "name": name,
        "label": label,
        "description": description,
        "type": "query",
        "datasource": DATASOURCE,
        "query": {"query": query, "refId": f"variable-{name}"},
        "definition": query,
        "refresh": 2,
        # By the text: alphabetically, or for GPUs by natural order, in which #10 comes after #9.
        "sort": 7 if regex else 1,
        "multi": True,
        "includeAll": every,
        # Also matches series without the label.
        **({"allValue": ".*"} if every else {}),
        "current": {"text": ["All"], "value": ["$__all"]} if every else {},
        "options": [],
        "regex": regex,
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
JOB = query_variable(
    "job",
    "Job",
    'label_values(vram_exporter_build_info{cluster=~"$cluster"}, job)',
    "Label job: the scrape job. An exporter that two jobs scrape counts once.",
)
NODES = 'label_values(vram_exporter_build_info{cluster=~"$cluster",job=~"$job"}, instance)'
NODES_NOTE = "Label instance: name of the node in the scrape configuration."
INSTANCE = query_variable("instance", "Node", NODES, NODES_NOTE)
# The first node, unless others are chosen: the graphs of the GPU dashboard have lines for each GPU.
ONE_INSTANCE = query_variable("instance", "Node", NODES, NODES_NOTE, every=False)


def titled(series, *parts):
    """Adds the label `title`, for the list of a variable: pairs of a separator and a label."""
    expression = series
    for separator, label in parts:
        expression = f'label_join({expression}, "title", "{separator}", "title", "{label}")'
    return f"query_result({expression})"


# For example: "NVIDIA H200 #0 · node-a". Also GPUs that are no longer reported.
GPU = query_variable(
    "gpu",
    "GPU",
    titled(f"last_over_time(gpu_info{{{NODE}}}[$__range])", ("", "name"), (" #", "gpu"), (" · ", "instance")),
    "A GPU by its model, its NVML index and its node. The value of the variable is its UUID.",
    '/title="(?<text>[^"]+)".*uuid="(?<value>[^"]+)"/',
)
# For example: "1g.10gb #3 on GPU 0 · node-b".
MIG = query_variable(
    "mig",
    "MIG device",
    titled(
        f'last_over_time(gpu_mig_memory_total_bytes{{{NODE},uuid=~"$gpu"}}[$__range])',
        ("", "profile"),
        (" #", "gpu_instance"),
        (" on GPU ", "gpu"),
        (" · ", "instance"),
    ),
    "A MIG device by its profile, its GPU instance, its GPU and its node. The list is empty without MIG: leave it at All.",
    '/mig_uuid="(?<value>[^"]+)".*title="(?<text>[^"]+)"/',
)
NAMESPACE = query_variable(
    "namespace",
    "Namespace",
    f'label_values({{__name__=~"gpu_workload_memory_peak_bytes|gpu_allocation_info",{NODE}}}, namespace)',
    "Kubernetes namespace of the workload. The list is empty without Kubernetes: leave it at All.",
)
WORKLOAD = query_variable(
    "workload",
    "Workload",
    f'label_values(gpu_workload_memory_peak_bytes{{{NODE},namespace=~"$namespace"}}, workload)',
    "Workload that held memory in the time range: container of a pod, other container, batch job, systemd unit or user.",
)
def hidden_list(name, series, label, description):
    """A variable that the user does not see: the values of a label of a few series. "All" stands for exactly these, so that the
    queries that use it read only them, however many there are."""
    listed = query_variable(name, name, f"query_result({series})", description, f'/{label}="([^"]+)"/')
    del listed["allValue"]
    return {**listed, "sort": 0, "hide": 2, "skipUrlSync": True}


SIZE = choice_variable(
    "size",
    "Job size",
    [(f"{n} GiB", f"{n}") for n in (4, 8, 16, 24, 40, 48, 64, 80, 96, 120)],
    "24",
    "Memory in GiB that a job needs on one GPU. The list of places for it is in the section Capacity.",
)
# Hidden: it is the same for all users. A link with `&var-port=` changes it.
PORT = {
    **choice_variable(
        "port",
        "Port",
        [(":9836", ":9836"), ("part of Node", "")],
        ":9836",
        "Port of the exporter's own page, appended to the name of the node. Empty if the Node already has a port.",
    ),
    "hide": 2,
}
IDLE = choice_variable(
    "idle",
    "Idle after",
    [("5 min", "300"), ("30 min", "1800"), ("1 h", "3600"), ("8 h", "28800"), ("1 d", "86400")],
    "3600",
    "Time after which a process that has not worked on the GPU counts as idle. Another value is entered in seconds.",
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
            # The line above the panels has no room for switches.
            "hide": True,
            "iconColor": SEVERITIES[severity],
            "expr": named(began(f'{of_rules(select)},alertname=~"{names}",severity="{severity}"')),
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


# GPU shows one node at first: if a link kept "All" nodes, Grafana would show all of them there.
GPU_LINK = f"/d/{uid('gpu')}?${{datasource:queryparam}}&${{cluster:queryparam}}&${{job:queryparam}}"


def link(page):
    return {
        "title": PAGES[page],
        "type": "link",
        "url": GPU_LINK if page == "gpu" else f"/d/{uid(page)}",
        "tooltip": f"{PAGES[page]} dashboard with the same variables and time range",
        "icon": "dashboard",
        "tags": [],
        "asDropdown": False,
        "includeVars": page != "gpu",
        "keepTime": True,
        "targetBlank": False,
    }


def now(page, time):
    """Leads from the time of an alert to the present."""
    return {
        **link(page),
        "title": "Now",
        "includeVars": True,
        "url": f"/d/{uid(page)}?from={time}&to=now",
        "tooltip": "The same variables, up to now",
        "icon": "bolt",
        "keepTime": False,
    }


def row(title, collapsed=()):
    """A row; if it is collapsed, with the panels that it shows when it is opened. Until then they run no query."""
    return {"type": "row", "title": title, "collapsed": bool(collapsed), "panels": list(collapsed)}


def place(panels):
    """Places panels from left to right, and on a new row if a panel does not fit. The height of a row is that of its
    tallest panel."""
    x = y = height = 0
    numbers = itertools.count(1)

    def placed(panel):
        nonlocal x, y, height
        panel = dict(panel)
        w, h = (24, 1) if panel["type"] == "row" else panel.pop("size")
        if x + w > 24:
            x, y, height = 0, y + height, 0
        panel = {"id": next(numbers), **panel, "gridPos": {"x": x, "y": y, "w": w, "h": h}}
        x, height = x + w, max(height, h)
        if panel.get("panels"):
            after = y + height
            panel["panels"] = [placed(inner) for inner in panel["panels"]]
            # The panels take no room until the row is opened.
            x, y, height = 24, after, 0
        return panel

    return [placed(panel) for panel in panels]


def dashboard(page, description, variables, annotations, panels, time="now-1h", nodes=INSTANCE, refresh="1m"):
    return {
        "uid": uid(page),
        "title": f"GPU memory / {PAGES[page]}",
        "description": description,
        "tags": [TAG, "gpu"],
        "schemaVersion": SCHEMA,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": refresh,
        "time": {"from": time, "to": "now"},
        "timepicker": {},
        "timezone": "",
        "weekStart": "",
        "fiscalYearStartMonth": 0,
        "liveNow": False,
        "links": [*(link(other) for other in PAGES if other != page), now(page, time)],
        "annotations": {"list": annotations},
        "templating": {"list": [DATASOURCE_VARIABLE, CLUSTER, JOB, nodes, *variables]},
        "panels": place(panels),
    }
