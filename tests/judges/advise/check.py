#!/usr/bin/env python3
"""Compares `vram-exporter advise` with what is true of a made history of two weeks, which a real Prometheus serves.

    check.py --exporter PATH
    check.py --self-test

The history has more than 200 workloads on a made fleet, and cases that were made for one question each (cases.py). promtool turns it
into blocks; truth.py computes every number of the answer from the samples, to the byte. The requests are counted by a proxy. The
self-test shows that wrong answers are noticed; it needs neither Prometheus nor the exporter. Without promtool and Prometheus the check
prints SKIPPED and succeeds, unless VRAM_EXPORTER_TEST_REQUIRE_ALL is set.
"""

import argparse
import base64
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import backfill
import serve
from cases import cases, others
from fleet import SCRAPES, Fleet
from forms import FORMS
from harness import ROOT, finish, skipped
from self_test import self_test
from truth import LOOKBACK, Truth
from workloads import Crowd

WEEKS = SCRAPES * backfill.STEP
WORKLOADS = 200
# The most differences that are printed.
LISTED = 100
# Fields that have no value in the history: the server's URL, the number of requests, and sentences.
SAID = ("prometheus", "queries", "warnings")
RAW, RECORDED = "gpu_workload_memory_window_peak_bytes", "device:gpu_workload_memory_window_peak_bytes:max1h"


def bound():
    """The number of requests that the documentation promises."""
    found = re.search(r"at most (\d+) requests", (ROOT / "docs/sizing.md").read_text().replace("\n", " "))
    if not found:
        raise SystemExit("docs/sizing.md does not say: at most N requests")
    return int(found[1])


class History:
    """The made history, which ends at `time`."""

    def __init__(self, end):
        self.time, self.begin = end, end - WEEKS
        fleet = Fleet()
        self.devices, self.cases = fleet.devices(), list(cases(fleet))
        self.stays = Crowd(fleet).stays + [stay for _, stays, _ in self.cases for stay in stays] + list(others(fleet))

    def series(self):
        of_devices = [series for device in self.devices for series in device.own_series(self.begin)]
        return of_devices + [series for stay in self.stays for series in stay.series(self.begin)]

    def truth(self, end=None, seconds=WEEKS, lookback=LOOKBACK, **options):
        return Truth(self.begin, self.devices, self.stays, end or self.time, seconds, lookback).answer(**options)


def differences(found, expected, path=""):
    """Where `found` differs from `expected`."""
    if isinstance(found, dict) and isinstance(expected, dict):
        for name in sorted(found.keys() | expected.keys()):
            if (name in found) != (name in expected):
                side = "is missing" if name in expected else "is too much"
                yield f"{path}.{name} {side}: {expected.get(name, found.get(name))!r}"
            else:
                yield from differences(found[name], expected[name], f"{path}.{name}")
    elif isinstance(found, list) and isinstance(expected, list) and path.endswith(("workloads", "boards")):
        named = [{(one.get("cluster"), one.get("kind"), one.get("workload", one.get("board"))): one for one in side} for side in (found, expected)]
        if list(named[0]) != list(named[1]):
            yield f"{path}: {list(named[0].keys() - named[1].keys())} too much, {list(named[1].keys() - named[0].keys())} missing, or another order"
        for name in named[1].keys() & named[0].keys():
            yield from differences(named[0][name], named[1][name], f"{path}{list(name)}")
    elif found != expected or type(found) is not type(expected):
        yield f"{path} is {found!r}, not {expected!r}"


class Judge:
    def __init__(self, exporter):
        self.exporter, self.problems = exporter, []

    def run(self, url, *flags):
        command = [self.exporter, "advise", f"--prometheus.url={url}", *flags]
        return subprocess.run(command, capture_output=True, text=True, timeout=600)

    def note(self, name, problems):
        problems = list(problems)
        print(f"{'FAIL' if problems else 'ok  '} {name}", flush=True)
        self.problems += [f"{name}: {problem}" for problem in problems]

    def compared(self, url, name, expected, *flags):
        """The answer in JSON, and its status, against what is expected. Returns the answer."""
        begun = time.monotonic()
        done = self.run(url, "--format=json", *flags)
        took = time.monotonic() - begun
        try:
            answer = json.loads(done.stdout)
        except ValueError:
            self.note(name, [f"no JSON, status {done.returncode}: {done.stderr[-500:]}"])
            return None
        problems = list(differences({key: value for key, value in answer.items() if key not in SAID}, expected))
        changes = any(workload["action"] in ("lower", "raise") for workload in expected["workloads"])
        if done.returncode != (2 if changes else 0):
            problems.append(f"status {done.returncode}")
        self.note(f"{name}: {len(expected['workloads'])} workloads, {answer['queries']} requests, {took:.1f} s", problems)
        return answer

    def failing(self, name, done, status, said):
        problems = [] if done.returncode == status else [f"status {done.returncode}, not {status}"]
        if said not in done.stderr:
            problems.append(f"the message does not contain {said!r}: {done.stderr[-300:]}")
        self.note(name, problems + (["something on standard output"] if done.stdout else []))


def case_problems(history, answer):
    """The cases' own expectations, which their authors wrote down as numbers."""
    for name, stays, expected in history.cases:
        cluster = stays[0].device.parts[0].target.get("cluster")
        wanted = (cluster, stays[0].work.kind, stays[0].work.group)
        found = [one for one in answer["workloads"] if (one.get("cluster"), one["kind"], one["workload"]) == wanted]
        if len(found) != 1:
            yield f"{name}: {len(found)} workloads {wanted}"
            continue
        yield from (f"{name}: {key} is {found[0].get(key)!r}, not {value!r}" for key, value in expected.items() if found[0].get(key) != value)


def made_history(judge, folder, history):
    begun = time.monotonic()
    samples, size = backfill.write(history.series(), folder)
    print(f"{samples} samples, {size / 2**20:.0f} MiB of OpenMetrics, into blocks in {time.monotonic() - begun:.0f} s")
    with serve.prometheus(folder) as (port, log_of_queries), serve.Proxy(port) as proxy:
        at = f"--time={history.time}"
        expected = history.truth()
        if len(expected["workloads"]) < WORKLOADS:
            judge.note("the size of the history", [f"{len(expected['workloads'])} workloads"])
        answer = judge.compared(proxy.url, "two weeks", expected, at)
        if answer:
            judge.note(f"{len(history.cases)} cases", case_problems(history, answer))
            count_requests(judge, proxy, log_of_queries, answer)
        for by in ("pod", "job", "user"):
            judge.compared(proxy.url, f"by {by}", history.truth(by=by), at, f"--by={by}")
        strict = history.truth(seconds=7 * 86400, min_samples=500, min_span=86400)
        judge.compared(proxy.url, "a week, 500 samples in a day", strict, at, "--range=7d", "--min-samples=500", "--min-span=1d")
        judge.compared(proxy.url, "100 minutes", history.truth(seconds=6000), at, "--range=100m")
        enough = history.truth(min_samples=10**9)
        judge.compared(proxy.url, "never enough samples", enough, at, "--min-samples=1000000000")
        earlier = history.time - 3 * 86400 - 123
        judge.compared(proxy.url, "two weeks before another time", history.truth(end=earlier), f"--time={earlier}")
        until_now(judge, proxy, history)
        for form, problems in FORMS.items():
            done = judge.run(proxy.url, at, f"--format={form}")
            judge.note(f"as {form}: {len(done.stdout)} characters", form_problems(done, problems, answer or expected))
        secured(judge, port, folder, expected, at)


def form_problems(done, problems, answer):
    if done.returncode not in (0, 2):
        return [f"status {done.returncode}: {done.stderr[-300:]}"]
    try:
        found = problems(done.stdout, answer)
        # A form with another number must be noticed, too.
        return found or ([] if problems(another_number(done.stdout), answer) else ["a wrong number is not noticed"])
    except (ValueError, KeyError, IndexError) as error:
        return [f"cannot be read: {error!r}"]


def another_number(text):
    """The text with one digit changed in its last number with at least four digits."""
    *_, last = re.finditer(r"\d{4,}", text)
    digit = "1" if last[0][-2] != "1" else "2"
    return text[: last.end() - 2] + digit + text[last.end() - 1 :]


def count_requests(judge, proxy, log_of_queries, answer):
    """The requests of one run: by the proxy, by Prometheus' own log, and as the program says."""
    allowed, asked = bound(), proxy.asked
    logged = len(log_of_queries.read_text().splitlines())
    problems = [f"{len(asked)} requests, {allowed} are promised"] if len(asked) > allowed else []
    # `vector(1)` asks whether Prometheus is ready.
    if answer["queries"] != len(asked) or not 0 < logged - len(asked) < 100:
        problems.append(f"the program says {answer['queries']}, the proxy has counted {len(asked)}, Prometheus {logged}")
    strange = {path for path, *_ in asked} - {"/api/v1/query", "/api/v1/query_range"}
    problems += [f"asks for {path}" for path in strange]
    size = sum(size for *_, size in asked) / 2**20
    judge.note(f"{len(asked)} requests of at most {allowed}, {size:.1f} MiB of answers", problems)


def until_now(judge, proxy, history):
    """Without --time, the range ends when the program starts: within the seconds that it runs."""
    before = int(time.time())
    done = judge.run(proxy.url, "--format=json")
    answer = json.loads(done.stdout) if done.stdout else {"time": 0}
    problems = [] if before <= answer["time"] <= time.time() else [f"the time is {answer['time']}"]
    if not problems:
        found = {key: value for key, value in answer.items() if key not in SAID}
        # Prometheus 2 sees a sample that is exactly as old as it looks back, and Prometheus 3 does not.
        said = (list(differences(found, history.truth(end=answer["time"], lookback=far))) for far in (LOOKBACK, LOOKBACK + 1))
        problems = min(said, key=len)
    judge.note("without a time", problems)


def secured(judge, port, folder, expected, at):
    """A server that requires a password and a tenant's header."""
    password = "p@ss:wörd"
    required = {"Authorization": "Basic " + base64.b64encode(f"ada:{password}".encode()).decode(), "X-Scope-OrgID": "team-1"}
    (folder / "password").write_text(password + "\n")
    config = {"basic_auth": {"username": "ada", "password_file": str(folder / "password")}, "http_headers": {"X-Scope-OrgID": {"values": ["team-1"]}}}
    path = folder / "http.yml"
    path.write_text(json.dumps(config))
    with serve.Proxy(port, required) as proxy:
        judge.failing("without the password", judge.run(proxy.url, at), 1, "401")
        judge.compared(proxy.url, "with the password and a tenant", expected, at, f"--http-config={path}")
        if proxy.refused != 1:
            judge.note("refused requests", [f"{proxy.refused}, not 1"])


def recorded(judge, folder, history):
    """A server that keeps only the recorded maxima, as long-term storage does."""
    every = history.series()
    # Every half hour, the value of the last scrape of that half hour takes the place of the maximum that the rule records.
    kept = [thin(series) for series in every if series.family == RAW]
    kept += [series for series in every if series.family.startswith(("gpu_info", "gpu_memory_", "gpu_mig_memory_"))]
    backfill.write([series for series in kept if series.runs], folder)
    with serve.prometheus(folder) as (port, _), serve.Proxy(port) as proxy:
        done = judge.run(proxy.url, f"--time={history.time}", "--format=json")
        try:
            answer = json.loads(done.stdout)
        except ValueError:
            judge.note("recorded maxima", [f"no JSON, status {done.returncode}: {done.stderr[-500:]}"])
            return
        truth = Truth(history.begin, history.devices, [Kept(stay) for stay in history.stays], history.time, WEEKS).answer()
        truth["source"] = "recorded"
        judge.note(f"recorded maxima: {len(truth['workloads'])} workloads", differences({key: value for key, value in answer.items() if key not in SAID}, truth))


def thin(series):
    """The recorded series: one sample in 30 scrapes."""
    runs = [backfill.Run(at, at, run.value) for run in series.runs for at in range(-(-run.first // 30) * 30, run.last + 1, 30)]
    return series._replace(family=RECORDED, runs=runs)


class Kept:
    """A stay of which only the recorded maxima are kept. Truth reads them as window peaks."""

    def __init__(self, stay):
        self.stay, self.work, self.device = stay, stay.work, stay.device

    def series(self, begin):
        for series in self.stay.series(begin):
            if series.family == RAW:
                yield thin(series)._replace(family=RAW)


def empty(judge, folder):
    """A server without data, and no server."""
    (folder / "data").mkdir()
    with serve.prometheus(folder) as (port, _):
        url = f"http://127.0.0.1:{port}"
        judge.failing("a server without data", judge.run(url, "--format=json"), 1, "is vram-exporter scraped")
    judge.failing("no server", judge.run(url, "--format=json"), 1, url)
    judge.failing("a wrong flag", judge.run(url, "--by=planet"), 64, "planet")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--exporter", help="path of the exporter")
    parser.add_argument("--self-test", action="store_true")
    options = parser.parse_args()
    # The cases count on intervals of 900 s that end with the range. Without --time, and at another time, they do not.
    history = History(int(time.time()) // 900 * 900)
    if options.self_test:
        return self_test(history, differences, case_problems)
    if not options.exporter:
        parser.error("--exporter is missing")
    tools = [tool for tool in ("promtool", "prometheus") if not shutil.which(tool)]
    if tools:
        return skipped(f"{', '.join(tools)} not installed")
    judge = Judge(os.path.abspath(options.exporter))
    for part in (lambda folder: made_history(judge, folder, history), lambda folder: recorded(judge, folder, history), lambda folder: empty(judge, folder)):
        with tempfile.TemporaryDirectory(prefix="advise-check-") as folder:
            part(Path(folder))
    more = len(judge.problems) - LISTED
    return finish(judge.problems[:LISTED] + ([f"and {more} more"] if more > 0 else []))


if __name__ == "__main__":
    sys.exit(main())
