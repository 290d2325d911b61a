"""Builders for the panels in use: stat, time series, bar gauge and state timeline; those of tables are in `tables`.

Invariant: every panel has a description, a unit and a message for the case that there is no data.
"""

import re

from .grid import DATASOURCE

# The shares of allocatable memory at which a value turns orange and red.
HIGH, CRITICAL = 0.85, 0.9
# "none" writes a count in full; "short" would write 1 K for 1008.
BYTES, RATE, RATIO, SECONDS, COUNT = "bytes", "binBps", "percentunit", "s", "none"
# Milliseconds since the Unix epoch, and GiB held for an hour.
TIME, GIB_HOURS = "time:MM-DD HH:mm", "suffix:GiB·h"
LAST_AND_MAX = ["lastNotNull", "max"]
PLAIN = {"mode": "absolute", "steps": [{"color": "blue", "value": None}]}
FILL = {
    "mode": "absolute",
    "steps": [
        {"color": "green", "value": None},
        {"color": "orange", "value": HIGH},
        {"color": "red", "value": CRITICAL},
    ],
}


def bad_from(value, color="red"):
    """Green below `value`."""
    return {"mode": "absolute", "steps": [{"color": "green", "value": None}, {"color": color, "value": value}]}


def good_from(value):
    """Red below `value`."""
    return {"mode": "absolute", "steps": [{"color": "red", "value": None}, {"color": "green", "value": value}]}


def ranged(expression, legend):
    return {"expr": expression, "legendFormat": legend, "range": True, "instant": False}


def instant(expression, legend=""):
    return {"expr": expression, "legendFormat": legend, "range": False, "instant": True}


def targets(queries):
    names = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    return [
        {"refId": name, "datasource": DATASOURCE, "editorMode": "code", **query} for name, query in zip(names, queries)
    ]


def panel(kind, title, description, size, queries, unit, empty, defaults=None, **rest):
    return {
        "type": kind,
        "title": title,
        "description": description,
        "size": size,
        "datasource": DATASOURCE,
        "targets": targets(queries),
        "fieldConfig": {
            "defaults": {"unit": unit, "noValue": empty, "color": {"mode": "thresholds"}, **(defaults or {})},
            "overrides": rest.pop("overrides", []),
        },
        **rest,
    }


def by_name(name, **properties):
    """An override of one field; a dot in a property's name is written as two underscores."""
    listed = [{"id": key.replace("__", "."), "value": value} for key, value in properties.items()]
    return {"matcher": {"id": "byName", "options": name}, "properties": listed}


def by_query(reference, **properties):
    """An override of every series of one query."""
    return {**by_name("", **properties), "matcher": {"id": "byFrameRefID", "options": reference}}


def stat(title, description, query, unit=COUNT, thresholds=PLAIN, empty="no data", size=(6, 3), interval=None, **defaults):
    # Otherwise a missing value would have the colour of a low one.
    missing = {"type": "special", "options": {"match": "null+nan", "result": {"text": empty, "color": GREY, "index": 99}}}
    defaults = {"thresholds": thresholds, **defaults, "mappings": [*defaults.get("mappings", []), missing]}
    step = {"interval": interval} if interval else {}
    options = {
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "colorMode": "value",
        "graphMode": "none",
        "justifyMode": "auto",
        "orientation": "auto",
        "textMode": "value",
        "wideLayout": True,
    }
    return panel("stat", title, description, size, [instant(query)], unit, empty, defaults, options=options, **step)


def counts(title, description, queries, size=(5, 3), empty="none"):
    """Several counts beside each other. `queries`: for each name, the query and its thresholds."""
    one = stat(title, description, "", decimals=0, size=size, empty=empty)
    one["targets"] = targets([instant(query, name) for name, (query, _) in queries.items()])
    one["options"] |= {"textMode": "value_and_name", "orientation": "vertical", "text": {"titleSize": 14}}
    one["fieldConfig"]["overrides"] = [by_name(name, thresholds=thresholds) for name, (_, thresholds) in queries.items()]
    return one


def series(title, description, queries, unit=BYTES, size=(12, 9), empty="no data", fill=8, **rest):
    """Lines over time. Named arguments: `stack`, `thresholds`, `max`, `soft_max`, `overrides`, and `calcs`. With
    `calcs` the legend is a table of these calculations, placed at `legend`; use it if the number and the names of the
    lines are not known in advance. Without `calcs` the legend has only names."""
    stack = rest.pop("stack", False)
    thresholds = rest.pop("thresholds", None)
    custom = {
        "drawStyle": rest.pop("style", "line"),
        "lineWidth": 1,
        "fillOpacity": 45 if stack else fill,
        "showPoints": "never",
        "spanNulls": False,
        "stacking": {"mode": "normal" if stack else "none", "group": "A"},
        "axisSoftMin": 0,
        **({"axisSoftMax": rest.pop("soft_max")} if "soft_max" in rest else {}),
        "thresholdsStyle": {"mode": "dashed" if thresholds else "off"},
    }
    defaults = {"custom": custom, "color": {"mode": "palette-classic"}, "min": rest.pop("min", 0)}
    if thresholds:
        defaults["thresholds"] = thresholds
    defaults |= {key: rest.pop(key) for key in ("max", "decimals") if key in rest}
    if defaults["min"] is None:
        del defaults["min"]
    calcs = rest.pop("calcs", [])
    legend = {
        "displayMode": "table" if calcs else "list",
        "placement": rest.pop("legend", "bottom"),
        "showLegend": True,
        "calcs": calcs,
        **({"sortBy": "Max", "sortDesc": True} if calcs else {}),
    }
    options = {"legend": legend, "tooltip": {"mode": "multi", "sort": "desc"}}
    return panel("timeseries", title, description, size, queries, unit, empty, defaults, options=options, **rest)


def bars(title, description, queries, unit=BYTES, size=(12, 8), thresholds=PLAIN, empty="no data", **defaults):
    """Horizontal bars, one for each query. For bars named by labels use `ranking`."""
    options = {
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "orientation": "horizontal",
        "displayMode": "basic",
        "valueMode": "color",
        "namePlacement": "left",
        "showUnfilled": True,
        "sizing": "manual",
        "minVizWidth": 8,
        "minVizHeight": 16,
        "maxVizHeight": 28,
        "legend": {"showLegend": False, "displayMode": "list", "placement": "bottom", "calcs": []},
    }
    defaults = {"thresholds": thresholds, "min": 0, **defaults}
    return panel("bargauge", title, description, size, queries, unit, empty, defaults, options=options)


def colored(name, color, **more):
    """The fixed colour of a line."""
    return by_name(name, color={"mode": "fixed", "fixedColor": color}, **more)


# Peak and used of one GPU have the hue of its index, and those of one MIG device the hue of its GPU instance; red, orange and green are
# left to the states.
HUES = ["#5794f2", "#b877d9", "#00bcd4", "#e0a3c8", "#8ab8ff", "#7c6fd8", "#4db6ac", "#c0b283"]
# "#2 used", "#2 · node-a"; and, because a later override counts, then "#0 1g.10gb 4 used", "#0 · node-b · 1g.10gb #4".
BY_INDEX = [
    {
        "matcher": {"id": "byRegexp", "options": f"/{pattern.replace('N', '|'.join(str(index) for index in range(rest, 16, 8)))}/"},
        "properties": [{"id": "color", "value": {"mode": "fixed", "fixedColor": hue}}],
    }
    for pattern in (r"^#(N)\b", r"\dgb[^ ]* #?(N)\b")
    for rest, hue in enumerate(HUES)
]
DASHES = {"fill": "dash", "dash": [6, 4]}
GREY = "rgb(150, 150, 150)"
# One colour for each meaning of memory, on every dashboard.
MEMORY_COLORS = [
    colored(name, color, **more)
    for name, color, more in (
        ("allocatable", GREY, {"custom__fillOpacity": 0}),
        ("peaks", "blue", {"custom__fillOpacity": 0, "custom__lineStyle": DASHES}),
        ("used", "blue", {}),
        ("needed", "light-blue", {"custom__fillOpacity": 0, "custom__lineStyle": {"fill": "dot", "dash": [2, 3]}}),
        ("budget", "purple", {"custom__fillOpacity": 0}),
        ("unattributed", "dark-red", {"custom__fillOpacity": 30}),
    )
]


def states(title, description, queries, mappings, size=(12, 7), empty="no data"):
    options = {
        "showValue": "never",
        "mergeValues": True,
        "rowHeight": 0.8,
        "alignValue": "left",
        "legend": {"showLegend": True, "displayMode": "list", "placement": "bottom"},
        "tooltip": {"mode": "single", "sort": "none"},
    }
    defaults = {
        # With colours by threshold, Grafana merges the values before it maps them.
        "color": {"mode": "palette-classic"},
        "mappings": [*mappings, NOT_REPORTED],
        "custom": {"lineWidth": 0, "fillOpacity": 80},
        "thresholds": PLAIN,
    }
    # Drops a frame without a time, which the panel would report as an error, so that it shows its message. It also drops the names
    # of the lines, which are therefore made from their labels again.
    (legend,) = {query["legendFormat"] for query in queries}
    defaults["displayName"] = re.sub(r"\{\{(\w+)\}\}", r"${__field.labels.\1}", legend)
    kept = [{"id": "prepareTimeSeries", "options": {"format": "multi"}}]
    return panel("state-timeline", title, description, size, queries, "none", empty, defaults, options=options, transformations=kept)


def values(**texts):
    """A mapping from numbers to text and colours; the key of 0 is written _0."""
    return [
        {
            "type": "value",
            "options": {
                key.removeprefix("_"): {"text": text, "color": color, "index": index}
                for index, (key, (text, color)) in enumerate(texts.items())
            },
        }
    ]


# For missing values in a timeline. Without this mapping, the legend shows the panel's `noValue` text in a colour from the palette.
NOT_REPORTED = {
    "type": "special",
    "options": {"match": "null", "result": {"text": "not reported", "color": "rgb(90, 95, 105)", "index": 99}},
}


def bands(*texts):
    """A mapping from ranges of numbers to text and colours; each range ends at a value, or has no end (None)."""
    lower, listed = 0, []
    for index, (upper, text, color) in enumerate(texts):
        result = {"text": text, "color": color, "index": index}
        listed.append({"type": "range", "options": {"from": lower, "to": upper, "result": result}})
        lower = upper
    return listed


