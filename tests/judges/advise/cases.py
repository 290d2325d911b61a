"""Workloads that were made for one question each, with the answer as the author of the case knows it.

Figures without a sum beside them follow from docs/sizing.md and the numbers in the case: scrape n of a target is at BEGIN + 60 n + its
offset, interval k ends at BEGIN + 900 k, and an ended workload is shown for LINGER more scrapes.
"""

import tomllib
from pathlib import Path

from backfill import Run
from fleet import BEGIN, DAY, MIB, RECUT, RENAMED, SCRAPES
from workloads import GIB, Process, Stay, plain, pod, stay

# The length of an interval in scrapes: 14 days have intervals of 900 s.
INTERVAL = 15
LAST = SCRAPES - 1
HOSTILE = ('a"b\\c', "line\nbreak", "<script>alert(1)</script>", "=1+1", "comma,semi;tab\t", "\x1b[31mred", "ünïcödé 🜁", "{}", "- a: b #", "'", "|pipe|", " ", "x" * 128)


ANSWERS = tomllib.loads(Path(__file__).with_name("answers.toml").read_text())


class Whole(dict):
    """An answer with every field of the workload except its name: no other one may be there."""


def cases(fleet):
    """For each case: its name, its stays, and what the answer about its group must contain. Without an answer here, it is whole and in
    answers.toml."""
    for some in (interruptions, devices, amounts, pools, budgets, names):
        for name, stays, *answer in some(fleet):
            yield name, stays, answer[0] if answer else Whole(ANSWERS["whole"][name])


def interruptions(fleet):
    """Samples that are missing, on GPU 0 of h200-a, which is scraped at the full minute."""
    on = fleet.nodes["east/h200-a"][0]
    peak = 31 * GIB + 12_345
    work = pod("cases", "gap", "main")
    made = stay(work, on, [(100, 3 * DAY, 9 * GIB), (4 * DAY, 12 * DAY, 8 * GIB + 1)], {DAY: peak})
    made.count = [Run(100, 3 * DAY, 1), Run(4 * DAY, 12 * DAY, 1)]
    yield "a gap of one day", [made], {"peak_bytes": peak, "advice_bytes": (peak * 115 + 99) // 100, "devices_now": 0}

    # The counter falls and rises again, as if another process had the same pid and name.
    work, peak = plain("unit:again.service", "systemd"), 7 * GIB + 7
    made = stay(work, on, [(50, DAY, 5 * GIB), (DAY + 4, 2 * DAY, peak)])
    made.processes = [Process(77, "again.py", reported={"pytorch": [Run(50, DAY, 4 * GIB), Run(DAY + 4, 2 * DAY, 5 * GIB)]}, outside=[Run(50, 2 * DAY, GIB)],
        failed={"pytorch": [Run(50, 700, 0), Run(701, DAY, 2), Run(DAY + 4, DAY + 90, 0), Run(DAY + 91, 2 * DAY, 1)]})]  # fmt: skip
    yield "a restart that resets a counter", [made], {
        "out_of_memory": 3, "peak_bytes": 6 * GIB, "advice_bytes": None, "reason": "failed_allocations"}

    work = plain("slurm:9001", "slurm", "ada")
    made = stay(work, on, [(at, at, 3 * GIB) for at in range(10, 10 + 99 * 70, 70)])
    made.peaks = made.peaks[:99]
    yield "five days with 99 samples", [made], {"samples": 99, "reason": "too_few_samples", "advice_bytes": None, "action": "none"}
    work = plain("slurm:9002", "slurm", "ada")
    made = stay(work, on, [(at, at, 3 * GIB) for at in range(10, 10 + 100 * 70, 70)])
    made.peaks = made.peaks[:100]
    yield "five days with 100 samples", [made], {"samples": 100, "reason": "peak_plus_15_percent", "advice_bytes": (3 * GIB * 115 + 99) // 100}

    # GPU 0 is scraped at the ends of intervals: interval k ends with scrape SCRAPES - 15 k.
    end = SCRAPES - 300 * INTERVAL
    for name, intervals, answer in (("a span of 3 h", 12, "peak_plus_15_percent"), ("a span of 2 h 45 min", 11, "too_short")):
        work = plain(f"slurm:{9003 + intervals}", "slurm", "bob")
        made = stay(work, on, [(end - intervals * INTERVAL, end, 2 * GIB)])
        made.peaks = made.peaks[:1]
        yield name, [made], {"span_seconds": intervals * 900, "samples": intervals * INTERVAL + 1, "reason": answer}

    # The first scrape is at the beginning of the range, and does not belong to it; the last one is at its end, and does.
    work, highest = plain("user:edge", "user", "edge"), 60 * GIB + 3
    made = stay(work, on, [(-2 * DAY, SCRAPES, 12 * GIB)], {-DAY: 99 * GIB, 0: 88 * GIB, SCRAPES: highest})
    whole = (-2 * DAY, SCRAPES)
    made.processes = [Process(4, "edge.py", None, {"pytorch": [Run(*whole, 59 * GIB + 3)]}, [Run(*whole, GIB)], {"pytorch": [Run(*whole, 5)]})]
    expected = {"driver_peak_bytes": highest, "samples": SCRAPES, "out_of_memory": 0, "reason": "peak_plus_15_percent", "intervals_near_peak": 1, "devices_now": 1}
    yield "the edges of the range", [made], expected


def devices(fleet):
    """Renamed, replicated, cut anew; several devices and containers."""
    [on] = fleet.nodes["east/renamed"]
    work, peak = pod("cases", "renamed", "main"), 41 * GIB + 11
    budgets = [(0, RENAMED[0], 60 * GIB), (RENAMED[1], LAST, 55 * GIB)]
    made = stay(work, on, [(0, LAST, 20 * GIB)], {RENAMED[0] - 900: peak}, limits={"annotation": budgets})
    made.processes = [Process(501, "serve.py")]
    yield "a renamed node", [made]

    # The larger process must not count twice because it has two names.
    before, after = RENAMED
    parts = [(number, [Run(before - 900, after + 900, amount * GIB)]) for number, amount in ((601, 9), (602, 2))]
    outside, failed = [Run(before - 900, after + 900, 0)], [Run(before - 900, before - 500, 0), Run(before - 499, after + 900, 3)]
    made = stay(plain("slurm:9050", "slurm", "ada"), on, [(before - 900, after + 900, 30 * GIB)], count=2)
    made.processes = [Process(number, "rank.py", None, {"pytorch": runs}, outside, {"pytorch": failed} if number == 601 else {}) for number, runs in parts]
    yield "two processes on a renamed node", [made], {"peak_bytes": 11 * GIB, "basis": "allocator", "out_of_memory": 3, "reason": "failed_allocations"}

    [on] = fleet.nodes["west/pair"]
    work, peak = pod("cases", "pair-0", "main", "pair"), 11 * GIB + 5
    made = stay(work, on, [(0, LAST, 10 * GIB)], {2 * DAY: peak})
    yield "two replicas of Prometheus", [made], {"runs": 1, "devices_now": 1, "peak_bytes": peak}

    half, _, _, fifth, *_ = fleet.mig
    peak = 15 * GIB + 9
    first = stay(pod("cases", "cut-0", "main", "cut"), half, [(0, RECUT[0], 9 * GIB)], {500: peak}, limits={"mig": half.total})
    second = stay(pod("cases", "cut-0", "main", "cut"), fifth, [(RECUT[1] + 5, LAST, 6 * GIB)], limits={"mig": fifth.total})
    yield "MIG devices cut anew", [first, second]

    four = fleet.nodes["east/a100-c"]
    work = plain("slurm:9100", "slurm", "nora")
    made = [stay(work, on, [(DAY, LAST, (5 + number) * GIB + number)]) for number, on in enumerate(four)]
    yield "a job on four GPUs", made, {"runs": 4, "devices": 4, "devices_now": 4, "peak_bytes": 8 * GIB + 3}

    # Two containers of a pod, and pods of one deployment that followed one another. No advice for a sum of them.
    hashes = ("7d9f8b6c5d-x2k9z", "7d9f8b6c5d-q4wtb", "6fb9c7d8b-zzzzz")
    web = [stay(pod("cases", f"web-{ending}", "app", "web"), four[0], [(number * DAY, number * DAY + 700, (2 + number) * GIB)]) for number, ending in enumerate(hashes)]
    yield "pods of a deployment", web, {"runs": 3, "devices": 1, "samples": 3 * 707, "peak_bytes": 4 * GIB}
    side = stay(pod("cases", f"web-{hashes[0]}", "proxy", "web"), four[0], [(0, 700, GIB)])
    yield "another container of them", [side], {"runs": 1, "peak_bytes": GIB}

    for cluster, gpu, amount in (("east", 1, 100 * GIB + 1), ("west", 0, 3 * GIB)):
        made = stay(pod("cases", "equal", "main"), fleet.nodes[f"{cluster}/h200-a"][gpu], [(200, LAST, amount)])
        yield f"an equal name in cluster {cluster}", [made], {"cluster": cluster, "runs": 1, "peak_bytes": amount}

    [lab] = fleet.nodes["/lab"]
    yield "a simulated GPU without cluster", [stay(plain("user:lab", "user", "lab"), lab, [(0, 999, GIB)])]


def amounts(fleet):
    on = fleet.nodes["west/h200-a"][0]
    peak = 40 * GIB
    # Exactly 95 % of the highest is near it, one byte less is not. The highest appears twice; the first time counts.
    levels = [(INTERVAL * 10 + 3, INTERVAL * 30, GIB)]
    spikes = {INTERVAL * 12 + 7: peak * 95 // 100, INTERVAL * 14 + 7: peak * 95 // 100 - 1, INTERVAL * 16 + 7: peak, INTERVAL * 18 + 7: peak}
    made = stay(plain("unit:near.service", "systemd"), on, levels, spikes)
    yield "near the peak", [made], {"intervals_near_peak": 3, "peak_bytes": peak, "peak_from": BEGIN + 16 * 900}

    # Two processes at the same time need the sum of both, and the third one followed later.
    outside = [Run(0, 4000, 400 * MIB)]
    processes = [
        Process(number, "ddp.py", [Run(first, last, 12 * GIB)], {"pytorch": [Run(first, last, (4 + number) * GIB)]}, outside)
        for number, first, last in ((1, 0, 3000), (2, 0, 3000), (3, 3001, 4000))
    ]
    made = stay(plain("slurm:9200", "slurm", "zoë"), on, [(0, 3000, 24 * GIB), (3001, 4000, 12 * GIB)], processes=processes, count=2)
    yield "two processes of three at a time", [made]

    # A process in which two frameworks report.
    both = Process(5, "both.py", None, {"pytorch": [Run(0, 900, 3 * GIB)], "jax": [Run(0, 900, 5 * GIB)]}, [Run(0, 900, GIB)])
    made = stay(plain("unit:both.service", "systemd"), on, [(0, 900, 20 * GIB)], processes=[both])
    yield "two frameworks in a process", [made], {"basis": "allocator", "peak_bytes": 9 * GIB, "allocated_peak_bytes": 8 * GIB, "frameworks": ["jax", "pytorch"]}

    # What the parts reach at different times is together more than the process ever had.
    more = Process(6, "more.py", None, {"pytorch": [Run(0, 900, 3 * GIB)]}, [Run(0, 900, 3 * GIB)])
    made = stay(plain("unit:more.service", "systemd"), on, [(0, 900, 4 * GIB)], processes=[more])
    yield "no more than the driver's peak", [made], {"basis": "allocator", "peak_bytes": 4 * GIB}


def pools(fleet):
    [on] = fleet.nodes["east/h100-b"]
    yield "vLLM without a client", [stay(pod("cases", "vllm", "main"), on, [(0, LAST, 30 * GIB)], processes=[Process(1, "vllm.entrypoints.openai.api_server")])], {
        "preallocates": "vllm", "reason": "preallocated", "advice_bytes": None, "peak_bytes": 30 * GIB}  # fmt: skip
    three = on.allocatable * 3 // 4 + 300 * MIB
    yield "the shape of JAX's pool", [stay(plain("user:pool", "user", "pool"), on, [(0, DAY, three)], processes=[Process(2, "python3")])], {
        "preallocates": "share_75", "reason": "preallocated", "advice_bytes": None}  # fmt: skip
    full = on.allocatable * 95 // 100
    yield "a full GPU", [stay(plain("user:full", "user", "full"), on, [(0, DAY, full)], processes=[Process(3, "python3")])], {"preallocates": "share_93"}
    beyond = {"name": "NVIDIA H100 80GB HBM3", "allocatable_bytes": on.allocatable, "larger_board": {"name": "NVIDIA H200", "allocatable_bytes": 150_109_880_320}}
    climbing = stay(plain("user:climb", "user", "climb"), on, [(0, DAY, full // 2), (DAY + 1, 2 * DAY, full)], processes=[Process(4, "python3")])
    yield "a full GPU that was not full from the start", [climbing], {
        "reason": "exceeds_device", "advice_bytes": None, "peak_bytes": full, "action": "none", "beyond": beyond}  # fmt: skip
    # A floor that rises by 1.2 GiB a day, under a daily batch, is a leak: the peak is not what it will need.
    leaking = [(hour * 60, hour * 60 + 59, 5 * GIB + hour * GIB // 20) for hour in range(200)]
    leak = stay(plain("user:leak", "user", "leak"), on, leaking, {day * DAY + 300: 5 * GIB + (day * DAY + 300) * GIB // 1200 + GIB for day in range(8)})
    # Of 801 intervals, the last eighth begins in hour 175: 175 GiB / 20 more in seven eighths of 801 quarters of an hour.
    yield "a leak", [leak], {"reason": "rising", "advice_bytes": None, "action": "none", "freed_bytes": 0, "rising_bytes_per_hour": 53_620_108}
    restarted = [(hour * 60, hour * 60 + 59, 5 * GIB + hour % 24 * GIB // 2) for hour in range(200)]
    yield "a leak that a nightly restart undoes", [stay(plain("user:nightly", "user", "nightly"), on, restarted)], {"reason": "peak_plus_15_percent"}
    steps = [stay(pod("cases", f"step-{number}", "main", "step"), on, [(number * DAY, number * DAY + 900, (9 + number) * GIB)]) for number in range(8)]
    yield "runs of which each takes more", steps, {"runs": 8, "devices": 1, "peak_bytes": 16 * GIB, "reason": "peak_plus_15_percent"}
    died = Process(7, "died.py", None, {"pytorch": [Run(0, DAY, full - GIB)]}, [Run(0, DAY, GIB)], {"pytorch": [Run(0, 60, 0), Run(61, DAY, 2)]})
    yield "failed allocations on a full GPU", [stay(plain("user:died", "user", "died"), on, [(0, DAY, full + 1)], processes=[died])], {
        "reason": "failed_allocations", "out_of_memory": 2, "advice_bytes": None, "action": "raise", "beyond": beyond}
    # 43.74 GiB and 15 % are 50.30: no advice for a job that died there.
    killed = stay(plain("user:killed", "user", "killed"), on, [(0, DAY, 4374 * GIB // 100)])
    killed.short = [DAY]
    yield "a process that ended at the limit", [killed], {
        "reason": "shortage", "advice_bytes": None, "action": "none", "peak_bytes": 4374 * GIB // 100, "last_shortage": BEGIN + 86_400}  # fmt: skip
    old = stay(plain("user:old", "user", "old"), on, [(-DAY, DAY, 5 * GIB)])
    old.short = [-3]
    yield "a shortage before the range", [old], {"reason": "peak_plus_15_percent"}
    jax = Process(5, "serve_jax.py", None, {"jax": [Run(0, DAY, 11 * GIB)]}, [Run(0, DAY, 600 * MIB)])
    yield "JAX with a client", [stay(plain("user:jax", "user", "jax"), on, [(0, DAY, three)], processes=[jax])], {
        "basis": "allocator", "peak_bytes": 11 * GIB + 600 * MIB, "reason": "peak_plus_15_percent", "driver_peak_bytes": three}  # fmt: skip
    blind = Process(6, "train.py", None, {"tensorflow": [Run(0, DAY, 11 * GIB)]})
    yield "TensorFlow that does not report its pool", [stay(plain("user:tf", "user", "tf"), on, [(0, DAY, 20 * GIB)], processes=[blind])], {
        "preallocates": "tensorflow", "reason": "preallocated", "allocated_peak_bytes": 11 * GIB}  # fmt: skip


def budgets(fleet):
    [t4] = fleet.nodes["west/t4-e"]
    gpu = fleet.nodes["east/h200-a"][2]

    def made(name, amount, limits, on=gpu, **more):
        return [stay(plain(f"unit:{name}.service", "systemd"), on, [(DAY, LAST, amount)], limits=limits, **more)]

    yield "a budget that was changed", made("changed", 10 * GIB, {"annotation": [(DAY, 5 * DAY, 12 * GIB), (5 * DAY + 1, LAST, 40 * GIB)]}), {
        "current_bytes": 40 * GIB, "current_source": "annotation", "action": "lower", "freed_bytes": 40 * GIB - (10 * GIB * 115 + 99) // 100}  # fmt: skip
    yield "a budget that was removed", made("removed", 10 * GIB, {"annotation": [(DAY, 4 * DAY, 12 * GIB)]}), {"current_bytes": gpu.allocatable, "current_source": "device"}
    yield "the lowest of several budgets", made("lowest", 10 * GIB, {"kai": 30 * GIB, "hami": 29 * GIB, "time_slicing": GIB}), {"current_bytes": 29 * GIB, "current_source": "hami"}
    yield "only a share", made("share", 10 * GIB, {"time_slicing": 20 * GIB}), {"current_bytes": gpu.allocatable, "current_source": "device"}
    yield "a budget that was exceeded", made("exceeded", 10 * GIB + 1, {"annotation": 10 * GIB}), {"action": "raise", "freed_bytes": 0}
    yield "a budget below the advice, but not below the peak", made("below", 10 * GIB, {"annotation": 11 * GIB}), {"action": "keep", "freed_bytes": 0}
    failed = [Run(DAY, 2 * DAY, 0), Run(2 * DAY + 1, LAST, 4)]
    process = Process(9, "oom.py", None, {"pytorch": [Run(DAY, LAST, 9 * GIB)]}, [Run(DAY, LAST, GIB)], {"pytorch": failed})
    yield "failed allocations under a budget", made("failed", 10 * GIB, {"annotation": 10 * GIB + 500 * MIB}, processes=[process]), {
        "action": "raise", "out_of_memory": 4, "reason": "failed_allocations", "advice_bytes": None}  # fmt: skip
    yield "a budget within 5 % of the advice", made("close", 10 * GIB, {"annotation": 12 * GIB}), {"action": "keep", "freed_bytes": 0}
    yield "a board without reserved memory", made("plain", 4 * GIB, {}, on=t4), {"current_bytes": t4.total, "current_source": "device", "action": "lower"}


def names(fleet):
    [on, _] = fleet.nodes["west/l4-d"]
    for number, name in enumerate(HOSTILE):
        made = stay(plain(f"unit:{name}", "systemd", name), on, [(number, 500 + number, GIB + number)], processes=[Process(number + 1, name)])
        yield f"hostile name {number}", [made], {"peak_bytes": GIB + number}


def others(fleet):
    """The sum of the workloads beyond the limit of the exporter: it is nothing that can be advised."""
    for on in (fleet.nodes["west/l4-d"][1], fleet.nodes["/lab"][0]):
        runs = [Run(0, LAST, 3 * GIB)]
        yield Stay(plain("other", ""), on, runs, runs, [], {})
