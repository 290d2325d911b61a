"""Checks the dashboards against the known data in history.py, with the query steps that Grafana would choose."""

import math
import re

import dashboards
import history
from history import DAY, HOUR, MINUTE, SCRAPE

# Grafana's steps in seconds. Grafana rounds to the nearest one, as its documentation of $__interval states.
STEPS = [1, 2, 5, 10, 15, 20, 30, 60, 120, 300, 600, 900, 1200, 1800, 3600, 7200, 10800, 21600, 43200, 86400]
# Width of a page in pixels and in grid columns.
PIXELS, COLUMNS = 1400, 24
# Families for which a graph must show the highest value between two points.
PEAKING = "window_peak|gpu_throttle_active|vram_exporter_sample_age_seconds"
# The data is a week long; in a month, it is the last quarter of a graph.
RANGES = {"1 h": HOUR, "24 h": DAY, "7 d": 7 * DAY, "30 d": 30 * DAY}


def rounded(seconds):
    return next((low for low, high in zip(STEPS, STEPS[1:]) if seconds < (low + high) / 2), STEPS[-1])


def step_of(panel, span):
    return max(SCRAPE, rounded(span / (PIXELS * panel["gridPos"]["w"] / COLUMNS)))


def filled(expression, dashboard, span, step, **chosen):
    """The expression with its variables replaced: Grafana's own ones, those in `chosen`, "All" for other lists, and preset values."""
    values = {
        "__range": f"{span}s",
        "__range_s": f"{span}",
        "__interval": f"{step}s",
        "__interval_ms": f"{step}000",
        "__rate_interval": f"{max(step + SCRAPE, 4 * SCRAPE)}s",
    }
    for variable in dashboards.variables(dashboard):
        values[variable["name"]] = ".*" if variable["type"] == "query" else variable.get("current", {}).get("value", "")
    values |= chosen
    return re.sub(r"\$\{?(\w+)\}?", lambda match: values.get(match.group(1), match.group(0)), expression)


def panel_of(dashboard, title):
    return next(panel for panel in dashboards.panels(dashboard) if panel["title"] == title)


def rows(prometheus, dashboard, title, end, span=6 * HOUR, **chosen):
    """The results of each query of a stat or table, as (labels, value)."""
    for target in panel_of(dashboard, title)["targets"]:
        result = prometheus.instant(filled(target["expr"], dashboard, span, MINUTE, **chosen), time=end)
        yield [(series["metric"], float(series["value"][1])) for series in result]


def value(prometheus, dashboard, title, end, **chosen):
    ((found,),) = rows(prometheus, dashboard, title, end, **chosen)
    return found[1]


def shown(labels):
    return " ".join(f"{key}={text}" for key, text in sorted(labels.items()))


def same(a, b):
    return math.isclose(a, b, rel_tol=1e-9)


def undrawn(prometheus, dashboard, panel, target, span, end):
    """Lines with a distinguishable peak, and the peaks that are not drawn on them."""
    step = step_of(panel, span)
    here = {"instance": "known"}
    fine = filled(target["expr"], dashboard, span, SCRAPE, **here)
    start, stop = (end - span) // step * step, end // step * step
    drawn = prometheus.between(filled(target["expr"], dashboard, span, step, **here), start, stop, step)
    lines = {shown(series["metric"]): series["values"] for series in drawn}
    out, lost = set(), []
    for peak in (peak for peak in history.PEAKS if peak < span - step):
        at = end - peak
        # A peak after the last point of a graph is drawn with the next point.
        if at + history.WINDOW > stop:
            continue
        calm = {shown(one["metric"]): float(one["value"][1]) for one in prometheus.instant(fine, time=at - 10 * MINUTE)}
        # The sample whose window contains the peak.
        for one in prometheus.instant(fine, time=at + history.WINDOW):
            name, high = shown(one["metric"]), float(one["value"][1])
            if same(high, calm.get(name, math.nan)):
                continue
            out.add(name)
            around = [v for t, v in lines.get(name, []) if at <= t <= at + history.WINDOW + 2 * step + SCRAPE]
            if not any(same(float(number), high) for number in around):
                lost.append(f"{target['refId']} {name or target['legendFormat']}: {peak} s before the end")
    return out, lost


def peak_problems(found, prometheus, end):
    """Graphs show a one-minute peak over every time range."""
    graphs = 0
    for name, dashboard in found.items():
        for panel in dashboards.panels(dashboard):
            # The part after "and on" only selects the lines, even if it reads peaks.
            texts = {t["refId"]: t["expr"].split(" and on ")[0] for t in panel["targets"] if t["range"]}
            targets = [t for t in panel["targets"] if re.search(PEAKING, texts.get(t["refId"], ""))]
            graphs += bool(targets)
            for text, span in RANGES.items() if targets else ():
                results = [undrawn(prometheus, dashboard, panel, target, span, end) for target in targets]
                if not any(out for out, _ in results):
                    yield f"{name}: {panel['title']}: no peak differs from the values around it"
                for missing in (lost for _, lost in results if lost):
                    yield f"{name}: {panel['title']}: over {text} {len(missing)} peaks are not drawn: {missing[0]}"
    if graphs < 9:
        yield f"only {graphs} graphs of peaks were found"


def device_problems(found, prometheus, end):
    """If a GPU is partitioned, its MIG devices are evaluated instead of the whole GPU."""
    fleet, page = found["fleet.json"], found["gpu.json"]
    for title in ("Used", "Peak in range"):
        if not same(value(prometheus, page, title, end, instance="known", gpu="GPU-1"), history.FULL):
            yield f"gpu.json: {title}: not the value of the fullest MIG device"
    # The peaks of GPU 0 reach 91 % in the last hour, and none is in the last ten minutes.
    for span, near in ((HOUR, 2), (10 * MINUTE, 1)):
        if (number := value(prometheus, fleet, "Near limit", end, span=span)) != near:
            yield f"fleet.json: Near limit: {number} devices in {span} s, not the full MIG device and in an hour GPU 0"
    ranked = [
        ("fleet.json", "Memory never used in range"),
        ("fleet.json", "Fullest devices"),
        ("workloads.json", "Memory never used"),
    ]
    for name, title in ranked:
        listed = [labels for query in rows(prometheus, found[name], title, end) for labels, _ in query]
        if any(labels["uuid"] == "GPU-1" and "mig_uuid" not in labels for labels in listed):
            yield f"{name}: {title}: a partitioned GPU is listed as a whole"
    # The time range begins after the last peak of GPU 0.
    _, _, peaks, *_ = rows(prometheus, fleet, "Fullest devices", end, span=10 * MINUTE)
    if max(peaks, key=lambda listed: listed[1])[0].get("mig_uuid") != "MIG-7":
        yield "fleet.json: Fullest devices: the full MIG device is not first"
    tables = [
        ("fleet.json", "Fullest devices"),
        ("fleet.json", "Memory never used in range"),
        ("gpu.json", "Processes"),
    ]
    for name, title in tables:
        columns = {o["matcher"]["options"] for o in panel_of(found[name], title)["fieldConfig"]["overrides"]}
        listed = [labels for query in rows(prometheus, found[name], title, end) for labels, _ in query]
        if not any(f"{labels.get(name)}".find("1g.18gb") >= 0 for labels in listed for name in columns & {"profile", "device"}):
            yield f"{name}: {title}: no column shows the MIG device"


def sizing_problems(found, prometheus, end):
    """Right-sizing reads few samples, and lists the workload with the most unused memory first."""
    dashboard = found["workloads.json"]
    families = "gpu_workload_memory_window_peak_bytes|gpu_memory_window_peak_bytes|gpu_mig_memory_window_peak_bytes"
    week = float(prometheus.instant(f'sum(count_over_time({{__name__=~"{families}"}}[1w]))', time=end)[0]["value"][1])
    titles = [panel["title"] for panel in dashboard["panels"]]
    begin = titles.index("Right-sizing") + 1
    after = (number for number, panel in enumerate(dashboard["panels"]) if panel["type"] == "row" and number > begin)
    asked = [t["expr"] for p in dashboard["panels"][begin : next(after, None)] for t in p["targets"]]
    read = sum(prometheus.samples_read(filled(text, dashboard, HOUR, MINUTE), time=end) for text in asked)
    print(f"right-sizing: {len(asked)} queries read {read} samples; a week of the peaks has {week:.0f}")
    if read > week:
        yield f"workloads.json: a refresh of right-sizing reads {read} samples, more than the {week:.0f} of a week of peaks"
    first, *_ = rows(prometheus, dashboard, "Right-sizing: workloads", end)
    if max(first, key=lambda listed: listed[1])[0]["workload"] != "small":
        yield f"workloads.json: Right-sizing: {first} is first, not the workload that needs the least of its GPU"
    shared = {labels["workload"]: number for labels, number in first if labels["uuid"] == "GPU-0"}
    if len(shared) < 2 or set(shared.values()) != {2 * history.GIB}:
        yield f"workloads.json: Right-sizing: {shared}: the workloads of a shared GPU leave what its peak leaves"
    _, _, _, shares, suffices, *_ = rows(prometheus, dashboard, "Right-sizing: workloads", end)
    failed = {labels["uuid"] for labels, _ in shares} - {labels["uuid"] for labels, _ in suffices}
    if "GPU-2" not in failed or "GPU-3" in failed:
        yield f"workloads.json: Right-sizing: no size for {failed}, and not for GPU 2, on which an allocation failed"
    # The selected time range contains no peak.
    queries = rows(prometheus, dashboard, "Right-sizing: workloads", end, span=HOUR // 4, workload="peaking")
    if not any(same(v, 128 * history.GIB) for listed in queries for _, v in listed):
        yield "workloads.json: Right-sizing: a peak before the selected time range is not found"


def activity_problems(found, prometheus, end):
    """The activity of a GPU is attributed to a workload only if it is the only one on the GPU or MIG device."""
    _, _, sms, tensor, bandwidth = rows(prometheus, found["gpu.json"], "Workloads that have a GPU to themselves", end)
    for name, listed, share in (("SMs", sms, 1 / 2), ("tensor cores", tensor, 1 / 4), ("bandwidth", bandwidth, 1 / 6)):
        seen = sorted((labels["workload"], round(value, 2)) for labels, value in listed)
        if seen != [("full", round(share, 2)), ("large", round(share, 2))]:
            yield f"gpu.json: Workloads that have a GPU to themselves: {name}: {seen}"
    for title in ("SM activity", "Memory bandwidth", "Tensor core activity"):
        (listed,) = rows(prometheus, found["workloads.json"], title, end)
        if sorted(labels["workload"] for labels, _ in listed) != ["full", "large"]:
            yield f"workloads.json: {title}: {listed}"
    (*_, sms, _, _) = rows(prometheus, found["fleet.json"], "Fullest devices", end, instance="known")
    seen = sorted((labels["gpu"], labels.get("mig_uuid")) for labels, _ in sms)
    if seen != [("0", None), ("1", "MIG-7"), ("2", None)]:
        yield f"fleet.json: Fullest devices: SMs: {seen}"


def gone_problems(found, prometheus, end):
    """The dashboards show the peak of a removed GPU, and the name of a node that is not scraped."""
    peak = list(rows(prometheus, found["gpu.json"], "Peak in range", end, instance="left"))
    if not (peak[0] and same(peak[0][0][1], 91 / 140)):
        yield f"gpu.json: Peak in range: {peak} for a removed GPU"
    listed = [labels for query in rows(prometheus, found["fleet.json"], "Issues", end) for labels, _ in query]
    if not any(labels["instance"] == "silent" for labels in listed):
        yield "fleet.json: Issues: the node whose exporter is not scraped is missing"


def capacity_problems(found, prometheus, end):
    """Only the GPU that fills up steadily has a time to full; only the idle workload is listed as idle; a job fits where memory is free."""
    fleet = found["fleet.json"]
    times, free = rows(prometheus, fleet, "Time to full", end)
    # 80 GiB are left, and 25 GiB are taken in an hour. The lowest use of the last 5 minutes is a little older than the last.
    if [labels["uuid"] for labels, _ in times] != ["GPU-4"] or not math.isclose(times[0][1], 80 / 25 * HOUR, rel_tol=0.05):
        yield f"fleet.json: Time to full: {times}"
    if [labels["device"] for labels, _ in times] != ["4"] or len(free) != 1:
        yield f"fleet.json: Time to full: {times} {free}"
    (idle,) = rows(prometheus, fleet, "Idle memory by workload", end)
    if [(labels["workload"], value) for labels, value in idle] != [("small", history.GIB)]:
        yield f"fleet.json: Idle memory by workload: {idle}"
    fits, at_peak, then = rows(prometheus, fleet, "Where a job fits now", end, size="80")
    if [labels["device"] for labels, _ in sorted(fits, key=lambda one: one[1])] != ["4", "0", "3"] or len(at_peak) != 3:
        yield f"fleet.json: Where a job fits now: {fits}"
    # At the peaks of GPU 0, 2 GiB were free.
    if sorted((labels["gpu"], number) for labels, number in then) != [("0", 0), ("3", 1), ("4", 1)]:
        yield f"fleet.json: Where a job fits now: whether it fits at the peak: {then}"
    # The H200 that are not partitioned: four, of which three are held; the peaks of peaking and large need one each.
    # The job of 24 GiB does not fit on the GPU of large; the GPU that fills up is spare, because no workload holds it.
    gpus, held, needed, spare, fit = rows(prometheus, fleet, "GPUs held and needed", end)
    if [value for (_, value), *_ in (gpus, held, needed, spare, fit)] != [4, 3, 2, 1, 3]:
        yield f"fleet.json: GPUs held and needed: {gpus} {held} {needed} {spare} {fit}"


def runs_problems(found, prometheus, end):
    """A workload's peak has the time of its first reading, and a GPU's ended workloads stay in the range."""
    page = found["workloads.json"]
    state, _, _, capacity, peak, share, at, _, begin, until = rows(prometheus, page, "From start to end", end, span=HOUR, workload="peaking")
    if [value for (_, value), *_ in (state, capacity, peak)] != [0, 140 * history.GIB, 128 * history.GIB]:
        yield f"workloads.json: From start to end: {state} {capacity} {peak}"
    first = end - max(peak for peak in history.PEAKS if peak < HOUR)
    if [until[0][1] - at[0][1], at[0][1] - begin[0][1]] != [600_000, 1_800_000]:
        yield f"workloads.json: From start to end: the link to the peak at {at} opens {begin} to {until}"
    if not 0 <= at[0][1] / 1000 - first <= 2 * MINUTE or not same(share[0][1], 128 / 140):
        yield f"workloads.json: From start to end: the peak is at {at[0][1] / 1000}, not at {first}"


def events(series, step):
    """Events as in Grafana: points at most one step apart are one event, which is a region if it has several points."""
    times = [float(t) for t, v in series["values"] if float(v) > 0]
    begun = [t for before, t in zip([-math.inf, *times], times) if t - before > step]
    ended = [t for t, after in zip(times, [*times[1:], math.inf]) if after - t > step]
    return list(zip(begun, ended))


def annotation_problems(name, dashboard, prometheus, end, span, expected, **chosen):
    """Each of the `expected` alerts, and no other alert, is drawn as one thin line at its start."""
    step = max(MINUTE, rounded(span / PIXELS))
    start, stop = (end - span) // step * step, end // step * step
    seen = []
    for annotation in dashboard["annotations"]["list"]:
        expression = filled(annotation["expr"], dashboard, span, step, **chosen)
        named = set(re.findall(r"\{\{\s*(\w+)\s*\}\}", annotation["titleFormat"] + annotation["textFormat"]))
        for series in prometheus.between(expression, start, stop, step):
            labels = series["metric"]
            if named - labels.keys():
                yield f"{name}: annotations: {labels['alertname']} would show the names {sorted(named - labels.keys())}"
            for begun, ended in events(series, step):
                seen.append((labels["alertname"], labels.get("gpu"), annotation["iconColor"]))
                if begun != ended:
                    yield f"{name}: annotations: {labels['alertname']} is a region of {ended - begun:.0f} s"
                starts = [
                    end - began for began, _, alert in history.ALERTS if alert["alertname"] == labels["alertname"]
                ]
                if not any(0 <= begun - start <= step for start in starts):
                    yield f"{name}: annotations: {labels['alertname']} did not begin at that time"
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
# (page, time range, selection, alerts that it shows)
ANNOTATIONS = [
    ("fleet.json", HOUR, {}, [CRITICAL, LEAK]),
    ("fleet.json", DAY, {}, [CRITICAL, LEAK, HIGH, EARLIER]),
    ("fleet.json", 7 * DAY, {}, [CRITICAL, LEAK, HIGH, EARLIER, LOST]),
    ("fleet.json", 7 * DAY, {"instance": "left"}, []),
    ("gpu.json", HOUR, {}, [CRITICAL, LEAK, LOW, IDLE, UNUSED]),
    ("gpu.json", DAY, {"gpu": "GPU-0"}, [CRITICAL, LEAK]),
    ("gpu.json", 7 * DAY, {"gpu": "GPU-3"}, [HIGH, EARLIER, LOW, IDLE]),
    ("workloads.json", DAY, {}, [LEAK, IDLE, UNUSED]),
    ("workloads.json", DAY, {"workload": "peaking"}, [LEAK]),
    ("workloads.json", DAY, {"workload": "small"}, [IDLE]),
    ("exporter.json", DAY, {}, [STALE]),
]


def claim_problems(found, prometheus, end):
    """A device of a claim counts once, and is in use if one container of the claim is on a GPU."""
    board = found["workloads.json"]
    allocated = list(rows(prometheus, board, "By namespace", end))[1]
    if [(labels["namespace"], count) for labels, count in allocated] != [("claiming", 4)]:
        yield f"workloads.json: By namespace: allocated: {allocated}"
    for chosen, expected in ((".*", 2), ("claiming/train-0/first", 0), ("claiming/(a|plugged)/main", 2)):
        if (unused := value(prometheus, board, "Unused", end, workload=chosen)) != expected:
            yield f"workloads.json: Unused of {chosen}: {unused}"
    (listed,) = rows(prometheus, board, "Unused allocations", end)
    listed = sorted((labels["pod"], labels.get("claim"), labels.get("container"), labels["gpu"]) for labels, _ in listed)
    if listed != [("a", "both", None, "7"), ("b", "both", None, "7"), ("plugged", None, "main", "8")]:
        yield f"workloads.json: Unused allocations: {listed}"


def problems(found):
    with history.running() as (prometheus, end):
        judges = (peak_problems, device_problems, sizing_problems, activity_problems, gone_problems, capacity_problems, runs_problems)
        for judge in (*judges, claim_problems):
            yield from judge(found, prometheus, end)
        for name, span, chosen, expected in ANNOTATIONS:
            yield from annotation_problems(name, found[name], prometheus, end, span, expected, **chosen)
