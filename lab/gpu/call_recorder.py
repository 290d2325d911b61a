"""Makes one NVML call to get its return code and value, repeats it to measure its latency, and prints the
result as one JSON line, which contains nothing that identifies the machine."""

import ctypes
import json
import os
import time
from ctypes import byref, c_int, c_uint, c_void_p

import nvml_abi as abi

CHEAP = 200
DEAR = 10
ROOM = 1024


class Out:
    """An output argument that NVML fills: a new `kind` for each call, prepared by `setup`."""

    def __init__(self, kind, **setup):
        self.kind = kind
        self.setup = setup


class Text:
    """A char buffer and, unless `bare`, its length."""

    def __init__(self, length=96, bare=False, secret=None):
        self.length, self.bare, self.secret = length, bare, secret


class Rows:
    """An in/out count and an array of `kind`, as in NVML's lists. If `room` is 0, the
    call requests the required count with a NULL array."""

    def __init__(self, kind, room=ROOM):
        self.kind, self.room = kind, room


class Fresh:
    """The arguments of one call, with the functions that reset and read them."""

    def __init__(self, specs):
        self.args, self.reads, self.counts = [], [], []
        for spec in specs:
            if isinstance(spec, Out):
                cell = spec.kind(**spec.setup)
                self.args.append(byref(cell))
                self.reads.append(lambda cell=cell: plain(cell))
            elif isinstance(spec, Text):
                cell = ctypes.create_string_buffer(spec.length)
                self.args.append(cell)
                if not spec.bare:
                    self.args.append(c_uint(spec.length))
                self.reads.append(lambda c=cell, s=spec.secret: s or c.value.decode("utf-8", "replace"))
            elif isinstance(spec, Rows):
                count = c_uint(spec.room)
                rows = (spec.kind * spec.room)() if spec.room else None
                self.args += [byref(count), rows]
                self.counts.append((count, spec.room))
                self.reads.append(lambda c=count, r=rows: {"count": c.value, "rows": listed(r, c.value)})
            else:
                self.args.append(spec)

    def reset(self):
        for count, room in self.counts:
            count.value = room

    def needed(self):
        """The required count, after a call that returned INSUFFICIENT_SIZE; None for a call without a count."""
        return {"count": self.counts[0][0].value} if self.counts else None

    def value(self):
        values = [read() for read in self.reads]
        return values[0] if len(values) == 1 else values or None


def plain(cell):
    if isinstance(cell, abi.FieldValue):
        return {"field": cell.fieldId, "code": abi.return_name(cell.nvmlReturn), "value": cell.number()}
    if isinstance(cell, ctypes.Structure):
        shown = abi.fields(cell)
        shown.pop("version", None)
        return shown
    if isinstance(cell, ctypes.Array):
        return list(cell)
    if isinstance(cell, c_void_p):
        return "<handle>" if cell.value else None
    return cell.value


def listed(rows, count):
    if rows is None:
        return None
    return [abi.fields(row) if isinstance(row, ctypes.Structure) else row for row in rows[: min(count, 64)]]


def percentiles(samples):
    """p50 and p99 in microseconds of samples in nanoseconds."""
    ordered = sorted(samples)
    return [round(ordered[min(len(ordered) - 1, int(len(ordered) * share))] / 1000, 2) for share in (0.5, 0.99)]


class Recorder:
    def __init__(self, order):
        self.lib, self.place = abi.open_library(order["nvml"])
        self.children = {pid: f"child {n}" for n, pid in enumerate(order["pids"])}
        self.skip = set(order["skip"])

    @staticmethod
    def say(**message):
        print(json.dumps(message), flush=True)

    def quiet(self, symbol, *args):
        """Make a call that other calls depend on, and return its code, or None for a missing symbol."""
        function = getattr(self.lib, symbol, None)
        return None if function is None else function(*args)

    def owner(self, pid):
        """The form of a pid in the recording: `self`, the number of the child, or `other`."""
        return "self" if pid == os.getpid() else self.children.get(pid, "other")

    def veiled(self, value):
        """The value with everything removed that identifies this machine."""
        if isinstance(value, dict):
            return {key: self.veiled_field(key, item) for key, item in value.items()}
        if isinstance(value, list):
            return [self.veiled(item) for item in value]
        return value

    def veiled_field(self, key, item):
        if key == "pid":
            return self.owner(item)
        if key in ("busId", "busIdLegacy", "bus", "domain", "device"):
            return f"<{key}>"
        return self.veiled(item)

    def call(self, name, *specs, repeat=CHEAP, symbol=None):
        """Record one call. `name` is the symbol, or `symbol/variant` for other arguments."""
        if name in self.skip:
            return
        self.say(begin=name)
        function = getattr(self.lib, symbol or name.split("/")[0], None)
        if function is None:
            self.say(name=name, code="SYMBOL_NOT_FOUND")
            return
        function.restype = c_int
        fresh = Fresh(specs)
        code = function(*fresh.args)
        value = self.veiled(fresh.value()) if code == 0 else fresh.needed() if code == 7 else None
        samples = []
        for _ in range(repeat):
            fresh.reset()
            begun = time.perf_counter_ns()
            function(*fresh.args)
            samples.append(time.perf_counter_ns() - begun)
        self.say(name=name, code=abi.return_name(code), value=value, latency_us=percentiles(samples) if samples else None)

    def section(self, name, work):
        """Record a part whose structure differs from that of a call; if it fails, the failure is recorded as its value."""
        if name in self.skip:
            return
        self.say(begin=name)
        try:
            value = work()
        except Exception as error:  # the rest must be recorded even after an error
            value = {"problem": type(error).__name__}
        self.say(name=name, section=name, value=value)
