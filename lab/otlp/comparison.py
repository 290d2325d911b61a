"""Compares the series that a store scraped with those that the same exporter pushed to it.

A series is a pair (name, labels without those that the store adds); a sample is a pair (seconds, value).
"""

import math

# What Prometheus itself adds to a scrape, and what its OTLP receiver makes of the resource.
OF_THE_SCRAPE = ("up", "scrape_")
OF_THE_RESOURCE = ("target_info",)
# The names of the semantic conventions, translated or not.
OF_THE_CONVENTIONS = ("hw.", "hw_")

# The labels that a store adds to every series: the resource and the scope.
ADDED = {
    "job", "instance", "service_name", "service_version", "service_instance_id", "host_name", "host_id", "os_type", "scope_name",
    "scope_version", "vram_exporter_simulated",
}


def bound(text):
    """A histogram's bound as a number: a scrape stores 1.0 for the bound that OTLP calls 1."""
    try:
        return repr(float(text))
    except ValueError:
        return text


def key(labels):
    """The series of a set of labels as the store returns it."""
    kept = {name: value for name, value in labels.items() if name.replace(".", "_") not in ADDED}
    name = kept.pop("__name__")
    if "le" in kept:
        kept["le"] = bound(kept["le"])
    return name, tuple(sorted(kept.items()))


def is_of(name, prefixes):
    return any(name == prefix or (prefix.endswith(("_", ".")) and name.startswith(prefix)) for prefix in prefixes)


def agrees(pushed, scraped):
    """How a pushed series relates to the scraped one: "equal" if all samples have one value, "within" if each pushed sample lies between
    values that were scraped around it, else None. Two scrapes on each side count, because a store may date a scrape before the reading. A
    pushed sample without two scrapes on each side is not compared."""
    if len({value for _, value in pushed + scraped}) == 1:
        return "equal"
    compared = 0
    for at, value in pushed:
        before = [v for t, v in scraped if t <= at][-2:]
        after = [v for t, v in scraped if t >= at][:2]
        if len(before) < 2 or len(after) < 2:
            continue
        compared += 1
        around = before + after
        # A push has bytes without their fraction.
        low = min(around) if value % 1 else math.floor(min(around))
        if not low <= value <= max(around):
            return None
    return "within" if compared else None


def compare(scraped, pushed):
    """The problems, and how many series were equal and within. Both arguments map series to samples."""
    problems = []
    counts = {"equal": 0, "within": 0, "varying": 0}
    for series in sorted(scraped.keys() - pushed.keys()):
        if not is_of(series[0], OF_THE_SCRAPE):
            problems.append(f"not pushed: {series}")
    for series in sorted(pushed.keys() - scraped.keys()):
        if not is_of(series[0], OF_THE_RESOURCE + OF_THE_CONVENTIONS):
            problems.append(f"not scraped: {series}")
    for series in sorted(scraped.keys() & pushed.keys()):
        relation = agrees(pushed[series], scraped[series])
        if relation is None and varies(series[0]):
            relation = "varying"
        if relation is None:
            problems.append(f"other values: {series}: pushed {pushed[series]}, scraped {scraped[series]}")
        else:
            counts[relation] += 1
    return problems, counts


def varies(name):
    """Whether a value goes up and down from one reading to the next, so that two readings need not enclose a third."""
    words = ("_age_seconds", "_idle_seconds", "resident_memory", "virtual_memory", "_threads", "_open_fds", "_utilization_", "_watts")
    return any(word in name for word in words) or name.endswith(("_celsius", "_occupancy_ratio", "_hertz"))
