"""Check of the two formats of a scrape: OpenMetrics has the series of the text format, and its creation times are those
of the exporter."""

import time

from exporter import Exporter
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as text

CREATED = "_created"


def series(families):
    """The identity of each sample, with its value."""
    samples = (sample for family in families for sample in family.samples)
    return {(sample.name, tuple(sorted(sample.labels.items()))): sample.value for sample in samples}


def formats(setup, results):
    begun = time.time()
    with Exporter(setup, "formats", "--web.openmetrics-created=true") as exporter:
        # Within this time every family of an idle GPU appears.
        time.sleep(20)
        body = {}
        for accept in ("application/openmetrics-text;version=1.0.0", "text/plain"):
            status, answer = exporter.get("/metrics", {"Accept": accept})
            results.check(f"formats: {accept}", status, 200, status == 200)
            body[accept] = answer.decode()
        now = time.time()
    first, second = body.values()
    # The parser of OpenMetrics is strict: it raises an error on any deviation.
    ours, theirs = series(openmetrics(first)), series(text(second))
    created = {name: value for name, value in ours.items() if name[0].endswith(CREATED)}
    shared = ours.keys() - created.keys()
    results.check("formats: series in both", f"{len(shared & theirs.keys())} of {len(shared)} and {len(theirs)}", "all", shared == theirs.keys() and len(shared) > 100)
    within = [value for value in created.values() if begun - 1 <= value <= now + 1]
    results.check("formats: creation times within the run", f"{len(within)} of {len(created)}", "all, and at least one", len(within) == len(created) > 0)
