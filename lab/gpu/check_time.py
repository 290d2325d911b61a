"""Checks of the time lost to limited clocks, of the limits of power and temperature, and of energy: against the driver's own counters and
nvidia-smi, idle, under load, and with two programs at once. Nothing is set: a power limit that never holds leaves its counter at 0."""

import contextlib
import os
import re
import statistics
import subprocess
import time
import xml.etree.ElementTree as ElementTree
from ctypes import byref, c_int, c_uint, c_ulonglong

import nvml_abi as abi
from cgroups import Cgroup, CgroupsUnavailable, hierarchy
from children import Child, ended
from exporter import Exporter
from results import percentile

# The values of the label `reason`, in the order of the fields from FIRST_FIELD and of NVML's performance policies from 0.
REASONS = ("power", "thermal", "sync_boost", "board_limit", "low_utilization", "reliability")
FIRST_FIELD = 74
# The reasons that nvidia-smi counts too, in microseconds: the tag of `-q -x`, which the manual calls "Clocks Event Reasons Counters", and the
# field of `--query-gpu`. nvml.h has one number for both, NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_POWER_CAP and _SYNC_BOOST; its SW_THERM_SLOWDOWN
# is another counter than the field of `thermal`, so that one is only noted.
SMI_COUNTERS = {
    "power": ("clocks_event_reasons_counters_sw_power_cap", "clocks_event_reasons_counters.sw_power_cap"),
    "sync_boost": ("clocks_event_reasons_counters_sync_boost", "clocks_event_reasons_counters.sync_boost"),
}
NOTED = ("clocks_event_reasons_counters_sw_therm_slowdown", "clocks_event_reasons_counters_hw_therm_slowdown",
    "clocks_event_reasons_counters_hw_power_brake")  # fmt: skip
# Newer boards have margins to these temperatures (tags with `tlimit`) instead of the temperatures.
THRESHOLDS = {"shutdown": (0, "gpu_temp_max_threshold"), "slowdown": (1, "gpu_temp_slow_threshold"),
    "memory_max": (2, "gpu_temp_max_mem_threshold"), "gpu_max": (3, "gpu_temp_max_gpu_threshold")}  # fmt: skip
POWERS = {"": "current_power_limit", "_default": "default_power_limit", "_min": "min_power_limit", "_max": "max_power_limit"}
IDLE, LOAD, TOGETHER = 10, 20, 14
EVERY = ("--telemetry.interval=500ms", "--telemetry.slow-interval=500ms", "--process.interval=500ms")
# Two slow intervals and the time of a scrape: how old a counter of the exporter can be.
SETTLED = 1.2
# The power is an average over a second (NVML); after this time without load it is that of the idle GPU again.
COOLED = 3
# The exporter's copy of the driver's counter is up to this old.
STALE = 0.6
CALLS = 100
JOULES = "gpu_energy_joules_total"
PARTS, UNUSED = "gpu_workload_energy_joules_total", "gpu_idle_energy_joules_total"
JOBS = {"slurm:4711": "system.slice/slurmstepd.scope/job_4711/step_0/user/task_0", "slurm:4712": "system.slice/slurmstepd.scope/job_4712/step_0/user/task_0"}


def field_values(gpu, numbers):
    """What one call returns for these fields; None for one without a value."""
    fields = (abi.FieldValue * len(numbers))()
    for field, number in zip(fields, numbers):
        field.fieldId = number
    code = gpu.lib.nvmlDeviceGetFieldValues(gpu.device, c_int(len(numbers)), fields)
    return [field.number() if code == 0 and field.nvmlReturn == 0 else None for field in fields]


def limited_fields(gpu):
    """The nanoseconds by reason, read by one call as the exporter reads them; None for a reason without a counter."""
    numbers = [FIRST_FIELD + number for number in range(len(REASONS))]
    # All ones is NVML's way to say that there is no value.
    return {reason: None if value == abi.NOT_AVAILABLE else value for reason, value in zip(REASONS, field_values(gpu, numbers))}


def violations(gpu):
    """The same times from the call that ends with CUDA 14, in nanoseconds; empty if the library does not have it."""
    function, found = getattr(gpu.lib, "nvmlDeviceGetViolationStatus", None), {}
    for number, reason in enumerate(REASONS if function else ()):
        status = abi.ViolationTime()
        if function(gpu.device, c_uint(number), byref(status)) == 0:
            found[reason] = status.violationTime
    return found


def first_tags(text):
    """The first element with each tag of `nvidia-smi -q -x`, as text. The power limits of the GPU come before those of the module."""
    return {element.tag: (element.text or "").strip() for element in reversed(list(ElementTree.fromstring(text).iter()))}


def asked(*arguments):
    """What nvidia-smi prints about GPU 0, or None if it refuses the arguments."""
    ran = subprocess.run(["nvidia-smi", "-i", "0", *arguments], capture_output=True, text=True, timeout=20)
    return ran.stdout if ran.returncode == 0 else None


def smi():
    """The elements of nvidia-smi, with the counters of SMI_COUNTERS under their tags even if `-q -x` does not show them."""
    text = asked("-q", "-x")
    if text is None:
        raise RuntimeError("nvidia-smi -q -x fails")
    shown = first_tags(text)
    for tag, field in SMI_COUNTERS.values():
        if tag not in shown and (row := asked(f"--query-gpu={field}", "--format=csv,noheader")):
            shown[tag] = row.strip()
    return shown


def amount(shown, tag, unit=None):
    """The number under a tag, which must have this unit if one is given; None if nvidia-smi shows no number."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?) *([^\d\s]*)", shown.get(tag, ""))
    if not match or (unit and match[2] != unit):
        return None
    return float(match[1])


def shown_times(scrape):
    return {reason: scrape.value("gpu_clock_limited_seconds_total", gpu=0, reason=reason) for reason in REASONS}


def latency(act):
    """The mean of a call in nanoseconds, and its p50 and p99 in microseconds. A pause of 5 ms is between two calls."""
    taken = []
    for _ in range(CALLS):
        begun = time.perf_counter_ns()
        act()
        taken.append(time.perf_counter_ns() - begun)
        time.sleep(0.005)
    return f"mean {statistics.fmean(taken):.0f} ns, p50 {percentile(taken, 0.5) / 1e3:.1f} µs, p99 {percentile(taken, 0.99) / 1e3:.1f} µs"


def costs(gpu, results, state):
    """What the calls cost through ctypes; the documentation says "not measured" until this has run."""
    numbers = [FIRST_FIELD + number for number in range(len(REASONS))]
    results.note(f"time, {state}: six fields in one call", latency(lambda: field_values(gpu, numbers)))
    results.note(f"time, {state}: one of the six fields", latency(lambda: field_values(gpu, numbers[:1])))
    results.note(f"time, {state}: six calls for one field each", latency(lambda: [field_values(gpu, [number]) for number in numbers]))
    results.note(f"time, {state}: six calls of nvmlDeviceGetViolationStatus", latency(lambda: violations(gpu)))
    results.note(f"time, {state}: a threshold of temperature", latency(lambda: threshold(gpu, 1)))
    results.note(f"time, {state}: memory info beside them", latency(gpu.memory))


def threshold(gpu, number):
    value = c_uint()
    code = gpu.lib.nvmlDeviceGetTemperatureThreshold(gpu.device, c_uint(number), byref(value))
    return value.value or None if code == 0 else None


def joules(gpu):
    """The driver's own counter."""
    millijoules = c_ulonglong()
    gpu.check("nvmlDeviceGetTotalEnergyConsumption", gpu.lib.nvmlDeviceGetTotalEnergyConsumption(gpu.device, byref(millijoules)))
    return millijoules.value / 1e3


def limits(exporter, gpu, results):
    """The limits of power and temperature equal NVML's and nvidia-smi's."""
    scrape, shown = exporter.scrape(), smi()
    for name, (number, tag) in THRESHOLDS.items():
        value, truth, text = scrape.value("gpu_temperature_threshold_celsius", gpu=0, threshold=name), threshold(gpu, number), amount(shown, tag, "C")
        results.check(f"time: threshold {name}", f"exporter {value}, NVML {truth}, nvidia-smi {text}",
            "equal; absent where NVML has none; nvidia-smi may show margins instead", value == truth and text in (None, truth))  # fmt: skip
    for name, tag in POWERS.items():
        value, text = scrape.value(f"gpu_power_limit{name}_watts", gpu=0), amount(shown, tag, "W")
        equal = value == text or (value is not None and text is not None and abs(value - text) < 0.01)
        results.check(f"time: power limit{name}", f"exporter {value}, nvidia-smi {text}", "equal", equal)
    rows = scrape.rows("gpu_info", gpu=0)
    info, minor = rows[0][0].get("minor_number") if rows else None, shown.get("minor_number")
    results.check("time: minor number", f"exporter {info}, nvidia-smi {minor}", "equal", info is not None and info == minor)
    for tag in NOTED:
        results.note(f"time: nvidia-smi {tag}", shown.get(tag, "not shown"))


def moment(exporter, gpu):
    """Everything that is compared. The exporter is asked when its counters contain at least what the check has read, with the time at
    which its energy was read."""
    own = {"at": time.monotonic(), "joules": joules(gpu), "fields": limited_fields(gpu), "violations": violations(gpu), "smi": smi()}
    time.sleep(SETTLED)
    scrape = exporter.scrape()
    ages = [value for labels, value in scrape.rows("vram_exporter_sample_age_seconds", gpu=0) if labels.get("lane") == "telemetry"]
    ours = {"at": time.monotonic() - (ages[0] if ages else 0), "times": shown_times(scrape), "joules": scrape.value(JOULES, gpu=0),
        "driver": scrape.value("gpu_driver_energy_joules_total", gpu=0), "unmeasured": scrape.value("gpu_energy_unmeasured_seconds_total", gpu=0),
        "power": scrape.value("gpu_power_watts", gpu=0), "idle": scrape.value(UNUSED, gpu=0),
        "parts": {labels["workload"]: value for labels, value in scrape.rows(PARTS, gpu=0)}}  # fmt: skip
    return own, ours


def span(exporter, gpu, results, state, act):
    """Compares what the counters grew by while `act` ran. The GPU is idle at both ends. Returns what the exporter's grew by."""
    own, ours = moment(exporter, gpu)
    act()
    own_after, ours_after = moment(exporter, gpu)
    seconds = own_after["at"] - own["at"]
    for reason in REASONS:
        compare_times(results, f"time, {state}: {reason}", reason, seconds, (own, own_after), (ours, ours_after))
    energy(results, state, (own, own_after), (ours, ours_after))
    return ours, ours_after


def compare_times(results, name, reason, seconds, own, ours):
    before, after = (at["fields"][reason] for at in own)
    shown = tuple(at["times"][reason] for at in ours)
    if before is None or after is None:
        results.check(name, f"exporter {shown[1]}, the driver counts none", "absent", shown == (None, None))
        return
    if None in shown:
        results.check(name, f"exporter {shown}, the driver {(after - before) / 1e9:.2f} s", "both", False)
        return
    grown, truth = shown[1] - shown[0], (after - before) / 1e9
    texts = [f"exporter {grown:.2f} s, own reading {truth:.2f} s of {seconds:.1f} s"]
    # The exporter's readings lie within SETTLED after the check's own, at both ends.
    equal = abs(grown - truth) <= SETTLED and grown <= seconds + SETTLED
    statuses = [at["violations"].get(reason) for at in own]
    if None not in statuses:
        policy = (statuses[1] - statuses[0]) / 1e9
        texts.append(f"violation status {policy:.2f} s")
        equal &= abs(policy - truth) <= 0.5
    if reason in SMI_COUNTERS:
        counters = [amount(at["smi"], SMI_COUNTERS[reason][0], "us") for at in own]
        if None in counters:
            texts.append(f"nvidia-smi shows {own[1]['smi'].get(SMI_COUNTERS[reason][0], 'no counter')}")
        else:
            counted = (counters[1] - counters[0]) / 1e6
            texts.append(f"nvidia-smi {counted:.2f} s")
            equal &= abs(counted - truth) <= 0.5
    results.check(name, ", ".join(texts), "equal within the time between the readings", equal)


def energy(results, state, own, ours):
    """The integrated power against the driver's counter over the same time."""
    truth, seconds = own[1]["joules"] - own[0]["joules"], own[1]["at"] - own[0]["at"]
    missing = [name for name in ("joules", "driver", "unmeasured", "power") if None in (ours[0][name], ours[1][name])]
    if missing or truth <= 0:
        results.check(f"energy, {state}", f"the exporter has no {', '.join(missing) or 'fault'}; the driver counts {truth:.0f} J", "both", False)
        return
    # The spans of the check and of the exporter are not equally long: both ends are idle, so the difference has the power of the idle GPU.
    idle = (ours[0]["power"] + ours[1]["power"]) / 2
    longer = (ours[1]["at"] - ours[0]["at"]) - seconds
    for name, what, correction, slack in (
        ("joules", "integrated power", idle * longer, 0.1),
        ("driver", "the driver's counter, by the exporter", 0, STALE),
    ):
        grown = ours[1][name] - ours[0][name] - correction
        allowed = 0.03 * truth + slack * idle
        results.check(f"energy, {state}: {what}",
            f"{grown:.0f} J, own reading of the driver's counter {truth:.0f} J over {seconds:.1f} s ({truth / seconds:.0f} W): {(grown / truth - 1) * 100:+.2f} %",
            f"within {allowed:.0f} J (3 %, and {slack} s at {idle:.0f} W)", abs(grown - truth) <= allowed)  # fmt: skip
    unmeasured = ours[1]["unmeasured"] - ours[0]["unmeasured"]
    results.check(f"energy, {state}: unmeasured time", f"{unmeasured:.3f} s of {seconds:.1f} s", "at most 2 %", unmeasured <= 0.02 * seconds)


def samples(gpu, since):
    """The samples of processes that are newer than `since`, as (pid, time in µs, SM %); empty if there are none."""
    rows, count = (abi.ProcessUtilizationSample * 256)(), c_uint(256)
    code = gpu.lib.nvmlDeviceGetProcessUtilization(gpu.device, rows, byref(count), c_ulonglong(since))
    return [(row.pid, row.timeStamp, row.smUtil) for row in rows[: count.value] if row.pid] if code == 0 else []


def sm_shares(gpu, pids, seconds):
    """The mean of the SM utilization of each pid, read once a second for this long, 0 to 1."""
    sums, rounds, newest = dict.fromkeys(pids, 0.0), 0, time.time_ns() // 1000
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(1)
        found = samples(gpu, newest)
        newest = max([newest, *(at for _, at, _ in found)])
        rounds += 1
        for pid, _, share in found:
            if pid in sums and share <= 100:
                sums[pid] += share / 100
    return {pid: total / rounds for pid, total in sums.items()}


def apportioned(results, measured, ours):
    """The parts against the whole, and the share of each program against its SM utilization. `measured`: by the name of the workload."""
    whole = ours[1]["joules"] - ours[0]["joules"]
    grown = {name: value - ours[0]["parts"].get(name, 0) for name, value in ours[1]["parts"].items()}
    if not grown or None in (ours[0]["idle"], ours[1]["idle"]):
        results.check("energy by workload", f"workloads {sorted(grown)}, idle {ours[1]['idle']}", "present", False)
        return
    idle = ours[1]["idle"] - ours[0]["idle"]
    total = sum(grown.values()) + idle
    shown = ", ".join(f"{name} {value:.0f} J" for name, value in sorted(grown.items()))
    results.check("energy by workload: the parts", f"{shown}, idle {idle:.0f} J: sum {total:.3f} of {whole:.3f} J", "equal to 0.01 J", abs(total - whole) <= 0.01)
    busy = total - idle
    results.check("energy by workload: other", f"{grown.get('other', 0):.0f} of {busy:.0f} J", "at most 10 %", grown.get("other", 0) <= 0.1 * busy)
    known, sms = sum(grown.get(name, 0) for name in measured), sum(measured.values())
    for name, share in sorted(measured.items()):
        if known <= 0 or sms <= 0:
            results.check(f"energy by workload: {name}", f"{known:.0f} J, SM utilization {sms:.2f}", "both above 0", False)
            continue
        part, want = grown.get(name, 0) / known, share / sms
        results.check(f"energy by workload: {name}", f"{part:.3f} of the energy of both, {want:.3f} of their SM utilization ({share:.2f})",
            "within 0.1", abs(part - want) <= 0.1)  # fmt: skip


def entering(group):
    """A command that enters a group and runs another one there: the exporter looks only once to which workload a process belongs."""
    procs = os.path.join(hierarchy(), group.path, "cgroup.procs")
    return ["sh", "-c", 'echo $$ >"$0" && exec "$@"', procs]


def load(gpu, results, child, seconds):
    """Products for some seconds, and then a pause until the power is that of the idle GPU."""
    child.send(kind="products", seconds=seconds)
    time.sleep(seconds / 4)
    costs(gpu, results, "under load")
    child.hear(seconds + 60)
    time.sleep(COOLED)


def together(gpu, children, measured):
    """Two programs at once: one multiplies all the time, the other half of the time."""
    first, second = children
    first.send(kind="products", seconds=TOGETHER)
    second.send(kind="products", seconds=TOGETHER / 2)
    measured.update(sm_shares(gpu, [child.pid for child in children], TOGETHER))
    for child in children:
        child.hear(TOGETHER + 60)
    time.sleep(COOLED)


def lost(setup, results):
    """Idle, then under matrix products, which bring most boards to their power limit, then with two programs."""
    gpu = setup.gpu()
    with Exporter(setup, "time", *EVERY, "--telemetry.energy=true", "--telemetry.workload-energy=true") as exporter:
        time.sleep(2 * SETTLED)
        limits(exporter, gpu, results)
        costs(gpu, results, "idle")
        span(exporter, gpu, results, "idle", lambda: time.sleep(IDLE))
        with contextlib.ExitStack() as stack:
            try:
                groups = [stack.enter_context(Cgroup(path)) for path in JOBS.values()]
            except CgroupsUnavailable as why:
                results.note("energy by workload", f"left out: {why}")
                groups = []
            prefixes = [entering(group) for group in groups] or [(), ()]
            children = [stack.enter_context(ended(Child("traffic", prefix=prefix))) for prefix in prefixes]
            for child in children:
                child.hear()
            time.sleep(COOLED)
            span(exporter, gpu, results, "under load", lambda: load(gpu, results, children[0], LOAD))
            if groups:
                by_pid = {}
                ours = span(exporter, gpu, results, "two programs", lambda: together(gpu, children, by_pid))
                apportioned(results, {name: by_pid.get(child.pid, 0) for name, child in zip(JOBS, children)}, ours)
