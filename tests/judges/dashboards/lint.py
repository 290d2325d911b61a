"""Rules about the form of the dashboards: those of grafana/dashboard-linter that apply to Prometheus, and rules of our own.

The linter is not run itself, because no release of it could be installed; its rules are few. An exception has a reason, and an exception
that is not needed is a problem. Three of its rules are not followed by any dashboard: the variable `instance` is called Node, as in
Kubernetes and in the tables; "All" is `.*` instead of `.+`, as for the labels that may be absent; and the dashboards can be edited, because
a user may want to try a query in them.
"""

import re

import dashboards

# Content of a page that is 1400 px wide, with the menu docked, and the margins of a panel and of a table in it.
CONTENT, MARGINS, COLUMNS = 1068, 24, 24
# The narrowest column whose width is not set, and the narrowest that Grafana draws.
NARROWEST, DRAWN = 100, 50
# An action is shown in a column of this many characters.
ACTION = 38
# (file, panel, rule): the reason for the exception.
EXCEPTIONS = {
    ("exporter.json", "Faults by source and reason", "counter"): "increase() does not see the first fault of a new series",
}
SELECTOR = re.compile(r"(?<![\w$:])([a-zA-Z_][\w:]*)(\{[^}]*\})")
RANGES = re.compile(r"\b(?:i?rate|increase)\((?:[^()\[\]]|\{[^}]*\})*\[([^\]]*)\]")
# Words that a reader of a dashboard does not need, with the plain ones.
UNPLAIN = {"Answers": "Up", "Troubles": "Issues", "vain": "Waste", "Problems": "Issues"}


def without_strings(expression):
    return re.sub(r'"(?:[^"\\]|\\.)*"', '""', expression)


def variable_problems(dashboard):
    by_name = {variable["name"]: variable for variable in dashboards.variables(dashboard)}
    if by_name["datasource"]["label"] != "Data source" or by_name["datasource"]["query"] != "prometheus":
        yield "the data source is not a variable with the label Data source"
    for name, label in (("job", "Job"), ("instance", "Node")):
        variable = by_name.get(name)
        if not variable or not variable["multi"] or variable["label"] != label:
            yield f"no variable {name} with the label {label} and several values"
    for variable in by_name.values():
        # The list follows the time range, so that it names what has ended.
        if variable["type"] == "query" and variable["refresh"] != 2:
            yield f"the list of {variable['name']} does not follow the time range"
        if not variable.get("label") or not variable.get("description"):
            yield f"{variable['name']}: no label or description"


def selector_problems(target):
    """(rule, problem): every series is selected by job and node, so that no panel shows what the user excluded. A series that the rules
    have made has no job, so that it is selected with any; those of a namespace have neither."""
    for family, labels in SELECTOR.findall(target["expr"]):
        made = ":" in family or family.startswith("ALERTS")
        wanted = {"job": 'job=~"$job|"' if made else 'job=~"$job"', "instance": 'instance=~"$instance"'}
        for label, selector in wanted.items():
            if selector not in labels and not family.startswith("namespace:"):
                yield label, f"{family} is not selected by {label}"


def at_every_point(expression):
    """Without the ranges of selections of lines, which are the same at every point of a graph."""
    return without_strings(expression).replace("[$__range] @ end()", "[$__rate_interval]")


def rate_problems(target):
    for interval in RANGES.findall(at_every_point(target["expr"])):
        fixed = target["range"] and interval != "$__rate_interval"
        if fixed or interval not in ("$__rate_interval", "$__range"):
            yield "rate", f"a rate over [{interval}]"


def counter_problems(target):
    """A counter is only read through its rate or, if its series begins with the first event, as a series that is new."""
    text = re.sub(r"\b(?:i?rate|increase)\([^()]*\)", "", at_every_point(target["expr"]))
    text = re.sub(r"\blast_over_time\(([^()]*)\[([^]]+)\]\) unless \1 offset \2", "", text)
    for family in re.findall(r"\b(\w+_total|\w+_seconds_bucket)\{", text):
        yield "counter", f"{family} is not read through rate() or increase()"


def width_problems(panel):
    """A table is not wider than its panel."""
    if panel["type"] != "table":
        return
    room = CONTENT * panel["gridPos"]["w"] / COLUMNS - MARGINS
    needed = 0
    for override in panel["fieldConfig"]["overrides"]:
        properties = {entry["id"]: entry["value"] for entry in override["properties"]}
        if not properties.get("custom.hidden") and override["matcher"]["options"] != "cluster":
            width = properties.get("custom.width", NARROWEST)
            needed += width
            if width < DRAWN:
                yield "width", f"{override['matcher']['options']} is drawn with {DRAWN} px, not with {width} px"
    if needed > room:
        yield "width", f"the columns need {needed} px of {room:.0f} px"


def height_problems(panel):
    """A list is not longer than its panel, except for one that must name everything."""
    if panel["type"] != "table":
        return
    rows = (38 * panel["gridPos"]["h"] - 84) // 36
    for number in re.findall(r"\b(?:top|bottom)k\((\d+),", panel["targets"][0]["expr"]):
        if int(number) > rows:
            yield "height", f"a list of {number} rows in a panel of {rows}"


def number_problems(panel):
    """Counts are whole numbers, and shares are per cent."""
    defaults = panel["fieldConfig"]["defaults"]
    words = [mapping for mapping in defaults.get("mappings", []) if mapping["type"] != "special"]
    if panel["type"] == "stat" and defaults["unit"] in ("none", "short") and defaults.get("decimals") != 0 and not words:
        yield "decimals", "a count with decimals"
    if "percent" in defaults["unit"] and defaults["unit"] != "percentunit":
        yield "percent", f"the unit {defaults['unit']}"


def panel_problems(panel):
    for check in (width_problems, height_problems, number_problems):
        yield from check(panel)
    for target in panel["targets"]:
        for check in (selector_problems, rate_problems, counter_problems):
            yield from check(target)


def title_problems(dashboard):
    titles = [panel["title"] for panel in dashboards.panels(dashboard)]
    for title in sorted({title for title in titles if titles.count(title) > 1}):
        yield f"two panels have the title {title}"
    for title in titles + [row["title"] for row in dashboard["panels"] if row["type"] == "row"]:
        for word, plain in UNPLAIN.items():
            if re.search(rf"\b{word}\b", title):
                yield f"{title}: {plain} is a plainer word than {word}"


def action_problems(found):
    """Each shipped alert has an action, and each action fits into its column."""
    alerts = {rule["alert"] for rule in dashboards.alert_rules()}
    for name, dashboard in found.items():
        for panel in dashboards.panels(dashboard):
            overrides = {o["matcher"]["options"]: o["properties"] for o in panel["fieldConfig"]["overrides"] if "matcher" in o}
            mappings = [entry["value"][0]["options"] for entry in overrides.get("todo", []) if entry["id"] == "mappings"]
            for texts in mappings:
                if texts.keys() != alerts:
                    yield f"{name}: {panel['title']}: alerts without an action, or actions without an alert: {texts.keys() ^ alerts}"
                yield from (
                    f"{name}: {alert}: the action is longer than {ACTION} characters"
                    for alert, shown in texts.items()
                    if len(shown["text"]) > ACTION
                )


def problems(found):
    used = set()
    for name, dashboard in found.items():
        yield from (f"{name}: {problem}" for problem in (*variable_problems(dashboard), *title_problems(dashboard)))
        for panel in dashboards.panels(dashboard):
            for rule, problem in panel_problems(panel):
                key = (name, panel["title"], rule)
                used.add(key)
                if key not in EXCEPTIONS:
                    yield f"{name}: {panel['title']}: {problem}"
    yield from action_problems(found)
    yield from (f"an exception that is not needed: {key}" for key in EXCEPTIONS.keys() - used)
