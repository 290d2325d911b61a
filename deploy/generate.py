"""Generates the PrometheusRule object and the chart's copies of the rules from deploy/prometheus/rules.

    deploy/generate.py            writes them
    deploy/generate.py --check    lists the files that differ, and writes nothing

Invariant: a rule is written once, in the plain files; the object does not contain their comments.
"""

import sys
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]
RULES = ROOT / "deploy/prometheus/rules"
OBJECT = ROOT / "deploy/kubernetes/components/prometheus-rules/prometheus-rule.yaml"
CHART = ROOT / "deploy/helm/vram-exporter/files/rules"
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


def groups():
    """The groups of all files, in the order of the file names; multi-line expressions keep their line breaks."""
    for file in rule_files():
        for group in yaml.safe_load(file.read_text())["groups"]:
            for rule in group["rules"]:
                if "\n" in rule["expr"]:
                    rule["expr"] = Block(rule["expr"])
            yield group


def prometheus_rule():
    item = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {
            "name": "vram-exporter",
            "namespace": "vram-exporter",
            "labels": {"app.kubernetes.io/name": "vram-exporter"},
        },
        "spec": {"groups": list(groups())},
    }
    return HEADER + yaml.dump(item, Dumper=Dumper, sort_keys=False, width=90)


def generated():
    """Every generated file with its text."""
    yield OBJECT, prometheus_rule()
    for file in rule_files():
        yield CHART / file.name, file.read_text()


def differing():
    """Generated files that are missing, outdated, or no longer generated."""
    wanted = dict(generated())
    stale = [path for path, text in wanted.items() if not path.exists() or path.read_text() != text]
    return stale + [path for path in sorted(CHART.glob("*")) if path not in wanted]


def main():
    check = sys.argv[1:] == ["--check"]
    if sys.argv[1:] and not check:
        raise SystemExit(__doc__)
    wanted = dict(generated())
    found = differing()
    for path in found:
        print(path.relative_to(ROOT), file=sys.stderr if check else sys.stdout)
        if check:
            continue
        if path in wanted:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(wanted[path])
        else:
            path.unlink()
    return 1 if check and found else 0


if __name__ == "__main__":
    sys.exit(main())
