"""Holds the dashboards to what is known of the week in history.py, asked in the steps that Grafana would choose."""

import math
import re

import dashboards
import history
from history import DAY, HOUR, MINUTE, SCRAPE

# Grafana's steps in seconds, each up to the mean of it and the next, as its documentation of $__interval tells.
STEPS = [1, 2, 5, 10, 15, 20, 30, 60, 120, 300, 600, 900, 1200, 1800, 3600, 7200, 10800, 21600, 43200, 86400]
# Width of a page in pixels.
PIXELS = 1400


def rounded(seconds):
    return next((low for low, high in zip(STEPS, STEPS[1:]) if seconds < (low + high) / 2), STEPS[-1])


def filled(expression, dashboard, span, step, **chosen):
    """The expression with Grafana's own variables, `chosen` ones, All for the others, and what is typed as it is."""
    values = {"__range": f"{span}s", "__interval": f"{step}s", "__rate_interval": f"{max(step + SCRAPE, 4 * SCRAPE)}s"}
    for variable in dashboards.variables(dashboard):
        values[variable["name"]] = ".*" if variable["type"] == "query" else variable.get("current", {}).get("value", "")
    values |= chosen
    return re.sub(r"\$\{?(\w+)\}?", lambda match: values.get(match.group(1), match.group(0)), expression)


def events(series, step):
    """As Grafana makes them: what is no more than a step apart is one, and a region if it is more than one point."""
    times = [float(t) for t, v in series["values"] if float(v) > 0]
    begun = [t for before, t in zip([-math.inf, *times], times) if t - before > step]
    ended = [t for t, after in zip(times, [*times[1:], math.inf]) if after - t > step]
    return list(zip(begun, ended))


def annotation_problems(name, dashboard, prometheus, end, span, expected, **chosen):
    """Each of the `expected` alerts is one thin line where it began, and no other is there."""
    step = max(MINUTE, rounded(span / PIXELS))
    start, stop = (end - span) // step * step, end // step * step
    seen = []
    for annotation in dashboard["annotations"]["list"]:
        expression = filled(annotation["expr"], dashboard, span, step, **chosen)
        named = set(re.findall(r"\{\{\s*(\w+)\s*\}\}", annotation["titleFormat"] + annotation["textFormat"]))
        for series in prometheus.between(expression, start, stop, step):
            labels = series["metric"]
            if named - labels.keys():
                yield f"{name}: annotations: {labels['alertname']} would show the words {sorted(named - labels.keys())}"
            for begun, ended in events(series, step):
                seen.append((labels["alertname"], labels.get("gpu"), annotation["iconColor"]))
                if begun != ended:
                    yield f"{name}: annotations: {labels['alertname']} is painted over {ended - begun:.0f} s"
                starts = [
                    end - began for began, _, alert in history.ALERTS if alert["alertname"] == labels["alertname"]
                ]
                if not any(0 <= begun - start <= step for start in starts):
                    yield f"{name}: annotations: {labels['alertname']} did not begin then"
    if sorted(seen, key=str) != sorted(expected, key=str):
        yield f"{name}: annotations over {span} s with {chosen}: {sorted(seen, key=str)} and not {sorted(expected, key=str)}"


RED, ORANGE, BLUE = "red", "orange", "blue"
CRITICAL = ("GpuMemoryCritical", "0", RED)
HIGH = ("GpuMemoryHigh", "3", ORANGE)
LOW = ("GpuUtilizationLow", "3", BLUE)
LEAK = ("GpuProcessMemoryLeak", "0", ORANGE)
IDLE = ("GpuMemoryHeldIdle", "3", BLUE)
UNUSED = ("GpuAllocatedUnused", None, BLUE)
STALE = ("VramExporterStale", "0", ORANGE)
EARLIER = ("GpuMemoryCritical", "3", RED)
LOST = ("GpuLost", "0", RED)
# (page, range, what is chosen, which alerts it then shows)
ANNOTATIONS = [
    ("fleet.json", HOUR, {}, [CRITICAL, LEAK]),
    ("fleet.json", DAY, {}, [CRITICAL, LEAK, HIGH, EARLIER]),
    ("fleet.json", 7 * DAY, {}, [CRITICAL, LEAK, HIGH, EARLIER, LOST]),
    ("fleet.json", 7 * DAY, {"instance": "left"}, []),
    ("gpu.json", HOUR, {}, [CRITICAL, LEAK, LOW, IDLE, UNUSED]),
    ("gpu.json", DAY, {"gpu": "0"}, [CRITICAL, LEAK]),
    ("gpu.json", 7 * DAY, {"gpu": "3"}, [HIGH, EARLIER, LOW, IDLE]),
    ("workloads.json", DAY, {}, [LEAK, IDLE, UNUSED]),
    ("workloads.json", DAY, {"gpu": "(0|1)"}, [LEAK, UNUSED]),
    ("workloads.json", DAY, {"workload": "small"}, [IDLE]),
    ("exporter.json", DAY, {}, [STALE]),
]


def problems(found):
    with history.running() as (prometheus, end):
        for name, span, chosen, expected in ANNOTATIONS:
            yield from annotation_problems(name, found[name], prometheus, end, span, expected, **chosen)
