#!/usr/bin/env python3
"""Verifies the client on a real GPU, with PyTorch and JAX.

    python3 clients/python/tests/gpu/verify_client.py --out results.json
    python3 clients/python/tests/gpu/verify_client.py --out results.json --exporter http://127.0.0.1:9400 --socket /run/vram-exporter/allocator.sock

Without --exporter, the jobs report to a recording server in this program. With --exporter, they report to the real exporter, and its
metrics are compared; checks that need the individual messages still use the recording server. A check that fails does not stop the others.
"""

import argparse
import datetime
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import urllib.request
import uuid

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCE = os.path.normpath(os.path.join(HERE, "..", "..", "src"))
sys.path[:0] = [SOURCE, os.path.dirname(HERE), HERE]
import nvml  # noqa: E402
import record_frameworks  # noqa: E402
from recording_server import RecordingServer  # noqa: E402

from vram_exporter import _run  # noqa: E402

GIB = 1 << 30


class Job:
    """One program from jobs.py, armed by the environment of `vram-run`."""

    def __init__(self, socket, *words, arm=True, launcher=(), **variables):
        environment = dict(os.environ, **variables)
        environment.pop("VRAM_EXPORTER_ARM", None)
        environment["PYTHONPATH"] = os.pathsep.join([SOURCE] + [part for part in [environment.get("PYTHONPATH")] if part])
        if arm:
            environment = _run.environment(environment, socket)
        environment["VRAM_EXPORTER_SOCKET"] = socket
        self.errors = tempfile.TemporaryFile("w+")
        command = [sys.executable, *launcher, os.path.join(HERE, "jobs.py"), *words]
        self.process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True)
        self.pid = self.process.pid

    def line(self):
        """The next JSON line. Raises RuntimeError, with the end of the error output, if the job ends first."""
        for text in self.process.stdout:
            if text.startswith("{"):
                return json.loads(text)
        self.process.wait()
        raise RuntimeError("the job ended with %s: %s" % (self.process.returncode, self.error_text()[-1500:]))

    def go_on(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def error_text(self):
        self.errors.seek(0)
        return self.errors.read()

    def end(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        self.process.stdin.close()


class Exporter:
    """The values that a real exporter exports."""

    FAMILIES = {
        "allocated_bytes": "gpu_process_allocator_allocated_bytes",
        "reserved_bytes": "gpu_process_allocator_reserved_bytes",
        "used": "gpu_process_memory_used_bytes",
        "outside": "gpu_process_memory_outside_allocator_bytes",
    }

    def __init__(self, url):
        self.url = url.rstrip("/")

    def text(self, path="/metrics"):
        with urllib.request.urlopen(self.url + path, timeout=5) as reply:
            return reply.read().decode()

    def values(self, pid, framework):
        text, devices = self.text(), {}
        for name, family in self.FAMILIES.items():
            for labels, value in re.findall(r"^%s\{([^}]*)\} (\S+)" % family, text, re.M):
                known = dict(re.findall(r'(\w+)="([^"]*)"', labels))
                if known.get("pid") == str(pid) and known.get("framework", framework) == framework:
                    devices.setdefault(known.get("mig_uuid") or known["uuid"], {})[name] = int(float(value))
        return devices


class Bench:
    """What the checks share."""

    def __init__(self, folder, options):
        self.folder, self.options = folder, options
        self.exporter = Exporter(options.exporter) if options.exporter else None
        self.count = 0
        self.lock = threading.Lock()

    def server(self):
        with self.lock:
            self.count += 1
            return RecordingServer(os.path.join(self.folder, "%d.sock" % self.count))

    def watch(self, framework="pytorch"):
        """A socket path, and a function that returns the values reported for a pid."""
        if self.exporter is not None:
            return self.options.socket, lambda pid: self.exporter.values(pid, framework)
        server = self.server()
        return server.path, lambda pid: server.values(pid, framework)


def until(read, accepted, seconds=8.0):
    """Reads until the value is accepted. Returns the last value and whether it was accepted."""
    deadline = time.monotonic() + seconds
    while True:
        value = read()
        if accepted(value):
            return value, True
        if time.monotonic() > deadline:
            return value, False
        time.sleep(0.05)


def stepped(bench, job, values, expected, steps):
    """Compares the values reported after each step of a job with those of the framework. Returns one row for each step."""
    rows = []
    try:
        for _ in range(steps):
            said = job.line()
            wanted = expected(said)

            def matching(shown):
                return [device for device in shown.values() if all(device.get(key) == value for key, value in wanted.items())]

            def same(shown):
                return len(shown) == said.get("devices", 1) and len(matching(shown)) == 1

            shown, ok = until(lambda: values(said["pid"]), same)
            device = next(iter([*matching(shown), *shown.values()]), {})
            row = {"step": said.get("name"), "ok": ok, "framework": wanted, "driver": said.get("driver"), "shown": device}
            if said.get("uuid"):
                row["uuid_ok"] = list(shown) == [said["uuid"]]
                row["ok"] = row["ok"] and row["uuid_ok"]
            if said.get("driver") is not None and device.get("reserved_bytes") is not None:
                # The three parts of the driver's figure: outside the allocator, slack, allocated.
                row["outside"] = said["driver"] - device["reserved_bytes"]
                row["slack"] = device["reserved_bytes"] - device["allocated_bytes"]
                row["sum_equals_driver"] = row["outside"] + row["slack"] + device["allocated_bytes"] == said["driver"] and row["outside"] >= 0
                row["ok"] = row["ok"] and row["sum_equals_driver"]
            if bench.exporter is not None and "used" in device and "outside" in device:
                row["exporters_sum"] = device["outside"] + device["reserved_bytes"] == device["used"]
                row["ok"] = row["ok"] and row["exporters_sum"]
            rows.append(row)
            job.go_on()
    finally:
        job.end()
    return rows


def judged(rows):
    outside = sorted({row["outside"] for row in rows if "outside" in row})
    return {"ok": bool(rows) and all(row["ok"] for row in rows), "outside": outside, "rows": rows}


def torch_expected(said):
    return {"allocated_bytes": said["allocated"], "reserved_bytes": said["reserved"]}


def ladder(bench, setting):
    path, values = bench.watch()
    result = judged(stepped(bench, Job(path, "ladder", PYTORCH_ALLOC_CONF=setting), values, torch_expected, 5))
    result["outside_constant"] = len(result["outside"]) <= 1
    return result


def check_ladder_native(bench):
    result = ladder(bench, "")
    if bench.exporter is None:
        result["ok"] = result["ok"] and all(row["shown"].get("peak_bytes", 0) >= GIB for row in result["rows"])
        # A reset by the user does not lower any reported peak.
        peaks = [row["shown"]["peak_bytes"] for row in result["rows"]]
        result["ok"] = result["ok"] and peaks == sorted(peaks)
    return result


def check_ladder_expandable(bench):
    result = ladder(bench, "expandable_segments:True")
    result["ok"] = result["ok"] and all("inactive_split_bytes" not in row["shown"] for row in result["rows"])
    return result


def check_ladder_async(bench):
    result = ladder(bench, "backend:cudaMallocAsync")
    absent = ("inactive_split_bytes", "retries", "out_of_memory")
    result["ok"] = result["ok"] and not any(key in row["shown"] for row in result["rows"] for key in absent)
    return result


def check_sixteen_processes(bench):
    path, values = bench.watch()
    jobs = [Job(path, "one", str(32 * (number + 1))) for number in range(16)]
    rows, threads = [], []

    def follow(job):
        try:
            rows.extend(stepped(bench, job, values, torch_expected, 1))
        except Exception as error:
            rows.append({"ok": False, "error": str(error)[-500:]})

    for job in jobs:
        threads.append(threading.Thread(target=follow, args=(job,)))
        threads[-1].start()
    for thread in threads:
        thread.join()
    result = judged(rows)
    result["ok"] = result["ok"] and len(rows) == 16
    return result


def check_fork_workers(bench):
    server = bench.server()
    job = Job(server.path, "fork")
    try:
        before = job.line()
        _, first = until(lambda: server.values(before["pid"]), lambda shown: bool(shown))
        job.go_on()
        workers = job.line()["workers"]
        after = job.line()
        wanted = torch_expected(after)
        shown, second = until(lambda: server.values(after["pid"]), lambda shown: any(all(d.get(k) == v for k, v in wanted.items()) for d in shown.values()))
        strange = [connection.pid for connection in server.connections if connection.pid in workers]
        own = [connection for connection in server.connections if connection.pid == after["pid"]]
        job.go_on()
        return {"ok": first and second and not strange and len(own) == 1, "workers": len(workers), "connections_of_workers": len(strange), "connections_of_parent": len(own), "shown": shown}
    finally:
        job.end()


def check_torchrun(bench):
    path, values = bench.watch()
    done = os.path.join(bench.folder, "torchrun.done")
    job = Job(path, "rank", launcher=("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"), VERIFY_DONE=done)
    try:
        ranks = [job.line(), job.line()]
        rows = []
        for said in ranks:
            wanted = torch_expected(said)
            shown, ok = until(lambda: values(said["pid"]), lambda shown: any(all(d.get(k) == v for k, v in wanted.items()) for d in shown.values()))
            rows.append({"rank": said["rank"], "ok": ok and list(shown) == [said["uuid"]], "framework": wanted, "shown": list(shown.values())})
        gpus = len({said["uuid"] for said in ranks})
        return {"ok": all(row["ok"] for row in rows), "gpus": gpus, "rows": rows}
    finally:
        with open(done, "w"):
            pass
        try:
            job.process.wait(15)
        except subprocess.TimeoutExpired:
            pass
        job.end()


def jax_ladder(bench, preallocate):
    path, values = bench.watch("jax")

    def expected(said):
        wanted = {"allocated_bytes": said["stats"]["bytes_in_use"]}
        if "pool_bytes" in said["stats"]:
            wanted["reserved_bytes"] = said["stats"]["pool_bytes"]
        return wanted

    return judged(stepped(bench, Job(path, "jax", XLA_PYTHON_CLIENT_PREALLOCATE=preallocate), values, expected, 3))


def check_jax_preallocated(bench):
    return jax_ladder(bench, "true")


def check_jax_on_demand(bench):
    return jax_ladder(bench, "false")


def check_measure(bench):
    server = bench.server()
    job = Job(server.path, "measure", arm=False)
    try:
        said = job.line()
        sent, arrived = until(lambda: {m["name"]: m for m in server.messages("measurement")}, lambda names: {"region", "outer", "inner", "dry_run"} <= set(names))
        region, nested, below, dry = said["region"], said["nested"], said["below"], said["dry_run"]
        ok = {
            "region equals max_memory_allocated": region["measured"] == region["torch"] and region["exact"],
            "reserved equals max_memory_reserved": region["measured_reserved"] == region["torch_reserved"],
            "nested": nested["inner"] == nested["expected_inner"] and nested["outer"] == nested["expected_outer"] and nested["exact"] == [True, True],
            "the user's peak is untouched": nested["users_peak"] == nested["expected_outer"] == below["users_peak"],
            "below an old peak": not below["exact"] and below["measured"] <= below["true"] and (below["at_most"] is None or below["at_most"] >= below["true"]),
            "nothing allocated": said["nothing"]["exact"],
            "dry run": dry["measured"] == dry["torch"] and dry["exact"],
            "arrived": arrived and sent["region"]["peak_bytes"] == region["measured"],
        }
        job.go_on()
        return {"ok": all(ok.values()), "parts": ok, "said": said}
    finally:
        job.end()


def _format(size):
    """An amount in the format of PyTorch's exception."""
    if size <= 1024:
        return "%d bytes" % size
    for unit, name in ((1 << 10, "KiB"), (1 << 20, "MiB")):
        if size <= unit << 10:
            return "%.2f %s" % (size / unit, name)
    return "%.2f GiB" % (size / GIB)


def _numbers_masked(text):
    # PyTorch's message also lists the other processes on the GPU.
    text = re.sub(r"Process \d+ has \S+ \S+ memory in use\. ?", "", text)
    return re.sub(r"[0-9]+(\.[0-9]+)? (bytes|KiB|MiB|GiB)|process [0-9]+", "N", text, flags=re.I)


def check_out_of_memory(bench):
    server = bench.server()
    said = {}
    for arm in (True, False):
        job = Job(server.path, "out_of_memory", "1", arm=arm)
        lines = {}
        try:
            while True:
                lines.update(job.line())
        except RuntimeError:
            pass
        said[arm] = dict(lines, code=job.process.returncode, pid=job.pid, ended=time.monotonic(), stderr=job.error_text())
        job.end()
    mine = [(at, message, alive) for c in server.connections if c.pid == said[True]["pid"] for (at, message), alive in zip(c.messages, c.alive_at_message) if message["type"] == "out_of_memory"]
    if len(mine) != 1:
        return {"ok": False, "messages": len(mine), "said": {str(arm): values for arm, values in said.items()}}
    at, message, alive = mine[0]
    text, observer = said[True]["text"], said[True]["observer"]
    reserved = message["reserved_bytes"] - message["allocated_bytes"]
    ok = {
        "before the end of the process": alive and at < said[True]["ended"],
        "equal to the user's observer": [message["requested_bytes"], message.get("total_bytes"), message["free_bytes"]] == observer[1:4],
        "requested as in the text": "Tried to allocate %s." % _format(message["requested_bytes"]) in text,
        "total as in the text": "total capacity of %s" % _format(message.get("total_bytes", 0)) in text,
        "free as in the text": "of which %s is free" % _format(message["free_bytes"]) in text,
        "allocated as in the text": "%s is allocated by PyTorch" % _format(message["allocated_bytes"]) in text,
        "reserved as in the text": "%s is reserved by PyTorch but unallocated" % _format(reserved) in text,
        "the user's hook ran": said[True].get("hook") == "OutOfMemoryError" == said[False].get("hook"),
        "the message is that without the client": _numbers_masked(text) == _numbers_masked(said[False]["text"]),
        "the exit status is that without the client": said[True]["code"] == said[False]["code"] == 1,
        "nothing else is printed": _numbers_masked(said[True]["stderr"]) == _numbers_masked(said[False]["stderr"]),
    }
    return {"ok": all(ok.values()), "parts": ok, "message": dict(message, device="x"), "text": text, "observer": observer}


def check_first_allocation_fails(bench):
    server = bench.server()
    job = Job(server.path, "out_of_memory", "0")
    try:
        job.line()
        job.process.wait(60)
        arrived = server.wait(lambda s: s.messages("out_of_memory", job.pid), 2)
        return {"ok": len(arrived) == 1, "messages": [dict(m, device="x") for m in arrived]}
    finally:
        job.end()


def check_caught_failures(bench):
    server = bench.server()
    job = Job(server.path, "caught")
    try:
        said = job.line()
        shown, counted = until(lambda: server.values(job.pid), lambda shown: any(d.get("out_of_memory") == said["num_ooms"] for d in shown.values()))
        messages = server.messages("out_of_memory", job.pid)
        job.go_on()
        return {"ok": counted and said["failures"] == said["num_ooms"] == len(messages) == 5, "said": said, "messages": len(messages)}
    finally:
        job.end()


def check_exporter_out_of_memory(bench):
    """The real exporter shows the failed allocation among its events."""
    if bench.exporter is None:
        return {"skipped": "no --exporter"}
    job = Job(bench.options.socket, "out_of_memory", "1")
    try:
        job.process.wait(60)
        events, found = until(lambda: bench.exporter.text("/api/v1/events"), lambda text: str(1 << 40) in text)
        return {"ok": found, "event": events[max(0, events.find(str(1 << 40)) - 500) :][:1000] if found else events[-500:]}
    finally:
        job.end()


def check_start_cost(bench):
    """The cost of the import, of arming, and of the unarmed .pth file, from paired starts of Python, in milliseconds."""
    empty, unarmed = os.path.join(bench.folder, "empty"), os.path.join(bench.folder, "unarmed")
    for folder in (empty, unarmed):
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True, capture_output=True)
    version = "python%d.%d" % sys.version_info[:2]
    with open(os.path.join(SOURCE, "vram_exporter_arm.pth")) as source, open(os.path.join(unarmed, "lib", version, "site-packages", "vram_exporter_arm.pth"), "w") as target:
        target.write(source.read())
    plain = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "VRAM_EXPORTER"))}
    source = dict(plain, PYTHONPATH=SOURCE)
    armed = _run.environment(plain, os.path.join(bench.folder, "nobody.sock"))
    pairs = {
        "unarmed .pth": (([empty], plain, "pass"), ([unarmed], plain, "pass")),
        "import vram_exporter": (([empty], source, "pass"), ([empty], source, "import vram_exporter")),
        "vram-run": (([empty], plain, "pass"), ([empty], armed, "pass")),
    }

    def start(folder, environment, code):
        begin = time.perf_counter()
        subprocess.run([os.path.join(folder[0], "bin", "python"), "-c", code], env=environment, check=True, capture_output=True)
        return (time.perf_counter() - begin) * 1000

    result = {"ok": True, "repetitions": 40}
    for name, (without, with_client) in pairs.items():
        start(*without), start(*with_client)
        differences, bases = [], []
        for turn in range(40):
            first = start(*(without if turn % 2 else with_client))
            second = start(*(with_client if turn % 2 else without))
            base, other = (first, second) if turn % 2 else (second, first)
            bases.append(base)
            differences.append(other - base)
        half = 2.02 * statistics.stdev(differences) / len(differences) ** 0.5
        mean = statistics.mean(differences)
        result[name] = {"base_ms": statistics.mean(bases), "mean_ms": mean, "interval_95_ms": [mean - half, mean + half], "median_ms": statistics.median(differences)}
    # The time of the line in the .pth file itself, without the noise of Python's startup.
    code = (
        "import site, sys, time\nbest = 1e9\nfor _ in range(300):\n b = time.perf_counter_ns(); site.addpackage(%r, 'vram_exporter_arm.pth', set()); "
        "best = min(best, time.perf_counter_ns() - b)\nprint(best / 1000)" % SOURCE
    )
    result["reading the unarmed .pth, us"] = float(subprocess.run([sys.executable, "-c", code], env=plain, check=True, capture_output=True, text=True).stdout)
    return result


def check_step_time(bench):
    server = bench.server()
    job = Job(server.path, "step_time", arm=False)
    try:
        said = job.line()
    finally:
        job.end()
    # At 5 Hz, any slowdown must be explainable by chance; the width of the interval shows how small a slowdown could have been detected.
    return dict(said, ok=said["5 Hz"]["interval_95_percent"][0] <= 0, messages=len(server.messages()))


CHECKS = {name[6:]: function for name, function in list(globals().items()) if name.startswith("check_")}
# These checks measure time, so they run alone, after the others.
ALONE = ("start_cost", "step_time")


def run(name, bench, results):
    begin = time.monotonic()
    try:
        result = CHECKS[name](bench)
    except BaseException:
        result = {"ok": False, "error": traceback.format_exc()[-3000:]}
    result["seconds"] = round(time.monotonic() - begin, 1)
    results[name] = result
    verdict = "skipped" if "skipped" in result else "ok" if result["ok"] else "FAILED"
    failed = [part for part, ok in result.get("parts", {}).items() if not ok]
    print("%-24s %-8s %5.1f s  %s" % (name, verdict, result["seconds"], "; ".join(failed) or result.get("error", "")[-300:].strip()), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True)
    parser.add_argument("--only", help="checks, separated by commas: %s" % ", ".join(CHECKS))
    parser.add_argument("--exporter", help="the URL of a real exporter")
    parser.add_argument("--socket", help="the socket of that exporter")
    parser.add_argument("--parallel", type=int, default=5, help="checks at a time, except those that measure time (default: 5)")
    options = parser.parse_args()
    if bool(options.exporter) != bool(options.socket):
        parser.error("--exporter and --socket belong together")
    names = options.only.split(",") if options.only else list(CHECKS)
    unknown = [name for name in names if name not in CHECKS]
    if unknown:
        parser.error("no such check: %s" % ", ".join(unknown))
    results = {}
    with tempfile.TemporaryDirectory(prefix="v") as folder:
        bench = Bench(folder, options)
        free = threading.Semaphore(options.parallel)

        def limited(name):
            with free:
                run(name, bench, results)

        threads = [threading.Thread(target=limited, args=(name,)) for name in names if name not in ALONE]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for name in ALONE:
            if name in names:
                run(name, bench, results)
    opened = nvml.open_or_none()
    summary = {
        "versions": record_frameworks.versions(),
        "gpus": None if opened is None else len(opened.uuids()),
        "date": datetime.date.today().isoformat(),
        "checks": {name: results[name] for name in names},
    }
    text = json.dumps(summary, indent=1, default=str)
    # Nothing in the results identifies the machine.
    text = re.sub(r"(GPU|MIG)-[0-9a-f]{8}-[0-9a-f-]{27}", lambda found: "%s-%s" % (found[1], str(uuid.uuid5(uuid.NAMESPACE_OID, found[0]))[:8]), text)
    with open(options.out, "w") as file:
        file.write(text + "\n")
    sys.exit(0 if all(result.get("ok", "skipped" in result) for result in results.values()) else 1)


if __name__ == "__main__":
    main()
