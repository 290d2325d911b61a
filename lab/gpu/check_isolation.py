#!/usr/bin/env python3
"""Does a slow GPU cost another one nothing, on two real cards? And what does the exporter cost beside the bare loop, with all GPUs idle and
with 16 processes?

    check_isolation.py --exporter PATH --out DIR [--nvml PATH] [--only isolation,cost]

Isolation: a library around the real driver (delay.c) delays calls of GPU 0: memory info by 1.5 s, by 200 ms, for ever (10 s a call), each
fiftieth by 300 ms; the process list and the temperature by 1.5 s. Meanwhile a process allocates 1 GiB on GPU 1 twenty times, for 20 ms each:
each rise that the exporter sees adds 1 GiB to gpu_memory_increase_bytes_total.
Cost: in each round the bare loop (bare.c, memory info of all GPUs at 100 Hz), the exporter, and the bare loop again run for eight seconds
each, one after the other. The two bare loops of a round are the A/A control: their ratio is the error of the measurement.
Needs python3, gcc and the exporter, and for isolation two GPUs. Ends in less than eight minutes. Writes DIR/isolation.json and
DIR/isolation.md; the exit status is 1 if a check fails. It changes no setting of a GPU."""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time
import traceback

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "tests/judges"))

import nvml_abi
from children import Child, Crowd
from harness import cpu_seconds
from harness.exporter import Exporter, slow_faults, value
from results import Results

GIB = 1 << 30
MEMORY, LIST, TEMPERATURE = "nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetTemperature"
# Name, line of the control file, and whether GPU 0 must be named as slow.
CASES = [
    ("nothing is delayed", "", False),
    ("memory info takes 1.5 s", f"{MEMORY} 0 1500 1", True),
    ("memory info takes 200 ms", f"{MEMORY} 0 200 1", True),
    ("memory info hangs", f"{MEMORY} 0 10000 1", True),
    ("each fiftieth memory info takes 300 ms", f"{MEMORY} 0 300 50", True),
    ("the process list takes 1.5 s", f"{LIST} 0 1500 1", True),
    ("the temperature takes 1.5 s", f"{TEMPERATURE} 0 1500 1", True),
]
SPIKES, HOLD_MS, ROUNDS, SECONDS = 20, 20, 5, 8


def build(out, library):
    """The programs that gcc makes: the wrapper around the real library, and the bare loop."""
    wrapper, bare = out / "libdelay.so", out / "bare"
    real = os.path.realpath(library)
    flags = ["-shared", "-fPIC", "-O2", f'-DREAL="{real}"', "-Wl,--no-as-needed"]
    subprocess.run(["gcc", *flags, "-o", wrapper, HERE / "delay.c", real, "-ldl", "-pthread"], check=True)
    subprocess.run(["gcc", "-O2", "-o", bare, HERE / "bare.c", "-ldl"], check=True)
    return wrapper, bare


def spikes(child):
    """Makes the spikes, apart by a time that is no multiple of the exporter's period."""
    for number in range(SPIKES):
        child.send(mib=1024, hold_ms=HOLD_MS)
        child.hear()
        time.sleep(0.1 + 0.0037 * number)


def isolation(exporter, wrapper, out, results):
    control = out / "delay.control"
    environment = {"NVML_DELAY_CONTROL": str(control)}
    second = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "1"}
    for name, line, is_slow in CASES:
        control.unlink(missing_ok=True)
        with Child("spikes", environment=second) as child:
            with Exporter(exporter, f"--nvml.library={wrapper}", log=out / "isolation.log", environment=environment) as running:
                time.sleep(2)
                faults = slow_faults(running.scrape())
                aside = out / "delay.new"
                aside.write_text(line + "\n")
                os.replace(aside, control)
                if is_slow:
                    running.until("a slow call", lambda scrape, faults=faults: slow_faults(scrape) > faults)
                before = running.scrape()
                spikes(child)
                time.sleep(1)
                after = running.scrape()
        seen = value(after, "gpu_memory_increase_bytes_total", gpu="1") - value(before, "gpu_memory_increase_bytes_total", gpu="1")
        missed = [value(after, "vram_exporter_missed_ticks_total", lane="memory", gpu=str(gpu)) for gpu in (0, 1)]
        slow = slow_faults(after) - faults
        results.check(f"isolation: {name}", f"{seen / GIB:.2f} of {SPIKES} spikes of {HOLD_MS} ms on GPU 1 seen; slow faults {slow:.0f}; missed readings of GPU 0 {missed[0]:.0f}, of GPU 1 {missed[1]:.0f}",
            f"{SPIKES}, and GPU 0 named as slow: {is_slow}", seen >= (SPIKES - 0.01) * GIB and (slow > 0) == is_slow)  # fmt: skip


def bare_share(bare, library):
    """The loop's share of a core in percent."""
    command = [bare, library, "sample", "100", str(SECONDS)]
    answer = subprocess.run(command, capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL)
    return json.loads(answer.stdout)["cpu_share"] * 100


def exporter_share(exporter, library, out, flags):
    with Exporter(exporter, f"--nvml.library={library}", *flags, log=out / "cost.log") as running:
        # The first seconds are those of the start.
        time.sleep(4)
        before, begun = cpu_seconds(running.pid), time.monotonic()
        time.sleep(SECONDS)
        return (cpu_seconds(running.pid) - before) / (time.monotonic() - begun) * 100


def compare(exporter, library, bare, out, flags):
    """Of each kind, its shares in turn."""
    shares = {"bare": [], "exporter": [], "bare again": []}
    for _ in range(ROUNDS):
        shares["bare"].append(bare_share(bare, library))
        shares["exporter"].append(exporter_share(exporter, library, out, flags))
        shares["bare again"].append(bare_share(bare, library))
    return shares


def cost(exporter, library, bare, out, results):
    def report(name, shares, goal):
        floor = shares["bare"] + shares["bare again"]
        ratio = statistics.median(shares["exporter"]) / statistics.median(floor)
        control = statistics.median(shares["bare again"]) / statistics.median(shares["bare"])
        numbers = "; ".join(f"{kind} " + ", ".join(f"{share:.2f}" for share in of) for kind, of in shares.items())
        figure = f"{ratio:.2f} times the bare loop (A/A {control:.2f}); percent of a core: {numbers}"
        results.check(name, figure, f"at most {goal} times", ratio <= goal)

    # A rate that the idle lane keeps, so that both read memory 100 times a second.
    full = ["--memory.idle-rate=100"]
    report("cost: idle GPUs, everything on, 100 Hz", compare(exporter, library, bare, out, full), 1.5)
    with Crowd(16, "context"):
        report("cost: 16 processes, everything on", compare(exporter, library, bare, out, []), 1.5)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--exporter", required=True, metavar="PATH", type=pathlib.Path)
    parser.add_argument("--out", required=True, metavar="DIR", type=pathlib.Path)
    parser.add_argument("--nvml", metavar="PATH", help="the library, if the loader does not find it")
    parser.add_argument("--only", default="isolation,cost", help="the parts to run")
    options = parser.parse_args()
    exporter, out = options.exporter.resolve(), options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    library = nvml_abi.library_file(options.nvml)
    wrapper, bare = build(out, library)
    results, begun = Results(), time.monotonic()
    parts = {"isolation": lambda: isolation(exporter, wrapper, out, results), "cost": lambda: cost(exporter, library, bare, out, results)}
    for name in options.only.split(","):
        try:
            parts[name]()
        except Exception as error:
            traceback.print_exc()
            results.check(name, f"{type(error).__name__}: {error}", "runs to its end", False)
    about = {"gpus": len(nvml_abi.Gpu.all(library)), "seconds": round(time.monotonic() - begun)}
    (out / "isolation.md").write_text(results.markdown(about))
    (out / "isolation.json").write_text(json.dumps({**about, "results": results.lines}, indent=1))
    sys.exit(1 if results.failed() else 0)


if __name__ == "__main__":
    main()
