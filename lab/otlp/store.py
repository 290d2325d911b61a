"""Pushes to a real Prometheus 3 or VictoriaMetrics, which also scrapes the same exporter, and compares names, labels and values series by
series.

    python3 lab/otlp/store.py --exporter target/release/vram-exporter [--prometheus PATH] [--victoria-metrics PATH]
        [--scenario mig-a100 ...]

For each scenario and each way in which the store translates names: every scraped series must be pushed under the same name, with the same
labels and values, and nothing else except the names of the semantic conventions. After the exporter has ended, no pushed series may be
shown. Prints SKIPPED for a program that is missing. The GPUs are simulated.
"""

import contextlib
import dataclasses
import os
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests/judges"))

import comparison
from harness import arguments, free_port, get, skipped, started, tail, until
from harness.prometheus import Api

SCENARIOS = ["mig-a100", "busy-h200", "hostile-names"]
SCRAPE = """
scrape_configs:
  - job_name: scraped
    scrape_interval: 1s
    scrape_timeout: 1s
    static_configs: [{{targets: ["127.0.0.1:{exporter}"]}}]
"""


@dataclasses.dataclass
class Store:
    """A program that stores metrics, and one way in which it translates names."""
    program: str
    translation: str
    flags: list
    configuration: str
    # The path of its OTLP receiver, and the selector of what was pushed.
    path: str
    pushed: str
    # Some names of the conventions as it shows them.
    conventions: list


def prometheus(program):
    names = {
        "UnderscoreEscapingWithSuffixes": ["hw_gpu_memory_usage_bytes", "hw_gpu_memory_utilization_ratio", "hw_errors_total", "hw_power_watts"],
        "NoUTF8EscapingWithSuffixes": ["hw.gpu.memory.usage_bytes", "hw.gpu.memory.utilization_ratio", "hw.errors_total", "hw.power_watts"],
        "UnderscoreEscapingWithoutSuffixes": ["hw_gpu_memory_usage", "hw_gpu_memory_utilization", "hw_errors", "hw_power"],
        "NoTranslation": ["hw.gpu.memory.usage", "hw.gpu.memory.utilization", "hw.errors", "hw.power"],
    }
    flags = [
        "--config.file={folder}/store.yml", "--storage.tsdb.path={folder}/data", "--web.listen-address=127.0.0.1:{port}",
        "--web.enable-otlp-receiver", "--log.level=warn",
    ]
    for strategy, conventions in names.items():
        configuration = f"otlp: {{{{translation_strategy: {strategy}}}}}\n{SCRAPE}"
        yield Store(program, strategy, flags, configuration, "/api/v1/otlp", 'job="vram-exporter"', conventions)


def victoria_metrics(program):
    flags = [
        "-promscrape.config={folder}/store.yml", "-storageDataPath={folder}/data", "-httpListenAddr=127.0.0.1:{port}",
        "-search.latencyOffset=0s",
    ]
    own = ["hw.gpu.memory.usage", "hw.gpu.memory.utilization", "hw.errors", "hw.power"]
    translated = ["hw_gpu_memory_usage_bytes", "hw_gpu_memory_utilization_ratio", "hw_errors_total", "hw_power_watts"]
    yield Store(program, "default names", flags, SCRAPE, "/opentelemetry", '"service.name"="vram-exporter"', own)
    prometheus_naming = [*flags, "-opentelemetry.usePrometheusNaming"]
    yield Store(program, "Prometheus' names", prometheus_naming, SCRAPE, "/opentelemetry", 'service_name="vram-exporter"', translated)


# The selector of what was scraped.
SCRAPED = 'job="scraped"'
# How many samples of each series are compared.
SAMPLES = 8
# Fewer series than this would mean that the scrape failed.
FEWEST = 100
# How many seconds after the end nothing may be shown any more. Without the flag it would be five minutes.
LAST = 10


def samples(port, selector):
    """The samples of the last seconds, by series."""
    found = {}
    for result in Api(port).instant(f'{{__name__=~".+", {selector}}}[{SAMPLES}s]'):
        series = comparison.key(result["metric"])
        found.setdefault(series, []).extend((float(at), float(value)) for at, value in result["values"])
    return {series: sorted(values) for series, values in found.items()}


def settled(port, store):
    """Whether both have everything: the sets of series are the same in two looks, two seconds apart."""
    def look():
        return {selector: frozenset(samples(port, selector)) for selector in (SCRAPED, store.pushed)}
    first = look()
    time.sleep(2)
    return all(first.values()) and first == look()


def left_over(port, store):
    """What is still shown some seconds after the end: a store may take a moment to show the last samples."""
    for _ in range(LAST):
        left = [result["metric"] for result in Api(port).instant(f'{{__name__!="target_info", {store.pushed}}}')]
        if not left:
            break
        time.sleep(1)
    return left


def judge(options, scenario, store):
    problems = []
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        log = stack.enter_context(tempfile.TemporaryFile())
        own, port = free_port(), free_port()
        with open(os.path.join(folder, "store.yml"), "w", encoding="utf-8") as file:
            file.write(store.configuration.format(exporter=own))
        stack.enter_context(started([store.program, *(flag.format(folder=folder, port=port) for flag in store.flags)], log))
        until(f"{store.program} answers", lambda: get(f"http://127.0.0.1:{port}/-/healthy"), log=log)
        exporter = stack.enter_context(started([
            options.exporter, f"--demo={scenario}", f"--web.listen-address=127.0.0.1:{own}", "--otlp.interval=1s",
            f"--otlp.endpoint=http://127.0.0.1:{port}{store.path}",
            "--otlp.names=both",
        ], log))
        until("the same series twice", lambda: settled(port, store), log=log)
        time.sleep(SAMPLES)
        pushed, scraped = samples(port, store.pushed), samples(port, SCRAPED)
        if len(scraped) < FEWEST:
            problems.append(f"only {len(scraped)} series were scraped")
        found, counts = comparison.compare(scraped, pushed)
        problems += found
        names = {name for name, _ in pushed}
        problems += [f"not pushed: {name}" for name in store.conventions if name not in names and scenario != "mig-a100"]
        conventions = sum(comparison.is_of(name, comparison.OF_THE_CONVENTIONS) for name, _ in pushed)
        exporter.terminate()
        if exporter.wait(timeout=20) != 0:
            problems.append("the exporter ended with an error")
        left = left_over(port, store)
        problems += [f"still shown after the end: {labels}" for labels in left[:5]]
        rejected = [line for line in tail(log, 1 << 30).splitlines() if "fault" in line and "otlp" in line]
        problems += rejected[:5]
        print(f"{scenario:14} {store.translation:34} {len(scraped):5} scraped, {len(pushed):5} pushed ({conventions} named by the conventions): "
              f"{counts['equal']} equal, {counts['within']} within, {counts['varying']} varying, {len(problems)} problems")
    for problem in problems[:20]:
        print(f"  {problem}")
    return problems


def main():
    parser = arguments(__doc__)
    parser.add_argument("--prometheus")
    parser.add_argument("--victoria-metrics")
    parser.add_argument("--scenario", action="append")
    options = parser.parse_args()
    stores = []
    for program, kinds in ((options.prometheus, prometheus), (options.victoria_metrics, victoria_metrics)):
        if program and not os.access(program, os.X_OK):
            if skipped(f"{program} is not installed"):
                return 1
        elif program:
            stores += kinds(program)
    problems = []
    for scenario in options.scenario or SCENARIOS:
        for store in stores:
            problems += judge(options, scenario, store)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
