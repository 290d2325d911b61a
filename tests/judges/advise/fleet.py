"""A made fleet: boards, nodes, GPUs and MIG devices in two clusters, and their series.

Time is counted in scrapes: scrape 0 is at the beginning of the two weeks, scrape `SCRAPES` at their end.
"""

from dataclasses import dataclass, field
from itertools import count

from backfill import STEP, Run, Series

MIB = 1 << 20
DAY = 86400 // STEP
SCRAPES = 14 * DAY
# The end of the two weeks, a multiple of their intervals of 900 s, in Unix seconds: 2023-11-14T22:00:00Z.
END = 1_699_999_200
BEGIN = END - SCRAPES * STEP
# Scrapes between which the renamed node is not scraped.
RENAMED = (9 * DAY + 11, 9 * DAY + 14)
# Scrapes between which the MIG devices are cut anew.
RECUT = (6 * DAY + 300, 6 * DAY + 310)


@dataclass(frozen=True)
class Board:
    """Sizes in bytes, as NVML reports them."""

    name: str
    total: int
    reserved: int


H200 = Board("NVIDIA H200", 150_754_820_096, 644_939_776)
H100 = Board("NVIDIA H100 80GB HBM3", 81_559 * MIB, 551 * MIB)
A100 = Board("NVIDIA A100-SXM4-40GB", 40_960 * MIB, 571 * MIB)
L4 = Board("NVIDIA L4", 23_034 * MIB, 484 * MIB)
T4 = Board("Tesla T4", 15_360 * MIB, 410 * MIB)
# The sizes of the MIG devices as the driver reports them, 7 MiB less than in nvidia-smi's table.
PROFILES = {"1g.10gb": 9_977 * MIB, "1g.20gb": 20_089 * MIB, "3g.40gb": 40_441 * MIB}


@dataclass
class Part:
    """Scrapes `first` to `last` of a device under one set of target labels. `offset` is when in the minute the target is scraped."""

    first: int
    last: int
    target: dict
    offset: int


@dataclass
class Device:
    """A GPU or a MIG device. `labels` are those of its memory families, `info` those of gpu_info beyond them."""

    labels: dict
    total: int
    reserved: int | None
    parts: list
    info: dict = field(default_factory=dict)
    profile: dict = field(default_factory=dict)

    @property
    def allocatable(self):
        return self.total - (self.reserved or 0)

    def series(self, family, labels, runs):
        """One family of this device or of something on it: a series for each part in which it has samples."""
        for part in self.parts:
            cut = [Run(max(run.first, part.first), min(run.last, part.last), run.value) for run in runs]
            cut = [run for run in cut if run.first <= run.last]
            if cut:
                yield Series(family, {**part.target, **self.labels, **labels}, BEGIN + part.offset, cut)

    def own_series(self):
        """The families of the device itself."""
        prefix = "gpu_mig_memory" if self.profile else "gpu_memory"
        always = (min(part.first for part in self.parts), max(part.last for part in self.parts))
        yield from self.series(f"{prefix}_total_bytes", self.profile, [Run(*always, self.total)])
        if self.reserved is not None:
            yield from self.series(f"{prefix}_reserved_bytes", self.profile, [Run(*always, self.reserved)])
        if not self.profile:
            yield from self.series("gpu_info", self.info, [Run(*always, 1)])


class Fleet:
    """`nodes` are lists of devices without MIG by the name of the node; `mig` holds the MIG devices before and after the new cut."""

    def __init__(self):
        self.nodes, self.numbers = {}, count(1)
        # Equal names in two clusters, and a node whose series have no cluster.
        self.add("east/h200-a", {"cluster": "east", "instance": "h200-a:9835"}, H200, 3, offset=0)
        self.add("east/h100-b", {"cluster": "east", "instance": "h100-b:9835"}, H100, 1, offset=17)
        self.add("east/a100-c", {"cluster": "east", "instance": "a100-c:9835"}, A100, 4, offset=31)
        self.add("west/h200-a", {"cluster": "west", "instance": "h200-a:9835"}, H200, 1, offset=59)
        self.add("west/l4-d", {"cluster": "west", "instance": "l4-d:9835"}, L4, 2, offset=5)
        self.add("west/t4-e", {"cluster": "west", "instance": "t4-e:9835"}, T4, 1, offset=44, reserved=False)
        self.add("/lab", {"instance": "lab:9835"}, L4, 1, offset=23, info={"simulated": "true"})
        self.renamed()
        self.replicated()
        self.mig = self.cut()

    def uuid(self, prefix):
        return f"{prefix}-00000000-0000-4000-8000-{next(self.numbers):012}"

    def gpu(self, board, number, parts, mode="disabled", info=None, reserved=True):
        labels = {"gpu": str(number), "uuid": self.uuid("GPU")}
        info = {"name": board.name, "pci_bus_id": f"00000000:{10 + 3 * number:02X}:00.0", "mig_mode": mode, **(info or {})}
        return Device(labels, board.total, board.reserved if reserved else None, parts, info)

    def add(self, name, target, board, number, offset, **more):
        part = Part(0, SCRAPES, {**target, "job": "vram-exporter"}, offset)
        if offset:
            part.last -= 1  # scrape SCRAPES is after the end
        self.nodes[name] = [self.gpu(board, one, [part], **more) for one in range(number)]

    def renamed(self):
        """The same GPU under another instance, and after a new scrape configuration also under another job."""
        before = Part(0, RENAMED[0], {"cluster": "east", "instance": "old-name:9835", "job": "vram-exporter"}, 12)
        after = Part(RENAMED[1], SCRAPES - 1, {"cluster": "east", "instance": "new-name:9835", "job": "gpu"}, 50)
        self.nodes["east/renamed"] = [self.gpu(H100, 0, [before, after])]

    def replicated(self):
        """Two Prometheus servers with a common store, each with its own gaps."""
        target = {"cluster": "west", "instance": "pair:9835", "job": "vram-exporter"}
        first, second = ({**target, "prometheus_replica": name} for name in ("one", "two"))
        parts = [Part(0, 5 * DAY, first, 3), Part(5 * DAY + 777, SCRAPES - 1, first, 3), Part(4, 8 * DAY, second, 33), Part(8 * DAY + 99, SCRAPES - 1, second, 33)]
        self.nodes["west/pair"] = [self.gpu(A100, 0, parts)]

    def cut(self):
        """An H100 with MIG: two halves until it is cut anew, then four smaller devices. Returns the devices of both times."""
        target, offset = {"cluster": "east", "instance": "mig:9835", "job": "vram-exporter"}, 8
        whole = self.gpu(H100, 0, [Part(0, SCRAPES - 1, target, offset)], mode="enabled")
        self.nodes["east/mig"] = [whole]
        early, late = Part(0, RECUT[0], target, offset), Part(RECUT[1], SCRAPES - 1, target, offset)
        wanted = [(early, "3g.40gb", 1), (early, "3g.40gb", 2), (late, "3g.40gb", 1), (late, "1g.20gb", 5), (late, "1g.10gb", 9), (late, "1g.10gb", 10)]
        return [self.mig_device(whole, *one) for one in wanted]

    def mig_device(self, whole, part, profile, instance):
        labels = {**whole.labels, "mig_uuid": self.uuid("MIG")}
        names = {"gpu_instance": str(instance), "compute_instance": "0", "profile": profile}
        return Device(labels, PROFILES[profile], 0, [part], profile=names)

    def devices(self):
        """Every GPU and MIG device."""
        return [device for node in self.nodes.values() for device in node] + self.mig
