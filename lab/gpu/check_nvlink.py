"""The check of NVLink between two GPUs: states and errors against nvidia-smi, the counters of traffic against a known payload, and what the
calls cost. It takes less than 90 s."""

import re
import subprocess
import time
from ctypes import byref, c_int, c_uint, c_ulonglong

import nvml_abi as abi
from children import Child
from exporter import Exporter
from results import percentile

ALL = 0xFFFFFFFF
# What the exporter reads by one call: the field, and its scope.
FIELDS = {
    "link count": (91, 0), "replay total": (52, 0), "recovery total": (59, 0), "CRC flit total": (38, 0), "CRC data total": (45, 0),
    "ECC data total": (160, 0), "recovery events": (215, ALL), "data sent": (138, ALL), "data received": (139, ALL),
}  # fmt: skip
KINDS = ("replay", "recovery", "crc_flit", "crc_data")
PAYLOAD = 400 * 10**9
FLAGS = ("--telemetry.interval=500ms", "--telemetry.slow-interval=500ms", "--profiling.interval=500ms", "--telemetry.nvlink-errors-by-link=true")
# Two slow intervals and the time of a scrape: how old a counter of the exporter can be.
SETTLED = 1.5
CALLS = 100


def fields(gpu):
    """The fields as the exporter reads them: a number, or the name of the refusal."""
    values = (abi.FieldValue * len(FIELDS))()
    for value, (number, scope) in zip(values, FIELDS.values()):
        value.fieldId, value.scopeId = number, scope
    gpu.check("nvmlDeviceGetFieldValues", gpu.lib.nvmlDeviceGetFieldValues(gpu.device, c_int(len(FIELDS)), values))
    shown = (value.number() if value.nvmlReturn == 0 else abi.return_name(value.nvmlReturn) for value in values)
    return dict(zip(FIELDS, shown))


def state(gpu, link):
    """1 for an active link."""
    active = c_uint()
    gpu.check("nvmlDeviceGetNvLinkState", gpu.lib.nvmlDeviceGetNvLinkState(gpu.device, c_uint(link), byref(active)))
    return active.value


def errors(gpu, link, kind):
    """The count, or the name of the refusal."""
    count = c_ulonglong()
    code = gpu.lib.nvmlDeviceGetNvLinkErrorCounter(gpu.device, c_uint(link), c_uint(kind), byref(count))
    return count.value if code == 0 else abi.return_name(code)


def total(counts):
    """The sum; None if a count is not known."""
    return sum(counts) if all(isinstance(count, int) for count in counts) else None


def smi(index, option):
    command = ["nvidia-smi", "nvlink", option, "-i", str(index)]
    return subprocess.run(command, capture_output=True, text=True, timeout=20).stdout


def latency(act):
    """p50 and p99 of a call in microseconds, with a pause between two."""
    taken = []
    for _ in range(CALLS):
        begun = time.perf_counter_ns()
        act()
        taken.append((time.perf_counter_ns() - begun) / 1e3)
        time.sleep(0.005)
    return f"p50 {percentile(taken, 0.5):.0f}, p99 {percentile(taken, 0.99):.0f} µs"


def costs(gpu, links, results):
    results.note("nvlink: nine fields in one call", latency(lambda: fields(gpu)))
    results.note(f"nvlink: the states of {links} links", latency(lambda: [state(gpu, link) for link in range(links)]))
    results.note(f"nvlink: four errors of {links} links", latency(lambda: [errors(gpu, link, kind) for link in range(links) for kind in range(4)]))
    results.note("nvlink: memory info beside them", latency(gpu.memory))


def errors_of_all(gpu, links):
    return [total([errors(gpu, link, number) for link in range(links)]) for number in range(len(KINDS))]


def compare(exporter, index, gpu, results):
    """States and errors of one GPU. The errors may rise meanwhile, so they are read before and after the exporter reads them."""
    own = fields(gpu)
    first = errors_of_all(gpu, own["link count"])
    time.sleep(SETTLED)
    scrape = exporter.scrape()
    last = errors_of_all(gpu, own["link count"])
    results.note(f"nvlink, GPU {index}: what the driver answers", str(own))
    links = own["link count"]
    active = sum(state(gpu, link) for link in range(links))
    shown = [scrape.value(name, gpu=index) for name in ("gpu_nvlink_links", "gpu_nvlink_links_down")]
    lines = [line for line in smi(index, "-s").splitlines() if re.match(r"\s*Link \d+:", line)]
    listed = sum("inactive" not in line.lower() for line in lines)
    results.check(f"nvlink, GPU {index}: links", f"exporter {shown[0]}, {shown[1]} down; NVML {links}, {active} active; nvidia-smi {listed} active",
        "equal", shown == [links, links - active] and listed == active)  # fmt: skip
    by_smi = dict.fromkeys(("Replay", "Recovery", "CRC"), 0)
    found = re.findall(r"Link \d+: (Replay|Recovery|CRC) Errors?: (\d+)", smi(index, "-e"))
    for kind, count in found:
        by_smi[kind] += int(count)
    for kind, least, most in zip(KINDS, first, last):
        value = scrape.value("gpu_nvlink_errors_total", gpu=index, kind=kind)
        rows = [row[1] for row in scrape.rows("gpu_nvlink_link_errors_total", gpu=index, kind=kind)]
        text = f"exporter {value}, by link {sum(rows) if rows else None}; NVML by link {least} before and {most} after"
        if found and kind in ("replay", "recovery"):
            text += f"; nvidia-smi {by_smi[kind.capitalize()]}"
        known = [count for count in (value, sum(rows) if rows else None) if count is not None]
        if found and kind in ("replay", "recovery"):
            known.append(by_smi[kind.capitalize()])
        fits = all(least is None or least <= count <= most for count in known)
        results.check(f"nvlink, GPU {index}: {kind}", text, "between NVML's readings, or absent", fits)
    state_rows = {row[0]["state"]: row[1] for row in scrape.rows("gpu_fabric_state", gpu=index)}
    problems = {row[0]["problem"]: row[1] for row in scrape.rows("gpu_fabric_problem_active", gpu=index)}
    text = subprocess.run(["nvidia-smi", "-q", "-i", str(index)], capture_output=True, text=True, timeout=20).stdout
    fabric = re.search(r"Fabric\n((?:\s{8}.*\n)+)", text)
    words = " ".join(fabric.group(1).split()) if fabric else "nothing"
    results.note(f"nvlink, GPU {index}: fabric", f"exporter {state_rows or 'none'}, {problems or 'no health'}; nvidia-smi {words}")


def counters(scrape):
    names = {"payload sent": ("gpu_nvlink_payload_transmitted_bytes_total", 0), "payload received": ("gpu_nvlink_payload_received_bytes_total", 1),
        "payload sent back": ("gpu_nvlink_payload_transmitted_bytes_total", 1), "sent, with the protocol": ("gpu_nvlink_transmitted_bytes_total", 0)}  # fmt: skip
    return {what: scrape.value(name, gpu=index) for what, (name, index) in names.items()}


def nvlink(setup, results):
    """Copies from GPU 0 to GPU 1. The counters are read when nothing is copied, before and after, so no clock is compared."""
    gpus = abi.Gpu.all(setup.library)
    if len(gpus) < 2:
        results.note("nvlink", "left out: one GPU")
        return
    links = fields(gpus[0])["link count"]
    if not isinstance(links, int) or links == 0 or not any(state(gpus[0], link) for link in range(links)):
        results.note("nvlink", f"left out: GPU 0 has no active NVLink ({links})")
        return
    with Exporter(setup, "nvlink", *FLAGS) as exporter:
        time.sleep(2 * SETTLED)
        for index, gpu in enumerate(gpus[:2]):
            compare(exporter, index, gpu, results)
        costs(gpus[0], links, results)
        with Child("peer") as child:
            time.sleep(SETTLED)
            before = counters(exporter.scrape())
            child.send(bytes=PAYLOAD, seconds=20)
            told = child.hear(40)
            time.sleep(2 * SETTLED)
            after = counters(exporter.scrape())
        costs(gpus[0], links, results)
    moved = told["bytes"]
    results.note("nvlink: copied from GPU 0 to GPU 1", f"{moved / 1e9:.1f} GB in {told['seconds']:.2f} s, {moved / told['seconds'] / 1e9:.0f} GB/s")
    for what in before:
        if before[what] is None or after[what] is None:
            results.note(f"nvlink: {what}", "absent")
            continue
        grown = after[what] - before[what]
        figure = f"{grown / 1e9:.1f} GB, {grown / moved:.4f} of the payload"
        if what == "sent, with the protocol":
            results.check(f"nvlink: {what}", figure, "more than the payload, at most by a tenth", 0 < grown / moved - 1 <= 0.1)
        elif what == "payload sent back":
            results.check(f"nvlink: {what}", figure, "at most 0.03", grown <= 0.03 * moved)
        else:
            results.check(f"nvlink: {what}", figure, "within 3 % of it", abs(grown / moved - 1) <= 0.03)
