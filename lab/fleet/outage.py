"""Stops the engines for a while, and checks that nothing is missing afterwards: agents keep what they have scraped.

    outage.py --exporter target/release/vram-exporter [--victoria-metrics FILE --vmalert FILE] [--thanos FILE] [--down 150] [--signal TERM]

A Prometheus in agent mode scrapes three machines and writes everything to a Prometheus that keeps running and to the engines, in which
vmalert and Thanos rule evaluate the shipped rules. The engines are stopped, and started again after --down seconds. Then every raw sample
of the whole run is compared, and the peaks over the gap; and what the rules have recorded is compared with the engine's own answer.
Exit status 1 if anything differs.
"""

import re
import signal
import sys
import time

import answers
import compare
import engines
import record
import stores
from harness import arguments, until

SHAPES = ["1x4", "2mig", "demo"]
FRAMES, EVERY = 20, 2
RULES_EVERY = "10s"
SAMPLES = '{job="vram-exporter", __name__!~".*:.*|ALERTS.*"}'
BEFORE, AFTER = 45, 105
# The rules are evaluated 30 s late, and their newest results may still be on their way.
RULES_LATE = 45
PEAKS = "gpu_memory_window_peak_bytes|gpu_mig_memory_window_peak_bytes|gpu_workload_memory_window_peak_bytes|gpu_process_memory_window_peak_bytes"


def raw(engine, selector, end, span):
    """The samples themselves, with their own times. VictoriaMetrics also shows the marks at the end of a series, as NaN."""
    found = engine.api.ask("query", query=f"{selector}[{span}s]", time=end)["result"]
    return [{"metric": one["metric"], "values": [pair for pair in one["values"] if pair[1] != "NaN"]} for one in found]


def caught_up(engine, reference):
    """Whether the newest scrape of each machine has arrived."""
    newest = [one.api.instant("min(timestamp(up))") for one in (reference, engine)]
    return all(newest) and float(newest[1][0]["value"][1]) >= float(newest[0][0]["value"][1]) - EVERY


def sample_problems(name, engine, reference, ignored, end, span):
    found = raw(engine, SAMPLES, end, span)
    verdict = answers.compared(raw(reference, SAMPLES, end, span), found, ignored, compare.DECIMAL)
    samples = sum(len(one["values"]) for one in found)
    print(f"{name}: raw samples: {verdict}; {samples} samples")
    if not verdict.equal or not verdict.series:
        yield f"{name}: the raw samples differ: {verdict}"


def peak_problems(name, engine, reference, ignored, end, span):
    """The highest window peak of everything over the gap and the scrapes around it."""
    text = f'max by (instance, uuid, mig_uuid, pid, workload) (max_over_time({{__name__=~"{PEAKS}"}}[{span}s]))'
    verdict = answers.compared(*(one.api.ask("query", query=text, time=end)["result"] for one in (reference, engine)), ignored, compare.DECIMAL)
    print(f"{name}: peaks over the gap: {verdict}")
    if not verdict.equal or not verdict.series:
        yield f"{name}: peaks over the gap: {verdict}"


def first_level():
    """Recording rules that read no other recorded series: what they record depends on nothing but the samples."""
    for group in engines.groups():
        for rule in group["rules"]:
            if "record" in rule and not re.search(r"\w:\w", rule["expr"]):
                yield rule


def newest(engine, rule, end):
    """The moment of the newest recorded samples of a rule, and these samples; None if there are none."""
    found = raw(engine, rule["record"], end, 60)
    moments = [one["values"][-1][0] for one in found]
    if not moments:
        return None, []
    last = max(moments)
    return last, [{"metric": one["metric"], "value": one["values"][-1]} for one in found if one["values"][-1][0] == last]


def rule_problems(name, engine, ignored, end):
    """What a rule has recorded is the engine's answer to its expression at that moment."""
    compared = 0
    for rule in first_level():
        moment, recorded = newest(engine, rule, end)
        # With this step, VictoriaMetrics looks back as far as vmalert lets it; the others ignore it.
        answer = engine.api.ask("query", query=rule["expr"], time=moment or end, step=RULES_EVERY)["result"]
        answer = [{"metric": one["metric"] | rule.get("labels", {}), "value": [moment, one["value"][1]]} for one in answer]
        verdict = answers.compared(answer, recorded, {"__name__", "rule_replica", *ignored}, compare.DECIMAL)
        compared += verdict.series
        if not verdict.equal:
            yield f"{name}: {rule['record']}: {verdict}"
    print(f"{name}: {compared} recorded series are compared")
    if not compared:
        yield f"{name}: no rule has recorded anything"


def started(rig, given):
    """Name → (what is asked, the processes that are stopped, labels that are not compared, what evaluates the rules)."""
    if given.victoria_metrics:
        engine, evaluator = stores.victoria_metrics(rig, given.victoria_metrics), None
        if given.vmalert:
            evaluator = stores.vmalert(rig, given.vmalert, engine, engines.shipped_rules(rig.folder / "vm-rules", RULES_EVERY))
        yield "VictoriaMetrics", (engine, [engine], (), evaluator)
    if given.thanos:
        thanos = stores.Thanos(rig, given.thanos)
        evaluator = thanos.rules(engines.shipped_rules(rig.folder / "thanos-rules", RULES_EVERY))
        yield "Thanos", (thanos.query, [thanos.receiver], thanos.query.extra, evaluator)


def problems(rig, given):
    others = {}
    recordings = rig.folder / "recordings"
    recordings.mkdir()
    for shape, recording in record.record(given.exporter, SHAPES, EVERY, FRAMES).items():
        record.write(recording, recordings / f"{shape}.json.gz")
    reference = stores.prometheus(rig, rules=engines.shipped_rules(rig.folder / "rules", RULES_EVERY))
    others = dict(started(rig, given))
    fleet = rig.fleet(recordings, len(SHAPES), ",".join(SHAPES))
    urls = [one.write_url for one in (reference, *(engine for engine, *_ in others.values()))]
    begin = time.time()
    agent = stores.agent(rig, fleet, urls, every=f"{EVERY}s")
    time.sleep(BEFORE)
    stopped = [process for _, processes, *_ in others.values() for process in processes]
    gap, kept = time.time(), agent.disk("data")
    for process in stopped:
        process.stop(given.signal)
    time.sleep(given.down)
    print(f"the agent has written {(agent.disk('data') - kept) / given.down / 1000:.1f} kB/s to its disk")
    for process in stopped:
        process.start()
    over = time.time()
    for name, (engine, *_) in others.items():
        until(f"{name}: what the agent has kept", lambda engine=engine: caught_up(engine, reference), 120)
        print(f"{name}: everything has arrived {time.time() - over:.0f} s after the return, {over - gap:.0f} s after the stop")
    time.sleep(AFTER)
    # The newest samples may still be on their way.
    end = int(time.time()) - 15 + 0.5
    for name, (engine, _, ignored, evaluator) in others.items():
        yield from sample_problems(name, engine, reference, ignored, end, int(end - begin))
        yield from peak_problems(name, engine, reference, ignored, over + 10, int(over - gap) + 20)
        if evaluator:
            yield from rule_problems(name, engine, ignored, end - RULES_LATE)
            yield from (f"{name}: {problem}" for problem in engines.rule_problems(evaluator.api))
    for line in agent.get("/metrics").splitlines():
        if re.match(r"prometheus_remote_storage_samples_(dropped|failed)_total\{.*\} [^0]", line):
            yield f"the agent has lost samples: {line}"


def main():
    parser = arguments(__doc__)
    for name in ("victoria-metrics", "vmalert", "thanos"):
        parser.add_argument(f"--{name}", help="the program")
    parser.add_argument("--down", type=float, default=150, help="seconds for which the engines are stopped")
    parser.add_argument("--signal", type=lambda name: signal.Signals[f"SIG{name}"], default=signal.SIGTERM, help="TERM or KILL")
    given = parser.parse_args()
    if not (given.victoria_metrics or given.thanos) or (given.vmalert and not given.victoria_metrics):
        parser.error("give --victoria-metrics, with or without --vmalert, or --thanos")
    return engines.judged(lambda rig: problems(rig, given))


if __name__ == "__main__":
    sys.exit(main())
