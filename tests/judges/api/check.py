#!/usr/bin/env python3
"""Compares docs/openapi.yaml with the exporter's responses on simulated machines: every path, every status that can be provoked
without a password, and every field.

    check.py --exporter PATH

Exits with status 1 if a response does not match its schema, or if no response covers a path or a property in the file.
"""

import json
import os
import socket
import sys
import tempfile
import time
from pathlib import Path

import yaml
from jsonschema import Draft202012Validator

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import harness.exporter
from harness import ROOT, finish

HERE = Path(__file__).resolve().parent
SPEC = yaml.safe_load((ROOT / "docs/openapi.yaml").read_text())
# How long any wait may take before the check gives up. The limit is generous, because the machine may be busy.
PATIENCE = 120
# Properties that these machines do not have. For example, the recorder does not run long enough to determine the growth in 10 s, and no
# simulated process has an exit status or calls a driver (tests/it/calls.rs has what probes see).
ELSEWHERE = {
    "10s", "60s", "exit_status", "mig_index", "no_advice", "peaks_from_calls", "problem", "processes_invisible", "processes_left_out",
    "refused_bytes", "signal",
}
ROLES = ("parameters", "gradients", "optimizer_state", "activations", "kv_cache", "other", "unknown")


class Exporter(harness.exporter.Exporter):
    """The exporter on a simulated machine."""

    def __init__(self, program, scenario, folder, *more, **environment):
        machine = more or [f"--demo={scenario}"]
        super().__init__(program, *machine, f"--recorder.path={folder}", environment=environment, limit=PATIENCE)

    def ask(self, method, path):
        """The status, the type and the content of an answer; status 0 if there is none."""
        try:
            status, headers, content = harness.request(self.url + path, method, timeout=PATIENCE)
        except OSError:
            return 0, "", b""
        return status, headers.get_content_type(), content

    def until(self, what, done):
        harness.until(what, done, PATIENCE, log=self.output)


def resolved(node):
    """The node, or the one to which its $ref points."""
    while isinstance(node, dict) and "$ref" in node:
        target = SPEC
        for part in node["$ref"].removeprefix("#/").split("/"):
            target = target[part]
        node = target
    return node


def properties(schema, seen=()):
    """The names of all properties of a schema and of the schemas within it."""
    schema = resolved(schema)
    if not isinstance(schema, dict) or id(schema) in seen:
        return set()
    seen = (*seen, id(schema))
    found = set(schema.get("properties", {}))
    inner = [*schema.get("properties", {}).values(), *schema.get("allOf", []), *schema.get("prefixItems", [])]
    inner += [schema["items"]] if "items" in schema else []
    return found.union(*[properties(part, seen) for part in inner], set())


def keys(value):
    """The names of all fields in a JSON value."""
    if isinstance(value, dict):
        return set(value).union(*[keys(inner) for inner in value.values()], set())
    if isinstance(value, list):
        return set().union(*[keys(inner) for inner in value])
    return set()


class Judge:
    def __init__(self):
        self.problems, self.visited, self.wanted, self.seen = [], set(), set(), set()

    def answer(self, exporter, method, template, path, expected):
        """Requests a path of the API and compares the response with what the file specifies for the path template."""
        status, kind, body = exporter.ask(method, path)
        where = f"{method} {path}"
        if status != expected:
            self.problems.append(f"{where}: status {status}, expected {expected}: {body[:200]}")
            return None
        responses = SPEC["paths"][template][method.lower()]["responses"]
        if str(status) not in responses:
            self.problems.append(f"{where}: status {status} is not in the file")
            return None
        content = resolved(responses[str(status)])["content"]
        self.visited.add((method.lower(), template))
        if kind not in content:
            self.problems.append(f"{where}: {kind} is not in the file")
            return None
        if kind != "application/json":
            return body.decode()
        value = json.loads(body)
        if "format=trace" in path:
            return value
        schema = content[kind]["schema"]
        validator = Draft202012Validator({**resolved(schema), "components": SPEC["components"]})
        for error in list(validator.iter_errors(value))[:5]:
            self.problems.append(f"{where}: {error.json_path}: {error.message[:300]}")
        self.wanted |= properties(schema)
        self.seen |= keys(value)
        return value


def judge_machine(judge, exporter):
    recorded = "/api/v1/history?of=gpus"
    exporter.until("a recorded value", lambda: any(series["memory"]["points"] for series in json.loads(exporter.ask("GET", recorded)[2])["series"]))
    for name in ("gpus", "processes", "workloads", "events", "reports"):
        judge.answer(exporter, "GET", f"/api/v1/{name}", f"/api/v1/{name}", 200)
    # A list of processes is read every 2 s, and a peak has the first list after it.
    time.sleep(3)
    for of in ("gpus", "processes", "workloads", "all"):
        judge.answer(exporter, "GET", "/api/v1/history", f"/api/v1/history?of={of}&step=0.1", 200)


def judge_incident(judge, exporter):
    path = "/api/v1/incidents"

    def complete():
        listed = json.loads(exporter.ask("GET", path)[2])["incidents"]
        return [found for found in listed if found["kind"] == "ended_at_peak" and found["complete"]]

    exporter.until("a complete incident", complete)
    judge.answer(exporter, "GET", path, path, 200)
    one = f"{path}/{complete()[0]['id']}"
    judge.answer(exporter, "GET", f"{path}/{{id}}", one, 200)
    text = judge.answer(exporter, "GET", f"{path}/{{id}}", f"{one}?format=text", 200)
    trace = judge.answer(exporter, "GET", f"{path}/{{id}}", f"{one}?format=trace", 200)
    if not text or "train.py" not in text or not trace or not trace.get("traceEvents"):
        judge.problems.append("the text or the trace of the incident is empty")
    judge.answer(exporter, "POST", path, path, 403)
    judge.answer(exporter, "GET", f"{path}/{{id}}", f"{path}/nothing", 404)
    judge.answer(exporter, "GET", f"{path}/{{id}}", f"{one}?format=xml", 400)
    judge.answer(exporter, "GET", "/api/v1/history", "/api/v1/history?of=x", 400)
    judge.answer(exporter, "GET", "/api/v1/gpus", "/api/v1/gpus?x=1", 400)


def judge_repeats(judge, program, folder):
    """An incident on a MIG device whose recording the exporter's end cuts off, and one that repeats."""
    path = "/api/v1/incidents"
    scenario, kept = HERE / "swinging.toml", os.path.join(folder, "swinging")
    os.mkdir(kept)
    with Exporter(program, scenario, kept) as exporter:
        exporter.until("an incident on disk", lambda: list(Path(kept).glob("incident-*.json")))
        exporter.process.kill()
    with Exporter(program, scenario, kept) as exporter:

        def listed():
            return judge.answer(exporter, "GET", path, path, 200)["incidents"]

        for name, field in (("a restored incident", "id"), ("a repeat", "last_at")):
            exporter.until(name, lambda: any(field in found for found in listed()))
            one = next(found["id"] for found in listed() if field in found)
            judge.answer(exporter, "GET", f"{path}/{{id}}", f"{path}/{one}", 200)


def timeless(report):
    """A report without its Unix times: until it is final, each answer converts them from the monotonic clock, and the two clocks drift."""
    gpus = [{key: value for key, value in gpu.items() if key != "peak_at"} for gpu in report["gpus"]]
    return {key: value for key, value in report.items() if key not in ("start", "end")} | {"gpus": gpus}


def judge_job_reports(judge, exporter):
    """The job has ended while its GPU was full, and its neighbour is still on the GPU."""
    path = "/api/v1/reports"
    listed = judge.answer(exporter, "GET", path, path, 200)["reports"]
    found = sorted((report["kind"], report["state"]) for report in listed)
    if found != [("slurm", "left"), ("systemd", "running")]:
        judge.problems.append(f"{path}: reports of these kinds and states: {found}")
    one = judge.answer(exporter, "GET", path, f"{path}?job=77", 200)["reports"]
    if [report["workload"] for report in one] != ["slurm:77"]:
        judge.problems.append(f"{path}?job=77: {one}")
    lines = judge.answer(exporter, "GET", path, f"{path}?workload=slurm:77&format=lines", 200) or ""
    if [timeless(json.loads(line)) for line in lines.splitlines()] != [timeless(report) for report in one]:
        judge.problems.append(f"{path}: the lines {lines} are not the reports {one}")
    if "slurm:77" not in (judge.answer(exporter, "GET", path, f"{path}?job=77&limit=1&format=text", 200) or ""):
        judge.problems.append(f"{path}: the text does not name the job")
    judge.answer(exporter, "GET", path, f"{path}?job=78", 200)
    judge.answer(exporter, "GET", path, f"{path}?format=xml", 400)
    judge.answer(exporter, "GET", path, f"{path}?limit=0", 400)


def judge_reports(judge, program, folder):
    """A machine on which this program is a process that reports about its allocator."""
    scenario = os.path.join(folder, "reporting.toml")
    Path(scenario).write_text(f'[[gpu]]\nmodel = "H200"\n[[process]]\npid = {os.getpid()}\nmemory = "4GiB"\n')
    library = Path(program).resolve().parent / "deps/libnvml_sim.so"
    path = os.path.join(folder, "allocator.sock")
    machine = [f"--nvml.library={library}", "--path.procfs=/proc", f"--allocator.socket={path}", "--allocator.sites=true"]
    machine.append("--telemetry.workload-energy=true")
    simulated = {"NVML_SIM_SCENARIO": scenario, "NVML_SIM_PROCFS": os.path.join(folder, "proc")}
    with Exporter(program, scenario, folder, *machine, **simulated) as exporter, socket.socket(socket.AF_UNIX) as client:
        uuid = json.loads(exporter.ask("GET", "/api/v1/gpus")[2])["gpus"][0]["uuid"]
        client.connect(path)
        device = {"framework": "pytorch", "device": uuid}
        site = {"site": "train.py:12 step", "role": "activations", "bytes": 1 << 20}
        messages = [
            {"type": "hello", "version": 1},
            {"type": "report", **device, "allocated_bytes": 1 << 30, "reserved_bytes": 3 << 30},
            {"type": "sites", **device, "roles": dict.fromkeys(ROLES, 1 << 20), "sites": [site], "other_bytes": 1, "unknown_bytes": 1},
            {"type": "growth", **device, "seconds": 12, "sites": [site]},
            {"type": "modules", **device, "modules": [{"module": "blocks.3", "bytes": 1}], "other_bytes": 1},
            {"type": "out_of_memory", **device, "requested_bytes": 1 << 40, "free_bytes": 1, "total_bytes": 2,
             "allocated_bytes": 1 << 30, "reserved_bytes": 3 << 30, "largest_free_block_bytes": 1, "snapshot_path": "/tmp/snapshot.pickle",
             "site": site["site"], "frames": [site["site"]]},
        ]
        client.sendall(b"".join(json.dumps(message).encode() + b"\n" for message in messages))
        exporter.until("a reported value", lambda: b"needed_bytes" in exporter.ask("GET", "/api/v1/gpus")[2])
        for name in ("gpus", "processes"):
            judge.answer(exporter, "GET", f"/api/v1/{name}", f"/api/v1/{name}", 200)
        exporter.until("a failed allocation", lambda: b"out_of_memory" in exporter.ask("GET", "/api/v1/events")[2])
        judge.answer(exporter, "GET", "/api/v1/events", "/api/v1/events", 200)
        listed = judge.answer(exporter, "GET", "/api/v1/incidents", "/api/v1/incidents", 200)["incidents"]
        exporter.until("the energy of a report", lambda: b"energy_joules" in exporter.ask("GET", "/api/v1/reports")[2])
        reports = judge.answer(exporter, "GET", "/api/v1/reports", "/api/v1/reports", 200)["reports"]
        if [gpu["out_of_memory"] for report in reports for gpu in report["gpus"]] != [1]:
            judge.problems.append(f"the reports do not count the failed allocation: {reports}")
        one = next((found["id"] for found in listed if found["kind"] == "out_of_memory"), "none")
        judge.answer(exporter, "GET", "/api/v1/incidents/{id}", f"/api/v1/incidents/{one}", 200)


def main():
    options = harness.arguments(__doc__).parse_args()
    judge = Judge()
    with tempfile.TemporaryDirectory() as folder:
        with Exporter(options.exporter, HERE / "full.toml", folder) as exporter:
            judge_machine(judge, exporter)
            judge_incident(judge, exporter)
            judge_job_reports(judge, exporter)
            # Judged again, now that a process has ended.
            judge_machine(judge, exporter)
        judge_reports(judge, options.exporter, folder)
        judge_repeats(judge, options.exporter, folder)
        for name in ("demo", "mig-h100", "mixed", "gb10", "hostile-names"):
            with Exporter(options.exporter, name, folder) as exporter:
                if name == "demo":
                    exporter.until("the report of a pod", lambda: b'"pod"' in exporter.ask("GET", "/api/v1/reports")[2])
                judge_machine(judge, exporter)
    paths = {(method, path) for path, methods in SPEC["paths"].items() for method in methods}
    judge.problems += [f"{method} {path}: never requested" for method, path in sorted(paths - judge.visited)]
    judge.problems += [f"the property {name} is in no response" for name in sorted(judge.wanted - judge.seen - ELSEWHERE)]
    print(f"{len(judge.visited)} of {len(paths)} paths, {len(judge.seen & judge.wanted)} properties")
    return finish(judge.problems)


if __name__ == "__main__":
    sys.exit(main())
