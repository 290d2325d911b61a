"""Runs the Datadog Agent's OpenMetrics check once against an address, with the instance of a configuration file, and prints what it
submits as JSON: a list of name, value and tags. Run by compare.py with a Python that has the package datadog-checks-base.

The first run only initializes counters, whose increase is submitted from the second run on.
"""

import json
import sys

import yaml
from datadog_checks.base import OpenMetricsBaseCheckV2
from datadog_checks.base.stubs import aggregator


def main(config, address):
    with open(config) as file:
        [instance] = yaml.safe_load(file)["instances"]
    check = OpenMetricsBaseCheckV2("openmetrics", {}, [instance | {"openmetrics_endpoint": address}])
    for _ in range(2):
        aggregator.reset()
        failure = check.run()
        if failure:
            raise SystemExit(failure)
    metrics = [metric for name in aggregator.metric_names for metric in aggregator.metrics(name)]
    json.dump([(metric.name, metric.value, metric.tags) for metric in metrics], sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
