"""A made history of one machine: what its exporter would have exported at each scrape, as series in promtool's notation.

Invariant: every family and label is one that docs/metrics.md lists (Machine.series checks it), and all figures of one moment follow from the
memory that the processes hold at that moment: used, free, the window peak, the counters and the allocators' reports cannot contradict each
other.

Time is in seconds since the history began. The memory is computed every FINE seconds, so that a window peak, the time under pressure and the sums
of rises and falls include what happens between two scrapes.
"""

import re
from dataclasses import dataclass, field

from harness import names

GIB = 2**30
FINE = 5
PEAK_WINDOW = 60
RATIOS = (0.85, 0.9)
MIG_LABELS = 'gpu_instance="1",compute_instance="0",profile="3g.40gb"'


XID_CLASSES = ("hardware", "memory", "application", "unknown")
XIDS = re.findall(r"^\| ([\d, ]+) \| (\w+) \|", (names.ROOT / "docs/runbook.md").read_text(), re.M)


def xid_class(xid):
    """The class of a code, as the tables of the runbook say; a test compares them with the exporter's own table."""
    return next((name for codes, name in XIDS if str(xid) in codes.split(", ")), "unknown")


@dataclass
class Process:
    """`used` and `allocated` return bytes at a time. A process with `allocated` runs the client."""

    name: str
    start: float
    end: float
    used: object
    allocated: object = None
    workload: str = "user:ada"

    def alive(self, time):
        return self.start <= time < self.end


@dataclass
class Gpu:
    """A GPU, or with `mig` a GPU with one MIG device, which has the processes."""

    total: int
    processes: list = field(default_factory=list)
    mig: bool = False
    index: int = 0
    uuid: str = "GPU-a"
    listed: tuple = (0, 1e9)
    lost: float = 1e9
    xids: list = field(default_factory=list)
    ecc: list = field(default_factory=list)
    incidents: list = field(default_factory=list)
    out_of_memory: list = field(default_factory=list)

    @property
    def reserved(self):
        return 0 if self.mig else int(self.total * 0.006)

    @property
    def allocatable(self):
        return self.total - self.reserved

    def used(self, time):
        return min(self.allocatable, sum(int(p.used(time)) for p in self.processes if p.alive(time)))


@dataclass
class Machine:
    """`down` are the periods in which no scrape succeeds; the exporter restarts at the end of each. `driver_lost` is the time from which NVML
    cannot be opened, `stuck` that from which the process lane hangs, and `gone` that from which nothing tries to scrape."""

    name: str
    scrape: int
    length: int
    gpus: list
    down: list = field(default_factory=list)
    driver_lost: float = 1e9
    stuck: float = 1e9
    gone: float = 1e9
    targets: tuple = ('job="vram-exporter"',)

    def times(self):
        return range(0, self.length + 1, self.scrape)

    def is_down(self, time):
        return time >= self.gone or any(begin <= time < end for begin, end in self.down)

    def began(self, time):
        """When the exporter that answers at this time started."""
        return max([-86400.0] + [end for _, end in self.down if end <= time])

    def series(self):
        families, labels = names.documented()
        for series, values in self.exported():
            used = names.used(series)
            unknown = (used.metrics - families - {"up"}) | (used.labels - labels - {"job", "instance", "prometheus_replica"})
            if unknown:
                raise ValueError(f"the exporter does not export {sorted(unknown)}: {series}")
            yield {"series": series, "values": notation(values)}

    def exported(self):
        found = {}
        for gpu in self.gpus:
            self.export(gpu, found)
        for time in self.times():
            if not self.is_down(time):
                self.put(found, "vram_exporter_nvml_up", "", time, 0 if time >= self.driver_lost else 1)
                self.put(found, "vram_exporter_host_pid_namespace", "", time, 1)
                self.put(found, "vram_exporter_peak_window_seconds", "", time, PEAK_WINDOW)
                self.put(found, "process_start_time_seconds", "", time, self.began(time))
            if time < self.gone:
                self.put(found, "up", "", time, 0 if self.is_down(time) else 1)
        for target in self.targets:
            for (family, labels), values in found.items():
                parts = ",".join(part for part in (target, f'instance="{self.name}"', labels) if part)
                yield f"{family}{{{parts}}}", values

    def put(self, found, family, labels, time, value):
        values = found.setdefault((family, labels), [None] * len(self.times()))
        values[time // self.scrape] = value

    def export(self, gpu, found):
        own = f'gpu="{gpu.index}",uuid="{gpu.uuid}"'
        mig = f'{own},mig_uuid="MIG-{gpu.uuid}"'
        device, family = (f"{mig},{MIG_LABELS}", "gpu_mig_memory") if gpu.mig else (own, "gpu_memory")
        counters = Counters(gpu)
        for time in self.times():
            counters.run(time, self.began(time))
            if self.is_down(time) or time >= self.driver_lost or not gpu.listed[0] <= time < gpu.listed[1]:
                continue

            def put(name, labels, value):
                self.put(found, name, labels, time, value)

            lost = time >= gpu.lost
            put("gpu_up", own, 0 if lost else 1)
            for lane, since in (("memory", gpu.lost), ("process", min(gpu.lost, self.stuck)), ("telemetry", gpu.lost)):
                put("vram_exporter_sample_age_seconds", f'{own},lane="{lane}"', max(0, time - since) + 1)
            happened = {xid: [t for t in times if self.began(time) <= t <= time] for xid, times in gpu.xids}
            for xid, times in happened.items():
                if times:
                    put("gpu_xid_errors_total", f'{own},xid="{xid}"', len(times))
            for name in XID_CLASSES:
                count = sum(len(times) for xid, times in happened.items() if xid_class(xid) == name)
                put("gpu_xid_class_errors_total", f'{own},class="{name}"', count)
            for kind, times in gpu.incidents:
                past = [t for t in times if self.began(time) <= t <= time]
                if past:
                    where = device if gpu.mig else own
                    put("gpu_memory_last_incident_timestamp_seconds", f'{where},kind="{kind}"', max(past))
            if lost:
                continue
            used = gpu.used(time)
            for name, value in (
                ("total_bytes", gpu.total),
                ("reserved_bytes", gpu.reserved),
                ("used_bytes", used),
                ("free_bytes", gpu.allocatable - used),
                ("window_peak_bytes", max(counters.recent)),
                ("unattributed_bytes", 0),
            ):
                put(f"{family}_{name}", device, value)
            if gpu.mig:
                put("gpu_memory_total_bytes", own, gpu.total * 2)
                put("gpu_memory_used_bytes", own, used)
            else:
                put("gpu_memory_increase_bytes_total", own, counters.rise)
                put("gpu_memory_decrease_bytes_total", own, counters.fall)
            for ratio, seconds in counters.pressure.items():
                put(f"{family}_pressure_seconds_total", f'{device},ratio="{ratio}"', seconds)
            put("gpu_ecc_errors_total", f'{own},type="uncorrected"', sum(t <= time for t in gpu.ecc))
            if time < self.stuck:
                self.export_processes(gpu, mig if gpu.mig else own, time, put)

    def export_processes(self, gpu, device, time, put):
        workloads, slack = {}, None
        for number, process in enumerate(gpu.processes):
            if not process.alive(time):
                continue
            held = min(int(process.used(time)), gpu.allocatable)
            pid = f'{device},pid="{1000 + number}",process="{process.name}"'
            kind = f'workload="{process.workload}",kind="user"'
            put("gpu_process_memory_used_bytes", f'{pid},type="compute"', held)
            put("gpu_process_start_time_seconds", f'{pid},type="compute"', process.start)
            put("gpu_process_info", f'{pid},user="{process.workload.rpartition(":")[2]}",{kind}', 1)
            bytes_held, count = workloads.get(kind, (0, 0))
            workloads[kind] = (bytes_held + held, count + 1)
            if process.allocated:
                framework = f'{pid},type="compute",framework="pytorch"'
                allocated, outside = min(int(process.allocated(time)), held), min(held, GIB // 2)
                reserved = held - outside
                allocated = min(allocated, reserved)
                put("gpu_process_allocator_allocated_bytes", framework, allocated)
                put("gpu_process_allocator_reserved_bytes", framework, reserved)
                put("gpu_process_allocator_window_peak_bytes", framework, allocated)
                put("gpu_process_memory_outside_allocator_bytes", f'{pid},type="compute"', outside)
                put("gpu_process_allocator_out_of_memory_total", framework, sum(process.start <= t <= time for t in gpu.out_of_memory))
                slack = (slack or 0) + reserved - allocated
        for kind, (held, count) in workloads.items():
            put("gpu_workload_memory_used_bytes", f"{device},{kind}", held)
            put("gpu_workload_memory_window_peak_bytes", f"{device},{kind}", held)
            put("gpu_workload_processes", f"{device},{kind}", count)
        if slack is not None and not gpu.mig:
            put("gpu_memory_needed_bytes", device, gpu.used(time) - slack)


class Counters:
    """What the exporter's memory lane adds up between two scrapes."""

    def __init__(self, gpu):
        self.gpu, self.now, self.before, self.began = gpu, -FINE, None, None
        self.recent, self.rise, self.fall, self.pressure = [], 0, 0, dict.fromkeys(RATIOS, 0)

    def run(self, until, began):
        if began != self.began:
            self.began, self.before = began, None
            self.recent, self.rise, self.fall, self.pressure = [], 0, 0, dict.fromkeys(RATIOS, 0)
        while self.now + FINE <= until:
            self.now += FINE
            used = self.gpu.used(self.now)
            if self.now < began:
                continue
            change = used - (used if self.before is None else self.before)
            self.rise, self.fall = self.rise + max(change, 0), self.fall + max(-change, 0)
            self.recent = [*self.recent, used][-PEAK_WINDOW // FINE :]
            for ratio in RATIOS:
                self.pressure[ratio] += FINE if used >= ratio * self.gpu.allocatable else 0
            self.before = used
        if not self.recent:
            self.recent = [self.gpu.used(until)]


def notation(values):
    """promtool's notation for the values; runs of one value are written once."""
    parts, first = [], 0
    for number in range(1, len(values) + 1):
        if number < len(values) and values[number] == values[first]:
            continue
        value, count = "_" if values[first] is None else repr(values[first]), number - first
        parts.append(value if count == 1 else f"_x{count}" if value == "_" else f"{value}+0x{count - 1}")
        first = number
    return " ".join(parts)
