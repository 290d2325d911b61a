#!/usr/bin/env python3
"""Generates the PrometheusRule object and the chart's copies of the rules from deploy/prometheus/rules, and the dashboards of
the ConfigMaps from grafana/dashboards. Copies the snippets in docs/collectors.md from the files that they name, and the template
deploy/prometheus/facts.txt into the annotation `facts` of each alert about the memory of one device.

    deploy/generate.py            writes them
    deploy/generate.py --check    lists the files that differ, and writes nothing
    deploy/generate.py --runbook=https://wiki.example.com/gpu/runbook --grafana=https://grafana.example.com --output=FOLDER
                                  writes the plain rules and the object to FOLDER; with --runbook each alert links to its
                                  section of the runbook, which has the alert's name in lower case; with --grafana it links
                                  to the dashboard of its GPU, MIG device or workload at the time of the alert

Invariant: a rule is written once, in the plain files, and the template of the facts once, in its file; the object does not contain
the comments of the rules. The committed rules link to the exporter's own pages only, because only the user knows where another runbook
and the dashboards are.
"""

import argparse
import json
import re
import sys
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]
RULES = ROOT / "deploy/prometheus/rules"
OBJECT = ROOT / "deploy/kubernetes/components/prometheus-rules/prometheus-rule.yaml"
CHART = ROOT / "deploy/helm/vram-exporter/files/rules"
# The template of a link to a dashboard, without the address of Grafana. The line breaks do not belong to it.
DASHBOARD_URL = ROOT / "deploy/prometheus/dashboard-url.txt"
CHART_DASHBOARD_URL = ROOT / "deploy/helm/vram-exporter/files/dashboard-url.txt"
# What the annotation `facts` of the alerts about the memory of one device ends with. The lines of an alert's own come before it and set
# $at, the time of the facts.
FACTS = ROOT / "deploy/prometheus/facts.txt"
DASHBOARDS = ROOT / "grafana/dashboards"
# Where the dashboards are copied to: a chart and a component contain the files that they use.
CONFIG_MAPS = (
    ROOT / "deploy/helm/vram-exporter/files/dashboards",
    ROOT / "deploy/kubernetes/components/grafana-dashboards",
)
COLLECTORS = ROOT / "docs/collectors.md"
# The language of a snippet's code block, by the ending of its file's name.
LANGUAGES = {".yml": "yaml", ".yaml": "yaml", ".conf": "toml", ".alloy": "alloy"}
HEADER = "# Made from deploy/prometheus/rules by deploy/generate.py.\n---\n"


class Block(str):
    """A multi-line string, written with its line breaks."""


def block(dumper, text):
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|")


class Dumper(yaml.SafeDumper):
    def increase_indent(self, flow=False, indentless=False):
        return super().increase_indent(flow, False)


Dumper.add_representer(Block, block)


def rule_files():
    return sorted(RULES.glob("*.yml"))


def with_facts(text):
    """The text of a rule file in which each annotation `facts` that contains the first line of the template ends with the whole
    template. Annotations without this line stay as they are."""
    lines = FACTS.read_text().splitlines()
    there = re.compile(rf"^( +)facts: >-\n((?:\1  .*\n)*?)\1  {re.escape(lines[0])}\n(?:\1  .*\n)*", re.MULTILINE)

    def written(found):
        indent, own = found.groups()
        return f"{indent}facts: >-\n{own}" + "".join(f"{indent}  {line}\n" for line in lines)

    return there.sub(written, text)


def rule_text(file):
    """The text of a rule file as it is shipped."""
    return with_facts(file.read_text())


def dashboard_url(grafana):
    """The template of the link to a dashboard, on one line, as a single-quoted string in YAML."""
    template = re.sub(r"\n\{\{- ", "{{ ", DASHBOARD_URL.read_text().strip())
    return "'" + f"{grafana.rstrip('/')}{template}".replace("'", "''") + "'"


def linked(text, runbook=None, grafana=None):
    """The text of a rule file in which the annotations of each alert link to this runbook instead of the exporter's, and to a
    dashboard, as far as their addresses are given."""
    if runbook:
        own = re.compile(r"^( +)runbook_url: (?:>-\n(?:\1  .*\n)*?\1  .*|.*)(#\w+)$", re.MULTILINE)
        text = own.sub(lambda found: f"{found.group(1)}runbook_url: {runbook}{found.group(2)}", text)
    if grafana:
        link = dashboard_url(grafana)
        text = re.sub(r"^( +)annotations:$", lambda found: f"{found.group(0)}\n{found.group(1)}  dashboard_url: {link}", text, flags=re.MULTILINE)
    return text


def groups(runbook=None, grafana=None):
    """The groups of all files, in the order of the file names; multi-line expressions keep their line breaks."""
    for file in rule_files():
        for group in yaml.safe_load(linked(rule_text(file), runbook, grafana))["groups"]:
            for rule in group["rules"]:
                if "\n" in rule["expr"]:
                    rule["expr"] = Block(rule["expr"])
            yield group


def prometheus_rule(runbook=None, grafana=None):
    item = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {
            "name": "vram-exporter",
            "namespace": "vram-exporter",
            "labels": {"app.kubernetes.io/name": "vram-exporter"},
        },
        "spec": {"groups": list(groups(runbook, grafana))},
    }
    return HEADER + yaml.dump(item, Dumper=Dumper, sort_keys=False, width=82)


def compact(dashboard):
    """A dashboard on one line: a client-side apply copies the whole ConfigMap into an annotation of at most 256 KiB."""
    return json.dumps(json.loads(dashboard.read_text()), ensure_ascii=False, separators=(",", ":")) + "\n"


def with_snippets(text):
    """The page with the content of each file that a comment names, in a code block after the comment."""

    def block(found):
        path = Path(found.group(1))
        return f"<!-- {path} -->\n\n```{LANGUAGES[path.suffix]}\n{(ROOT / path).read_text().rstrip()}\n```\n"

    return re.sub(r"^<!-- (\S+) -->\n(?:\n```\w+\n.*?^```\n)?", block, text, flags=re.MULTILINE | re.DOTALL)


def generated():
    """Every generated file with its text."""
    yield OBJECT, prometheus_rule()
    for file in rule_files():
        yield file, rule_text(file)
        yield CHART / file.name, rule_text(file)
    yield CHART_DASHBOARD_URL, DASHBOARD_URL.read_text()
    for file in sorted(DASHBOARDS.glob("*.json")):
        for folder in CONFIG_MAPS:
            yield folder / file.name, compact(file)
    yield COLLECTORS, with_snippets(COLLECTORS.read_text())


def differing():
    """Generated files that are missing, outdated, or no longer generated."""
    wanted = dict(generated())
    stale = [path for path, text in wanted.items() if not path.exists() or path.read_text() != text]
    there = [*CHART.glob("*"), *(path for folder in CONFIG_MAPS for path in folder.glob("*.json"))]
    return stale + [path for path in sorted(there) if path not in wanted]


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def export(runbook, grafana, folder):
    """Writes the plain rules and the object with links to the runbook and the dashboards."""
    for file in rule_files():
        write(folder / "rules" / file.name, linked(rule_text(file), runbook, grafana))
    write(folder / OBJECT.name, prometheus_rule(runbook, grafana))


def regenerate(check):
    wanted = dict(generated())
    found = differing()
    for path in found:
        print(path.relative_to(ROOT), file=sys.stderr if check else sys.stdout)
        if check:
            continue
        if path in wanted:
            write(path, wanted[path])
        else:
            path.unlink()
    return 1 if check and found else 0


def address(text):
    if not re.fullmatch(r"https?://[^\s\"'#]+", text):
        raise argparse.ArgumentTypeError(f"not an address of a page: {text}")
    return text


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="list the files that differ, and write nothing")
    parser.add_argument("--runbook", type=address, help="address of docs/runbook.md where you publish it")
    parser.add_argument("--grafana", type=address, help="address of your Grafana, without the path of a dashboard")
    parser.add_argument("--output", type=Path, help="folder for the rules with links to --runbook and --grafana")
    options = parser.parse_args()
    linking = options.runbook is not None or options.grafana is not None
    if linking is not (options.output is not None) or (options.check and options.output):
        parser.error("--runbook or --grafana belongs together with --output, without --check")
    if options.output:
        export(options.runbook, options.grafana, options.output)
        return 0
    return regenerate(options.check)


if __name__ == "__main__":
    sys.exit(main())
