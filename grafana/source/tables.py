"""Builders for tables and their columns.

Invariant: a table without rows shows its message, and a row shows all of its labels or links with them.
"""

import re

from . import links
from .panels import BYTES, COUNT, PLAIN, RATIO, by_name, instant, panel, targets, values


def rows(height):
    """How many rows a table of this height shows."""
    return (38 * height - 84) // 36


def is_value(name):
    """Whether a field of a table is the value of a query, not a label."""
    return name.startswith("Value")


def joined(name):
    """The name that a field of values has in a table of several queries; see `rows_of`."""
    return f"{name} ({LAST})"


LAST = "lastNotNull"
# The time range around a moment that a link opens.
MINUTES_BEFORE, MINUTES_AFTER = 30, 10
# Each in the form of Grafana 11 and in that of the versions since 12.2: a cell whose text continues in another line, and a field that is
# not shown.
WRAPPED = {"custom__cellOptions": {"type": "auto", "wrapText": True}, "custom__wrapText": True}
NOT_SHOWN = {"custom__hidden": True, "custom__hideFrom": {"viz": True, "legend": False, "tooltip": False}}
NO_TEXT = [{"type": "special", "options": {"match": "empty", "result": {"text": "–", "index": 0}}}]


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


def words(name, title, texts, width=None, **properties):
    """A column of a number or a word that stands for a word in a colour."""
    cell = {"type": "color-text"}
    mapped = {"mappings": values(**texts), "custom__cellOptions": cell, "custom__align": "left"}
    return column(name, title, "string", width, **mapped, **properties)


def device_columns(width=None):
    """The node and the GPU or MIG device of a row whose query is `linked`, with links to the GPU dashboard."""
    target = links.detail("gpu", "instance", gpu="uuid", mig="mig")
    return [
        column("instance", "Node", width=width, links=links.detail("gpu", "instance")),
        column("device", "GPU", width=115, links=target, mappings=NO_TEXT),
        hidden("uuid"),
        hidden("mig"),
    ]


def workload_column(**properties):
    """The workload of a row, with a link to the Workloads dashboard. A name that is longer than the column continues in another line."""
    target = links.detail("workloads", "instance", "workload")
    return column("workload", "Workload", links=target, **WRAPPED, **properties)


# The MIG device. Grafana omits the columns if there is none.
MIG_COLUMNS = [column("profile", "MIG", width=72), column("gpu_instance", "Inst.", width=50)]


def around(moment):
    """Two queries: when a time range around a moment (an expression in Unix seconds) begins and ends, in milliseconds."""
    return [f"1000 * ({moment} - {MINUTES_BEFORE * 60})", f"1000 * ({moment} + {MINUTES_AFTER * 60})"]


def at_that_time(begin, end, *labels, **fields):
    """A link to the GPU dashboard in the time range of two fields, those of the queries of `around`."""
    moment = f'&from=${{__data.fields["{joined(begin)}"]}}&to=${{__data.fields["{joined(end)}"]}}'
    return links.to("Open in the GPU dashboard at that time", links.address("gpu", labels, fields) + moment)


# The labels by which rows differ although some tables do not show them, and the value that a group of one row keeps.
ROW_LABELS = (
    "cluster instance gpu uuid mig_uuid pid process user workload kind namespace pod container"
).split()


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
