"""Checks of the reports about workloads: their peak compared with PyTorch, and their seconds with a clock."""

import json
import os
import time

from check_memory import MIB, settle
from children import Child, ended, reporting
from exporter import Exporter

FULL_SECONDS = 20
# A process list is read at least once a second, and at once when memory changes.
LIST_SECONDS = 1.5


def device(exporter):
    """The report about the only workload, and its part about GPU 0."""
    status, body = exporter.get("/api/v1/reports")
    reports = json.loads(body)["reports"] if status == 200 else []
    if len(reports) != 1 or [gpu["gpu"] for gpu in reports[0]["gpus"]] != [0]:
        raise RuntimeError(f"not one report about GPU 0: {status} {body[:500]!r}")
    return reports[0], reports[0]["gpus"][0]


def reports(setup, results):
    """A training run that begins and ends under the exporter, and a server at 93 % of the GPU."""
    gpu = setup.gpu()
    settle(gpu)
    with Exporter(setup, "reports-training") as exporter:
        with ended(Child("training", "--steps", 200)) as child:
            ready = child.hear(180)
            time.sleep(0.5)
            context = gpu.process_memory(child.pid) - ready["reserved"]
            child.send(go=True)
            done = child.hear(180)
            time.sleep(1.5)
            running, _ = device(exporter)
        time.sleep(2.5)
        report, shown = device(exporter)
        peak = exporter.scrape().value("gpu_workload_memory_peak_bytes", gpu=0)
    want = done["max_memory_reserved"] + context
    results.check("report, training: peak against max_memory_reserved + context", f"{(shown['peak_bytes'] - want) / MIB:+.2f} MiB", "within 4 MiB", abs(shown["peak_bytes"] - want) <= 4 * MIB)
    results.check("report, training: peak against gpu_workload_memory_peak_bytes", f"{shown['peak_bytes']} and {peak}", "equal", shown["peak_bytes"] == peak)
    least = (want * 1.15) // 1
    results.check("report, training: advice", f"{shown['advice_bytes']}, margin {shown['advice_margin']}", "peak + 15 %", abs(shown["advice_bytes"] - least) <= 5 * MIB)
    results.check("report, training: mean", f"{shown['mean_bytes'] / MIB:.0f} MiB in {shown['samples']} samples", "above the context, below the peak", context < shown["mean_bytes"] < shown["peak_bytes"])
    results.check("report, training: state, exits", f"{running['state']}, then {report['state']}, {report['exits']}, seen from its start: {report['seen_from_start']}",
        "running, then left; exit status 0, or none before Linux 6.15", (running["state"], report["state"], report["seen_from_start"]) == ("running", "left", True)
        and report["exits"] in ([], [{"exit_status": 0, "processes": 1}]))  # fmt: skip

    settle(gpu)
    with Exporter(setup, "reports-full") as exporter:
        with ended(Child("flat", "--share", 0.93)) as child:
            child.hear(180)
            full = time.monotonic()
            time.sleep(FULL_SECONDS)
            held = time.monotonic() - full
        time.sleep(2.5)
        _, shown = device(exporter)
    at_90, at_95 = shown["seconds_at_90_percent"], shown["seconds_at_95_percent"]
    results.check("report, 93 % of the GPU: seconds at 90 %", f"{at_90:.2f} s; by the clock {held:.2f} s, and the end of the process",
        f"at least the clock's, at most {LIST_SECONDS} s more", held - 0.1 <= at_90 <= held + LIST_SECONDS)  # fmt: skip
    results.check("report, 93 % of the GPU: seconds at 95 %", at_95, "0", at_95 == 0)
    reserved_in_advance(setup, results)


def reserved_in_advance(setup, results):
    """JAX takes 45 % of the GPU in advance, holds 1 GiB of it and reports so: the advice follows what it needed."""
    gpu = setup.gpu()
    settle(gpu)
    socket = os.path.join(setup.out, "reports.sock")
    with Exporter(setup, "reports-reserved", f"--allocator.socket={socket}") as exporter:
        with ended(reporting(socket, "arrays", "--mib", 1024, environment={"XLA_PYTHON_CLIENT_MEM_FRACTION": ".45"})) as child:
            said = child.hear(180)
            time.sleep(12)
            _, shown = device(exporter)
            scrape = exporter.scrape()
            outside, total = (scrape.value(f"gpu_{name}_bytes", gpu=0) for name in ("process_memory_outside_allocator", "memory_total"))
    wanted = said["peak"] + outside
    results.check("report, JAX: peak", f"{shown['peak_bytes'] / MIB:.0f} MiB", f"at least 40 % of {total / MIB:.0f} MiB, taken in advance", shown["peak_bytes"] >= 0.4 * total)
    results.check("report, JAX: what it needed", f"{shown['needed_bytes']}, allocated at most {shown['allocated_peak_bytes']}",
        f"JAX's peak_bytes_in_use {said['peak']} + {outside} outside, within 4 MiB", abs(shown["needed_bytes"] - wanted) <= 4 * MIB)  # fmt: skip
    results.check("report, JAX: advice", shown["advice_bytes"], "what it needed + 15 %", shown["advice_bytes"] == -(-shown["needed_bytes"] * 115 // 100))
