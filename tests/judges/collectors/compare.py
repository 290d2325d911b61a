"""Compares, series by series, what collectors deliver with what Prometheus scrapes from the same exposition.

    compare.py --exporter target/release/vram-exporter --prometheus FILE [--vmagent FILE] [--victoria-metrics FILE]
               [--otelcol FILE] [--telegraf FILE] [--datadog-python FILE]

The exposition is one scrape of the demo, served unchanged to every collector, so that values cannot differ because of the time. Each
collector runs with its snippet from deploy/collectors or deploy/prometheus; only addresses and intervals are replaced. A collector
without a program is skipped visibly.

Invariant: a series counts as equal only if its name, all of its labels and its value are; only ROUNDING allows a difference.
"""

import argparse
import contextlib
import http.server
import json
import math
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

import yaml
from prometheus_client.parser import text_string_to_metric_families

ROOT = Path(__file__).resolve().parents[3]
SNIPPETS = ROOT / "deploy/collectors"
# What a scraper adds about the scrape itself; excluded everywhere, because the values depend on the scraper.
ABOUT_THE_SCRAPE = re.compile(r"up|scrape_\w+")
# Differences that docs/collectors.md describes: the largest relative deviation of a value.
ROUNDING = {"VictoriaMetrics": 1e-15}
WAIT = 60


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def get(url, data=None):
    with urllib.request.urlopen(url, data=data, timeout=10) as response:
        return response.read().decode()


def until(what, condition):
    """Calls the condition until it returns a true value, which is the result."""
    end = time.monotonic() + WAIT
    while time.monotonic() < end:
        with contextlib.suppress(OSError, urllib.error.URLError):
            found = condition()
            if found:
                return found
        time.sleep(0.5)
    raise SystemExit(f"{what}: nothing within {WAIT} s")


@contextlib.contextmanager
def running(folder, *command):
    """The program with its log in the folder; its output is printed if the comparison raises an exception."""
    log = Path(folder) / f"{Path(command[0]).name}-{free_port()}.log"
    with log.open("w") as output:
        process = subprocess.Popen([str(word) for word in command], stdout=output, stderr=subprocess.STDOUT, cwd=folder)
    try:
        yield process
    except BaseException:
        print("".join(log.read_text(errors="replace").splitlines(keepends=True)[-20:]), file=sys.stderr)
        raise
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def scraped(exporter, folder):
    """One scrape of the demo, in which simulated processes hold memory."""
    port = free_port()
    with running(folder, exporter, "--demo", f"--web.listen-address=127.0.0.1:{port}"):
        url = f"http://127.0.0.1:{port}/metrics"
        until("the demo", lambda: "gpu_workload_memory_peak_bytes{" in get(url))
        return get(url)


class Fixed(http.server.BaseHTTPRequestHandler):
    text = b""

    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
        self.send_header("Content-Length", str(len(self.text)))
        self.end_headers()
        self.wfile.write(self.text)

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def serving(text):
    """The address of a server that returns the text for every path."""
    handler = type("Exposition", (Fixed,), {"text": text.encode()})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()


def series(labels, value):
    """One series: its labels, of which __name__ is one, and its value. The label `le` is a number: Prometheus 3 writes 1 as 1.0 and
    0.00001 as 1e-05, as docs/collectors.md says."""
    if "le" in labels:
        labels = labels | {"le": repr(float(labels["le"]))}
    return frozenset((name, text) for name, text in labels.items() if text), float(value)


def parsed(text, added=()):
    samples = (sample for family in text_string_to_metric_families(text) for sample in family.samples)
    return dict(series({"__name__": s.name, **s.labels, **dict(added)}, s.value) for s in samples)


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


def stored(server):
    """The latest value of every series of a server with Prometheus' API, as soon as the job is complete."""

    def query():
        expression = urllib.parse.quote('{job="vram-exporter"}')
        answer = json.loads(get(f"http://{server}/api/v1/query?query={expression}"))
        found = dict(series(result["metric"], result["value"][1]) for result in answer["data"]["result"])
        return without_scrape_series(found)

    until(server, query)
    # A batch of remote write may hold only a part of a scrape.
    before = None
    while (found := query()) != before:
        before = found
        time.sleep(5)
    return found


@contextlib.contextmanager
def prometheus(program, config, folder, *flags):
    address = f"127.0.0.1:{free_port()}"
    data = tempfile.mkdtemp(dir=folder)
    command = [program, f"--config.file={config}", f"--storage.tsdb.path={data}", f"--web.listen-address={address}", *flags]
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
    return {labels - {("cluster", "example")}: value for labels, value in found.items() if ("cluster", "example") in labels}


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
        return stored(address)


def by_otelcol(tools, target, folder):
    with receiver(tools, folder) as address:
        config = snippet(SNIPPETS / "otel-collector.yaml", {"localhost:9836": target, "localhost:9090": address}, folder)
        with running(folder, tools.otelcol, "--config", config):
            return stored(address)


def by_telegraf(tools, target, folder):
    out = Path(folder) / "telegraf.prom"
    config = snippet(SNIPPETS / "telegraf.conf", {"localhost:9836": target, '"stdout"': f'"{out}"'}, folder)
    done = subprocess.run([tools.telegraf, "--config", config, "--once"], capture_output=True, text=True, timeout=WAIT)
    if done.returncode != 0:
        raise SystemExit(f"telegraf: {done.stdout}{done.stderr}")
    return parsed(out.read_text())


def by_datadog(tools, target, folder):
    """What the Agent's check submits, under the exporter's names."""
    program = Path(__file__).with_name("datadog_check.py")
    command = [tools.datadog_python, program, SNIPPETS / "datadog-openmetrics.yaml", f"http://{target}/metrics"]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=WAIT)
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
    return found


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


# Name -> the programs it needs, how it delivers series, and which of Prometheus' series it should deliver.
COLLECTORS = {
    "Prometheus with file_sd": ([], by_file_sd, unchanged),
    "vmagent": (["vmagent"], by_vmagent, unchanged),
    "VictoriaMetrics": (["victoria_metrics"], by_victoria_metrics, unchanged),
    "OpenTelemetry Collector": (["otelcol"], by_otelcol, unchanged),
    "Telegraf": (["telegraf"], by_telegraf, unchanged),
    "Datadog's check": (["datadog_python"], by_datadog, for_datadog),
}


def same(left, right, rounding):
    return math.isclose(left, right, rel_tol=rounding) or (math.isnan(left) and math.isnan(right))


def shown(labels):
    named = dict(labels)
    name = named.pop("__name__")
    return f"{name}{{{','.join(f'{key}={text!r}' for key, text in sorted(named.items()))}}}"


def differences(name, wanted, found):
    """Every series that only one of the two has, or whose values differ."""
    for labels in sorted(wanted.keys() - found.keys(), key=shown):
        yield f"missing: {shown(labels)} {wanted[labels]!r}"
    for labels in sorted(found.keys() - wanted.keys(), key=shown):
        yield f"additional: {shown(labels)} {found[labels]!r}"
    for labels in sorted(wanted.keys() & found.keys(), key=shown):
        if not same(wanted[labels], found[labels], ROUNDING.get(name, 0)):
            yield f"value: {shown(labels)}: {wanted[labels]!r}, not {found[labels]!r}"


def self_test():
    """The comparison finds a missing series, an additional one, another value, and another label."""
    one = parsed('a{x="1"} 1\nb 2\n')
    changed = {"missing": 'a{x="1"} 1\n', "additional": 'a{x="1"} 1\nb 2\nc 3\n', "value": 'a{x="1"} 4\nb 2\n', "label": 'a{x="2"} 1\nb 2\n'}
    for what, text in changed.items():
        if not list(differences("self test", one, parsed(text))):
            raise SystemExit(f"self test: the change {what!r} is not found")
    if list(differences("self test", one, parsed('b 2\na{x="1"} 1\n'))):
        raise SystemExit("self test: equal series differ")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--exporter", help="path of the exporter")
    parser.add_argument("--self-test", action="store_true", help="check only that the comparison finds differences")
    for tool in ("prometheus", "otelcol", "vmagent", "victoria-metrics", "telegraf"):
        parser.add_argument(f"--{tool}", help=f"path of {tool}")
    parser.add_argument("--datadog-python", help="path of a Python with the package datadog-checks-base")
    tools = parser.parse_args()
    self_test()
    if tools.self_test:
        return 0
    if not tools.exporter or not tools.prometheus:
        parser.error("--exporter and --prometheus are required")
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        text = scraped(str(Path(tools.exporter).resolve()), folder)
        with serving(text) as target:
            own = by_prometheus(tools, target, folder)
            exposition = parsed(text, {"job": "vram-exporter", "instance": target})
            rows = [("Prometheus with static_configs", own, exposition)]
            for name, (needed, deliver, choose) in COLLECTORS.items():
                missing = [tool for tool in needed if not getattr(tools, tool)]
                if missing:
                    print(f"SKIPPED: {name}: no --{' --'.join(missing).replace('_', '-')}")
                    failed |= bool(os.environ.get("VRAM_EXPORTER_TEST_REQUIRE_ALL"))
                    continue
                rows.append((name, deliver(tools, target, folder), choose(own)))
        for name, found, wanted in rows:
            problems = list(differences(name, wanted, found))
            print(f"{name}: {len(found)} series of {len(wanted)}; {len(problems)} differences")
            for problem in problems[:40]:
                print(f"    {problem}")
            failed |= bool(problems)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
