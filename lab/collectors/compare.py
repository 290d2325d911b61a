"""Compares, series by series, what collectors deliver with what the exporter sent in the format for which each of them asks.

    compare.py --exporter target/release/vram-exporter --prometheus FILE [--vmagent FILE] [--victoria-metrics FILE]
               [--otelcol FILE] [--telegraf FILE] [--datadog-python FILE] [--created]

The demo is scraped once in each format, and these two expositions are served unchanged, so that values cannot differ because of the time.
Which of the two a collector gets is decided by the running exporter: it is asked with the collector's Accept header. Each collector runs
with its snippet from deploy/collectors or deploy/prometheus; only addresses and intervals are replaced. A collector without a program is
skipped visibly. --created compares with web.openmetrics-created.

Invariant: a series counts as equal only if its name, all of its labels and its value are; only ROUNDING allows a difference. An exemplar
counts as equal only if its series, its label, its value and its time (to the millisecond) are.
"""

import argparse
import contextlib
import dataclasses
import http.client
import json
import math
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml
from prometheus_client.openmetrics.parser import text_string_to_metric_families as families_of_open_metrics
from prometheus_client.parser import text_string_to_metric_families as families_of_text

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests/judges"))

from harness import PATIENCE, ROOT, free_port, get, skipped, started, tail, until
from harness.prometheus import Api
from harness.serving import Handler, Serving

SNIPPETS = ROOT / "deploy/collectors"
# What a scraper adds about the scrape itself; excluded everywhere, because the values depend on the scraper.
ABOUT_THE_SCRAPE = re.compile(r"up|scrape_\w+")
# Differences that docs/collectors.md describes: the largest relative deviation of a value.
ROUNDING = {"VictoriaMetrics": 1e-11}
# Prometheus stores the time of an exemplar in whole milliseconds and cuts off the rest; a little more because of the decimal places.
EXEMPLAR_TIME = 0.0011
TEXT, OPEN_METRICS = "text/plain", "application/openmetrics-text"
FAMILIES = {TEXT: families_of_text, OPEN_METRICS: families_of_open_metrics}


@contextlib.contextmanager
def running(folder, *command):
    """The program, started in the folder; its output is printed if the comparison raises an exception."""
    with tempfile.TemporaryFile() as log:
        try:
            with started(command, log, cwd=folder) as process:
                yield process
        except BaseException:
            print(tail(log), file=sys.stderr)
            raise


@contextlib.contextmanager
def demo(exporter, created, folder):
    """The address of the demo, as soon as simulated processes hold memory and an incident gives a counter an exemplar."""
    address = f"127.0.0.1:{free_port()}"
    with running(folder, exporter, "--demo", f"--web.listen-address={address}", f"--web.openmetrics-created={str(created).lower()}"):
        until("the demo", lambda: "gpu_workload_memory_peak_bytes{" in asked(address, [OPEN_METRICS])[1])
        until("an exemplar", lambda: " # {" in asked(address, [OPEN_METRICS])[1])
        yield address


def asked(address, accept, method="GET"):
    """The whole Content-Type of the exporter's answer to these Accept headers, and its text."""
    connection = http.client.HTTPConnection(address, timeout=10)
    with contextlib.closing(connection):
        connection.putrequest(method, "/metrics")
        for value in accept:
            connection.putheader("Accept", value)
        connection.endheaders()
        response = connection.getresponse()
        return response.headers["Content-Type"], response.read().decode()


def format_of(content_type):
    return content_type.partition(";")[0]


class Replay(Handler):
    exporter = ""
    # By Content-Type.
    texts = {}
    # The Content-Type and the Accept headers of each request since the last collector.
    answered = []

    def do_GET(self):
        accept = self.headers.get_all("Accept", [])
        content_type, _ = asked(self.exporter, accept, "HEAD")
        self.answered.append((content_type, ", ".join(accept)))
        self.reply(200, self.texts[content_type], {"Content-Type": content_type})


@dataclasses.dataclass
class Target:
    """A server that returns the same texts for every path."""

    address: str
    handler: type

    def answered(self):
        """The Content-Type and the Accept headers of the requests since the last call; they must all be alike."""
        found = set(self.handler.answered)
        self.handler.answered.clear()
        if len(found) != 1:
            raise SystemExit(f"the collector asked in {len(found)} ways: {sorted(found)}")
        return found.pop()

    def text(self, content_type):
        return self.handler.texts[content_type].decode()


@contextlib.contextmanager
def serving(exporter):
    """A server with one scrape of the exporter in each format. The exporter chooses between them for each request."""
    texts = {content_type: text.encode() for content_type, text in (asked(exporter, [accept]) for accept in (TEXT, OPEN_METRICS))}
    if {format_of(content_type) for content_type in texts} != {TEXT, OPEN_METRICS}:
        raise SystemExit(f"the exporter answered with {sorted(texts)}")
    handler = type("Recorded", (Replay,), {"exporter": exporter, "texts": texts, "answered": []})
    with Serving(handler) as server:
        yield Target(f"127.0.0.1:{server.server_port}", handler)


@dataclasses.dataclass
class Delivered:
    """The value of each series, and the exemplars; None if the collector's output cannot show exemplars."""

    series: dict
    exemplars: dict | None = None


def series(labels, value):
    """One series: its labels, of which __name__ is one, and its value. The label `le` is a number: Prometheus 3 writes 1 as 1.0 and
    0.00001 as 1e-05, as docs/collectors.md says."""
    if "le" in labels:
        labels = labels | {"le": repr(float(labels["le"]))}
    return frozenset((name, text) for name, text in labels.items() if text), float(value)


def exemplar(labels, of, value, at):
    """An exemplar: the labels of its series, its own label and its value; and its time in seconds."""
    identity, _ = series(labels, 0)
    return (identity, frozenset(of.items()), float(value)), float(at)


def parsed(text, added=(), content_type=TEXT):
    samples = [sample for family in FAMILIES[format_of(content_type)](text) for sample in family.samples]
    values, exemplars = {}, {}
    for sample in samples:
        labels = {"__name__": sample.name, **sample.labels, **dict(added)}
        values |= [series(labels, sample.value)]
        if found := sample.exemplar:
            exemplars |= [exemplar(labels, found.labels, found.value, found.timestamp)]
    return Delivered(values, exemplars)


def snippet(path, addresses, folder):
    """A copy of the snippet with other addresses and shorter intervals; an address that the snippet does not have is an error."""
    text = path.read_text()
    for old, new in addresses.items():
        if old not in text:
            raise SystemExit(f"{path.name} does not contain {old}")
        text = text.replace(old, new)
    text = re.sub(r"\b15s\b", "2s", text)
    text = re.sub(r"\b5s\b", "2s", text)
    copy = Path(folder) / path.name
    copy.write_text(text)
    return copy


def without_scrape_series(found):
    """Without the series about the scrape itself, whose values and number depend on the scraper."""
    return {labels: value for labels, value in found.items() if not ABOUT_THE_SCRAPE.fullmatch(dict(labels)["__name__"])}


def stored(server, with_exemplars=True):
    """The latest value of every series of a server with Prometheus' API, as soon as the job is complete, and the exemplars."""

    def query():
        found = Api(server.partition(":")[2]).instant('{job="vram-exporter"}')
        return without_scrape_series(dict(series(result["metric"], result["value"][1]) for result in found))

    until(f"series at {server}", query)
    # A batch of remote write may hold only a part of a scrape.
    before = None
    while (found := query()) != before:
        before = found
        time.sleep(5)
    return Delivered(found, exemplars_of(server) if with_exemplars else None)


def exemplars_of(server):
    """The exemplars of a Prometheus."""
    span = {"start": time.time() - 3600, "end": time.time() + 60}
    answer = Api(server.partition(":")[2]).ask("query_exemplars", query='{job="vram-exporter"}', **span)
    return dict(
        exemplar(one["seriesLabels"], found["labels"], found["value"], found["timestamp"])
        for one in answer
        for found in one["exemplars"]
    )


@contextlib.contextmanager
def prometheus(program, config, folder, *flags):
    address = f"127.0.0.1:{free_port()}"
    data = tempfile.mkdtemp(dir=folder)
    command = [program, f"--config.file={config}", f"--storage.tsdb.path={data}", f"--web.listen-address={address}"]
    command += ["--enable-feature=exemplar-storage", *flags]
    with running(folder, *command):
        until("Prometheus", lambda: get(f"http://{address}/-/ready"))
        yield address


def by_prometheus(tools, target, folder, path=ROOT / "deploy/prometheus/scrape.yml"):
    with prometheus(tools.prometheus, snippet(path, {"localhost:9836": target}, folder), folder) as address:
        return stored(address)


def by_file_sd(tools, target, folder):
    snippet(SNIPPETS / "vram-exporter-targets.yml", {"localhost:9836": target}, folder)
    with prometheus(tools.prometheus, snippet(SNIPPETS / "prometheus-file-sd.yml", {}, folder), folder) as address:
        found = stored(address)
    # The label that the file of targets adds.
    added = ("cluster", "example")
    values = {labels - {added}: value for labels, value in found.series.items() if added in labels}
    return Delivered(values, {(labels - {added}, *rest): at for (labels, *rest), at in found.exemplars.items() if added in labels})


@contextlib.contextmanager
def receiver(tools, folder):
    """A Prometheus that scrapes nothing and accepts remote write."""
    empty = Path(folder) / "empty.yml"
    empty.write_text("{}\n")
    with prometheus(tools.prometheus, empty, folder, "--web.enable-remote-write-receiver") as address:
        yield address


def by_vmagent(tools, target, folder):
    config = snippet(ROOT / "deploy/prometheus/scrape.yml", {"localhost:9836": target}, folder)
    with receiver(tools, folder) as address:
        command = [
            tools.vmagent,
            f"-promscrape.config={config}",
            "-promscrape.config.strictParse",
            f"-remoteWrite.url=http://{address}/api/v1/write",
            f"-remoteWrite.tmpDataPath={tempfile.mkdtemp(dir=folder)}",
            f"-httpListenAddr=127.0.0.1:{free_port()}",
        ]
        with running(folder, *command):
            return stored(address)


def by_victoria_metrics(tools, target, folder):
    config = snippet(ROOT / "deploy/prometheus/scrape.yml", {"localhost:9836": target}, folder)
    address = f"127.0.0.1:{free_port()}"
    command = [
        tools.victoria_metrics,
        f"-promscrape.config={config}",
        "-promscrape.config.strictParse",
        f"-httpListenAddr={address}",
        f"-storageDataPath={tempfile.mkdtemp(dir=folder)}",
        "-search.latencyOffset=0s",
    ]
    with running(folder, *command):
        return stored(address, with_exemplars=False)


def by_otelcol(tools, target, folder):
    with receiver(tools, folder) as address:
        config = snippet(SNIPPETS / "otel-collector.yaml", {"localhost:9836": target, "localhost:9090": address}, folder)
        with running(folder, tools.otelcol, "--config", config):
            return stored(address)


def by_telegraf(tools, target, folder):
    out = Path(folder) / "telegraf.prom"
    config = snippet(SNIPPETS / "telegraf.conf", {"localhost:9836": target, '"stdout"': f'"{out}"'}, folder)
    done = subprocess.run([tools.telegraf, "--config", config, "--once"], capture_output=True, text=True, timeout=PATIENCE)
    if done.returncode != 0:
        raise SystemExit(f"telegraf: {done.stdout}{done.stderr}")
    return Delivered(parsed(out.read_text()).series)


def by_datadog(tools, target, folder):
    """What the Agent's check submits, under the exporter's names."""
    program = Path(__file__).with_name("datadog_check.py")
    command = [tools.datadog_python, program, SNIPPETS / "datadog-openmetrics.yaml", f"http://{target}/metrics"]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=PATIENCE)
    if done.returncode != 0:
        raise SystemExit(f"Datadog's check: {done.stderr}")
    found = {}
    for name, value, tags in json.loads(done.stdout):
        labels = dict(tag.split(":", 1) for tag in tags)
        labels.pop("endpoint")
        name = name.removeprefix("vram_exporter.")
        if name.endswith(".count"):
            name = name.removesuffix(".count") + "_total"
        found |= [series({"__name__": name, **labels}, value)]
    return Delivered(found)


def for_datadog(own):
    """The series that the snippet selects, without the target's labels. The check submits counters as they are; the Agent computes
    their increase."""
    [instance] = yaml.safe_load((SNIPPETS / "datadog-openmetrics.yaml").read_text())["instances"]
    wanted = {}
    for labels, value in own.items():
        labels = {name: text for name, text in labels if name not in ("job", "instance")}
        name = labels["__name__"]
        if any(re.search(pattern, name.removesuffix("_total")) for pattern in instance["metrics"]):
            wanted |= [series(labels, value)]
    return wanted


def unchanged(own):
    return own


# Name -> the programs it needs, how it delivers series, and which of the exporter's series it should deliver.
COLLECTORS = {
    "Prometheus with static_configs": ([], by_prometheus, unchanged),
    "Prometheus with file_sd": ([], by_file_sd, unchanged),
    "vmagent": (["vmagent"], by_vmagent, unchanged),
    "VictoriaMetrics": (["victoria_metrics"], by_victoria_metrics, unchanged),
    "OpenTelemetry Collector": (["otelcol"], by_otelcol, unchanged),
    "Telegraf": (["telegraf"], by_telegraf, unchanged),
    "Datadog's check": (["datadog_python"], by_datadog, for_datadog),
}


def deviation(left, right):
    """How much two values differ, relative to the larger one."""
    if left == right or (math.isnan(left) and math.isnan(right)):
        return 0
    return abs(left - right) / max(abs(left), abs(right)) if math.isfinite(left - right) else math.inf


def shown(labels):
    named = dict(labels)
    name = named.pop("__name__")
    return f"{name}{{{','.join(f'{key}={text!r}' for key, text in sorted(named.items()))}}}"


def differences(name, wanted, delivered):
    """Every series that only one of the two has, or whose values differ, and every exemplar that only one of them has."""
    if delivered.exemplars is not None:
        for key in sorted(wanted.exemplars.keys() | delivered.exemplars.keys(), key=str):
            sent, arrived = wanted.exemplars.get(key), delivered.exemplars.get(key)
            if sent is None or arrived is None or abs(sent - arrived) > EXEMPLAR_TIME:
                yield f"exemplar: {shown(key[0])} {dict(key[1])} {key[2]}: at {arrived}, not {sent}"
    wanted, found = wanted.series, delivered.series
    for labels in sorted(wanted.keys() - found.keys(), key=shown):
        yield f"missing: {shown(labels)} {wanted[labels]!r}"
    for labels in sorted(found.keys() - wanted.keys(), key=shown):
        yield f"additional: {shown(labels)} {found[labels]!r}"
    for labels in sorted(wanted.keys() & found.keys(), key=shown):
        if deviation(wanted[labels], found[labels]) > ROUNDING.get(name, 0):
            yield f"value: {shown(labels)}: {wanted[labels]!r}, not {found[labels]!r}"


def self_test():
    """The comparison finds a missing series, an additional one, another value, another label, and a missing or different exemplar."""
    text = 'a{x="1"} 1\nb 2\n'
    changed = {"missing": 'a{x="1"} 1\n', "additional": 'a{x="1"} 1\nb 2\nc 3\n', "value": 'a{x="1"} 4\nb 2\n', "label": 'a{x="2"} 1\nb 2\n'}
    pairs = {what: (TEXT, text, other) for what, other in changed.items()}
    head, plain, marked = "# TYPE a counter\n", "a_total 1", 'a_total 1 # {x="1"} 1 1.5'
    for what, other in {"no exemplar": plain, "id": marked.replace('x="1"', 'x="2"'), "time": marked.replace("1.5", "1.502")}.items():
        pairs[what] = (OPEN_METRICS, f"{head}{marked}\n# EOF\n", f"{head}{other}\n# EOF\n")
    for what, (form, one, other) in pairs.items():
        if not list(differences("self test", parsed(one, content_type=form), parsed(other, content_type=form))):
            raise SystemExit(f"self test: the change {what!r} is not found")
        if list(differences("self test", parsed(one, content_type=form), parsed(one, content_type=form))):
            raise SystemExit("self test: equal series differ")
    if list(differences("self test", parsed(text), parsed('b 2\na{x="1"} 1\n'))):
        raise SystemExit("self test: the order of the series makes a difference")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--exporter", help="path of the exporter")
    parser.add_argument("--self-test", action="store_true", help="check only that the comparison finds differences")
    for tool in ("prometheus", "otelcol", "vmagent", "victoria-metrics", "telegraf"):
        parser.add_argument(f"--{tool}", help=f"path of {tool}")
    parser.add_argument("--created", action="store_true", help="with creation times in OpenMetrics")
    parser.add_argument("--datadog-python", help="path of a Python with the package datadog-checks-base")
    tools = parser.parse_args()
    self_test()
    if tools.self_test:
        return 0
    if not tools.exporter or not tools.prometheus:
        parser.error("--exporter and --prometheus are required")
    failed = False
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        address = stack.enter_context(demo(str(Path(tools.exporter).resolve()), tools.created, folder))
        target = stack.enter_context(serving(address))
        for name, (needed, deliver, choose) in COLLECTORS.items():
            missing = [tool for tool in needed if not getattr(tools, tool)]
            if missing:
                failed |= bool(skipped(f"{name}: no --{' --'.join(missing).replace('_', '-')}"))
                continue
            found = deliver(tools, target.address, folder)
            content_type, accept = target.answered()
            sent = parsed(target.text(content_type), {"job": "vram-exporter", "instance": target.address}, content_type)
            wanted = Delivered(choose(sent.series), sent.exemplars)
            problems = list(differences(name, wanted, found))
            exemplars = "not shown" if found.exemplars is None else f"{len(found.exemplars)} of {len(wanted.exemplars)}"
            print(f"{name}: {format_of(content_type)}, {len(found.series)} series of {len(wanted.series)}, exemplars {exemplars}; "
                  f"{len(problems)} differences")
            print(f"    Accept: {accept}")
            if name in ROUNDING:
                both = wanted.series.keys() & found.series.keys()
                largest = max((deviation(wanted.series[labels], found.series[labels]) for labels in both), default=0)
                print(f"    largest relative deviation of a value: {largest:.1e}")
            for problem in problems[:40]:
                print(f"    {problem}")
            failed |= bool(problems)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
