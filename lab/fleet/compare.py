"""Asks several engines every query of the dashboards and every rule about the same data, and compares the answers with those of Prometheus.

    compare.py --recordings FOLDER [--victoria-metrics FILE] [--thanos FILE] [--prometheus3 FILE]

lab/collectors/build.sh builds the engines. The data are three hours of three machines, written into all engines by the same
requests. A difference is explained only by the same query in a form without the cause that is suspected: if the answers are equal then,
that cause is the whole difference. Exit status 1 if one is left unexplained.

Invariant: the samples and the times of the questions never coincide, as they never do in practice: whether the first moment of a range
belongs to it differs between Prometheus 2 and 3. The same goes for the moments of a subquery, which are full multiples of its step.
"""

import argparse
import collections
import contextlib
import dataclasses
import re
import sys
import tempfile
import time
from pathlib import Path

import answers
import backfill
import engines
import queries
import stored
import stores
from harness import until

MIX = [("8x8r", 1), ("8mig", 1), ("demo", 1)]
SPAN = 3 * 3600
# Seconds by which samples, recorded samples and the questions without a step are later than full minutes.
SHIFT, RECORDED_SHIFT, ASKED_SHIFT = 7, 49, 2
# VictoriaMetrics stores decimal numbers, which are not quite those that were sent (docs/collectors.md), and the quotient of small
# differences of counters makes more of it.
DECIMAL = 1e-7
# VictoriaMetrics shows new samples and series after a moment.
VISIBLE = 10


def without_ties(expression):
    """Of series with equal values, topk takes any."""
    return re.sub(r"\btopk\(\s*(\d+|\$top)\s*,", "topk(100000,", expression)


RATE = re.compile(r"\b(rate|increase|delta)\((\w+(?:\{[^}]*\})?)\[(\d+)([smhd])\]\)")


def difference(found):
    function, selector, number, unit = found.groups()
    lasts = int(engines.seconds(number + unit))
    risen = f"({selector} - {selector} offset {lasts}s)"
    return f"({risen} / {lasts})" if function == "rate" else risen


def without_extrapolation(expression):
    """Prometheus extrapolates a difference to the ends of the range; VictoriaMetrics subtracts the values that were known at them. The
    counters of the fleet are never reset, and every range is a multiple of the time between scrapes, so this is the same."""
    return RATE.sub(difference, expression)


def known_at_start(expression):
    """Only the series that were there at the beginning of the range; for the others, there is nothing to subtract."""
    return RATE.sub(r"(\g<0> and \2 offset \3\4)", expression)


# Cause → (the reference's form of the query, the other engine's form).
CAUSES = {
    "ties of topk": (without_ties, without_ties),
    "extrapolation of rate, increase and delta": (without_extrapolation, str),
    "both": (lambda text: without_extrapolation(without_ties(text)), without_ties),
    "both, and a series that was absent when the range began": (
        lambda text: without_extrapolation(without_ties(text)),
        lambda text: known_at_start(without_ties(text)),
    ),
}


def judged(reference, engine, query, end, ignored, rounding, causes):
    """(cause, verdict): the cause is "equal", one of CAUSES, or None."""

    def ask(forms):
        left, right = (dataclasses.replace(query, expression=form(query.expression)) for form in forms)
        return answers.compared(left.ask(reference.api, end), right.ask(engine.api, end), ignored, rounding)

    first = ask((str, str))
    if first.equal:
        return "equal", first
    for name in causes:
        if ask(CAUSES[name]).equal:
            return name, first
    return None, first


def questions(spans, lists=lambda *_: {}):
    yield from (query for _, query in queries.of_rules())
    for span in spans:
        yield from queries.of_dashboards(span, lists=lists)


def fill(reference, others, recordings, end):
    urls = [one.write_url for one in (reference, *others)]
    written = backfill.past(recordings, MIX, len(MIX), end - SPAN)
    written.write(urls, end - SPAN + SHIFT, end)
    rules = [rule for _, rule in stored.recording_rules()]
    late = end - 60 + RECORDED_SHIFT
    backfill.write_rules(reference.api, urls, rules, late - stored.RECORDED, late, 60)
    time.sleep(VISIBLE)
    return written.series


def compare(reference, engine, end, spans, ignored, rounding, causes):
    """Counts by cause, the number of queries that have an answer at all, and the queries whose difference has no cause."""
    counts, answered, left = collections.Counter(), 0, []
    for query in questions(spans, queries.lists_at(reference.api, end)):
        try:
            cause, verdict = judged(reference, engine, query, end, ignored, rounding, causes)
            answered += verdict.series > 0
        except ValueError as error:
            cause, verdict = None, error
        counts[cause or "unexplained"] += 1
        if cause is None:
            left.append(f"{query.page}: {query.panel}: {str(verdict)[:300]}: {query.expression[:200]}")
    return counts, answered, left


# The increase of a counter that appears with the value 2, in the last minutes of the range: function → value.
APPEARING = {"VictoriaMetrics": {"increase": 2, "increase_prometheus": 0}}


def appearing_problems(name, engine, end):
    """What docs/fleet.md says about the counters of a machine that is new: only VictoriaMetrics takes their first value as an increase."""
    series = backfill.Series(backfill.encoded_labels("appearing_total", {"instance": "new"}), [2.0], [0])
    moments = [(0, 0, backfill.varint(t * 1000)) for t in range(end - 240 + SHIFT, end, queries.SCRAPE)]
    backfill.post(engine.write_url, backfill.block(backfill.field(1, series.labels + series.samples(moments))))
    for function, expected in APPEARING.get(name, {"increase": 0}).items():
        text = f"{function}(appearing_total[10m])"
        [one] = until(f"{name}: a new series", lambda text=text: engine.api.instant(text, time=end))
        if float(one["value"][1]) != expected:
            yield f"{name}: {text} is {one['value'][1]}, not {expected}"


def started(rig, given):
    """Name → (engine, labels that are not compared, the largest deviation by rounding, causes of differences)."""
    if given.victoria_metrics:
        engine = stores.victoria_metrics(rig, given.victoria_metrics)
        # Its functions keep the name of a series where Prometheus drops it.
        yield "VictoriaMetrics", (engine, ("__name__",), DECIMAL, list(CAUSES))
    if given.thanos:
        engine = stores.Thanos(rig, given.thanos).query
        yield "Thanos", (engine, engine.extra, answers.ROUNDING, ["ties of topk"])
    if given.prometheus3:
        engine = stores.prometheus(rig, given.prometheus3, "prometheus3")
        yield "Prometheus 3", (engine, (), answers.ROUNDING, ["ties of topk"])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recordings", required=True, type=Path, help=f"the folder that record.py wrote, with {', '.join(s for s, _ in MIX)}")
    for name in ("victoria-metrics", "thanos", "prometheus3"):
        parser.add_argument(f"--{name}", help="the program")
    given = parser.parse_args()
    failed = False
    with contextlib.ExitStack() as stack:
        rig = engines.Rig(stack, stack.enter_context(tempfile.TemporaryDirectory()))
        reference = stores.prometheus(rig)
        others = dict(started(rig, given))
        if not others:
            parser.error("give at least one engine")
        count = fill(reference, [one for one, *_ in others.values()], given.recordings, stored.END)
        print(f"{count} series for {SPAN // 3600} hours; the reference is {engines.run('prometheus', '--version').splitlines()[0]}")
        for name, (engine, *rest) in others.items():
            counts, answered, left = compare(reference, engine, stored.END + ASKED_SHIFT, [3600, SPAN - 900], *rest)
            shown = ", ".join(f"{count} {cause}" for cause, count in counts.most_common())
            print(f"{name}: {sum(counts.values())} queries, {answered} with an answer: {shown}", flush=True)
            left += appearing_problems(name, engine, stored.END)
            for one in left:
                print(f"{name}: {one}", file=sys.stderr)
            failed = failed or bool(left)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
