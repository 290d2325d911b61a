#!/usr/bin/env python3
"""Judges the numbers of `vram advise`: fixed answers about a made history of two weeks in a real Prometheus.

  check.py --exporter PATH
  check.py --self-test

cases.py has the workloads, each made for one question, and what the answer must say about them; what it must say about all of them, and in
other ranges and groups, is below. promtool turns the history into blocks. The self-test shows that wrong answers are noticed; it needs neither
Prometheus nor the exporter. Without promtool and Prometheus the check prints SKIPPED and succeeds, unless VRAM_EXPORTER_TEST_REQUIRE_ALL is set.
"""

import argparse
import copy
import csv
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import backfill
from cases import ANSWERS, HOSTILE, Whole, cases, others
from fleet import BEGIN, END, Fleet
from harness import finish, skipped, until
from harness.prometheus import Prometheus
from workloads import GIB

RAW, RECORDED = "gpu_workload_memory_window_peak_bytes", "device:gpu_workload_memory_window_peak_bytes:max1h"
WEEKS = 14 * 86_400
# The end of the two weeks of which only recorded maxima are kept: they are older than every raw sample.
RECORDED_END = END - 2 * WEEKS
NAMES = {"cluster", "workload", "kind"}


RANGE, FLEET = ANSWERS["head"], ANSWERS["fleet"]

# For each question: the flags, the number of requests, what the answer says of itself, and of its workloads by cluster and name.
# 70 runs in all: 68 of the cases, 2 that the exporter summed. A group by pod, job or user leaves out those that have none.
WEB = ["6fb9c7d8b-zzzzz/app", "7d9f8b6c5d-q4wtb/app", "7d9f8b6c5d-x2k9z/app", "7d9f8b6c5d-x2k9z/proxy"]
PODS = ["cut-0/main", "equal/main", "gap/main", "renamed/main", *(f"step-{number}/main" for number in range(8)), "vllm/main", *(f"web-{name}" for name in WEB)]
USERS = ["ada", "climb", "died", "edge", "full", "jax", "pool", "tf"]
ENOUGH = ("--range=7d", "--min-samples=500", "--min-span=1d")
# Three days and 123 s earlier: the last interval has 777 s.
EARLIER = END - 3 * 86_400 - 123
QUESTIONS = {
    "by pod": (("--by=pod",), 38, {"left_out": 50}, {
        **{("east", f"cases/{name}"): {"kind": "kubernetes", "runs": 2 if name == "cut-0/main" else 1} for name in PODS},
        **{("west", f"cases/{name}/main"): {"kind": "kubernetes", "runs": 1} for name in ("equal", "pair-0")}}),
    "by job": (("--by=job",), 38, {"left_out": 60}, {
        **{("east", f"slurm:{number}"): {"kind": "slurm", "runs": 4 if number == 9100 else 1} for number in (9001, 9002, 9014, 9015, 9050, 9100)},
        ("west", "slurm:9200"): {"kind": "slurm", "runs": 1}}),
    "by user": (("--by=user",), 38, {"left_out": 48}, {
        **{("east", name): {"kind": "user", "runs": 1} for name in USERS},
        **{("west", name): {"kind": "user", "runs": 1} for name in (*HOSTILE, "zoë")}}),
    # The range begins with the last of the eight runs called step, which had 907 scrapes in 15 h. The failures were before.
    "a week, 500 samples in a day": (ENOUGH, 38, {"range_seconds": WEEKS // 2, "interval_seconds": 450, "min_samples": 500, "min_span_seconds": 86_400}, {
        ("east", "cases/step/main"): {"runs": 1, "samples": 907, "span_seconds": 54_000, "reason": "too_short"},
        ("east", "slurm:9015"): {"samples": 181, "span_seconds": 10_800, "reason": "too_few_samples"},
        ("east", "unit:failed.service"): {"out_of_memory": 0, "action": "keep", "advice_bytes": 12_348_030_976},
        ("west", "cases/pair/main"): {"peak_bytes": 10 * GIB, "intervals_near_peak": 1344}}),
    "100 minutes": (("--range=100m",), 38, {"range_seconds": 6000, "interval_seconds": 60}, {
        ("east", "slurm:9100"): {"runs": 4, "samples": 400, "span_seconds": 99 * 60, "reason": "too_short", "advice_bytes": None},
        ("east", "cases/equal/main"): {"samples": 99, "reason": "too_few_samples"}}),
    # The beginning is at a multiple of the interval: 777 s more. Five failures and a higher peak, at scrape 0, are in this range.
    "two weeks before another time": ((f"--time={EARLIER}",), 41, {"time": EARLIER, "range_seconds": WEEKS + 777, "interval_seconds": 900}, {
        ("east", "user:edge"): {"driver_peak_bytes": 88 * GIB, "peak_until": BEGIN, "out_of_memory": 5, "reason": "failed_allocations", "last": EARLIER},
        ("east", "user:old"): {"last_shortage": BEGIN - 180, "reason": "shortage"},
        ("east", "unit:below.service"): {"samples": 14_398, "first": BEGIN + 86_400, "last": EARLIER, "intervals": 961, "devices_now": 1}}),
    # One sample in 30 scrapes, so in every second interval. A peak counts if it is at such a scrape: that of gap is, that of renamed is not.
    "recorded maxima": ((f"--time={RECORDED_END}",), 29, {"source": "recorded", "time": RECORDED_END, "left_out": 2}, {
        ("east", "cases/gap/main"): {"samples": 141 + 385, "intervals": 526, "peak_bytes": 31 * GIB + 12_345, "advice_bytes": 38_278_910_223},
        ("east", "cases/renamed/main"): {"samples": 672, "peak_bytes": 20 * GIB, "current_source": "device", "devices_now": 0},
        ("east", "cases/cut/main"): {"runs": 2, "samples": 672, "peak_bytes": 9 * GIB, "intervals_near_peak": 299, "action": "keep"},
        ("west", "slurm:9200"): {"basis": "driver", "samples": 134, "peak_bytes": 24 * GIB}}),
}  # fmt: skip


def of_cases(made):
    """What the answer about the two weeks must say of each workload."""
    named = ((stays[0].device.parts[0].target.get("cluster"), stays[0].work.group, expected) for _, stays, expected in made)
    return {(cluster, name): expected for cluster, name, expected in named}


def wrong(answer, head, workloads):
    """Where the answer differs from `head` in its own fields, and from `workloads`, by cluster and name, in theirs."""
    yield from differences("the answer", answer, head, head)
    names = [(one.get("cluster", ""), one["kind"], one["workload"]) for one in answer["workloads"]]
    if names != sorted(names, key=lambda name: [text.encode() for text in name]):
        yield "the workloads are in another order"
    for (cluster, name), expected in workloads.items():
        found = [one for one in answer["workloads"] if (one.get("cluster"), one["workload"]) == (cluster, name)]
        if len(found) == 1:
            more = found[0].keys() - NAMES if isinstance(expected, Whole) else set()
            yield from differences(name, found[0], expected, expected.keys() | more)
        else:
            yield f"{name}: {len(found)} workloads"


def differences(name, found, expected, fields):
    for field in fields:
        have, want = found.get(field, "absent"), expected.get(field, "absent")
        if have != want:
            yield f"{name}: {field} is {have!r}, not {want!r}"


class Judge:
    """Asks one Prometheus, which logs its queries in `log`."""

    def __init__(self, exporter, url, log):
        # Built beside the exporter.
        self.tool = str(Path(exporter).resolve().with_name("vram"))
        self.url, self.log, self.problems = url, log, []

    def run(self, *flags):
        command = [self.tool, "advise", f"--prometheus.url={self.url}", *flags]
        return subprocess.run(command, capture_output=True, text=True, timeout=600)

    def logged(self):
        return self.log.read_text().splitlines()

    def note(self, name, problems):
        problems = list(problems)
        print(f"{'FAIL' if problems else 'ok  '} {name}", flush=True)
        self.problems += [f"{name}: {problem}" for problem in problems]

    def ask(self, name, flags, requests, head, workloads, count=None):
        """One answer in JSON; with `count`, that it is about this many workloads. Returns the answer."""
        before = len(self.logged())
        done = self.run("--format=json", *(() if any("--time" in flag for flag in flags) else (f"--time={END}",)), *flags)
        asked = len(self.logged()) - before
        if done.returncode not in (0, 2):
            self.note(name, [f"status {done.returncode}: {done.stderr[-500:]}"])
            return {}
        answer = json.loads(done.stdout)
        problems = list(wrong(answer, head, workloads))
        if count is not None and len(answer["workloads"]) != count:
            problems.append(f"{len(answer['workloads'])} workloads, not {count}")
        if not asked == answer["queries"] == requests:
            problems.append(f"{requests} requests are promised, {answer['queries']} said, {asked} logged")
        if done.returncode != (2 if any(one["action"] in ("lower", "raise") for one in answer["workloads"]) else 0):
            problems.append(f"status {done.returncode}")
        self.note(f"{name}: {len(answer['workloads'])} workloads, {asked} requests", problems)
        return answer


def without_a_time(judge):
    """The range ends when the program starts, so the history is before it."""
    before, begun = len(judge.logged()), int(time.time())
    done = judge.run()
    ends = [datetime.fromisoformat(json.loads(line)["params"]["end"].replace("Z", "+00:00")).timestamp() for line in judge.logged()[before:]]
    right = done.returncode == 1 and "is vram-exporter scraped" in done.stderr and ends and begun <= max(ends) <= time.time()
    judge.note("without a time", [] if right else [f"status {done.returncode}, asks until {ends}: {done.stderr[-300:]}"])


def forms(judge, answer):
    """The other formats have the same workloads, and no name is more than a name in them."""
    texts = {form: judge.run(f"--time={END}", f"--format={form}").stdout for form in ("yaml", "csv", "table")}
    judge.note("yaml", [] if yaml.safe_load(texts["yaml"]) == answer else ["differs from the JSON"])
    rows = list(csv.DictReader(io.StringIO(texts["csv"], newline="")))
    # The columns that are numbers of the workload itself.
    same = len(rows) == len(answer["workloads"]) and all(
        value == str(one[column]) for row, one in zip(rows, answer["workloads"]) for column, value in row.items() if type(one.get(column)) is int)
    formulas = [cell for row in rows for cell in row.values() if cell and cell.lstrip()[0] in "=+-@"]
    judge.note("csv", [] if same and not formulas else [f"{len(rows)} rows, as in the JSON: {same}, formulas: {formulas}"])
    lines = texts["table"].splitlines()
    row = "41.00 GiB 2023-11-09 07:00 1 of 1344 20157 samples, 13 d, 1 run 55.00 GiB (annotation) → 47.15 GiB, lower 7.85 GiB"
    problems = [] if any("cases/renamed/main" in line and row in " ".join(line.split()) for line in lines) else [f"no row {row!r}"]
    judge.note("table", problems + [f"a control character: {line!r}" for line in lines if not line.isprintable()])


def recorded(series):
    """What long-term storage keeps of two weeks, four weeks earlier: one sample in 30 scrapes of the peaks and of the devices."""
    for one in series:
        if one.family == RAW or one.family.startswith(("gpu_info", "gpu_memory_", "gpu_mig_memory_")):
            runs = [backfill.Run(at, at, run.value) for run in one.runs for at in range(max(0, -(-run.first // 30) * 30), run.last + 1, 30)]
            if runs:
                yield one._replace(family=RECORDED if one.family == RAW else one.family, begin=one.begin - 2 * WEEKS, runs=runs)


def judged(exporter, folder):
    fleet = Fleet()
    made = list(cases(fleet))
    stays = [stay for _, stays, _ in made for stay in stays] + list(others(fleet))
    series = [one for device in fleet.devices() for one in device.own_series()] + [one for stay in stays for one in stay.series()]
    samples, size = backfill.write([*series, *recorded(series)], folder)
    print(f"{samples} samples, {size / 2**20:.0f} MiB of OpenMetrics")
    log = folder / "queries.log"
    configuration = {"global": {"query_log_file": str(log)}, "scrape_configs": []}
    with Prometheus(folder, configuration, "--storage.tsdb.retention.time=90d") as asked:
        until("Prometheus answers", lambda: asked.instant("vector(1)"), log=asked.output)
        judge = Judge(exporter, asked.url, log)
        answer = judge.ask("two weeks", (), 38, {**RANGE, "fleet": FLEET}, of_cases(made), len(made))
        for name, question in QUESTIONS.items():
            judge.ask(name, *question, count=len(question[-1]) if name.startswith("by ") else None)
        without_a_time(judge)
        if answer:
            forms(judge, answer)
    return judge.problems


def self_test():
    """An answer made of what is expected has no problem; with any value changed, a field too many, or a workload missing, it has one."""
    problems = []
    expected = of_cases(list(cases(Fleet())))
    workloads = [{**({"cluster": cluster} if cluster else {}), "workload": name, "kind": "", **fields} for (cluster, name), fields in expected.items()]
    workloads.sort(key=lambda one: [one.get(field, "").encode() for field in ("cluster", "kind", "workload")])
    answer = {**RANGE, "fleet": FLEET, "workloads": workloads}

    def notices(change):
        changed = copy.deepcopy(answer)
        change(changed)
        return any(wrong(changed, {**RANGE, "fleet": FLEET}, expected))

    def expect(name, holds):
        print(f"{'ok  ' if holds else 'FAIL'} {name}")
        problems.extend([] if holds else [name])

    expect("an answer as expected", not notices(lambda changed: None))
    expect("each field of the answer", all(notices(lambda changed: changed.update({field: "x"})) for field in (*RANGE, "fleet")))
    for number, one in enumerate(workloads):
        fields = [field for field in one if field not in NAMES]
        expect(f"each field of {one['workload']!r:.60}", all(notices(lambda changed: changed["workloads"][number].update({field: "x"})) for field in fields)
            and notices(lambda changed: changed["workloads"].pop(number)))  # fmt: skip
    whole = next(number for number, one in enumerate(workloads) if one["workload"] == "slurm:9200")
    expect("a field too many", notices(lambda changed: changed["workloads"][whole].update(last_shortage=1)))
    expect("a field too few", notices(lambda changed: changed["workloads"][whole].pop("last")))
    expect("another order", notices(lambda changed: changed["workloads"].reverse()))
    return finish(problems)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--exporter", help="path of the exporter")
    parser.add_argument("--self-test", action="store_true")
    options = parser.parse_args()
    if options.self_test:
        return self_test()
    if not options.exporter:
        parser.error("--exporter is missing")
    tools = [tool for tool in ("promtool", "prometheus") if not shutil.which(tool)]
    if tools:
        return skipped(f"{', '.join(tools)} not installed")
    with tempfile.TemporaryDirectory(prefix="advise-check-") as folder:
        return finish(judged(os.path.abspath(options.exporter), Path(folder)))


if __name__ == "__main__":
    sys.exit(main())
