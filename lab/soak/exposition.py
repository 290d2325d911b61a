"""Reads one scrape strictly: every line is a comment or a sample, every sample's family has a type, and no series
appears twice.

Lines of known series are not parsed again, so that reading takes only a few milliseconds."""

import re

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\["\\n])*"'
SERIES = re.compile(rf"({NAME})(?:\{{({LABEL}(?:,{LABEL})*)?\}})?")
LABELS = re.compile(LABEL)
# The name of a histogram's sample is its family's name with one of these suffixes.
PARTS = ("_bucket", "_count", "_sum")


class Malformed(Exception):
    """An error in the exposition."""


class Scrape:
    """The samples of one scrape by series, spelled as in the exporter's output."""

    def __init__(self, values, known):
        self.values, self.known = values, known

    def counters(self):
        """(series, value) of every series that may only grow."""
        return ((self.known[name][0], value) for name, value in self.values.items() if self.known[name][1])

    def rows(self, family):
        return [(name, value) for name, value in self.values.items() if name == family or name.startswith(family + "{")]

    def total(self, family):
        return sum(value for _, value in self.rows(family))


def read(text, known):
    """`known`: the parsed series of the previous scrape, or nothing."""
    types, values, knows = {}, {}, {}
    if not text.endswith("\n"):
        raise Malformed("the last line has no end")
    for line in text[:-1].split("\n"):
        if line.startswith("#"):
            comment(line, types)
            continue
        series, _, number = line.rpartition(" ")
        try:
            value = float(number)
        except ValueError:
            raise Malformed(f"no number: {line[:120]!r}") from None
        if series in values:
            raise Malformed(f"series twice: {series[:200]}")
        values[series] = value
        knows[series] = known.get(series) or examine(series, types)
    if not values:
        raise Malformed("no sample")
    if len({identity for identity, _ in knows.values()}) != len(knows):
        raise Malformed("a series twice, its labels in another order")
    return Scrape(values, knows)


def comment(line, types):
    words = line.split(" ", 3)
    if len(words) < 4 or words[0] != "#" or words[1] not in ("HELP", "TYPE"):
        raise Malformed(f"no comment: {line[:120]!r}")
    if words[1] == "TYPE":
        if words[2] in types:
            raise Malformed(f"family twice: {words[2]}")
        types[words[2]] = words[3]


def examine(series, types):
    """(identity of the series, whether it may only grow)."""
    match = SERIES.fullmatch(series)
    if not match:
        raise Malformed(f"no series: {series[:200]!r}")
    name, labels = match.groups()
    kind = types.get(name)
    if kind is None:
        base = next((name.removesuffix(part) for part in PARTS if name.endswith(part)), name)
        kind = types.get(base)
        if kind not in ("histogram", "summary"):
            raise Malformed(f"a sample without a type: {name}")
    found = LABELS.findall(labels or "")
    if len({label.partition("=")[0] for label in found}) != len(found):
        raise Malformed(f"a label twice: {series[:200]}")
    return (name, *sorted(found)), kind in ("counter", "histogram")
