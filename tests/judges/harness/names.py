"""Families and labels: those that the exporter documents, and those that an expression uses; and the shipped rules. Needs PyYAML.

Invariant: a word in an expression that is neither a word of PromQL nor a label is treated as a metric family, so that a misspelt family
is found.
"""

import re
from dataclasses import dataclass

import yaml

from harness import ROOT

RULES = ROOT / "deploy/prometheus/rules"
WORDS = {"and", "or", "unless", "on", "ignoring", "by", "without", "group_left", "group_right", "bool", "offset"}
NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"


@dataclass
class Used:
    metrics: set
    labels: set


def rule_groups():
    """The groups of the shipped rules."""
    return [group for path in sorted(RULES.glob("*.yml")) for group in yaml.safe_load(path.read_text())["groups"]]


def documented():
    """Families and labels in docs/metrics.md; for a histogram, the names of its three series are included."""
    families, labels = set(), set()
    for line in (ROOT / "docs/metrics.md").read_text().splitlines():
        row = re.match(r"\| `(\w+)` \| ([\w ()]+) \| ([`\w ]*) \|", line)
        if not row:
            continue
        families.add(row[1])
        if row[2] == "histogram":
            families |= {f"{row[1]}{suffix}" for suffix in ("_bucket", "_sum", "_count")}
        labels |= set(re.findall(r"`(\w+)`", row[3]))
    return families, labels


def used(expression):
    """The names that the PromQL expression reads. Strings, numbers and durations are ignored."""
    labels = set()
    text = re.sub(r"#.*", "", expression)
    text = re.sub(r'"(?:[^"\\]|\\.)*"', '""', text)
    for braces in re.findall(r"\{([^}]*)\}", text):
        labels |= set(re.findall(rf"({NAME})\s*[=!]", braces))
    text = re.sub(r"\{[^}]*\}|\[[^\]]*\]", " ", text)
    lists = r"\b(?:on|ignoring|by|without|group_left|group_right)\s*\(([^)]*)\)"
    for names in re.findall(lists, text):
        labels |= set(re.findall(NAME, names))
    text = re.sub(lists, " ", text)
    text = re.sub(r"\boffset\s+\w+", " ", text)
    text = re.sub(rf"{NAME}\s*\(", "(", text)
    # The parameter of an aggregation follows its list of labels.
    metrics = set(re.findall(rf"(?<![\w.]){NAME}", text)) - WORDS
    aggregations = {"sum", "max", "min", "avg", "count", "group", "topk", "bottomk", "quantile"}
    return Used(metrics - aggregations, labels)


def used_in_markdown(path):
    """The families named in the code spans of a page: every word that begins with a prefix of the exporter's families. Strings are ignored,
    because they are values of labels."""
    code = [re.sub(r'"[^"]*"', '""', text) for text in re.findall(r"`([^`]+)`", path.read_text())]
    return {
        name
        for text in code
        for name in re.findall(rf"(?<![\w:.])(?:(?:{NAME}:)|gpu_|vram_exporter_|nvidia_driver_){NAME}", text)
        if not name.endswith(("_", ":"))
    }
