#!/usr/bin/env python3
"""An exporter counts once: runs the unit tests of the rules with series that a server has several times, and compares the results.

    check_once.py

The histories are those of the unit tests next to this file, in which every alert fires and every rule records. promtool evaluates the shipped
rules over each history as it is, and over COPIES of its series: two jobs scrape each exporter, and the server has what two Prometheus replicas
with a label of their own have scraped. The results must be equal, alert for alert with their texts, and series for series. PER_JOB lists the
alerts that say something about a job's scrapes; each job has its own.

The same results show that what is recorded for workloads on a device is recorded on GPUs and on MIG devices.

A copy under another `instance` is another machine to the rules: it has alerts and series of its own, but a sum over machines (OVER_MACHINES)
must not change.
"""

import os
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness import finish, names
from harness.promtool import unit_test

HERE = Path(__file__).resolve().parent
# Alerts about the scrapes of a job, not about what was scraped.
PER_JOB = {"VramExporterDown", "VramExporterPeakWindowTooShort"}
SECOND = "second-"
FIRING = 'ALERTS{alertstate="firing"}'
# Sums and counts over more than one machine, and what is said of a pod.
OVER_MACHINES = re.compile("namespace:|pod:")
SAMPLE = re.compile(r'\{((?:\w+="(?:[^"\\]|\\.)*"(?:, )?)*)\} (\S+?)(?:, |$)')
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def jobs_and_replicas(series):
    """Two replicas of one job, and one of another job, whose label has another name."""
    yield re.sub(r"\bjob=", 'prometheus_replica="a", job=', series)
    yield re.sub(r"\bjob=", 'prometheus_replica="b", job=', series)
    # The label `replica` of an allocation is the exporter's own, so a server must not have one of this name for it.
    name = "" if series.startswith("gpu_allocation_info") else 'replica="a", '
    yield re.sub(r'\bjob="', f'{name}job="{SECOND}', series)


def names_of_a_machine(series):
    yield series
    yield re.sub(r'\binstance="', f'instance="{SECOND}', series)


# What the server has instead of each series, and the series whose values must not change; None for all, and for the alerts.
COPIES = {"two jobs and two replicas": (jobs_and_replicas, None), "two names of a machine": (names_of_a_machine, OVER_MACHINES)}


class Rules:
    """The shipped rules, and for each name those that its result depends on."""

    def __init__(self):
        self.groups = names.rule_groups()
        self.rules = {rule.get("record") or rule["alert"]: rule for group in self.groups for rule in group["rules"]}
        self.recorded = sorted(name for name, rule in self.rules.items() if "record" in rule)
        self.alerts = {name for name, rule in self.rules.items() if "alert" in rule}

    def read(self, name):
        """The rules whose series the expression of this rule or a text of this alert reads."""
        rule = self.rules[name]
        texts = " ".join(rule.get("annotations", {}).values())
        return (names.used(rule["expr"]).metrics | set(re.findall(rf"\w+:{names.NAME}", texts))) & self.rules.keys()

    def needed(self, wanted):
        """The groups, with only the wanted rules and those that they read. Groups that record come first."""
        found, open_names = set(), set(wanted)
        while open_names:
            name = open_names.pop()
            found.add(name)
            open_names |= self.read(name) - found
        kept = [{**group, "rules": [rule for rule in group["rules"] if (rule.get("record") or rule["alert"]) in found]} for group in self.groups]
        return sorted((group for group in kept if group["rules"]), key=lambda group: "alert" in group["rules"][0]), found


def tests():
    """(name, evaluation interval, group of tests) of every unit test."""
    for path in sorted(HERE.glob("*_test.yml")):
        # Everything is a string, because 0x120 would be a number in YAML.
        text = yaml.load(path.read_text(), yaml.BaseLoader)
        yield from ((f"{path.name}: {group['name']}", text["evaluation_interval"], group) for group in text["tests"])


def copied(group, copies):
    """A series without a job is not an exporter's."""
    series = [{**one, "series": copy} for one in group["input_series"] for copy in dict.fromkeys(copies(one["series"]))]
    return {**group, "input_series": series}


def evaluated(rules, groups, interval, group, asked):
    """By expression and time: the labels and values of the samples; and what promtool says about the texts of the alerts."""
    times = {look["eval_time"] for kind in ("alert_rule_test", "promql_expr_test") for look in group.get(kind, [])}
    test = {key: group[key] for key in ("interval", "input_series", "alert_rule_test") if key in group}
    test["promql_expr_test"] = [{"expr": expression, "eval_time": time, "exp_samples": []} for expression in asked for time in sorted(times)]
    order = [one["name"] for one in groups]
    _, text = unit_test(test, groups=groups, evaluation_interval=interval, group_eval_order=order)
    if "err:" in text or "SUCCESS" not in text and "FAILED" not in text:
        raise RuntimeError(text[:3000])
    found, texts, place = {}, [], None
    for line in text.splitlines():
        if at := re.search(r'^\s*expr: "(.*)", time: (\S+),', line):
            place = (at[1].replace('\\"', '"'), at[2])
        elif at := re.search(r"^\s*alertname: (\w+), time: (\S+)", line):
            texts.append(f"{at[1]} at {at[2]} is not as the test expects it")
        elif "got: {" in line and place:
            found[place] = {tuple(sorted(LABEL.findall(labels))): float(value) for labels, value in SAMPLE.findall(line.partition("got: ")[2])}
    return found, texts


def ours(samples):
    """Without what the second job says about its own scrapes, and without a server's name."""
    kept = {}
    for labels, value in samples.items():
        labels = dict(labels)
        if labels.get("alertname") not in PER_JOB or not labels["job"].startswith(SECOND):
            kept[tuple(sorted(labels.items()))] = value
    return kept


def close(one, other):
    return one is not None and other is not None and abs(one - other) <= 1e-9 * max(abs(one), abs(other))


def shown(samples, others):
    """Samples that the other result does not have."""
    listed = [(labels, value) for labels, value in samples.items() if not close(others.get(labels), value)]
    texts = (f"{{{', '.join(f'{key}={text}' for key, text in labels if key != '__name__')}}} {value:g}" for labels, value in listed[:3])
    return "; ".join(texts) or "nothing else"


def differences(once, twice, asked):
    """For each expression, the first time at which the results differ."""
    told = set()
    for place in sorted({*once, *twice}):
        if place[0] not in asked or place[0] in told:
            continue
        before, after = once.get(place, {}), ours(twice.get(place, {}))
        if before.keys() != after.keys() or any(not close(value, after[labels]) for labels, value in before.items()):
            told.add(place[0])
            yield f"{place[0]} at {place[1]}: once {shown(before, after)}, then {shown(after, before)}"


def judged(rules, name, interval, group):
    """The problems, and the rules that have a result in this test, each with whether it is about a MIG device."""
    alert = group["name"].partition(":")[0]
    wanted = {alert} if alert in rules.alerts else set(rules.recorded)
    groups, found = rules.needed(wanted)
    asked = [*sorted(found & set(rules.recorded)), *([FIRING] if alert in rules.alerts else [])]
    once, texts = evaluated(rules, groups, interval, group, asked)
    problems = [f"{name}: {text}" for text in texts]
    for what, (copies, only) in COPIES.items():
        compared = [expression for expression in asked if only is None or only.match(expression)]
        if compared:
            twice, texts = evaluated(rules, groups, interval, copied(group, copies), compared)
            problems += (f"{name}, {what}: {difference}" for difference in differences(once, twice, compared))
            if only is None and alert not in PER_JOB:
                problems += (f"{name}, {what}: {text}" for text in texts)
    samples = ((place[0], dict(labels)) for place, listed in once.items() for labels in listed)
    return problems, {(labels.get("alertname", name), "mig_uuid" in labels) for name, labels in samples}


def main():
    rules = Rules()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        results = list(pool.map(lambda test: judged(rules, *test), tests()))
    found = [problem for problems, _ in results for problem in problems]
    seen = {pair for _, pairs in results for pair in pairs}
    wanted = {*rules.recorded, *rules.alerts} - {name for name, _ in seen}
    found += (f"{name} has no result in any test, so nothing is known about it" for name in sorted(wanted))
    for name in (name for name in rules.recorded if name.startswith("device:") and name not in wanted):
        found += (f"{name} has no result for a {kind}" for kind, mig in (("GPU", False), ("MIG device", True)) if (name, mig) not in seen)
    print(f"{len(rules.recorded)} recorded series and {len(rules.alerts)} alerts in {len(results)} tests, each with {len(COPIES)} kinds of copies")
    return finish(found)


if __name__ == "__main__":
    sys.exit(main())
