"""What the benchmark reads from any program's exposition in Prometheus' text format."""

import re

SAMPLE = re.compile(r"^([a-zA-Z_:][a-zA-Z0-9_:]*)(\{.*\})?\s+(\S+)(?:\s+-?\d+)?$")
PID = re.compile(r'[{,]pid="(\d+)"')
UNITS = (("bytes", 1), ("kib", 1 << 10), ("mib", 1 << 20), ("gib", 1 << 30))
# Host memory of the machine or of a process, and sums that only grow, are not GPU memory.
OTHERS = re.compile(r"host|system|swap|cgroup|node_|disk|resident|virtual|_total$|grown|shrunk|_pss|_uss|_rss")


def samples(text):
    """(name, labels, value) of each line."""
    for line in text.splitlines():
        if line and line[0] != "#" and (found := SAMPLE.match(line)):
            yield found.group(1), found.group(2) or "", float(found.group(3))


def count(text):
    """Number of series."""
    return sum(1 for line in text.splitlines() if line and line[0] != "#")


def shown(text, family):
    """Number of series of one family; `family` is the whole name."""
    return sum(1 for line in text.splitlines() if line.startswith((family + "{", family + " ")))


def pids(text):
    """Number of processes that are shown with their pid."""
    return len(set(PID.findall(text)))


def unit(name):
    """The number of bytes that the value 1 represents in this family; None if its name contains no unit."""
    words = name.lower().split("_")
    return next((size for word, size in UNITS if word in words), None)


def gpu_memory(text):
    """Bytes by series, for every family that shows the memory of GPUs or of processes on them."""
    found = {}
    for name, labels, value in samples(text):
        low = name.lower()
        if ("memory" in low or "vram" in low) and not OTHERS.search(low) and (size := unit(name)):
            found[name + labels] = value * size
    return found
