#!/usr/bin/env python3
"""Records the exporter's scrapes while one job runs on a real GPU, to replay them through the rules.

    record_job.py {leak,training,flat,climb,jax} --exporter PATH --out FILE.json [--seconds N] [--every SECONDS] [--nvml PATH]
    record_job.py reservations --exporter PATH --out FOLDER [--seconds N] [--every SECONDS] [--nvml PATH]

| job | what it does |
|---|---|
| leak | holds 90 GiB and allocates 64 MiB more each second |
| training | a loop of training steps |
| flat | takes, all at once, 91 % of what the GPU can allocate, and keeps it; does not report to the exporter |
| climb | a training run whose memory climbs from 60 % to 92 % of the GPU and is still growing at the end; does not report either |
| jax | JAX preallocates 91 % of the GPU and holds 1 GiB of arrays; vram-run starts it, so it reports to the exporter |

`reservations` records flat, climb and jax, one after another, as FOLDER/<GPU>-<job>.json. flat and climb need PyTorch.

Scrapes begin 10 s before the job does, and end --seconds after the job is ready. The file holds the time of each scrape in seconds
and, for each series of the families that the rule files name, its value at each scrape, or null if the series was absent. A value
instead of a list means that the series had this value at every scrape. UUIDs are replaced by a placeholder. A recording of the simulator
has the key `simulated`.
"""

import argparse
import contextlib
import datetime
import json
import os
import re
import select
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests/judges"))

import nvml_abi
from children import Child, ChildFailed, reporting
from exporter import Exporter
from harness import ROOT, names

BASE_MIB = 90 * 1024
BEFORE = 10
# The first import of a framework on a machine reads gigabytes.
START_LIMIT = 180
RESERVATIONS = ("flat", "climb", "jax")
JOBS = ("leak", "training", *RESERVATIONS)


class Setup:
    """What the exporter of a recording needs."""

    def __init__(self, options, folder):
        self.exporter = os.path.abspath(options.exporter)
        self.library = nvml_abi.library_file(options.nvml)
        self.out = os.path.abspath(folder)


def start(job, seconds, socket):
    """Starts the job's process. Does not wait until it is ready."""
    if job == "leak":
        return Child("leak", "--mib", BASE_MIB)
    if job == "training":
        return Child("training", "--steps", 10_000_000)
    if job == "flat":
        return Child("flat", "--share", 0.91)
    if job == "climb":
        return Child("climb", "--share", 0.92, "--hold", seconds)
    return reporting(socket, "arrays", "--mib", 1024, environment={"XLA_PYTHON_CLIENT_MEM_FRACTION": ".91"})


def ready(child):
    """The job's first message, if it has arrived."""
    return child.hear() if select.select([child.process.stdout], [], [], 0)[0] else None


def families():
    """The exporter's families that the rule files name."""
    text = "\n".join(file.read_text() for file in (ROOT / "deploy/prometheus/rules").glob("*.yml"))
    return {family for family in names.documented()[0] if re.search(rf"\b{family}\b", text)}


def kept(scrape, wanted):
    """The samples of the wanted families: each series as text, with its value."""
    series = {}
    for name in wanted & scrape.samples.keys():
        for labels, value in scrape.samples[name]:
            inside = ",".join(f"{key}={json.dumps(label)}" for key, label in sorted(labels.items()))
            series[f"{name}{{{inside}}}"] = int(value) if float(value).is_integer() else round(value, 6)
    return series


def record(job, options, setup, socket):
    """The recording of one job."""
    wanted, scrapes, child = families(), [], None
    with Exporter(setup, f"record-{job}", *([f"--allocator.socket={socket}"] if job == "jax" else [])) as exporter:
        started, begun, ready_at = time.time(), time.monotonic(), None
        try:
            while ready_at is None or time.monotonic() < ready_at + options.seconds:
                scrapes.append({"second": round(time.monotonic() - begun, 3), "series": kept(exporter.scrape(), wanted)})
                if child is None and time.monotonic() >= begun + BEFORE:
                    child = start(job, options.seconds, socket)
                elif child and ready_at is None:
                    if message := ready(child):
                        print(f"{job}: ready after {time.monotonic() - begun - BEFORE:.0f} s: {message}", flush=True)
                        ready_at = time.monotonic()
                        if job == "training":
                            child.send(go=True)
                    elif time.monotonic() > begun + BEFORE + START_LIMIT:
                        raise ChildFailed(f"the {job} child {child.pid} is not ready after {START_LIMIT} s")
                due = begun + len(scrapes) * options.every
                time.sleep(max(0.0, due - time.monotonic()))
            if (status := child.process.poll()) is not None:
                raise ChildFailed(f"the {job} child {child.pid} ended with status {status}")
        finally:
            if child:
                child.end()
    gpu = nvml_abi.Gpu(0, setup.library)
    driver = gpu.text("nvmlSystemGetDriverVersion", device=False)
    about = {"date": datetime.date.today().isoformat(), "gpu": gpu.text("nvmlDeviceGetName"), "driver": driver}
    if hasattr(gpu.lib, "nvmlSimVersion"):
        about["simulated"] = True
    return {**about, "job": job, "every": options.every, "started": round(started, 3), "scrapes": scrapes}


def report(recording):
    """One line with the figures that show at once whether a recording has failed."""
    scrapes = recording["scrapes"]

    def last(family):
        found = [value for name, value in scrapes[-1]["series"].items() if name.startswith(family + "{")]
        return f"{found[0] / 2**30:.1f} GiB" if found else "absent"

    used = [value for scrape in scrapes for name, value in scrape["series"].items() if name.startswith("gpu_memory_used_bytes")]
    print(
        f"{recording['job']}: {len(scrapes)} scrapes of {len(scrapes[-1]['series'])} series, used from {min(used) / 2**30:.1f} to "
        f"{max(used) / 2**30:.1f} GiB, at the end used {last('gpu_memory_used_bytes')} and needed {last('gpu_memory_needed_bytes')}",
        flush=True,
    )


def write(path, recording):
    """Writes the file with one line for each series."""
    about = dict(recording)
    scrapes = about.pop("scrapes")
    lines = []
    for name in sorted({name for scrape in scrapes for name in scrape["series"]}):
        values = [scrape["series"].get(name) for scrape in scrapes]
        shown = values[0] if len(set(values)) == 1 else values
        lines.append(f"{json.dumps(name)}: {json.dumps(shown, separators=(',', ':'))}")
    head = json.dumps({**about, "seconds": [scrape["second"] for scrape in scrapes]})[:-1]
    text = head + ', "series": {\n  ' + ",\n  ".join(lines) + "\n}}\n"
    with open(path, "w") as out:
        out.write(re.sub("GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "<uuid>", text))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job", choices=[*JOBS, "reservations"])
    parser.add_argument("--exporter", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--seconds", type=float, default=100)
    parser.add_argument("--every", type=float, default=1)
    parser.add_argument("--nvml")
    options = parser.parse_args()
    several = options.job == "reservations"
    folder = options.out if several else os.path.dirname(os.path.abspath(options.out))
    os.makedirs(folder, exist_ok=True)
    setup = Setup(options, folder)
    failed = []
    with contextlib.ExitStack() as stack:
        # A socket's path has at most 107 bytes.
        socket = os.path.join(stack.enter_context(tempfile.TemporaryDirectory()), "allocator.sock")
        for job in RESERVATIONS if several else [options.job]:
            try:
                recording = record(job, options, setup, socket)
            except (ChildFailed, AssertionError, RuntimeError, OSError) as error:
                failed.append(f"{job}: {error}")
                continue
            report(recording)
            gpu = recording["gpu"].split()[-1].lower()
            write(os.path.join(folder, f"{gpu}-{job}.json") if several else options.out, recording)
    if failed:
        sys.exit("\n".join(failed))


if __name__ == "__main__":
    main()
