"""Writes hours or weeks of the fleet into a server that accepts Prometheus' remote write, as fast as the server takes it.

Every machine repeats its recording: gauges take the recorded values in turn, and counters rise by the recorded amount in each round.
Invariant: all servers that are given the same arguments get the same samples, each series in the order of time.
"""

import dataclasses
import re
import struct

import record
from harness import get
from machine import Machine, Owners, Plan
from template import Template, labels_of, lines_of

# Prometheus refuses samples that are older than its newest one by more than an hour.
PIECE = 1800
# Series in one request.
BATCH = 2000
JOB = "vram-exporter"


def varint(number):
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def field(number, content):
    """A field of a protobuf message that has a length."""
    return varint(number << 3 | 2) + varint(len(content)) + content


def block(content):
    """A snappy block that stores its content uncompressed."""
    out = [varint(len(content))]
    for at in range(0, len(content), 1 << 24):
        piece = content[at : at + (1 << 24)]
        out += [b"\xf8", (len(piece) - 1).to_bytes(3, "little"), piece]
    return b"".join(out)


def post(url, body, timeout=120):
    headers = {
        "Content-Encoding": "snappy",
        "Content-Type": "application/x-protobuf",
        "X-Prometheus-Remote-Write-Version": "0.1.0",
    }
    get(url, method="POST", body=body, headers=headers, timeout=timeout)


ESCAPED = re.compile(r'\\(["\\n])')


def encoded_labels(name, labels):
    plain = {label: ESCAPED.sub(lambda m: "\n" if m[1] == "n" else m[1], value) for label, value in labels.items() if value}
    pairs = sorted({**plain, "__name__": name}.items())
    return b"".join(field(1, field(1, label.encode()) + field(2, value.encode())) for label, value in pairs)


@dataclasses.dataclass
class Series:
    """The labels as in a request; the value at each moment of the recording (None: absent) and how much it rises in each round."""

    labels: bytes
    values: list
    rises: list

    def absent(self, at):
        """A sample without its time: a stale marker, as Prometheus writes it, at the first moment of an absence; empty after it."""
        return b"" if self.values[at - 1] is None else b"\x12\x10\x09" + STALE + b"\x10"

    def samples(self, moments):
        """`moments` as (round, moment of the recording, time as in a request)."""
        values, rises, pack = self.values, self.rises, struct.Struct("<3sds").pack
        plain = [self.absent(at) if value is None else pack(b"\x12\x10\x09", value, b"\x10") for at, value in enumerate(values)]
        if any(rises):
            found = (
                (plain[at] if values[at] is None else pack(b"\x12\x10\x09", values[at] + turn * rises[at], b"\x10"), stamp)
                for turn, at, stamp in moments
            )
        else:
            found = ((plain[at], stamp) for _, at, stamp in moments)
        return b"".join([sample + stamp for sample, stamp in found if sample])


SAMPLE = struct.Struct("<3sd1s6s")
# The not-a-number by which Prometheus marks that a series has ended.
STALE = struct.pack("<Q", 0x7FF0000000000002)


def series_of(machine, instance, start, wanted, extra):
    """The series of a machine. `wanted` tells by its name whether a family is written."""
    template = machine.template
    count, found = len(template.frames), {}
    for turn in range(2):
        for at in range(count):
            for _, sample in lines_of(machine.text((turn * count + at + 0.5) * template.every, start)):
                if sample and wanted(sample[0]):
                    values = found.setdefault(sample[:2], [[None] * count, [None] * count])
                    values[turn][at] = float(sample[2])
    for (name, labels), (first, second) in found.items():
        rises = [b - a if a is not None and b is not None else 0 for a, b in zip(first, second)]
        yield Series(encoded_labels(name, dict(labels_of(labels)) | extra | {"job": JOB, "instance": instance}), first, rises)
    if wanted("up"):
        yield Series(encoded_labels("up", extra | {"job": JOB, "instance": instance}), [1.0] * count, [0] * count)


class Past:
    """All series of the fleet. Machine N begins N moments later in its recording, so that not all of them do the same at once."""

    def __init__(self, recordings, mix, machines, start, wanted=lambda name: True, extra=None):
        turns = [shape for shape, weight in mix for _ in range(weight)]
        prepared = {shape: Template(recordings[shape]) for shape in dict.fromkeys(turns)}
        owners = {shape: Owners(template) for shape, template in prepared.items()}
        self.every = int(next(iter(prepared.values())).every)
        self.machines = []
        for at in range(machines):
            shape = turns[at % len(turns)]
            machine = Machine(at, prepared[shape], Plan(), owners[shape])
            series = list(series_of(machine, f"node-{at:05}", start, wanted, extra or {}))
            self.machines.append((at, len(machine.template.frames), series))

    @property
    def series(self):
        return sum(len(series) for _, _, series in self.machines)

    def requests(self, begin, end):
        """The bodies for the time from `begin` to before `end`, in the order in which they must be sent."""
        for piece in range(begin, end, PIECE):
            times = range(piece, min(piece + PIECE, end), self.every)
            stamps = [varint(t * 1000) for t in times]
            for at, count, series in self.machines:
                steps = [(t - begin) // self.every + at for t in times]
                moments = [(step // count, step % count, stamp) for step, stamp in zip(steps, stamps)]
                for first in range(0, len(series), BATCH):
                    batch = ((one.labels, one.samples(moments)) for one in series[first : first + BATCH])
                    yield block(b"".join(field(1, labels + samples) for labels, samples in batch if samples))

    def write(self, urls, begin, end):
        for body in self.requests(begin, end):
            for url in urls:
                post(url, body)


def evaluated(api, expression, name, labels, times, step):
    """The results of a recording rule at `times` (first, last) as series of one sample each per step."""
    for one in api.ask("query_range", query=expression, start=times[0], end=times[1], step=step)["result"]:
        found = {label: value for label, value in one["metric"].items() if label != "__name__"} | labels
        encoded = b"".join(field(1, field(1, k.encode()) + field(2, v.encode())) for k, v in sorted({**found, "__name__": name}.items()))
        stamps = ((float(value), varint(round(float(t) * 1000))) for t, value in one["values"])
        yield encoded + b"".join(SAMPLE.pack(b"\x12\x10\x09", value, b"\x10", stamp) for value, stamp in stamps)


def write_rules(api, urls, rules, begin, end, step):
    """Evaluates recording rules with `api` in the given order, and writes their results; each rule sees the results of those before.
    The server must accept samples that are out of order."""
    for rule in rules:
        found = evaluated(api, rule["expr"], rule["record"], rule.get("labels", {}), (begin, end), step)
        body = block(b"".join(field(1, one) for one in found))
        for url in urls:
            post(url, body)


def past(folder, mix, machines, start, **more):
    recordings = {shape: record.read(folder / f"{shape}.json.gz") for shape, _ in mix}
    return Past(recordings, mix, machines, start, **more)
