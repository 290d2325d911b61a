"""Pushes to a real OpenTelemetry Collector and compares what arrived with a scrape of the same exporter.

    python3 tests/judges/otlp/collector.py --exporter target/release/vram-exporter --collector PATH [--scenario mig-a100 ...]

The collector needs the OTLP receiver and the debug exporter, which prints each point. Every series of a scrape must have arrived under its name
and with its attributes, and the values that do not change must be equal. After the exporter has ended, the last thing that arrived for each
series must be the flag that says that it has no value. Prints SKIPPED if the program is missing. The GPUs are simulated.
"""

import argparse
import contextlib
import os
import re
import sys
import tempfile

from programs import free_port, get, started, wait_until

CONFIGURATION = """
receivers:
  otlp:
    protocols:
      http:
        endpoint: 127.0.0.1:{port}
exporters:
  debug:
    verbosity: detailed
service:
  telemetry:
    metrics: {{level: none}}
  pipelines:
    metrics:
      receivers: [otlp]
      exporters: [debug]
"""
SCENARIOS = ["mig-a100", "busy-h200", "hostile-names"]
LINE = re.compile(r'^(?P<name>[a-z_]+)(?:\{(?P<labels>.*)\})? (?P<value>\S+)$')
LABEL = re.compile(r'([a-z_]+)="((?:[^"\\]|\\.)*)"')
ESCAPES = {"\\n": "\n", '\\"': '"', "\\\\": "\\"}
# Suffixes of names whose values do not change on a simulated machine without events.
STILL = ("_total_bytes", "_info", "_limit_watts", "_reserved_bytes", "_up", "_window_seconds")


def scrape(port):
    """The series of a scrape with their values; of a histogram its count only, which has its labels."""
    series = {}
    for line in get(f"http://127.0.0.1:{port}/metrics").splitlines():
        found = LINE.match(line)
        if not found or found["name"].endswith(("_bucket", "duration_seconds_sum")):
            continue
        name = found["name"].removesuffix("_count") if found["name"].endswith("duration_seconds_count") else found["name"]
        labels = {label: re.sub(r"\\.", lambda at: ESCAPES[at[0]], text) for label, text in LABEL.findall(found["labels"] or "")}
        series[name, tuple(sorted(labels.items()))] = float(found["value"])
    return series


def arrived(path):
    """The latest value of each series that the collector printed, None for the flag, and the attributes of the resource."""
    series, resource = {}, {}
    name = attributes = place = None
    with open(path, encoding="utf-8", errors="replace", newline="\n") as log:
        for line in log.read().split("\n"):
            plain = line.strip()
            if plain.startswith("Resource attributes"):
                place = resource
            elif plain.startswith("-> Name: "):
                name, place = plain.removeprefix("-> Name: "), None
            elif re.match(r"(Number|Histogram)DataPoints #", plain):
                attributes, place = {}, None
                series[name, ()] = series.pop((name, ()), None)
                pending = attributes
            elif plain.startswith("Data point attributes"):
                place = pending
            elif found := re.match(r"-> ([a-z0-9_.]+): Str\((.*)\)$", plain):
                if place is not None:
                    place[found[1]] = found[2]
            elif found := re.match(r"(Value|Count): (\S+)$", plain):
                series[name, tuple(sorted(attributes.items()))] = float(found[2])
            elif plain.startswith("ScopeMetrics"):
                place = None
    return series, resource


def judge(options, scenario):
    problems = []
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        own, port = free_port(), free_port()
        configuration, printed = os.path.join(folder, "collector.yml"), os.path.join(folder, "printed")
        with open(configuration, "w", encoding="utf-8") as file:
            file.write(CONFIGURATION.format(port=port))
        out = stack.enter_context(open(printed, "w+b"))
        log = stack.enter_context(tempfile.TemporaryFile())
        stack.enter_context(started([options.collector, f"--config={configuration}"], out))
        exporter = stack.enter_context(started([
            options.exporter, f"--demo={scenario}", f"--web.listen-address=127.0.0.1:{own}", "--otlp.interval=1s",
            f"--otlp.endpoint=http://127.0.0.1:{port}",
        ], log))

        def complete():
            scraped, (pushed, _) = scrape(own), arrived(printed)
            return scraped if len(scraped) > 100 and scraped.keys() <= pushed.keys() else None

        try:
            scraped = wait_until(complete, "every series of a scrape", log)
        except SystemExit as late:
            pushed, _ = arrived(printed)
            print(f"{scenario}: missing {sorted(scrape(own).keys() - pushed.keys())[:5]}")
            raise late
        pushed, resource = arrived(printed)
        compared = 0
        for series, value in scraped.items():
            if series[0].endswith(STILL):
                compared += 1
                if pushed[series] != value:
                    problems.append(f"other value: {series}: {pushed[series]} and not {value}")
        conventions = {series[0] for series in pushed if series[0].startswith("hw.")}
        for name in ("hw.gpu.memory.limit", "hw.gpu.memory.usage", "hw.gpu.memory.utilization", "hw.power", "hw.temperature"):
            if name not in conventions and scenario != "mig-a100":
                problems.append(f"not arrived: {name}")
        for name in ("service.name", "service.version", "service.instance.id", "host.name", "os.type", "vram_exporter.simulated"):
            if name not in resource:
                problems.append(f"the resource lacks {name}: {resource}")
        exporter.terminate()
        if exporter.wait(timeout=20) != 0:
            problems.append("the exporter ended with an error")
        log.seek(0)
        problems += [line for line in log.read().decode(errors="replace").splitlines() if "fault" in line and "otlp" in line][:5]
        print(f"{scenario:14} {len(scraped):5} series of a scrape arrived, {compared} values equal, conventions: {sorted(conventions)}, "
              f"resource: {sorted(resource)}, {len(problems)} problems")
    for problem in problems[:20]:
        print(f"  {problem}")
    return problems


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--exporter", required=True)
    parser.add_argument("--collector", required=True)
    parser.add_argument("--scenario", action="append")
    options = parser.parse_args()
    if not os.access(options.collector, os.X_OK):
        print(f"SKIPPED: {options.collector} is not installed")
        return
    problems = []
    for scenario in options.scenario or SCENARIOS:
        problems += judge(options, scenario)
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
