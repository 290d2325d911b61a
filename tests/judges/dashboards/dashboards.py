"""The committed dashboards as files: their structure and their queries."""

import json
import re

from harness import ROOT, names

FOLDER = ROOT / "grafana/dashboards"
# Variables that Grafana itself replaces.
BUILT_IN = re.compile(r"__(all|rate_interval|interval|interval_ms|range|range_s|data|field|url_time_range)")


def read():
    return {path.name: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))}


def alert_rules():
    """The shipped alerts, as in their rule files."""
    return (rule for group in names.rule_groups() for rule in group["rules"] if "alert" in rule)


def panels(dashboard):
    """All panels except rows, including those in collapsed rows."""
    for panel in dashboard["panels"]:
        yield from panel.get("panels", [])
        if panel["type"] != "row":
            yield panel


def variables(dashboard):
    return dashboard["templating"]["list"]


def listed(variable):
    """Whether "All" stands for the values that the variable's query finds, in a variable that the user does not see."""
    return variable["type"] == "query" and variable["hide"] == 2 and "allValue" not in variable


def series_text(labels):
    """A series as the text that Grafana matches with the regular expression of a variable: its labels in alphabetical order."""
    return "{" + ",".join(f'{label}="{value}"' for label, value in sorted(labels.items())) + "}"


def every(wanted, node):
    """Every value of the key `wanted`, at any depth."""
    if isinstance(node, dict):
        for key, value in node.items():
            if key == wanted:
                yield value
            yield from every(wanted, value)
    elif isinstance(node, list):
        for value in node:
            yield from every(wanted, value)


def overlaps(dashboard):
    taken = {}
    for panel in dashboard["panels"]:
        at = panel["gridPos"]
        if at["x"] + at["w"] > 24:
            yield f"{panel['title']}: beyond the grid's 24 columns"
        for x in range(at["x"], at["x"] + at["w"]):
            for y in range(at["y"], at["y"] + at["h"]):
                other = taken.setdefault((x, y), panel["title"])
                if other != panel["title"]:
                    yield f"{panel['title']} overlaps {other}"
                    return


def panel_problems(panel):
    if len(panel.get("description", "")) < 20:
        yield "no description"
    if not panel["fieldConfig"]["defaults"].get("unit"):
        yield "no unit"
    if not panel["fieldConfig"]["defaults"].get("noValue"):
        yield "no text for missing data"
    if not panel.get("targets"):
        yield "no query"
    if panel["type"] == "state-timeline":
        specials = [m["options"] for m in panel["fieldConfig"]["defaults"]["mappings"] if m["type"] == "special"]
        if not any(o["match"] == "null" and o["result"]["color"].startswith("rgb") for o in specials):
            yield "missing values are not grey: they would show the text for missing data in a colour of the palette"
    references = [target["refId"] for target in panel["targets"]]
    if len(set(references)) != len(references):
        yield "duplicate refId"
    if any(target["instant"] == target["range"] for target in panel["targets"]):
        yield "a query that is both instant and range, or neither"


def problems(name, dashboard):
    """Problems within a single file."""
    yield from overlaps(dashboard)
    if dashboard["uid"] != f"vram-exporter-{name.removesuffix('.json')}":
        yield f"the uid {dashboard['uid']} does not match the file name; links and bookmarks depend on it"
    ids = [panel["id"] for panel in dashboard["panels"]]
    if len(set(ids)) != len(ids):
        yield "duplicate id"
    if dashboard.get("id") is not None:
        yield "the file has an id, which belongs to the database of a Grafana server"
    if any(source != {"type": "prometheus", "uid": "$datasource"} for source in every("datasource", dashboard)):
        yield "a data source that is not an object reference to $datasource"
    for panel in panels(dashboard):
        yield from (f"{panel['title']}: {problem}" for problem in panel_problems(panel))
    known = {variable["name"] for variable in variables(dashboard)}
    used = set(re.findall(r"\$\{?([a-zA-Z_]\w*)", json.dumps(dashboard)))
    unknown = {name for name in used - known if not BUILT_IN.fullmatch(name)}
    if unknown:
        yield f"undefined variables: {sorted(unknown)}"
    if known - used:
        yield f"unused variables: {sorted(known - used)}"
    for variable in variables(dashboard):
        if variable.get("includeAll") and not listed(variable) and variable["allValue"] != ".*":
            yield f"{variable['name']}: All must match absent labels too"


# The one link that leaves Grafana: the exporter's own page, at the name of the node and a port that the user sets.
EXPORTERS_PAGE = 'http://${__data.fields["instance"]}${port}/'
# The time range of a link: that of the dashboard, or one around a moment in the row.
SAME_TIME, MOMENT = "&${__url_time_range}", re.compile(r'&from=\$\{__data\.fields\["[^"]+"\]\}&to=\$\{__data\.fields\["[^"]+"\]\}$')


def row_problems(panel):
    """A link reads only fields that the table has, shown or hidden: another one would be an empty value of a variable."""
    overrides = panel["fieldConfig"]["overrides"]
    fields = {override["matcher"]["options"] for override in overrides}
    for override in overrides:
        for url in every("url", override):
            missing = set(re.findall(r'\$\{__data\.fields\["([^"]+)"\]', url)) - fields
            if missing:
                yield f"the link of {override['matcher']['options']} reads fields that the table does not have: {sorted(missing)}"


def link_problems(dashboards):
    """Links lead to existing dashboards and set only variables that those dashboards have."""
    names = {d["uid"]: {variable["name"] for variable in variables(d)} for d in dashboards.values()}
    if len(names) != len(dashboards):
        yield "duplicate uid"
    for name, dashboard in dashboards.items():
        others = {link["url"] for link in dashboard["links"] if link["includeVars"] and link["keepTime"]}
        # GPU shows one node at first, so the link to it does not keep the node.
        expected = {f"/d/{uid}" for uid in names if uid not in (dashboard["uid"], "vram-exporter-gpu")}
        if others != expected:
            yield f"{name}: links, with variables and time, to {sorted(others)}"
        to_gpu = [link["url"] for link in dashboard["links"] if link["keepTime"] and not link["includeVars"]]
        kept = "?${datasource:queryparam}&${cluster:queryparam}&${job:queryparam}"
        if to_gpu != ([] if name == "gpu.json" else ["/d/vram-exporter-gpu" + kept]):
            yield f"{name}: links, with time, to {to_gpu}"
        for panel in panels(dashboard):
            yield from (f"{name}: {panel['title']}: {problem}" for problem in row_problems(panel))
        for url in set(every("url", dashboard["panels"])):
            if url == EXPORTERS_PAGE:
                continue
            uid, query = re.fullmatch(r"/d/([a-z-]+)\?(.*)", url).groups()
            missing = set(re.findall(r"var-(\w+)=", query)) - names.get(uid, set())
            values = MOMENT.sub("", query).removesuffix(SAME_TIME)
            if uid not in names or missing or values == query:
                yield f"{name}: a link to {url}"
            # Otherwise a "+" in a name becomes a space, and an "&" ends the name.
            if any(not field.endswith(":percentencode}") for field in re.findall(r"\$\{__data[^}]*\}", values)):
                yield f"{name}: a link that does not encode values of a row: {url}"


# Series that Prometheus itself writes.
PROMETHEUS = {"ALERTS", "ALERTS_FOR_STATE", "scrape_duration_seconds", "scrape_samples_scraped"}


def known_families():
    """Families in docs/metrics.md and the golden scrapes, the series of histograms, and recorded series."""
    found = names.documented()[0]
    for path in (ROOT / "tests/golden").glob("*.prom"):
        found |= set(re.findall(r"^# TYPE (\w+) ", path.read_text(), re.MULTILINE))
    recorded = {rule["record"] for group in names.rule_groups() for rule in group["rules"] if "record" in rule}
    return found | {name + suffix for name in found for suffix in ("_bucket", "_count", "_sum")} | recorded | PROMETHEUS


def families(expression):
    """Names of the families in a PromQL expression with variables of Grafana."""
    listed = {name for names in re.findall(r'__name__=~"([^"]*)"', expression) for name in names.split("|")}
    return listed | names.used(re.sub(r"\$\w+", "1", expression)).metrics
