"""Builders for the panels in use: stat, time series, bar gauge, table and state timeline.

Invariant: every panel has a description, a unit and a message for the case that there is no data.
"""

import re

from .grid import DATASOURCE, PAGES, uid

# The shares of allocatable memory at which a value turns orange and red.
HIGH, CRITICAL = 0.85, 0.9
# "none" writes a count in full; "short" would write 1 K for 1008.
BYTES, RATE, RATIO, SECONDS, COUNT = "bytes", "binBps", "percentunit", "s", "none"
# Milliseconds since the Unix epoch, and GiB held for an hour.
TIME, GIB_HOURS = "time:MM-DD HH:mm", "suffix:GiB·h"
# The time range around a moment that a link opens.
MINUTES_BEFORE, MINUTES_AFTER = 30, 10
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


def rows(height):
    """How many rows a table of this height shows."""
    return (38 * height - 84) // 36


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


def is_value(name):
    """Whether a field of a table is the value of a query, not a label."""
    return name.startswith("Value")


def column(name, title, unit=None, width=None, thresholds=None, gauge=False, **properties):
    """The title and the format of a field in a table."""
    # A label is text even if it looks like a number. The panel's `noValue` text is too long for one cell.
    plain = "none" if is_value(name) else "string"
    listed = {"displayName": title, "unit": unit or plain, "noValue": "–"}
    if width:
        listed["custom__width"] = width
    if thresholds:
        listed["thresholds"] = thresholds
        listed["custom__cellOptions"] = {"type": "color-text"}
    if not width and not unit:
        listed["custom__filterable"], listed["custom__minWidth"] = True, 100
    if gauge:
        listed["custom__cellOptions"] = {"type": "gauge", "mode": "basic", "valueDisplayMode": "text"}
        listed["min"], listed["max"] = 0, 1
    return name, {**listed, **properties}


def hidden(name):
    """A field that only links use. A row without the label links to all values. A number is written in full."""
    return name, {**NOT_SHOWN, "unit": "none", "decimals": 0, "noValue": "All"}


NO_TEXT = [{"type": "special", "options": {"match": "empty", "result": {"text": "–", "index": 0}}}]


def device_columns(width=None):
    """The node and the GPU or MIG device of a row whose query is `linked`, with links to the GPU dashboard."""
    links = detail("gpu", "instance", gpu="uuid", mig="mig")
    return [
        column("instance", "Node", width=width, links=detail("gpu", "instance")),
        column("device", "GPU", width=115, links=links, mappings=NO_TEXT),
        hidden("uuid"),
        hidden("mig"),
    ]


def workload_column(**properties):
    """The workload of a row, with a link to the Workloads dashboard. A name that is longer than the column continues in another line."""
    links = detail("workloads", "instance", "workload")
    return column("workload", "Workload", links=links, **WRAPPED, **properties)


def words(name, title, texts, width=None, **properties):
    """A column of a number or a word that stands for a word in a colour."""
    cell = {"type": "color-text"}
    mapped = {"mappings": values(**texts), "custom__cellOptions": cell, "custom__align": "left"}
    return column(name, title, "string", width, **mapped, **properties)


def colored(name, color, **more):
    """The fixed colour of a line."""
    return by_name(name, color={"mode": "fixed", "fixedColor": color}, **more)


# Each in the form of Grafana 11 and in that of the versions since 12.2: a cell whose text continues in another line, and a field that is
# not shown.
WRAPPED = {"custom__cellOptions": {"type": "auto", "wrapText": True}, "custom__wrapText": True}
NOT_SHOWN = {"custom__hidden": True, "custom__hideFrom": {"viz": True, "legend": False, "tooltip": False}}
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


# The MIG device. Grafana omits the columns if there is none.
MIG_COLUMNS = [column("profile", "MIG", width=72), column("gpu_instance", "Inst.", width=50)]


def joined(name):
    """The name that a field of values has in a table of several queries; see `rows_of`."""
    return f"{name} ({LAST})"


# The labels by which rows differ although some tables do not show them, and the value that a group of one row keeps.
ROW_LABELS = (
    "cluster instance gpu uuid mig_uuid pid process user workload kind namespace pod container"
).split()
LAST = "lastNotNull"


def rows_of(labels, queries):
    """Groups the rows by their labels, so that each row stays as it is. A table without rows has no labels either, and this
    transformation then drops its columns of values, so that Grafana shows the message of the panel instead of their titles."""
    # Only labels that are in the queries, because the file has a limit.
    hidden_ones = [name for name in ROW_LABELS if any(re.search(rf"\b{name}\b", query) for query in queries)]
    group = {name: {"operation": "groupby", "aggregations": []} for name in dict.fromkeys((*labels, *hidden_ones))}
    names = (f"Value #{target['refId']}" for target in targets([{}] * len(queries)))
    return {"id": "groupBy", "options": {"fields": group | {name: {"operation": "aggregate", "aggregations": [LAST]} for name in names}}}


def table(title, description, queries, columns, size=(24, 9), empty="no data", sort=None, ascending=False, interval=None):
    """Joins the queries into one table on their common labels. It has the fields in `columns` and also `cluster`, which
    exists only if Prometheus sets it."""
    frames = [{**instant(query), "format": "table"} for query in queries]
    columns = [column("cluster", "Cluster"), *columns]
    single = len(queries) == 1
    columns = [(("Value" if single else joined(name)) if is_value(name) else name, listed) for name, listed in columns]
    order = {name: number for number, (name, _) in enumerate(columns)}
    labels = [name for name in order if not is_value(name)]
    names = "|".join(order).replace("(", "[(]").replace(")", "[)]")
    transformations = [
        *([] if single else [{"id": "merge", "options": {}}, rows_of(labels, queries)]),
        {"id": "filterFieldsByName", "options": {"include": {"pattern": f"/^({names})$/"}}},
        {"id": "organize", "options": {"excludeByName": {}, "indexByName": order, "renameByName": {}}},
    ]
    options = {
        "showHeader": True,
        "cellHeight": "sm",
        "sortBy": [{"displayName": sort, "desc": not ascending}] if sort else [],
    }
    defaults = {"custom": {"align": "auto", "filterable": False, "minWidth": 60}, "thresholds": PLAIN}
    overrides = [by_name(name, **listed) for name, listed in columns]
    return panel(
        "table",
        title,
        description,
        size,
        frames,
        COUNT,
        empty,
        defaults,
        options=options,
        overrides=overrides,
        transformations=transformations,
        **({"interval": interval} if interval else {}),
    )


def ranking(title, description, query, columns, unit=BYTES, thresholds=PLAIN, size=(12, 8), empty="no data", order=None, **shown):
    """A table of the labels in `columns` with a bar for the value of the query, in descending order of the value, or in ascending order
    of the number in the column `order`. A narrow table and a share have no bar: Grafana draws it too short, or over its whole track."""
    title_of_value = {BYTES: "Memory", RATIO: "Share", COUNT: "Count"}[unit]
    bar = size[0] > 8 and unit != RATIO
    value = column("Value #A", title_of_value, unit, thresholds=thresholds, gauge=bar, min=0, **shown)
    value[1].update({"custom__minWidth": 110} if bar else {"custom__width": 96, "decimals": 0})
    if bar and "max" not in shown:
        del value[1]["max"]
    if order is None:
        return table(title, description, [query], [*columns, value], size, empty, sort=title_of_value)
    made = table(title, description, [query], [*columns, value], size, empty)
    label = next(name for name, listed in columns if listed["displayName"] == order)

    def converted(kind):
        conversion = {"targetField": label, "destinationType": kind}
        return {"id": "convertFieldType", "options": {"conversions": [conversion], "fields": {}}}

    # As a number, it would be part of the scale of the bars.
    sort = {"id": "sortBy", "options": {"fields": {}, "sort": [{"field": label}]}}
    made["transformations"] = [converted("number"), sort, converted("string"), *made["transformations"]]
    return made


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


def address(page, labels, fields):
    """The address of a dashboard without its time range, with labels of a row of a table as variables: those in `labels` by their name,
    those in `fields` by the name of the variable."""
    # A name may contain characters with a special meaning in a URL: +, &, #.
    chosen = {**{label: label for label in labels}, **fields}.items()
    values = "".join(f'&var-{variable}=${{__data.fields["{label}"]:percentencode}}' for variable, label in chosen)
    return f"/d/{uid(page)}?${{datasource:queryparam}}&${{cluster:queryparam}}&${{job:queryparam}}{values}"


def detail(page, *labels, **fields):
    """A link from a row of a table to another dashboard, in the same time range; see `address`."""
    url = f"{address(page, labels, fields)}&${{__url_time_range}}"
    return [{"title": f"Open in the {PAGES[page]} dashboard", "url": url, "targetBlank": False}]


def page(name):
    """A link to another dashboard with the same variables."""
    kept = "${datasource:queryparam}&${cluster:queryparam}&${job:queryparam}&${instance:queryparam}"
    return [{"title": f"Open the {PAGES[name]} dashboard", "url": f"/d/{uid(name)}?{kept}&${{__url_time_range}}", "targetBlank": False}]


def around(moment):
    """Two queries: when a time range around a moment (an expression in Unix seconds) begins and ends, in milliseconds."""
    return [f"1000 * ({moment} - {MINUTES_BEFORE * 60})", f"1000 * ({moment} + {MINUTES_AFTER * 60})"]


def at_that_time(begin, end, *labels, **fields):
    """A link to the GPU dashboard in the time range of two fields, those of the queries of `around`."""
    moment = f'&from=${{__data.fields["{joined(begin)}"]}}&to=${{__data.fields["{joined(end)}"]}}'
    return [{"title": "Open in the GPU dashboard at that time", "url": address("gpu", labels, fields) + moment, "targetBlank": False}]
