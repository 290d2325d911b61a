"""Shows in a second that the fleet's checks can fail: changed texts, changed answers, lost samples, and queries that differ.

    self_test.py"""

import math
import re
import struct
import sys

import answers
import backfill
import compare
import equality
import live
import queries
import readers
import replicas
import tables
import yaml
from machine import Machine, Owners, Plan
from template import Template

import dashboards

START = 1_700_000_000
TEXT = """# HELP gpu_up Whether it answers.
# TYPE gpu_up gauge
gpu_up{{gpu="0",uuid="GPU-1"}} 1
# TYPE gpu_work_total counter
gpu_work_total{{gpu="0",uuid="GPU-1"}} {count}
# TYPE gpu_process_info gauge
gpu_process_info{{gpu="0",uuid="GPU-1",pid="41",process="a \\"b\\""}} 1
"""
RECORDING = {"every": 15, "epoch": START, "frames": [TEXT.format(count=count) for count in (5, 7, 8)], "dcgm": [], "down": None}


def machine(at):
    template = Template(RECORDING)
    return Machine(at, template, Plan(), Owners(template))


def texts():
    """Machine 0 is the recording, another machine is it with other identities, and a change of anything else is found."""
    recorded = RECORDING["frames"][1]
    assert machine(0).text(15, START) == recorded
    other = machine(3).text(15, START)
    assert "GPU-1" not in other and 'pid="41"' not in other, other
    assert not list(equality.differences(recorded, other))
    for old, new in ((" 7", " 6"), ('gpu="0"', 'gpu="1"'), ("gpu_up{", "gpu_down{"), ("# TYPE gpu_up gauge\n", "")):
        assert old in other and list(equality.differences(recorded, other.replace(old, new, 1))), (old, new)
    assert equality.own_names(recorded) and not equality.own_names(recorded) & equality.own_names(other)


def fields(content):
    """(number, value) of each field of a protobuf message."""
    at = 0

    def varint():
        nonlocal at
        found = shift = 0
        while True:
            byte, at = content[at], at + 1
            found |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return found

    while at < len(content):
        key = varint()
        if key & 7 == 2:
            size = varint()
            yield key >> 3, content[at : at + size]
            at += size
        elif key & 7 == 1:
            yield key >> 3, struct.unpack("<d", content[at : at + 8])[0]
            at += 8
        else:
            yield key >> 3, varint()


def unpacked(body):
    """The content of a snappy block that has only literals."""
    size, at = 0, 0
    while body[at] > 127:
        at += 1
    for shift, byte in enumerate(body[: at + 1]):
        size |= (byte & 127) << 7 * shift
    out, at = b"", at + 1
    while at < len(body):
        assert body[at] == 0xF8
        length = int.from_bytes(body[at + 1 : at + 4], "little") + 1
        out += body[at + 4 : at + 4 + length]
        at += 4 + length
    assert len(out) == size
    return out


def writes():
    """What is written is what was recorded: names, labels, values that go on rising, and times."""
    past = backfill.Past({"x": RECORDING}, [("x", 1)], 1, START, wanted=lambda name: name != "up")
    found = {}
    for body in past.requests(START, START + 90):
        for _, series in fields(unpacked(body)):
            parts = [(number, dict(fields(one))) for number, one in fields(series)]
            labels = {one[1].decode(): one[2].decode() for number, one in parts if number == 1}
            found[labels.pop("__name__")] = labels, [(one[2], one[1]) for number, one in parts if number == 2]
    assert list(found) == ["gpu_up", "gpu_work_total", "gpu_process_info"], list(found)
    labels, samples = found["gpu_work_total"]
    assert labels == {"gpu": "0", "uuid": "GPU-1", "job": "vram-exporter", "instance": "node-00000"}, labels
    # In each round, the counter rises by 3 in two steps, and by as much as one of them before the next round.
    assert samples == [((START + 15 * n) * 1000, value) for n, value in enumerate([5, 7, 8, 9.5, 11.5, 12.5])], samples
    assert found["gpu_process_info"][0]["process"] == 'a "b"'
    # A series that is absent for two moments has one stale marker.
    for rises, risen in (([0, 0, 0], 3.0), ([1, 0, 0], 4.0)):
        body = backfill.Series(b"", [3.0, None, None], rises).samples([(n // 3, n % 3, backfill.varint(START * 1000)) for n in range(4)])
        values = [dict(fields(one))[1] for _, one in fields(body)]
        assert values[0] == 3.0 and math.isnan(values[1]) and values[2:] == [risen], values


def vector(*pairs):
    return [{"metric": {"gpu": gpu}, "values": [[1, str(value)], [2, "7"]]} for gpu, value in pairs]


def comparisons():
    """Each way in which answers differ is found."""
    same = vector(("0", 5), ("1", 6))
    assert answers.compared(same, list(reversed(same))).equal
    assert answers.compared(same, same[:1]).missing == 1
    assert answers.compared(same[:1], same).surplus == 1
    assert not answers.compared(same, vector(("0", 5), ("1", 6.001))).equal
    short = [same[0], {"metric": {"gpu": "1"}, "values": [[1, "6"]]}]
    assert answers.compared(same, short).moments == 1
    assert answers.compared(vector(("0", "NaN")), vector(("0", "NaN"))).equal
    assert not answers.compared(vector(("0", "NaN")), vector(("0", "1"))).equal
    try:
        answers.compared(same, [same[0], same[0]])
    except ValueError:
        return
    raise AssertionError("the same series twice is not found")


def causes():
    assert compare.without_ties("topk(10, a) + topk by (x) (1, b)") == "topk(100000, a) + topk by (x) (1, b)"
    assert compare.without_extrapolation("delta(a[10m])") == "(a - a offset 600s)"
    assert compare.known_at_start("max(delta(a[10m]))") == "max((delta(a[10m]) and a offset 10m))"
    changed = compare.without_extrapolation('rate(a_total{x="[5m]"}[5m]) > increase(b[1h])')
    assert changed == '((a_total{x="[5m]"} - a_total{x="[5m]"} offset 300s) / 300) > (b - b offset 3600s)', changed
    # Each range of the rules and dashboards is a multiple of the time between scrapes, or the form would differ in itself.
    for query in compare.questions([3600]):
        for found in compare.RATE.finditer(query.expression):
            assert compare.engines.seconds(found[3] + found[4]) % queries.SCRAPE == 0, found[0]


def profiles():
    known = readers.readers()
    assert {"alerts", "fleet"} <= known["gpu_up"], known["gpu_up"]
    assert "gpu_work_total" not in known
    lines = list(readers.table(RECORDING["frames"][0]))
    assert "| `gpu_work_total` | GPU | 1 | 39 | **none** | - |" in lines, lines
    assert any(line.startswith("| `gpu_process_info` | process | 1 |") and line.endswith("| each process |") for line in lines), lines
    assert lines[-1] == "read by no shipped rule or dashboard: 1 series of 1 families", lines[-1]
    assert live.unread({"b", "a"})[0]["regex"] == "a|b"


def dropped():
    """What docs/fleet.md drops in the scrape job is read by the GPU dashboard at most."""
    page = (compare.engines.ROOT / "docs/fleet.md").read_text()
    [block] = re.findall(r"```yaml\n(\s+metric_relabel_configs:.*?)```", page, re.S)
    [rule] = yaml.safe_load(block)["metric_relabel_configs"]
    known = readers.readers()
    found = [name for name in dashboards.known_families() if re.fullmatch(rule["regex"], name)]
    assert len(found) > 20 and rule["action"] == "drop", found
    for name in found:
        assert known.get(name, set()) <= {"gpu"}, (name, known[name])


def kept():
    """The server for the past has what the panels for right-sizing read, but for the raw peaks, instead of which they take the hourly ones."""
    keep = replicas.CONFIGURATION["remote_write"][0]["write_relabel_configs"][0]["regex"]
    page = dashboards.read()["workloads.json"]
    panels = [panel for panel in dashboards.panels(page) if panel["title"].startswith("Right-sizing")]
    read = {name for panel in panels for target in panel["targets"] for name in dashboards.families(target["expr"])}
    assert len(read) > 5 and any(name.endswith(":max1h") for name in read), read
    missing = {name for name in read if not re.fullmatch(keep, name)}
    assert all(f":{name}:max1h" in " ".join(read) for name in missing), missing


def lines():
    assert tables.line([(10, 25), (20, 45), (30, 65)]) == (5, 2)
    assert tables.at([(10, 20)], 1000) == 2000
    assert tables.opened_at("fleet", [(10, 2), (30, 4)], 100) == 11 and tables.opened_at("gpu", [(10, 2), (30, 4)], 100) == 4
    assert tables.quantile(list(range(100)), 0.95) == 95


def main():
    for check in (texts, writes, comparisons, causes, profiles, dropped, kept, lines):
        check()
        print(f"{check.__name__}: ok")
    return 0


if __name__ == "__main__":
    sys.exit(main())
