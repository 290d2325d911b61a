"""Two clusters whose nodes, GPUs and pods have equal names, in one Prometheus: the rules and dashboards keep them apart.

    clusters.py --recordings FOLDER

Three servers get the same past: one of cluster a, one of cluster b, and one of both. What the third answers must be what the first two
answer together; and with the cluster chosen in a dashboard, what the server of this cluster answers. Exit status 1 if anything differs.
"""

import argparse
import dataclasses
import sys
from pathlib import Path

import answers
import backfill
import compare
import engines
import queries
import stored
import stores

SPAN = 2 * 3600
SHAPES = {"a": "demo", "b": "8mig"}


def fill(rig, recordings, end):
    alone = {name: stores.prometheus(rig, name=f"cluster-{name}") for name in SHAPES}
    both = stores.prometheus(rig, name="both")
    rules = [rule for _, rule in stored.recording_rules()]
    for name, engine in alone.items():
        written = backfill.past(recordings, [(SHAPES[name], 1)], 2, end - SPAN, extra={"cluster": name})
        written.write([engine.write_url, both.write_url], end - SPAN + compare.SHIFT, end)
        print(f"cluster {name}: {written.series} series of 2 machines")
    late = end - 60 + compare.RECORDED_SHIFT
    for engine in (*alone.values(), both):
        backfill.write_rules(engine.api, [engine.write_url], rules, late - stored.RECORDED, late, 60)
    return alone, both


def rule_problems(alone, both, end):
    count = 0
    for group, query in queries.of_rules():
        parts = [one for engine in alone.values() for one in query.ask(engine.api, end)]
        verdict = answers.compared(parts, query.ask(both.api, end))
        count += verdict.series
        if not verdict.equal:
            yield f"{group['name']}: {query.panel}: {verdict}"
    print(f"rules: {count} series")
    if not count:
        yield "no rule has a result"


def page_problems(alone, both, end):
    count = 0
    for name, engine in alone.items():
        pairs = zip(queries.of_dashboards(3600, cluster=name), queries.of_dashboards(3600))
        for chosen, everything in pairs:
            for tied in (str, compare.without_ties):
                asked = [dataclasses.replace(query, expression=tied(query.expression)) for query in (everything, chosen)]
                verdict = answers.compared(asked[0].ask(engine.api, end), asked[1].ask(both.api, end))
                if verdict.equal:
                    break
            else:
                yield f"{chosen.page}: {chosen.panel}: cluster {name}: {verdict}: {chosen.expression[:300]}"
            count += verdict.series
    print(f"dashboards: {count} series")
    if not count:
        yield "no query of a dashboard has a result"


def problems(rig, recordings):
    alone, both = fill(rig, recordings, stored.END)
    yield from rule_problems(alone, both, stored.END)
    yield from page_problems(alone, both, stored.END)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recordings", required=True, type=Path, help="the folder that record.py wrote, with demo and 8mig")
    given = parser.parse_args()
    return engines.judged(lambda rig: problems(rig, given.recordings))


if __name__ == "__main__":
    sys.exit(main())
