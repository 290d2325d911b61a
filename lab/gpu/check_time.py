"""Checks of the time lost to limited clocks, of the limits of power and temperature, and of energy: against the driver's own counters and
nvidia-smi, idle and under load. Nothing is set: a power limit that never holds leaves its counter at 0."""

import re
import subprocess
import time
import xml.etree.ElementTree as ElementTree
from ctypes import byref, c_int, c_uint, c_ulonglong

import nvml_abi as abi
from children import Child
from exporter import Exporter
from results import percentile

# The values of the label `reason`, in the order of the fields from FIRST_FIELD and of NVML's performance policies from 0.
REASONS = ("power", "thermal", "sync_boost", "board_limit", "low_utilization", "reliability")
FIRST_FIELD = 74
# The reasons of which nvidia-smi shows the time, as the tags of `-q -x` that it may use.
SMI_COUNTERS = {
    "power": ("clocks_event_reasons_counters_sw_power_cap",),
    "sync_boost": ("clocks_event_reasons_counters_sync_boost",),
    "thermal": ("clocks_event_reasons_counters_sw_therm_slowdown", "clocks_event_reasons_counters_sw_thermal_slowdown"),
}
THRESHOLDS = {"shutdown": (0, "gpu_temp_max_threshold"), "slowdown": (1, "gpu_temp_slow_threshold"),
    "memory_max": (2, "gpu_temp_max_mem_threshold"), "gpu_max": (3, "gpu_temp_max_gpu_threshold")}  # fmt: skip
POWERS = {"": "current_power_limit", "_default": "default_power_limit", "_min": "min_power_limit", "_max": "max_power_limit"}
LOAD = 30
EVERY = ("--telemetry.interval=500ms", "--telemetry.slow-interval=500ms")
# Two slow intervals and the time of a scrape: how old a counter of the exporter can be.
SETTLED = 1.2
CALLS = 200
JOULES = "gpu_energy_joules_total"


def limited_fields(gpu):
    """The nanoseconds by reason, read by one call as the exporter reads them; None for a reason without a counter."""
    fields = (abi.FieldValue * len(REASONS))()
    for number, field in enumerate(fields):
        field.fieldId = FIRST_FIELD + number
    code = gpu.lib.nvmlDeviceGetFieldValues(gpu.device, c_int(len(REASONS)), fields)
    given = [code == 0 and field.nvmlReturn == 0 for field in fields]
    return {reason: field.number() if ok else None for reason, field, ok in zip(REASONS, fields, given)}


def violations(gpu):
    """The same times from the call that ends with CUDA 14; empty if the library does not have it."""
    function, found = getattr(gpu.lib, "nvmlDeviceGetViolationStatus", None), {}
    for number, reason in enumerate(REASONS if function else ()):
        status = abi.ViolationTime()
        if function(gpu.device, c_uint(number), byref(status)) == 0:
            found[reason] = status.violationTime
    return found


def smi():
    """The first element with each tag of `nvidia-smi -q -x` of GPU 0, as text."""
    text = subprocess.run(["nvidia-smi", "-i", "0", "-q", "-x"], capture_output=True, text=True, check=True, timeout=20).stdout
    return {element.tag: (element.text or "").strip() for element in reversed(list(ElementTree.fromstring(text).iter()))}


def amount(shown, *tags):
    """The number under the first of the tags that nvidia-smi shows with a number; None if there is none."""
    found = (re.match(r"[\d.]+", shown.get(tag, "")) for tag in tags)
    return next((float(match[0]) for match in found if match), None)


def shown_times(exporter):
    scrape = exporter.scrape()
    return {reason: scrape.value("gpu_clock_limited_seconds_total", gpu=0, reason=reason) for reason in REASONS}


def latency(act):
    """p50 and p99 of a call in microseconds."""
    taken = []
    for _ in range(CALLS):
        begun = time.perf_counter_ns()
        act()
        taken.append((time.perf_counter_ns() - begun) / 1e3)
        time.sleep(0.005)
    return f"p50 {percentile(taken, 0.5):.0f}, p99 {percentile(taken, 0.99):.0f} µs"


def costs(gpu, results, state):
    """What the calls cost, with a pause between two; the documentation says "not measured" until this has run."""
    results.note(f"time, {state}: six fields in one call", latency(lambda: limited_fields(gpu)))
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
        value, truth, text = scrape.value("gpu_temperature_threshold_celsius", gpu=0, threshold=name), threshold(gpu, number), amount(shown, tag)
        results.check(f"time: threshold {name}", f"exporter {value}, NVML {truth}, nvidia-smi {text}", "equal; absent where NVML has none",
            value == truth and text in (None, truth))  # fmt: skip
    for name, tag in POWERS.items():
        value, text = scrape.value(f"gpu_power_limit{name}_watts", gpu=0), amount(shown, tag)
        equal = value == text or (value is not None and text is not None and abs(value - text) < 0.01)
        results.check(f"time: power limit{name}", f"exporter {value}, nvidia-smi {text}", "equal", equal)
    info, minor = scrape.rows("gpu_info", gpu=0)[0][0].get("minor_number"), shown.get("minor_number")
    results.check("time: minor number", f"exporter {info}, nvidia-smi {minor}", "equal", info == minor)


def moment(exporter, gpu):
    """Everything that is compared, read while the counters are as old as they can be in the exporter."""
    begun = time.monotonic()
    own = {"fields": limited_fields(gpu), "violations": violations(gpu), "smi": smi(), "joules": joules(gpu)}
    time.sleep(SETTLED)
    scrape = exporter.scrape()
    ours = {"times": shown_times(exporter), "joules": scrape.value(JOULES, gpu=0), "driver": scrape.value("gpu_driver_energy_joules_total", gpu=0),
        "unmeasured": scrape.value("gpu_energy_unmeasured_seconds_total", gpu=0), "power": scrape.value("gpu_power_watts", gpu=0)}  # fmt: skip
    return (begun + time.monotonic()) / 2, own, ours


def span(exporter, gpu, results, state, act):
    """Compares what the counters grew by while `act` ran."""
    first, own, ours = moment(exporter, gpu)
    act()
    last, own_after, ours_after = moment(exporter, gpu)
    seconds = last - first
    for reason in REASONS:
        before, after = own["fields"][reason], own_after["fields"][reason]
        shown = ours["times"][reason], ours_after["times"][reason]
        name = f"time, {state}: {reason}"
        if before is None or after is None:
            results.check(name, f"exporter {shown[1]}, the driver counts none", "absent", shown == (None, None))
            continue
        if None in shown:
            results.check(name, f"exporter {shown}, the driver {(after - before) / 1e9:.2f} s", "both", False)
            continue
        grown, truth = shown[1] - shown[0], (after - before) / 1e9
        texts = [f"exporter {grown:.2f} s, own reading {truth:.2f} s of {seconds:.1f} s"]
        # The exporter's reading lies within the second after the check's own.
        equal = abs(grown - truth) <= 2 * SETTLED and grown <= seconds + 2 * SETTLED
        if reason in own["violations"] and reason in own_after["violations"]:
            policy = (own_after["violations"][reason] - own["violations"][reason]) / 1e9
            texts.append(f"violation status {policy:.2f} s")
            equal &= abs(policy - truth) <= 1
        counters = [amount(at["smi"], *SMI_COUNTERS.get(reason, ())) for at in (own, own_after)]
        if None not in counters:
            texts.append(f"nvidia-smi {(counters[1] - counters[0]) / 1e6:.2f} s")
            equal &= abs((counters[1] - counters[0]) / 1e6 - truth) <= 1
        results.check(name, ", ".join(texts), "equal within the time between the readings", equal)
    energy(results, state, seconds, (own, own_after), (ours, ours_after))


def energy(results, state, seconds, own, ours):
    """The integrated power against the driver's counter over the same time."""
    truth = own[1]["joules"] - own[0]["joules"]
    grown = {name: ours[1][name] - ours[0][name] for name in ("joules", "driver", "unmeasured")}
    for name, what in (("joules", "integrated power"), ("driver", "the driver's counter, by the exporter")):
        apart = grown[name] / truth - 1
        # The span of the exporter is as long as that of the check, and begins and ends up to SETTLED later.
        results.check(f"energy, {state}: {what}", f"{grown[name]:.0f} J, own reading of the driver's counter {truth:.0f} J over {seconds:.1f} s ({truth / seconds:.0f} W): {apart * 100:+.2f} %",
            "within 3 %", abs(apart) <= 0.03)  # fmt: skip
    results.check(f"energy, {state}: unmeasured time", f"{grown['unmeasured']:.3f} s of {seconds:.1f} s", "at most 2 %", grown["unmeasured"] <= 0.02 * seconds)


def lost(setup, results):
    """Idle, then under matrix products, which bring most boards to their power limit."""
    gpu = setup.gpu()
    with Exporter(setup, "time", *EVERY, "--telemetry.energy=true") as exporter:
        time.sleep(2 * SETTLED)
        limits(exporter, gpu, results)
        costs(gpu, results, "idle")
        span(exporter, gpu, results, "idle", lambda: time.sleep(LOAD / 2))
        with Child("traffic") as child:

            def load():
                child.send(kind="products", seconds=LOAD)
                time.sleep(LOAD / 3)
                costs(gpu, results, "under load")
                child.hear(LOAD + 60)

            span(exporter, gpu, results, "under load", load)
