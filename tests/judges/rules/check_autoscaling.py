"""Checks the autoscaling examples against Kubernetes' schema, and makes promtool compute the replicas that they would request."""

import re
import sys
from pathlib import Path

import kubernetes_validate
import yaml
from kubernetes_validate.utils import all_versions

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness import finish, names
from harness.promtool import unit_test

sys.path.insert(0, str(names.ROOT / "deploy"))
import generate

FOLDER = generate.ROOT / "deploy/autoscaling"
SERIES = "pod:gpu_memory_used:ratio_max"
# Of the first three pods, one is full, one is half full and one is nearly empty. The fourth was full only for a moment.
PODS = {
    "embedder-a": ("0.95x20", 2),
    "embedder-b": ("0.7x20", 1),
    "embedder-c": ("0.2x20", 0),
    "embedder-d": ("0.95x3 0.7x17", 1),
}


def read(name):
    return yaml.safe_load((FOLDER / name).read_text())


def queries():
    """The query of each example as Prometheus receives it, with the samples that it must return for PODS."""
    trigger = read("keda-scaled-object.yaml")["spec"]["triggers"][0]["metadata"]
    yield trigger["query"], {"{}": sum(count for _, count in PODS.values())}
    [rule] = read("prometheus-adapter-values.yaml")["rules"]["custom"]
    query = rule["metricsQuery"].replace("<<.GroupBy>>", "pod")
    query = query.replace("<<.LabelMatchers>>", 'namespace="inference", pod=~"%s"' % "|".join(PODS))
    yield query, {f'{{pod="{pod}"}}': count for pod, (_, count) in PODS.items()}


def query_problems(query, samples):
    recorded = {rule.get("record") for group in generate.groups() for rule in group["rules"]}
    unknown = names.used(query).metrics - recorded
    if unknown:
        yield f"no rule records {sorted(unknown)}"
    # Two jobs and two replicas of a server without deduplication scrape the same exporters.
    copies = ('job="v"', 'job="again"', 'job="v", prometheus_replica="b"')
    series = [
        {"series": f'{SERIES}{{{copy}, namespace="inference", pod="{pod}"}}', "values": values}
        for pod, (values, _) in PODS.items()
        for copy in copies
    ]
    series.append({"series": f'{SERIES}{{job="v", namespace="elsewhere", pod="other"}}', "values": "0.95x20"})
    wanted = [{"labels": labels, "value": value} for labels, value in samples.items()]
    looks = [
        {"expr": query, "eval_time": "15m", "exp_samples": wanted},
        {"expr": query, "eval_time": "40m", "exp_samples": []},
    ]
    test = {"interval": "1m", "input_series": series, "promql_expr_test": looks}
    status, text = unit_test(test, evaluation_interval="1m")
    if status:
        yield text


def object_problems():
    autoscaler, scaled = read("hpa.yaml"), read("keda-scaled-object.yaml")
    for version in all_versions()[-3:]:
        try:
            kubernetes_validate.validate(autoscaler, version, strict=True)
        except (kubernetes_validate.ValidationError, kubernetes_validate.SchemaNotFoundError) as error:
            yield f"hpa.yaml in Kubernetes {version}: {error.message}"
    behavior = scaled["spec"]["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    if autoscaler["spec"]["behavior"] != behavior:
        yield "hpa.yaml and keda-scaled-object.yaml behave differently"
    # KEDA itself creates such an object.
    made = dict(autoscaler, spec=dict(autoscaler["spec"], behavior=behavior))
    kubernetes_validate.validate(made, all_versions()[-1], strict=True)
    metric = autoscaler["spec"]["metrics"][0]["pods"]
    [rule] = read("prometheus-adapter-values.yaml")["rules"]["custom"]
    if metric["metric"]["name"] != rule["name"]["as"]:
        yield "hpa.yaml requests a metric that the adapter does not provide"
    if not re.match(rf"{SERIES}\{{", rule["seriesQuery"]):
        yield "the adapter looks for another series"
    if metric["target"]["averageValue"] != scaled["spec"]["triggers"][0]["metadata"]["threshold"]:
        yield "the targets differ"


def main():
    found = list(object_problems())
    for query, samples in queries():
        found += query_problems(query, samples)
    print(", ".join(path.name for path in sorted(Path(FOLDER).glob("*.yaml"))))
    return finish(found)


if __name__ == "__main__":
    sys.exit(main())
