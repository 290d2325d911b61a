#!/usr/bin/env python3
"""Records the exporter's scrapes while one job runs on a real GPU, to replay them through the rules.

    record_job.py {leak,training} --exporter PATH --out FILE.json --seconds N [--every SECONDS] [--nvml PATH]

`leak` holds 90 GiB and allocates 64 MiB more each second; `training` is a loop of training steps. The first scrape is made before
the job starts. The file contains the time of each scrape in seconds. For each series it contains the value at each scrape, or null if
the series was absent. UUIDs are replaced by a placeholder.
"""

import argparse
import datetime
import json
import os
import re
import time

import nvml_abi
from children import Child
from exporter import Exporter

# The GPU and process families that the rules read.
KEPT = ("gpu_memory_u", "gpu_memory_free", "gpu_memory_total", "gpu_memory_reserved", "gpu_memory_window", "gpu_memory_peak", "gpu_memory_pressure", "gpu_memory_grown", "gpu_memory_shrunk", "gpu_process_memory_", "gpu_process_sm_", "gpu_process_idle_", "gpu_process_start_", "gpu_process_info", "gpu_workload_", "gpu_up", "gpu_utilization_ratio", "vram_exporter_nvml_up")
BASE_MIB = 90 * 1024
BEFORE = 15


class Setup:
    def __init__(self, options):
        self.exporter = os.path.abspath(options.exporter)
        self.library = nvml_abi.library_file(options.nvml)
        self.out = os.path.dirname(os.path.abspath(options.out))


def start(job):
    if job == "leak":
        child = Child("leak", "--mib", BASE_MIB)
        child.hear(120)
        return child
    child = Child("training", "--steps", 10_000_000)
    child.hear(180)
    child.send(go=True)
    return child


def kept(scrape):
    """The samples of the families in KEPT: each series as text, with its value."""
    series = {}
    for name, rows in scrape.samples.items():
        if name.startswith(KEPT):
            for labels, value in rows:
                inside = ",".join(f"{key}={json.dumps(label)}" for key, label in sorted(labels.items()))
                series[f"{name}{{{inside}}}"] = value
    return series


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job", choices=["leak", "training"])
    parser.add_argument("--exporter", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--every", type=float, default=3)
    parser.add_argument("--nvml")
    options = parser.parse_args()
    setup = Setup(options)
    scrapes, child = [], None
    with Exporter(setup, f"record-{options.job}") as exporter:
        begun = time.monotonic()
        try:
            while (second := time.monotonic() - begun) < options.seconds:
                if child is None and second >= BEFORE:
                    child = start(options.job)
                scrapes.append({"second": round(time.monotonic() - begun, 3), "series": kept(exporter.scrape())})
                due = begun + (len(scrapes)) * options.every
                time.sleep(max(0.0, due - time.monotonic()))
        finally:
            if child:
                child.end()
    gpu = nvml_abi.Gpu(0, setup.library)
    about = {"date": datetime.date.today().isoformat(), "gpu": gpu.text("nvmlDeviceGetName"), "driver": gpu.text("nvmlSystemGetDriverVersion", device=False)}
    write(options.out, {**about, "job": options.job, "every": options.every}, scrapes)
    used = [value for scrape in scrapes for name, value in scrape["series"].items() if name.startswith("gpu_memory_used_bytes")]
    print(f"{options.job}: {len(scrapes)} scrapes, used from {min(used) / 2**30:.1f} to {max(used) / 2**30:.1f} GiB")


def write(path, about, scrapes):
    """Writes the file with one line for each series."""
    names = sorted({name for scrape in scrapes for name in scrape["series"]})
    lines = [f"{json.dumps(name)}: {json.dumps([scrape['series'].get(name) for scrape in scrapes], separators=(',', ':'))}" for name in names]
    head = json.dumps({**about, "seconds": [scrape["second"] for scrape in scrapes]})[:-1]
    text = head + ', "series": {\n  ' + ",\n  ".join(lines) + "\n}}\n"
    with open(path, "w") as out:
        out.write(re.sub("GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "<uuid>", text))


if __name__ == "__main__":
    main()
