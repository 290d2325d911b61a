#!/usr/bin/env python3
"""Does a slow GPU cost the other GPUs nothing? Spikes on a healthy GPU must all be seen while another GPU's calls are slow, hang or
alternate between slow and quick.

    slow_gpu.py [--exporter target/release/vram-exporter] [--seconds 40]

A simulated machine has two GPUs. The memory of GPU 1 rises by 50 GiB for 100 ms in every 250 ms; GPU 0 gets one fault after the other. Each
spike that is seen adds 50 GiB to gpu_memory_increase_bytes_total, so the counter tells how many were seen. The first slow call of a fault may
cost GPU 1 about 50 ms, less than a spike lasts. A program that is to wake every 10 ms tells how often the machine itself was too busy: each
time may explain one spike that was not seen. `--seconds` is shared by the cases. Prints a table; the exit status is 1 if a case is wrong.
The simulator is no GPU: nothing here is a measurement of one."""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness import arguments, simulator_of
from harness.exporter import Exporter, Machine, slow_faults, value

PERIOD, HOLD, RISE = 0.25, 0.1, 50
SCENARIO = str(Path(__file__).resolve().with_name("spiky.toml"))
MEMORY = "nvmlDeviceGetMemoryInfo_v2"
LIST = "nvmlDeviceGetComputeRunningProcesses_v3"
TEMPERATURE = "nvmlDeviceGetTemperature"


def fault(call, kind):
    return f'[[fault]]\ngpu = 0\ncall = "{call}"\n{kind}\n'


def slow(call, delay):
    return fault(call, f'kind = "slow"\ndelay = "{delay}"')


# Of each case: its name, the contents of the control file, one after the other, and whether GPU 0 is named as slow.
CASES = [
    ("healthy", [""], False),
    ("memory info takes 1.5 s", [slow(MEMORY, "1500ms")], True),
    ("memory info takes 200 ms", [slow(MEMORY, "200ms")], True),
    ("memory info hangs", [fault(MEMORY, 'kind = "hang"')], True),
    ("slow and quick by turns", [slow(MEMORY, "300ms"), ""] * 3, True),
    ("the process list takes 1.5 s", [slow(LIST, "1500ms")], True),
    ("the temperature takes 1.5 s", [slow(TEMPERATURE, "1500ms")], True),
    ("every call takes 300 ms", [slow("*", "300ms")], True),
]


# Prints how often a wake-up came half a spike late.
PACER = f"""
import sys, threading, time
late, ended = 0, threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
while not ended.is_set():
    due = time.monotonic() + 0.01
    time.sleep(0.01)
    late += time.monotonic() - due > {HOLD / 2}
print(late)
"""


def observe(exporter, machine, steps, seconds):
    """(spikes that began, spikes that were seen, late wake-ups, slow faults, passes of the process lane) while the steps are in effect."""
    with subprocess.Popen([sys.executable, "-c", PACER], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as pacer:
        before, begun = exporter.scrape(), time.monotonic()
        for step in steps:
            machine.control(step)
            time.sleep(seconds / len(steps))
        after, took = exporter.scrape(), time.monotonic() - begun
        late = int(pacer.communicate()[0])
    risen = value(after, "gpu_memory_increase_bytes_total", gpu="1") - value(before, "gpu_memory_increase_bytes_total", gpu="1")
    passes = [value(scrape, "vram_exporter_lane_duration_seconds_count", lane="process") for scrape in (before, after)]
    return took / PERIOD, risen / (RISE << 30), late, slow_faults(after) - slow_faults(before), passes[1] - passes[0]


def judge(began, seen, late, slow_count, passes, seconds, is_slow):
    """What is wrong with a case. A spike may have begun before the first scrape or be under way in the last."""
    if seen < began - 1.5 - late:
        yield f"{began - seen:.1f} spikes were not seen"
    if is_slow and slow_count < 1:
        yield "no fault names the slow GPU"
    if not is_slow and slow_count > late:
        yield "a healthy GPU was named as slow"
    # There are two lists a second, and more because memory changes.
    if passes < seconds:
        yield f"only {passes:.0f} lists in {seconds:.0f} s"


def main():
    parser = arguments(__doc__)
    parser.add_argument("--seconds", type=float, default=40, help="time for all cases together")
    options = parser.parse_args()
    wrong = 0
    print("| case | spikes | seen | late wake-ups | slow faults | lists | wrong |\n|---|---|---|---|---|---|---|")
    for name, steps, is_slow in CASES:
        with tempfile.TemporaryDirectory() as folder:
            machine = Machine(folder, simulator_of(options), SCENARIO)
            with Exporter(options.exporter, *machine.flags, "--process.interval=500ms", environment=machine.environment) as exporter:
                exporter.until("a spike", lambda scrape: value(scrape, "gpu_memory_increase_bytes_total", gpu="1") > 2 * RISE << 30)
                seconds = options.seconds / len(CASES)
                began, seen, late, slow_count, passes = observe(exporter, machine, steps, seconds)
                problems = list(judge(began, seen, late, slow_count, passes, seconds, is_slow))
                wrong += bool(problems)
                print(f"| {name} | {began:.1f} | {seen:.1f} | {late} | {slow_count:.0f} | {passes:.0f} | {'; '.join(problems)} |", flush=True)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
