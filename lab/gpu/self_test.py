"""Shows with invented figures that the check of lost time and energy reads nvidia-smi and that it can fail. Needs no GPU.

    self_test.py"""

import contextlib
import io
import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests/judges"))

import check_time as check
from harness import finish
from results import Results

# What `nvidia-smi -q -x` shows of what the check reads, in its order: the GPU before the module, and margins instead of temperatures.
SHOWN = """<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v13.dtd">
<nvidia_smi_log>
  <driver_version>580.159.04</driver_version>
  <gpu id="00000000:01:00.0">
    <minor_number>3</minor_number>
    <clocks_event_reasons_counters>
      <clocks_event_reasons_counters_sw_power_cap>91403239 us</clocks_event_reasons_counters_sw_power_cap>
      <clocks_event_reasons_counters_sw_therm_slowdown>7 us</clocks_event_reasons_counters_sw_therm_slowdown>
    </clocks_event_reasons_counters>
    <temperature>
      <gpu_temp_max_tlimit_threshold>-8 C</gpu_temp_max_tlimit_threshold>
      <gpu_temp_slow_threshold>87 C</gpu_temp_slow_threshold>
    </temperature>
    <gpu_power_readings>
      <current_power_limit>700.00 W</current_power_limit>
      <min_power_limit>N/A</min_power_limit>
    </gpu_power_readings>
    <module_power_readings>
      <current_power_limit>N/A</current_power_limit>
    </module_power_readings>
  </gpu>
</nvidia_smi_log>
"""
PROGRAM = """#!/bin/sh
case "$*" in
*-x*) cat "$(dirname "$0")/shown.xml" ;;
*counters.sync_boost*) echo "1500000 us" ;;
*) echo 'Field "x" is not a valid field to query.'; exit 2 ;;
esac
"""
REASONS = dict.fromkeys(check.REASONS)


def verdicts(act):
    results = Results()
    with contextlib.redirect_stdout(io.StringIO()):
        act(results)
    return [line["ok"] for line in results.lines]


def reads(wrong):
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "shown.xml").write_text(SHOWN)
        program = Path(folder, "nvidia-smi")
        program.write_text(PROGRAM)
        program.chmod(0o755)
        os.environ["PATH"] = f"{folder}:{os.environ['PATH']}"
        shown = check.smi()
        refused = check.asked("--query-gpu=x", "--format=csv,noheader")
    expected = {
        ("clocks_event_reasons_counters_sw_power_cap", "us"): 91403239,
        # From the second form, because the first one lacks it.
        ("clocks_event_reasons_counters_sync_boost", "us"): 1500000,
        ("clocks_event_reasons_counters_sync_boost", "ms"): None,
        ("gpu_temp_max_threshold", "C"): None,
        ("gpu_temp_max_tlimit_threshold", "C"): None,
        ("gpu_temp_slow_threshold", "C"): 87,
        ("current_power_limit", "W"): 700,
        ("min_power_limit", "W"): None,
    }
    for (tag, unit), number in expected.items():
        if check.amount(shown, tag, unit) != number:
            wrong.append(f"{tag} in {unit}: {check.amount(shown, tag, unit)} instead of {number}")
    if shown["minor_number"] != "3" or refused is not None:
        wrong.append(f"minor number {shown['minor_number']}, refused query {refused}")


def times(own, violation, smi, ours):
    """The verdict on the power: seconds that passed according to each."""
    tag = check.SMI_COUNTERS["power"][0]

    def read(seconds):
        fields = {**REASONS, "power": None if own is None else seconds * own * 1e9}
        found = {} if violation is None else {"power": seconds * violation * 1e9}
        return {"fields": fields, "violations": found, "smi": {} if smi is None else {tag: f"{seconds * smi * 1e6:.0f} us"}}

    shown = [{"times": {**REASONS, "power": None if ours is None else start}} for start in (5, 5 + (ours or 0))]
    return verdicts(lambda results: check.compare_times(results, "power", "power", 20, (read(0), read(1)), shown))


def energy(truth, joules, driver, unmeasured=0.0, longer=0.0):
    """The verdicts for 20 s with these joules; the GPU has 80 W when it is idle."""
    own = ({"at": 0, "joules": 0}, {"at": 20, "joules": truth})
    ours = [{"at": at, "joules": total, "driver": counted, "unmeasured": missed, "power": 80}
        for at, total, counted, missed in ((1, 50, 70, 0), (21 + longer, 50 + joules, 70 + driver, unmeasured))]  # fmt: skip
    return verdicts(lambda results: check.energy(results, "load", own, ours))


def parts(first, second, other, idle, whole, measured=(0.75, 0.25)):
    before = {"joules": 100, "idle": 10, "parts": {"slurm:4711": 5}}
    grown = {"slurm:4711": 5 + first, "slurm:4712": second, "other": other}
    after = {"joules": 100 + whole, "idle": None if idle is None else 10 + idle, "parts": grown}
    shares = dict(zip(check.JOBS, measured))
    return verdicts(lambda results: check.apportioned(results, shares, (before, after)))


def main():
    wrong = []
    reads(wrong)
    yes, no = True, False
    for what, found, expected in (
        ("all counters agree", times(10, 10, 10, 10.5), [yes]),
        ("the driver counts none", times(None, None, None, None), [yes]),
        ("nvidia-smi shows none", times(10, None, None, 10), [yes]),
        ("the exporter invents a time", times(None, None, None, 3), [no]),
        ("the exporter has none", times(10, 10, 10, None), [no]),
        ("the exporter is apart", times(10, 10, 10, 13), [no]),
        ("milliseconds taken for microseconds", times(10, 10, 0.01, 10), [no]),
        ("nanoseconds taken for microseconds", times(10, 0.01, 10, 10), [no]),
        ("equal energy", energy(10_000, 10_200, 9_900), [yes, yes, yes]),
        ("a longer span of the idle GPU", energy(1600, 1640, 1600, longer=0.5), [yes, yes, yes]),
        ("another energy", energy(10_000, 10_400, 9_000), [no, no, yes]),
        ("much unmeasured time", energy(10_000, 10_000, 10_000, unmeasured=1), [yes, yes, no]),
        ("no energy", energy(0, 0, 0), [no]),
        ("parts of the whole", parts(600, 200, 50, 150, 1000), [yes, yes, yes, yes]),
        ("a lost part", parts(600, 200, 50, 140, 1000), [no, yes, yes, yes]),
        ("much of nobody", parts(300, 100, 450, 150, 1000), [yes, no, yes, yes]),
        ("the shares of another", parts(200, 600, 50, 150, 1000), [yes, yes, no, no]),
        ("no load", parts(0, 0, 0, 1000, 1000, (0, 0)), [yes, yes, no, no]),
        ("not apportioned", parts(600, 200, 50, None, 1000), [no]),
    ):  # fmt: skip
        if found != expected:
            wrong.append(f"{what}: {found} instead of {expected}")
    return finish(wrong)


if __name__ == "__main__":
    sys.exit(main())
