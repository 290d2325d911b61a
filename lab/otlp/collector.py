"""Pushes to a real OpenTelemetry Collector and compares what it passes on with a scrape of the same exporter.

    python3 lab/otlp/collector.py --exporter target/release/vram-exporter --collector PATH [--scenario mig-a100 ...]

The Collector needs the OTLP receiver and the OTLP/HTTP exporter, with which it passes everything on to this program as JSON. Every series of a
scrape must have arrived under its name and with its attributes, and the values that do not change must be equal. Nothing else may arrive except
the names of the semantic conventions. After the exporter has ended, the last point of each series must have the flag that says that it has no
value. Prints SKIPPED if the program is missing. The GPUs are simulated.
"""

import contextlib
import json
import os
import sys
import tempfile
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests/judges"))

from harness import Late, arguments, free_port, get, listens, skipped, started, tail, until
from harness.exporter import samples
from harness.serving import Handler, Serving

CONFIGURATION = """
receivers:
  otlp:
    protocols:
      http:
        endpoint: 127.0.0.1:{port}
exporters:
  otlp_http:
    endpoint: http://127.0.0.1:{passed_on}
    encoding: json
    compression: none
service:
  telemetry:
    metrics: {{level: none}}
  pipelines:
    metrics:
      receivers: [otlp]
      exporters: [otlp_http]
"""
SCENARIOS = ["mig-a100", "busy-h200", "hostile-names"]
# Suffixes of names whose values do not change on a simulated machine without events.
STILL = ("_total_bytes", "_info", "_limit_watts", "_reserved_bytes", "_up", "_window_seconds")


def scrape(port):
    """The series of a scrape with their values; of a histogram its count only, which has its labels."""
    series = {}
    for name, labels, value in samples(get(f"http://127.0.0.1:{port}/metrics")):
        if not name.endswith(("_bucket", "duration_seconds_sum")):
            name = name.removesuffix("_count") if name.endswith("duration_seconds_count") else name
            series[name, tuple(sorted(labels.items()))] = value
    return series


# The flag of a point without a value.
NO_VALUE = 1


class Arrived:
    """What the Collector has passed on: the last point of each series, None for the flag, and the attributes of the resource."""

    def __init__(self):
        self.series, self.resource, self.repeated = {}, {}, []
        self.lock = threading.Lock()

    def take(self, request):
        with self.lock:
            for of_resource in request.get("resourceMetrics", []):
                self.resource |= attributes(of_resource["resource"])
                seen = set()
                for scope in of_resource["scopeMetrics"]:
                    for metric in scope["metrics"]:
                        for series, value in points(metric):
                            self.series[series] = value
                            self.repeated += [series] * (series in seen)
                            seen.add(series)

    def copy(self):
        with self.lock:
            return dict(self.series)


def attributes(of):
    """The attributes as text; all of the exporter's are strings."""
    return {attribute["key"]: attribute["value"]["stringValue"] for attribute in of.get("attributes", [])}


def points(metric):
    """The series of a metric, each with its value, a histogram's count, or None for the flag."""
    for kind in ("gauge", "sum", "histogram"):
        for point in metric.get(kind, {}).get("dataPoints", []):
            value = point.get("count", point.get("asDouble", point.get("asInt", 0)))
            empty = point.get("flags", 0) & NO_VALUE
            yield (metric["name"], tuple(sorted(attributes(point).items()))), None if empty else float(value)


@contextlib.contextmanager
def receiving():
    """The port of an OTLP receiver, and what arrives there."""
    arrived = Arrived()

    class Receiver(Handler):
        def do_POST(self):
            arrived.take(json.loads(self.content()))
            self.reply(200, b"{}", {"Content-Type": "application/json"})

    with Serving(Receiver) as server:
        yield server.server_port, arrived


def compared(scraped, pushed):
    """The problems, and how many values were compared."""
    problems = []
    still = [series for series in scraped if series[0].endswith(STILL)]
    for series in still:
        if pushed.get(series) != scraped[series]:
            problems.append(f"other value: {series}: {pushed.get(series)} and not {scraped[series]}")
    if not still:
        problems.append("no value was compared")
    known = {name for name, _ in scraped}
    problems += [f"not in the scrape: {name}" for name in sorted({name for name, _ in pushed} - known) if not name.startswith("hw.")]
    return problems, len(still)


def judge(options, scenario):
    problems = []
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        own, port = free_port(), free_port()
        passed_on, arrived = stack.enter_context(receiving())
        configuration = os.path.join(folder, "collector.yml")
        with open(configuration, "w", encoding="utf-8") as file:
            file.write(CONFIGURATION.format(port=port, passed_on=passed_on))
        log = stack.enter_context(tempfile.TemporaryFile())
        stack.enter_context(started([options.collector, f"--config={configuration}"], log))
        until("the Collector listens", lambda: listens(port), log=log)
        exporter = stack.enter_context(started([
            options.exporter, f"--demo={scenario}", f"--web.listen-address=127.0.0.1:{own}", "--otlp.interval=1s",
            f"--otlp.endpoint=http://127.0.0.1:{port}",
            "--otlp.names=both",
        ], log))

        def complete():
            scraped, pushed = scrape(own), arrived.copy()
            return (scraped, pushed) if len(scraped) > 100 and scraped.keys() <= pushed.keys() else None

        try:
            scraped, pushed = until("every series of a scrape", complete, log=log)
        except Late:
            print(f"{scenario}: missing {sorted(scrape(own).keys() - arrived.copy().keys())[:5]}")
            raise
        found, equal = compared(scraped, pushed)
        problems += found
        conventions = {name for name, _ in pushed if name.startswith("hw.")}
        for name in ("hw.gpu.memory.limit", "hw.gpu.memory.usage", "hw.gpu.memory.utilization", "hw.power", "hw.temperature"):
            if name not in conventions and scenario != "mig-a100":
                problems.append(f"not arrived: {name}")
        for name in ("service.name", "service.version", "service.instance.id", "host.name", "os.type", "vram_exporter.simulated"):
            if name not in arrived.resource:
                problems.append(f"the resource lacks {name}: {arrived.resource}")
        exporter.terminate()
        if exporter.wait(timeout=20) != 0:
            problems.append("the exporter ended with an error")
        until("the flag on each series", lambda: not any(value is not None for value in arrived.copy().values()), log=log)
        problems += [f"twice in one push: {series}" for series in arrived.repeated[:5]]
        problems += [line for line in tail(log, 1 << 30).splitlines() if "fault" in line and "otlp" in line][:5]
        print(f"{scenario:14} {len(scraped):5} series of a scrape arrived, {equal} values equal, {len(arrived.series)} series ended with the flag, "
              f"conventions: {sorted(conventions)}, resource: {sorted(arrived.resource)}, {len(problems)} problems")
    for problem in problems[:20]:
        print(f"  {problem}")
    return problems


def main():
    parser = arguments(__doc__)
    parser.add_argument("--collector", required=True)
    parser.add_argument("--scenario", action="append")
    options = parser.parse_args()
    if not os.access(options.collector, os.X_OK):
        return skipped(f"{options.collector} is not installed")
    problems = []
    for scenario in options.scenario or SCENARIOS:
        problems += judge(options, scenario)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
