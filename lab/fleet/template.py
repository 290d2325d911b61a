"""Splits recorded texts into pieces once, so that the text of any machine of the fleet is a join of these pieces.

Each line is a name, its labels and a value. Labels are replaced as a whole: a set of labels that occurs in many lines is rewritten once for
each machine. A value is constant within a moment of the recording; what changes it are times (shifted to the time of playback) and, when
the recording starts over, counters (they continue where they were). Invariant: rendered with the recorded labels at its own time, a moment
is exactly the recorded text.
"""

import re
from decimal import Decimal

LINE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(\{.*\})? (\S+)")
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')
# Values that are a point in time.
TIME = re.compile(r"_time_seconds$|_timestamp_seconds$")
# Families whose series stay for a while after their process or workload has ended.
STAYING = re.compile(r"gpu_process_memory_(window_)?peak_bytes|gpu_process_info|gpu_workload_memory_(window_)?peak_bytes")


def labels_of(text):
    return tuple(LABEL.findall(text or ""))


def lines_of(text):
    """(name, text of the labels, value) of each sample; None for comments, with the line."""
    for line in text.splitlines():
        found = LINE.fullmatch(line) if not line.startswith("#") else None
        if not found and not line.startswith("#"):
            raise ValueError(f"not a line of the text format: {line!r}")
        yield line, found.groups() if found else None


def types_of(text):
    return dict(line.split(" ", 3)[2:4] for line in text.splitlines() if line.startswith("# TYPE "))


def counters_of(text):
    """The names of samples that only rise while the exporter runs."""
    for family, kind in types_of(text).items():
        if kind == "counter":
            yield family
        elif kind == "histogram":
            yield from (family + end for end in ("_bucket", "_sum", "_count"))


def rises(frames):
    """By how much each counter rises in one round of the recording, by name and labels, if it rises."""
    names = set(counters_of(frames[0]))
    first, last = {}, {}
    for text in frames:
        for _, sample in lines_of(text):
            if sample and sample[0] in names:
                key, value = sample[:2], Decimal(sample[2])
                first.setdefault(key, value)
                last[key] = value
    step = Decimal(len(frames)) / max(1, len(frames) - 1)
    return {key: (last[key] - first[key]) * step for key in first if last[key] > first[key]}


class Frame:
    """One moment: `pieces` alternates between constant text and an index into the texts that belong to one machine."""

    def __init__(self, template, text):
        self.pieces, self.at, self.values = [], [], []
        # By the index of the piece behind which the series of what has ended are inserted: (name, labels, value).
        self.staying = {}
        constant, kept = "", []
        for line, sample in lines_of(text):
            if not sample:
                if kept and line.startswith("# HELP"):
                    constant = self.end_of_family(constant, kept)
                    kept = []
                constant += line + "\n"
                continue
            name, labels, value = sample
            constant += name
            if labels:
                self.slot(constant, template.label(labels))
                constant = ""
            constant += " "
            rise = template.rises.get((name, labels))
            if rise or TIME.search(name):
                self.slot(constant, ~len(self.values))
                self.values.append((value, rise, labels and template.label(labels)))
                constant = ""
            else:
                constant += value
            constant += "\n"
            if STAYING.fullmatch(name) and labels:
                kept.append((name, template.label(labels), value))
        if kept:
            constant = self.end_of_family(constant, kept)
        self.pieces.append(constant)

    def slot(self, constant, index):
        self.pieces += [constant, ""]
        self.at.append(index)

    def end_of_family(self, constant, kept):
        self.slot(constant, None)
        self.staying[len(self.at) - 1] = kept
        return ""


class Template:
    """A recording of one shape, prepared: `labels` holds every set of labels that occurs in it."""

    def __init__(self, recording, kind="frames"):
        self.every = recording["every"]
        self.epoch = recording["epoch"]
        self.texts, self.labels, self.indices = [], [], {}
        frames = recording[kind]
        self.rises = rises(frames)
        self.frames = [Frame(self, text) for text in frames]
        # Without a listener of its own for the time without driver, dcgm-exporter's families are absent then.
        down = recording["down"] if kind == "frames" else None
        self.down = Frame(self, down) if down else None

    def label(self, text):
        if text not in self.indices:
            self.indices[text] = len(self.labels)
            self.labels.append(labels_of(text))
            self.texts.append(text)
        return self.indices[text]
