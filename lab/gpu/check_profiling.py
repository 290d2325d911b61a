"""Checks of the profiling counters: against known traffic and against NVML readings of the check itself, in an exporter without privileges,
and the effect of the readings on the exporter, on a training run and on an idle GPU."""

import math
import os
import shutil
import signal
import statistics
import subprocess
import tempfile
import threading
import time

from check_cost import cpu_share
from check_survival import UNSEEN, paired
from children import Child
from exporter import Exporter
from harness import undone_on_failure

# Names of series, with the NVML ids of their metrics.
SHARES = {
    'gpu_engine_active_seconds_total{engine="graphics"}': 1,
    'gpu_engine_active_seconds_total{engine="sm"}': 2,
    'gpu_pipe_active_seconds_total{pipe="tensor"}': 5,
    'gpu_pipe_active_seconds_total{pipe="fp64"}': 11,
    'gpu_pipe_active_seconds_total{pipe="fp32"}': 12,
    'gpu_pipe_active_seconds_total{pipe="fp16"}': 13,
    'gpu_pipe_active_seconds_total{pipe="integer"}': 4,
    "gpu_memory_bandwidth_active_seconds_total": 10,
}
TENSOR, BANDWIDTH = 'gpu_pipe_active_seconds_total{pipe="tensor"}', "gpu_memory_bandwidth_active_seconds_total"
RECEIVED, TRANSMITTED = "gpu_pcie_received_bytes_total", "gpu_pcie_transmitted_bytes_total"
MEMORY_CLOCK = 2
LOAD = 10
# The interval of the exporter, shorter than its default, so that a check takes seconds; and two of them: after this, the counters contain
# everything that happened before.
EVERY = "--profiling.interval=1s"
SETTLED = 2.5
# Namespaces of a container, as far as the machine allows them.
NAMESPACES = (["--pid", "--fork", "--mount-proc", "--ipc", "--uts", "--cgroup"], ["--pid", "--fork", "--mount-proc"], [])
UNPRIVILEGED = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--no-new-privs", "--inh-caps=-all", "--bounding-set=-all"]
# The number of pairs for which check_survival.T95 is valid.
ROUNDS = 60
STEPS = 30
POWER_ROUNDS = 8
# Student's t, two-sided 95 %, for POWER_ROUNDS pairs.
POWER_T95 = 2.365


def counters(exporter):
    """The profiling counters of GPU 0 by name, with the label of the family."""
    found = {}
    scrape = exporter.scrape()
    for name, rows in scrape.samples.items():
        if name.startswith("gpu_") and name.endswith(("_active_seconds_total", "_bytes_total")) and "memory_increase" not in name and "memory_decrease" not in name:
            for labels, value in rows:
                own = {key: labels[key] for key in ("engine", "pipe") if key in labels}
                if labels.get("gpu") == "0" and "mig_uuid" not in labels:
                    found[name + "".join(f'{{{key}="{text}"}}' for key, text in own.items())] = value
    return found


def grown(before, after, name):
    """How much a counter grew; NaN if it is absent."""
    return after.get(name, math.nan) - before.get(name, math.nan)


def settled(exporter):
    time.sleep(SETTLED)
    return counters(exporter)


class Own:
    """The check's own reading of the profiling counters through NVML, once a second: the sum of share times time by metric id."""

    def __init__(self, gpu, ids):
        self.gpu, self.ids = gpu, list(ids)
        self.sums = dict.fromkeys(self.ids, 0.0)
        self.missing, self.failed = set(), None
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self.follow, daemon=True)

    def __enter__(self):
        self.first = self.last = self.sample()
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        self.thread.join()

    def sample(self):
        begun = time.monotonic()
        sample = self.gpu.profiling_sample()
        return sample, (begun + time.monotonic()) / 2

    def follow(self):
        try:
            while not self.ended.wait(1.0):
                now = self.sample()
                for number, seconds in self.between(self.last, now).items():
                    self.sums[number] += seconds
                self.last = now
        except Exception as error:
            self.failed = error

    def between(self, earlier, later):
        values = self.gpu.profiling(earlier[0], later[0], self.ids)
        self.missing |= {number for number, value in values.items() if value is None}
        return {number: (value or 0.0) / 100 * (later[1] - earlier[1]) for number, value in values.items()}


class Readable:
    """A folder that every user can read, with a copy of the exporter, so that the exporter can be started as another user."""

    def __init__(self, setup):
        self.setup = setup

    def __enter__(self):
        self.folder = tempfile.mkdtemp(prefix="profiling-", dir="/tmp")
        os.chmod(self.folder, 0o755)
        program = os.path.join(self.folder, "vram-exporter")
        shutil.copyfile(self.setup.exporter, program)
        os.chmod(program, 0o755)
        return program

    def __exit__(self, *_):
        shutil.rmtree(self.folder, ignore_errors=True)


def unprivileged(setup, program, results):
    """An exporter as uid 65534 without capabilities, in as many namespaces of its own as the machine allows. Not yet started."""
    for namespaces in NAMESPACES:
        prefix = ["unshare", "--kill-child=SIGTERM", *namespaces] if namespaces else []
        probe = subprocess.run([*prefix, *UNPRIVILEGED, "true"], capture_output=True, text=True)
        if probe.returncode == 0:
            break
        print(f"     {' '.join(prefix + UNPRIVILEGED[:1])}: {probe.stderr.strip()}", flush=True)
    else:
        return None
    results.note("profiling: the second exporter", f"uid 65534, no capability, {'unshare ' + ' '.join(namespaces) if namespaces else 'no namespace of its own'}")
    exporter = Exporter(setup, "profiling-unprivileged", EVERY)
    exporter.command = [*prefix, *UNPRIVILEGED, program, *exporter.command[1:]]
    return exporter


def idle(exporter, results):
    """Without a CUDA process nothing is active."""
    before, begun = settled(exporter), time.monotonic()
    time.sleep(5)
    after = counters(exporter)
    seconds = time.monotonic() - begun
    shares = {name: grown(before, after, name) / seconds for name in SHARES}
    highest = max(shares.values(), key=lambda share: -1 if math.isnan(share) else share)
    absent = [name for name, share in shares.items() if math.isnan(share)]
    results.check("profiling, idle: highest share of any engine, pipe or the memory bandwidth", f"{highest:.6f} over {seconds:.1f} s; absent: {', '.join(absent) or 'none'}",
        "0 (at most 0.0005), none absent", highest <= 0.0005 and not absent)  # fmt: skip
    links = {name: f"{grown(before, after, name) / seconds / 1024:.1f} KiB/s" for name in sorted(after) if name.endswith("_bytes_total")}
    results.note("profiling, idle: links", ", ".join(f"{name} {rate}" for name, rate in links.items()))


def load(child, exporter, kind, seconds=LOAD):
    """What the child reports about a load, and the counters before and after it."""
    before = settled(exporter)
    child.send(kind=kind, seconds=seconds)
    done = child.hear(seconds + 60)
    return done, before, settled(exporter)


def device_copy(child, exporter, peak, results):
    """A device copy reads and writes each byte."""
    done, before, after = load(child, exporter, "device")
    want = 2 * done["bytes"] / peak / done["seconds"]
    share = grown(before, after, BANDWIDTH) / done["seconds"]
    apart = share / want - 1
    results.check("profiling: memory bandwidth against a device copy of known bytes",
        f"share {share:.4f}, want {want:.4f} ({2 * done['bytes'] / done['seconds'] / 1e12:.3f} of {peak / 1e12:.3f} TB/s over {done['seconds']:.1f} s): {apart * 100:+.2f} %",
        "within 3 %", abs(apart) <= 0.03)  # fmt: skip


def host_copies(child, exporter, results):
    """Copies of pinned host memory: the counter contains the payload and the overhead of the link."""
    for kind, name in (("to-device", RECEIVED), ("to-host", TRANSMITTED)):
        done, before, after = load(child, exporter, kind)
        counted = grown(before, after, name)
        ratio = counted / done["bytes"]
        results.check(f"profiling: {name} against pinned copies {kind}",
            f"{counted / 1e9:.2f} GB for a payload of {done['bytes'] / 1e9:.2f} GB ({done['bytes'] / done['seconds'] / 1e9:.1f} GB/s): {ratio:.4f} times",
            "1 to 1.1 times", 1 <= ratio <= 1.1)  # fmt: skip


def steady(exporters, seconds):
    """The mean share of each counter of each exporter under a constant load: the growth between the first and the last step of the counters,
    which grow once an interval, divided by the time between these steps. The beginning and the end of the load are in neither."""
    first, last, seen = {}, {}, {}
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for exporter in exporters:
            latest, now = counters(exporter), time.monotonic()
            if latest[TENSOR] != seen.setdefault(exporter, latest[TENSOR]):
                seen[exporter], last[exporter] = latest[TENSOR], (now, latest)
                first.setdefault(exporter, last[exporter])
        time.sleep(0.02)
    spans = [(first[exporter], last[exporter]) for exporter in exporters]
    return [{name: grown(before, after, name) / (ended - begun) for name in SHARES} for (begun, before), (ended, after) in spans]


def products(child, gpu, exporter, other, results):
    """Matrix products: tensor activity equals the check's own NVML reading at the same time, and that of the other exporter. All of them are
    compared while the load is constant, because an interval in which the load begins or ends is read differently by each."""
    seconds = LOAD + 2 * SETTLED
    child.send(kind="products", seconds=seconds)
    time.sleep(SETTLED)
    with Own(gpu, SHARES.values()) as own:
        shares = steady([exporter, other] if other else [exporter], LOAD)
    done = child.hear(seconds + 60)
    if own.failed:
        raise own.failed
    ours, truth = shares[0], {name: own.sums[number] / (own.last[1] - own.first[1]) for name, number in SHARES.items()}
    apart = ours[TENSOR] / truth[TENSOR] - 1 if truth[TENSOR] else math.nan
    flops = 2 * 8192**3 * done["done"] / done["seconds"] / 1e12
    results.check("profiling: tensor activity against NVML's own reading, 8192 x 8192 bf16 products",
        f"{ours[TENSOR]:.4f}, own {truth[TENSOR]:.4f} over {LOAD} s ({flops:.0f} TFLOP/s): {apart * 100:+.3f} %", "within 1 %", abs(apart) <= 0.01)  # fmt: skip
    rows = [f"{name.split('{')[-1].rstrip('}') if '{' in name else 'bandwidth'} {ours[name]:.4f}/{truth[name]:.4f}" for name in SHARES]
    results.note("profiling, products: exporter / own reading", ", ".join(rows) + (f"; not filled: {sorted(own.missing)}" if own.missing else ""))
    if not other:
        results.check("profiling: an exporter as uid 65534 beside it", "cannot be started: neither setpriv nor unshare", "equal within 1 %", False)
        return
    theirs = shares[1]
    ratios = {name: theirs[name] / ours[name] - 1 for name in SHARES if ours[name] > 0.005}
    worst = max(ratios.values(), key=abs, default=math.nan)
    results.check("profiling: an exporter as uid 65534 beside it", f"tensor {theirs[TENSOR]:.4f} against {ours[TENSOR]:.4f}; largest difference of {len(ratios)} counters {worst * 100:+.3f} %",
        "within 1 %", TENSOR in ratios and abs(worst) <= 0.01)  # fmt: skip


def missed(exporter):
    return exporter.scrape().value("vram_exporter_missed_ticks_total", lane="memory", gpu="0")


def own_cost(setup, results):
    """Two exporters side by side for a minute, only one of which reads the profiling counters. A process with a context keeps the memory
    lanes at their full rate."""
    with Child("context"), Exporter(setup, "profiling-on") as on, Exporter(setup, "profiling-off", "--profiling.enabled=false") as off:
        time.sleep(5)
        shares, ticks = {}, {}

        def measure(name, exporter):
            before = missed(exporter)
            shares[name] = cpu_share(exporter.pid, 60, exporter.timed_get)
            ticks[name] = missed(exporter) - before

        threads = [threading.Thread(target=measure, args=pair) for pair in (("on", on), ("off", off))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        counted = bool(counters(on)), bool(counters(off))
    more = (shares["on"] - shares["off"]) * 100
    results.check("profiling: CPU over 60 s, on minus off", f"{shares['on'] * 100:.3f} - {shares['off'] * 100:.3f} = {more:+.3f} % of a core", "at most 0.3 points", more <= 0.3)
    results.check("profiling: missed ticks of the memory lane over 60 s", f"on {ticks['on']:.0f}, off {ticks['off']:.0f}, of about 6000", "at most 30 more (0.5 %)", ticks["on"] <= ticks["off"] + 30)
    results.check("profiling: counters with profiling on, none with it off", str(counted), "(True, False)", counted == (True, False))


class Alternating:
    """Two exporters, with profiling on and off, of which at most one runs at a time."""

    def __init__(self, setup, name):
        self.exporters = {"on": Exporter(setup, f"{name}-on"), "off": Exporter(setup, f"{name}-off", "--profiling.enabled=false")}

    @undone_on_failure
    def __enter__(self):
        for exporter in self.exporters.values():
            exporter.__enter__()
            exporter.process.send_signal(signal.SIGSTOP)

    def __exit__(self, *_):
        for exporter in self.exporters.values():
            if exporter.process:
                exporter.process.send_signal(signal.SIGCONT)
                exporter.__exit__()

    def during(self, name, act):
        exporter = self.exporters[name]
        exporter.process.send_signal(signal.SIGCONT)
        try:
            return act()
        finally:
            exporter.process.send_signal(signal.SIGSTOP)


def training_pace(setup, results):
    """Training steps with profiling on and off, in pairs, in a changing order."""
    medians = {"on": [], "off": []}
    child = Child("paced")

    def block():
        time.sleep(0.05)
        child.send(steps=STEPS, allocations=0)
        return statistics.median(child.hear()["steps"])

    try:
        child.hear(180)
        with Alternating(setup, "profiling-pace") as exporters:
            for number in range(ROUNDS + 1):
                for name in ("on", "off") if number % 2 else ("off", "on"):
                    median = exporters.during(name, block)
                    # The first round is only a warm-up.
                    if number:
                        medians[name].append(median)
    finally:
        child.end()
    ratio, low, high = paired(medians["on"], medians["off"])
    results.note("profiling: a training step with profiling off", f"median of {ROUNDS} rounds {statistics.median(medians['off']):.4f} ms")
    results.check("profiling: training steps, on against off", f"{ratio:.4f} times as long (95 %: {low:.4f} to {high:.4f}), {ROUNDS} pairs",
        "1 within the interval, or at most 0.5 % more", low <= 1.0 or ratio <= 1.0 + UNSEEN)  # fmt: skip


def idle_power(setup, gpu, results):
    """Power of the idle GPU with profiling on and off, in pairs, in a changing order."""

    def block():
        time.sleep(1.5)
        readings = []
        for _ in range(25):
            readings.append(gpu.number("nvmlDeviceGetPowerUsage") / 1000)
            time.sleep(0.1)
        return statistics.fmean(readings)

    watts = {"on": [], "off": []}
    with Alternating(setup, "profiling-power") as exporters:
        # After a load the power takes seconds to fall.
        time.sleep(10)
        for number in range(POWER_ROUNDS):
            for name in ("on", "off") if number % 2 else ("off", "on"):
                watts[name].append(exporters.during(name, block))
    differences = [on - off for on, off in zip(watts["on"], watts["off"])]
    mean = statistics.fmean(differences)
    reach = POWER_T95 * statistics.stdev(differences) / math.sqrt(len(differences))
    results.check("profiling: power of the idle GPU, on minus off", f"{mean:+.3f} W (95 %: {mean - reach:+.3f} to {mean + reach:+.3f}) at {statistics.fmean(watts['off']):.2f} W, {POWER_ROUNDS} pairs",
        "0 within the interval, or at most 0.5 W more", mean - reach <= 0 or mean <= 0.5)  # fmt: skip


def cost(setup, results):
    """The effect of the readings on an idle GPU, on the exporter and on a training run."""
    idle_power(setup, setup.gpu(), results)
    own_cost(setup, results)
    training_pace(setup, results)


def profiling(setup, results):
    """The counters against an idle GPU and known traffic."""
    gpu = setup.gpu()
    clock = gpu.number("nvmlDeviceGetMaxClockInfo", MEMORY_CLOCK)
    width = gpu.number("nvmlDeviceGetMemoryBusWidth")
    peak = 2 * clock * 1e6 * width / 8
    results.note("profiling: peak bandwidth", f"2 x {clock} MHz x {width} bit / 8 = {peak / 1e12:.3f} TB/s")
    with Exporter(setup, "profiling", EVERY) as exporter:
        idle(exporter, results)
        child = Child("traffic")
        try:
            child.hear(180)
            device_copy(child, exporter, peak, results)
            host_copies(child, exporter, results)
            with Readable(setup) as program:
                other = unprivileged(setup, program, results)
                if other:
                    with other:
                        time.sleep(SETTLED)
                        products(child, gpu, exporter, other, results)
                else:
                    products(child, gpu, exporter, None, results)
        finally:
            child.end()
