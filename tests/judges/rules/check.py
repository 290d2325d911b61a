"""Checks the shipped rules against the documentation: thresholds, runbook, tests, names, generated copies.

Invariant: everything is read from the files that people use; nothing here repeats a rule.
"""

import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import histories
from harness import finish, names
from harness.promtool import problems, unit_test, written

sys.path.insert(0, str(names.ROOT / "deploy"))
import generate

ROOT = generate.ROOT
TESTS = ROOT / "tests/judges/rules"
PAGE_OF_RULES = (ROOT / "docs/rules.md").read_text()
SEVERITIES = {"critical", "warning", "info"}
# In the tests of each alert, the machine whose data ends before the alert would fire. An alert on the absence of every
# target has no such machine.
GONE = "gone-1"
WITHOUT_MACHINE = {"VramExporterAbsent"}
NUMBER = r"(?:[<>]=?|==)(?: bool)? [\d.]+"
# Thresholds in a form other than a comparison or a duration.
EXTRA = {
    "GpuMemoryHigh": ['ratio="0.85"'],
    "GpuMemoryCritical": ['ratio="0.9"'],
    "GpuMemoryReserved": ['ratio="0.85"'],
    "GpuMemoryOverReserved": ["0.3 *"],
    "VramExporterPeakWindowTooShort": ["1.2 *"],
    "GpuMemoryExhaustionPredicted": ["0.5 *"],
}
# What is recorded for GPUs and not for MIG devices, with the reason that docs/rules.md gives.
NOT_FOR_MIG = {
    "gpu:gpu_memory_churn_bytes:rate5m": "the exporter does not count the rises and falls of a MIG device",
    "gpu:gpu_utilization_ratio:avg5m": "the driver does not report the utilization of a MIG device",
}


def rules():
    return [rule for group in generate.groups() for rule in group["rules"]]


def alerts():
    return {rule["alert"]: rule for rule in rules() if "alert" in rule}


def text_problems():
    sections = re.findall(r"^## (\w+)$", (ROOT / "docs/runbook.md").read_text(), re.M)
    if sections != sorted(set(sections), key=sections.index) or set(sections) != set(alerts()):
        yield f"sections of the runbook that are not the alerts: {sorted(set(sections) ^ set(alerts()))}"
    for name, rule in alerts().items():
        if set(rule["labels"]) != {"severity"} or rule["labels"]["severity"] not in SEVERITIES:
            yield f"{name}: labels {rule['labels']}"
        annotations = rule["annotations"]
        if set(annotations) - {"page_url", "facts"} != {"summary", "description", "runbook_url"}:
            yield f"{name}: annotations {sorted(annotations)}"
        if name not in WITHOUT_MACHINE and "$labels.instance" not in annotations["summary"]:
            yield f"{name}: the summary does not name the machine"
    seen = [rule["alert"] for rule in rules() if "alert" in rule]
    yield from (f"{name}: more than one rule" for name in {name for name in seen if seen.count(name) > 1})


def facts_problems():
    """Every alert about memory has a line of facts. That of an alert about one device, which has a page, ends with the shared template."""
    shared = " ".join(generate.FACTS.read_text().splitlines())
    known = names.documented()[0] | {rule["record"] for rule in rules() if "record" in rule}
    for name, rule in alerts().items():
        facts = rule["annotations"].get("facts", "")
        if bool(facts) != bool(re.search("Memory|Allocator|Budget", name)):
            yield f"{name}: facts {facts}"
        if facts and facts.endswith(shared) != ("page_url" in rule["annotations"]):
            yield f"{name}: its facts and the template differ"
        for family in sorted(set(re.findall(rf"({names.NAME}) {{(?!{{)", facts)) - known):
            yield f"{name}: {family} in its facts is not a family"


def threshold_problems():
    """The table in docs/rules.md contains every comparison and duration of each alert, and nothing else."""
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| (.+?) \| [^|]+ \|$", PAGE_OF_RULES, re.M)
    table = {name: (severity, set(re.findall(r"`([^`]+)`", text))) for name, severity, text in rows}
    if set(table) != set(alerts()):
        yield f"the table of thresholds and the alerts differ: {sorted(set(table) ^ set(alerts()))}"
    for name, rule in alerts().items():
        severity, documented = table.get(name, ("", set()))
        expression = " ".join(rule["expr"].split())
        true = {found.group() for found in re.finditer(NUMBER, expression)}
        # A condition that only requires something to exist and respond is not a threshold, unless it is the rule's only condition.
        true -= {"== 1", "== 0", "> 0"} - documented
        true |= {word for word in EXTRA.get(name, []) if word in expression}
        if "for" in rule:
            true.add(f"for: {rule['for']}")
        documented_numbers = {word for word in documented if re.fullmatch(rf"{NUMBER}|for: \w+|ratio=.*|[\d.]+ \*", word)}
        if documented_numbers != true:
            yield f"{name}: docs/rules.md and the rule differ in {sorted(documented_numbers ^ true)}"
        ranges = {word for word in documented if word.startswith("[")}
        yield from (f"{name}: {word} is not in the rule" for word in ranges if word[:-1] not in expression)
        if severity != rule["labels"]["severity"]:
            yield f"{name}: severity {severity} in docs/rules.md"


def runbook_command_problems():
    """What the runbook says to type works as it is written: a histogram has no series of its own name, an address is that of the machine
    with the exporter's default port, and nothing is left out."""
    text = (ROOT / "docs/runbook.md").read_text()
    histograms = re.findall(r"^\| `(\w+)` \| histogram \|", (ROOT / "docs/metrics.md").read_text(), re.M)
    if not histograms:
        yield "docs/metrics.md has no histogram"
    configuration = (ROOT / "docs/configuration.md").read_text()
    port = re.search(r"^\| `web\.listen-address`[^|]*\| `:(\d+)` \|", configuration, re.M)[1]
    for code in re.findall(r"`([^`]+)`", text):
        bare = set(re.findall(names.NAME, code)) & set(histograms)
        yield from (f"runbook: `{code}`: {name} is a histogram, which has only _bucket, _sum and _count" for name in sorted(bare))
        if set(re.findall(r"http://([^/]+)/", code)) - {f"localhost:{port}"}:
            yield f"runbook: `{code}`: the address is not that of the machine and the default port"
        if "…" in code or "..." in code:
            yield f"runbook: `{code}`: a part of it is left out"
        for variable in re.findall(r"\$(\w+)", code):
            yield f"runbook: `{code}`: if {variable} is not set, the command does something else"


def limit_problems():
    """docs/rules.md lists what the alerts cannot see as the judge of histories does, with its reasons."""
    table = PAGE_OF_RULES.partition("| row | what happens | why |\n|---|---|---|\n")[2].partition("\n\n")[0]
    rows = {row.split(" | ")[0].strip("| "): row.split(" | ")[2].strip("| ") for row in table.splitlines()}
    if rows != histories.LIMITS:
        yield f"docs/rules.md and the judge of histories differ: {sorted(set(rows.items()) ^ set(histories.LIMITS.items()))}"


def looks(group, name):
    """The number of series that a test expects to fire at each evaluation of the alert, in chronological order."""
    wanted = f'ALERTS{{alertname="{name}", alertstate="firing"}}'
    found = [look for look in group.get("promql_expr_test", []) if look["expr"] == wanted]
    return [len(look["exp_samples"]) for look in sorted(found, key=lambda look: histories.duration(look["eval_time"]))]


def tests():
    return [group for file in sorted(TESTS.glob("*_test.yml")) for group in yaml.safe_load(file.read_text())["tests"]]


def test_problems():
    groups = tests()
    for name in alerts():
        mine = [group for group in groups if group["name"].startswith(f"{name}: ")]
        if not any(re.fullmatch(r"0+[1-9]+0+", "".join(str(min(n, 9)) for n in looks(g, name))) for g in mine):
            # A second series may continue to fire when the first has ended.
            if not any(looks(g, name)[:1] == [0] and looks(g, name)[-1] < max(looks(g, name)) for g in mine):
                yield f"{name}: no test is silent, then fires, then is silent again"
        texts = [entry for group in mine for entry in group.get("alert_rule_test", [])]
        if not any(entry["alertname"] == name and entry["exp_alerts"] for entry in texts):
            yield f"{name}: no test reads its text"
        gone = [g for g in mine if any(f'instance="{GONE}"' in series["series"] for series in g["input_series"])]
        if name not in WITHOUT_MACHINE and not gone:
            yield f"{name}: no test with a machine whose data ends"
        for group in gone:
            if any(GONE in sample["labels"] for look in group["promql_expr_test"] for sample in look["exp_samples"]):
                yield f"{name}: {GONE} fires"


def parity_problems():
    """What is recorded for GPUs is recorded for MIG devices, under the name of their families."""
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    alike = {name: name.replace("gpu:gpu_", "mig:gpu_mig_", 1) for name in recorded if name.startswith("gpu:")}
    missing = {name for name, its in alike.items() if its not in recorded}
    yield from (f"{name} is not recorded for MIG devices as {alike[name]}" for name in sorted(missing - NOT_FOR_MIG.keys()))
    yield from (f"{name} is recorded for MIG devices, or not at all: no reason is needed" for name in sorted(NOT_FOR_MIG.keys() - missing))
    yield from (f"docs/rules.md does not say why {name} is not recorded for MIG devices" for name, why in NOT_FOR_MIG.items() if why not in PAGE_OF_RULES)


def name_problems():
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    families, labels = names.documented()
    for rule in rules():
        title = rule.get("alert") or rule["record"]
        used = names.used(rule["expr"])
        for name in sorted(used.metrics - families - recorded - {"up"}):
            yield f"{title}: {name} is not a family"
        for name in sorted(used.labels - labels - {"cluster", "job", "instance", "prometheus_replica"}):
            yield f"{title}: {name} is not a label"
        for text in rule.get("annotations", {}).values():
            for name in set(re.findall(r"\$labels\.(\w+)", text)) - labels - {"cluster", "job", "instance"}:
                yield f"{title}: its text names {name}, which is not a label"
    documented = set(re.findall(r"`([a-z]+:[a-z_]+:[a-z0-9_]+)`", PAGE_OF_RULES))
    if documented != recorded:
        yield f"docs/rules.md and the recording rules differ: {sorted(documented ^ recorded)}"
    for name in names.used_in_markdown(ROOT / "docs/runbook.md") - families - recorded - {"up"}:
        yield f"runbook: {name} is not a family"


def links(groups, annotation="runbook_url"):
    """The link of each alert, here to the runbook; None without one."""
    return {r["alert"]: r["annotations"].get(annotation) for g in groups for r in g["rules"] if "alert" in r}


# The exporter's own pages: at the address of the scrape where `instance` is one, otherwise only the path is known.
EXPORTER = '{{ if match ":" $labels.instance }}http://{{ $labels.instance }} {{- end }}'
DEVICE = EXPORTER + "/?gpu={{ or $labels.mig_uuid $labels.uuid }}"
NOW = '{{- with query "time()" }}&at={{ . | first | value | printf "%.0f" }}{{ end }}'
LOST = '{{- with query (printf `max_over_time(timestamp(gpu_up {uuid=%q} == 1)[1h:30s])` $labels.uuid) }}&at={{ . | first | value | printf "%.0f" }}{{ end }}'
PAGE = f"{DEVICE}&span=1800 {NOW}"
# Alerts about what has lasted longer, about what is over, and about a GPU of which nothing is known now.
PAGES = {
    "GpuMemoryExhaustionPredicted": f"{DEVICE}&span=7200 {NOW}",
    "GpuProcessMemoryLeak": f"{DEVICE}&span=7200 {NOW}",
    "GpuMemoryIncident": DEVICE + '&at= {{- with query (printf `floor(vector(%f - 1))` $value) }}{{ . | first | value | printf "%.0f" }}{{ end }}',
    "GpuMissing": DEVICE + '&span=1800&at={{ $value | printf "%.0f" }}',
    "GpuLost": f"{DEVICE}&span=1800 {LOST}",
}
# About machines whose exporter does not answer.
WITHOUT_EXPORTER = {"VramExporterDown", "VramExporterAbsent"}


def expected_links(runbook):
    """Links to sections of docs/runbook.md, whose anchors are the alerts' names in lower case; without the address of a runbook, to
    the one that the exporter serves."""
    own = {name: "/runbook" if name in WITHOUT_EXPORTER else f"{EXPORTER}/runbook" for name in alerts()}
    return {name: f"{runbook or own[name]}#{name.lower()}" for name in alerts()}


def dashboard_links(groups):
    """The templates of the links to dashboards; None for an alert without one."""
    return set(links(groups, "dashboard_url").values())


GRAFANA = "https://grafana.example.com"
LINKS = tomllib.loads((TESTS / "links.toml").read_text())["links"]


def text_differences(annotations, cases):
    """What promtool says about the texts of an alert with these annotations: each case has the labels of a series, and the texts after 90 min."""
    rules, series, expected = [], [], []
    for number, (labels, wanted) in enumerate(cases):
        name = f"case_{number}"
        rules.append({"alert": name, "expr": f"{name} == 1", "annotations": annotations})
        listed = ",".join(f'{key}="{value}"' for key, value in labels.items())
        series.append({"series": f"{name}{{{listed}}}", "values": "1x200"})
        expected.append({"eval_time": "90m", "alertname": name, "exp_alerts": [{"exp_labels": labels, "exp_annotations": wanted}]})
    test = {"interval": "1m", "input_series": series, "alert_rule_test": expected}
    status, text = unit_test(test, groups=[{"name": "links", "rules": rules}])
    return [text] if status else []


# An alert's `instance`, and where the exporter's pages are.
INSTANCES = {"node-1:9836": "http://node-1:9836", "[fd00::1]:9836": "http://[fd00::1]:9836", "10.0.0.7:9836": "http://10.0.0.7:9836", "node-1": "", None: ""}


def exporter_link_problems():
    """The links to the exporter's pages lead to the address that Prometheus scrapes, or begin with the path."""
    if links(generate.groups()) != expected_links(None):
        yield f"links to the runbook: {links(generate.groups())}"
    cases = []
    for instance, address in INSTANCES.items():
        wanted = {"runbook_url": f"{address}/runbook#x", "page_url": f"{address}/?gpu=GPU-1&span=1800&at=5400"}
        cases.append(({"uuid": "GPU-1"} | ({"instance": instance} if instance else {}), wanted))
    yield from text_differences({"runbook_url": f"{EXPORTER}/runbook#x", "page_url": PAGE}, cases)


def page_problems():
    """Every alert about one GPU links to that GPU on the exporter's page, at the moment of the alert, or of the incident."""
    about_gpu = {
        entry["alertname"]
        for group in tests()
        for entry in group.get("alert_rule_test", [])
        if any("uuid" in alert["exp_labels"] for alert in entry["exp_alerts"])
    }
    for name, rule in alerts().items():
        wanted = PAGES.get(name, PAGE) if name in about_gpu else None
        if rule["annotations"].get("page_url") != wanted:
            yield f"{name}: page_url {rule['annotations'].get('page_url')}"


def dashboard_link_problems():
    """The link of an alert leads to the dashboard of its labels, at the time of the alert."""
    template = yaml.safe_load(generate.dashboard_url(GRAFANA + "/"))
    # From an hour before the alert until the alert, in milliseconds.
    urls = (f"{GRAFANA}/d/vram-exporter-{link['dashboard']}?from=1800000&to=5400000{link['variables']}" for link in LINKS)
    yield from text_differences({"dashboard_url": template}, [(link["labels"], {"dashboard_url": url}) for link, url in zip(LINKS, urls)])


def runbook_problems():
    """generate.py --runbook --grafana links every alert and changes nothing else, and no file links to the runbook by a fixed address."""
    address = "https://wiki.example.com/gpu/runbook"
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, ROOT / "deploy/generate.py", f"--runbook={address}", f"--grafana={GRAFANA}", f"--output={folder}"]
        subprocess.run(command, check=True, timeout=60)
        files = sorted(Path(folder, "rules").glob("*.yml"))
        if [file.name for file in files] != [file.name for file in generate.rule_files()]:
            yield f"generate.py --runbook writes {[file.name for file in files]}"
        plain = [group for file in files for group in yaml.safe_load(file.read_text())["groups"]]
        rule = yaml.safe_load(Path(folder, generate.OBJECT.name).read_text())["spec"]["groups"]
        for what, found in (("the plain rules", plain), ("the object", rule)):
            if links(found) != expected_links(address):
                yield f"generate.py --runbook: links of {what}: {links(found)}"
            if dashboard_links(found) != {yaml.safe_load(generate.dashboard_url(GRAFANA))}:
                yield f"generate.py --grafana: links of {what}: {dashboard_links(found)}"
            shipped = list(generate.groups())
            for entry in (entry for group in found + shipped for entry in group["rules"]):
                for link in ("runbook_url", "dashboard_url"):
                    entry.get("annotations", {}).pop(link, None)
            if found != shipped:
                yield f"generate.py --runbook changes more than the links of {what}"
        yield from problems("check", "rules", "--lint=all", "--lint-fatal", *files)
    tracked = subprocess.run(["git", "-C", ROOT, "grep", "-l", "example[.]com/vram-exporter/docs"], capture_output=True, text=True)
    if tracked.stdout:
        yield f"files with the placeholder of an address: {tracked.stdout.split()}"


def rendered_problems():
    """The PrometheusRule of each rendered scenario is valid and contains exactly the shipped rules; alerts link to the runbook of the
    scenario, or to the exporter's."""
    sys.path.insert(0, str(ROOT / "tests/judges/deploy"))
    import scenarios

    linked = 0
    wanted = [rule.get("alert") or rule["record"] for rule in rules()]
    objects = 0
    for scenario in (scenarios.kustomizations() or []) + list(scenarios.releases()):
        for item in scenario.objects:
            if item["kind"] != "PrometheusRule":
                continue
            objects += 1
            found = [rule for group in item["spec"]["groups"] for rule in group["rules"]]
            if [rule.get("alert") or rule["record"] for rule in found] != wanted:
                yield f"{scenario.name}: not the rules of the files"
            for mine, its in zip(rules(), found):
                other = its["expr"] != mine["expr"] and "job=~" not in mine["expr"]
                if other or any(mine.get(key) != its.get(key) for key in ("for", "keep_firing_for", "labels")):
                    yield f"{scenario.name}: {mine.get('alert') or mine['record']} is another rule"
            if links(item["spec"]["groups"]) != expected_links(scenario.runbook):
                yield f"{scenario.name}: links {links(item['spec']['groups'])}"
            wanted_link = yaml.safe_load(generate.dashboard_url(scenario.grafana)) if scenario.grafana else None
            if dashboard_links(item["spec"]["groups"]) != {wanted_link}:
                yield f"{scenario.name}: dashboards {dashboard_links(item['spec']['groups'])}"
            linked += scenario.runbook is not None and scenario.grafana is not None
            with written(item["spec"]) as file:
                yield from problems("check", "rules", "--lint=all", "--lint-fatal", file)
    if objects < 2:
        yield f"only {objects} scenarios have a PrometheusRule"
    if not 0 < linked < objects:
        yield f"{linked} of {objects} PrometheusRules link to a runbook and dashboards: the scenarios need both cases"


def main():
    found = [f"{path.relative_to(ROOT)} is stale: run deploy/generate.py" for path in generate.differing()]
    found += problems("check", "rules", "--lint=all", "--lint-fatal", *generate.rule_files())
    for check in (
        text_problems,
        facts_problems,
        threshold_problems,
        runbook_command_problems,
        limit_problems,
        test_problems,
        parity_problems,
        name_problems,
        runbook_problems,
        exporter_link_problems,
        page_problems,
        dashboard_link_problems,
        rendered_problems,
    ):
        found += check()
    found += problems("test", "rules", *sorted(TESTS.glob("*_test.yml")))
    print(f"{len(alerts())} alerts, {len(rules()) - len(alerts())} recording rules")
    return finish(found)


if __name__ == "__main__":
    sys.exit(main())
