"""Reads an exposition with the Prometheus client's parser and rejects what the format allows but no consumer expects:
duplicate series, duplicate families, samples without a TYPE, families without HELP."""

import sys
from collections import Counter

from prometheus_client.parser import text_string_to_metric_families


def problems(text):
    families = list(text_string_to_metric_families(text))
    if not any(family.samples for family in families):
        yield "no samples"
    for name, count in Counter(family.name for family in families).items():
        if count > 1:
            yield f"family {name} occurs {count} times"
    for family in families:
        if family.type in ("unknown", "untyped"):
            yield f"family {family.name} has no type"
        if not family.documentation:
            yield f"family {family.name} has no help"
    series = Counter((s.name, frozenset(s.labels.items())) for family in families for s in family.samples)
    for (name, labels), count in series.items():
        if count > 1:
            yield f"series {name} {dict(labels)} occurs {count} times"


def main(path):
    with open(path, encoding="utf-8") as file:
        found = list(problems(file.read()))
    for problem in found:
        print(problem, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
