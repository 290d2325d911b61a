"""Checks the snippets for collectors without running a collector: they are documented, they parse, they agree on the job and its limits,
and they name only families that exist.

The copies in docs/collectors.md are checked with the other generated files (deploy/generate.py). lab/collectors/compare.py runs the collectors.
"""

import re
import sys
import tomllib
from pathlib import Path

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness import ROOT, finish, names
from harness.promtool import problems

FOLDER = ROOT / "deploy/collectors"
PAGE = (ROOT / "docs/collectors.md").read_text()
LIMITS = {"scrape_interval": "15s", "scrape_timeout": "5s", "sample_limit": 50000, "honor_labels": False}


def job_problems(name, job):
    yield from (f"{name}: {key} is {job.get(key)}" for key, wanted in LIMITS.items() if job.get(key) != wanted)
    if job["job_name"] != "vram-exporter":
        yield f"{name}: the job is {job['job_name']}, which no rule selects"


def prometheus():
    name = "prometheus-file-sd.yml"
    yield from problems("check", "config", FOLDER / name)
    [job] = yaml.safe_load((FOLDER / name).read_text())["scrape_configs"]
    yield from job_problems(name, job)
    if job["file_sd_configs"] != [{"files": ["vram-exporter-targets.yml"]}]:
        yield f"{name}: does not read vram-exporter-targets.yml"


def collector():
    name = "otel-collector.yaml"
    config = yaml.safe_load((FOLDER / name).read_text())
    [job] = config["receivers"]["prometheus"]["config"]["scrape_configs"]
    yield from job_problems(name, job)
    [pipeline] = config["service"]["pipelines"].values()
    for kind in ("receivers", "exporters"):
        if pipeline[kind] != list(config[kind]):
            yield f"{name}: the pipeline's {kind} are not those that are configured"


def names_in_the_collector():
    """The OpenTelemetry Collector's receiver names a sample after the family whose type it finds under the sample's own name, and if there is
    none, under the name without these endings (`metadataForMetric` in receiver/prometheusreceiver/internal); of a counter it takes the
    sample's name. So a family of the type info, whose samples alone end in _info, would lose the ending."""
    endings = ("_bucket", "_count", "_sum", "_total", "_info", "_created")
    text = (ROOT / "tests/golden/busy-h200.openmetrics").read_text()
    types = dict(re.findall(r"(?m)^# TYPE (\S+) (\S+)$", text))
    samples = set(re.findall(r"(?m)^([a-z_]+)[{ ]", text))
    if len(samples) < 50 or not any(name.endswith("_info") for name in samples):
        yield f"{len(samples)} samples in the golden scrape"
    for sample in sorted(samples - set(types)):
        short = next((sample.removesuffix(ending) for ending in endings if sample.endswith(ending)), sample)
        if types.get(short) not in ("counter", "histogram"):
            yield f"the OpenTelemetry Collector makes {short} of {sample}"


def victoria_metrics():
    name = "vm-pod-scrape.yaml"
    mine = yaml.safe_load((FOLDER / name).read_text())["spec"]
    folder = ROOT / "deploy/kubernetes/components/pod-monitor"
    text = (folder / "pod-monitor.yaml").read_text().replace("relabelings:", "relabelConfigs:")
    if mine != yaml.safe_load(text)["spec"]:
        yield f"{name}: differs from the PodMonitor in more than the name of its relabelings"


def telegraf():
    name = "telegraf.conf"
    [scrape] = tomllib.loads((FOLDER / name).read_text())["inputs"]["prometheus"]
    if scrape["tags"]["job"] != "vram-exporter" or scrape["urls"] != [f"http://{scrape['tags']['instance']}/metrics"]:
        yield f"{name}: job or instance are not those of the scrape"


def alloy():
    name = "config.alloy"
    text = (FOLDER / name).read_text()
    for key in ("scrape_interval", "scrape_timeout", "sample_limit"):
        found = re.search(rf"{key} += \"?(\w+)", text)
        if not found or found.group(1) != str(LIMITS[key]):
            yield f"{name}: {key}"
    if not re.search(r'job_name += "vram-exporter"', text):
        yield f"{name}: the job has a name that no rule selects"


def datadog():
    name = "datadog-openmetrics.yaml"
    [instance] = yaml.safe_load((FOLDER / name).read_text())["instances"]
    known = {family.removesuffix("_total") for family in names.documented()[0]}
    for pattern in instance["metrics"]:
        if not any(re.search(pattern, family) for family in known):
            yield f"{name}: {pattern} selects no family"
        group = re.search(r"\((.*)\)(.*)", pattern)
        for word in group.group(1).split("|"):
            if not any(re.search(pattern.replace(f"({group.group(1)})", word), family) for family in known):
                yield f"{name}: {word} in {pattern} selects no family"


def zabbix():
    name = "zabbix-template.yaml"
    text = (FOLDER / name).read_text()
    export = yaml.safe_load(text)["zabbix_export"]
    [template] = export["templates"]
    [rule] = template["discovery_rules"]
    entries = [*template["items"], rule, *rule["item_prototypes"]]
    keys = {entry["key"] for entry in entries}
    uuids = re.findall(r"uuid: (\w+)$", text, re.MULTILINE)
    if len(set(uuids)) != len(uuids) or not all(re.fullmatch(r"[0-9a-f]{12}4[0-9a-f]{3}[89ab][0-9a-f]{15}", uuid) for uuid in uuids):
        yield f"{name}: uuids that are not unique or not of version 4"
    for entry in entries:
        if entry["type"] == "DEPENDENT" and entry["master_item"]["key"] not in keys:
            yield f"{name}: {entry['key']} depends on an item that does not exist"
        for step in entry.get("preprocessing", []):
            family = step["parameters"][0].partition("{")[0]
            if family not in names.documented()[0]:
                yield f"{name}: {family} is not a family"


def page():
    for path in sorted(FOLDER.iterdir()):
        if f"<!-- {path.relative_to(ROOT)} -->" not in PAGE:
            yield f"{path.name} is not in docs/collectors.md"
    names = set(re.findall(r"\]\(\.\./(deploy/[^)#]+)", PAGE))
    yield from (f"docs/collectors.md links to {name}, which does not exist" for name in sorted(names) if not Path(ROOT, name).exists())


def main():
    checks = (prometheus, collector, names_in_the_collector, victoria_metrics, telegraf, alloy, datadog, zabbix, page)
    found = [problem for check in checks for problem in check()]
    print(f"{len(list(FOLDER.iterdir()))} snippets")
    return finish(found)


if __name__ == "__main__":
    sys.exit(main())
