"""Checks of the recorder: what counts as an incident, what it reports about an incident, and what the recorder costs."""

import http.client
import json
import os
import re
import subprocess
import threading
import time
from contextlib import ExitStack
from pathlib import Path

from cgroups import Cgroup, CgroupsUnavailable
from check_advice import RULES, advised
from check_cost import build
from check_memory import MIB, settle
from children import Child, ChildFailed, Crowd
from exporter import Exporter
from harness import cpu_seconds, resident_kib, until
from prometheus import Prometheus
from results import percentile

GIB = 1 << 30
# The users and groups of the two jobs.
ADA, BOB = 20011, 20012
JOB = "/slurmstepd.scope/job_4711/step_0/user/task_0"
SERVICE = "/system.slice/neighbour.service"
# An incident must appear within this time, in seconds.
SOON = 10
# The neighbour grows in this many steps.
GROWTH_STEPS = 8
# The first version of Linux that reports how a process ended.
EXITS_SINCE = (6, 15)


class Witness:
    """NVML's process lists, read on a separate thread while the `with` block runs. `last_with` returns the last list that contains a given
    pid."""

    def __init__(self, gpu):
        self.gpu, self.lists, self.ended = gpu, [], threading.Event()
        self.thread = threading.Thread(target=self.watch)

    def watch(self):
        while not self.ended.wait(0.02):
            self.lists.append(self.gpu.processes())

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        self.thread.join()

    def last_with(self, pid):
        return next(listed for listed in reversed(self.lists) if pid in listed)


def get(exporter, path):
    status, body = exporter.get(path)
    if status != 200:
        raise RuntimeError(f"{path} answered {status}: {body[:200]}")
    return json.loads(body)


def incidents(exporter, kind):
    listed = get(exporter, "/api/v1/incidents")["incidents"]
    return [get(exporter, f"/api/v1/incidents/{found['id']}") for found in listed if found["kind"] == kind]


def await_incident(exporter, kind, count=1, limit=60.0):
    """The latest incident of this kind, and the seconds that it took to appear."""
    begun = time.monotonic()
    while time.monotonic() - begun < limit:
        found = incidents(exporter, kind)
        if len(found) >= count:
            return found[0], time.monotonic() - begun
        time.sleep(0.1)
    raise RuntimeError(f"no incident of the kind {kind} within {limit:.0f} s")


def allocatable(gpu):
    memory = gpu.memory()
    return memory["total"] - memory["reserved"]


def soon(results, what, took):
    results.check(f"{what}: the incident is there", f"after {took:.2f} s", f"within {SOON} s", took <= SOON)


def two_jobs(setup, results, what, finish, ending):
    """Two PyTorch jobs of two users. The victim holds 60 GiB (on an H200), and the neighbour grows until 3 GiB are left. Then `finish` ends
    the victim."""
    gpu = setup.gpu()
    room = allocatable(gpu) // MIB
    with ExitStack() as stack:
        folder = os.path.join(setup.out, what)
        os.makedirs(folder, exist_ok=True)
        exporter = stack.enter_context(Exporter(setup, what, f"--recorder.path={folder}"))
        # The groups are removed only after the jobs have ended.
        try:
            groups = [stack.enter_context(Cgroup(path)) for path in (JOB, SERVICE)]
        except CgroupsUnavailable as error:
            groups = []
            results.note(f"{what}: control groups", f"not available here: {error}")
        victim = Child("job", "--mib", int(room * 0.43), user=ADA)
        stack.callback(victim.end)
        neighbour = Child("job", "--mib", int(room * 0.14), user=BOB)
        stack.callback(neighbour.end)
        for group, child in zip(groups, (victim, neighbour)):
            group.take(child.pid)
        reserved = victim.hear(180)["reserved"]
        neighbour.hear(180)
        settle(gpu)
        # The victim starts more than ten seconds before its end, so that only the neighbour grows in the last ten seconds.
        time.sleep(10)
        context = gpu.processes()[victim.pid] - reserved
        left = (allocatable(gpu) - gpu.memory()["used"]) // MIB
        witness = stack.enter_context(Witness(gpu))
        for _ in range(GROWTH_STEPS):
            neighbour.send(mib=int(left - 3 * 1024) // GROWTH_STEPS)
            neighbour.hear(60)
            time.sleep(0.5)
        time.sleep(1)
        peak = finish(victim) or reserved
        found, took = await_incident(exporter, "ended_at_peak")
        soon(results, what, took)
        listed = witness.last_with(victim.pid)
        held = {process["pid"]: process.get("used_bytes") for process in found["processes"]}
        wanted = {pid: listed[pid] for pid in (victim.pid, neighbour.pid)}
        apart = max(abs((held.get(pid) or 0) - used) for pid, used in wanted.items()) / MIB
        results.check(f"{what}: what each held", f"{ {pid: f'{(used or 0) / GIB:.3f} GiB' for pid, used in held.items()} }, off by {apart:.2f} MiB",
            "NVML's last list, to the MiB", set(wanted) <= set(held) and apart < 1)  # fmt: skip
        of_victim = next(process for process in found["processes"] if process["pid"] == victim.pid)
        off = (of_victim["peak_bytes"] - peak - context) / MIB
        results.check(f"{what}: peak against max_memory_reserved + context", f"{off:+.2f} MiB", "within 4 MiB", abs(off) <= 4)
        results.check(f"{what}: which process grew the most", found["grew_most"], f"the neighbour, {neighbour.pid}", found["grew_most"][:1] == [neighbour.pid])
        names = {process["pid"]: (process.get("user"), process.get("workload")) for process in found["processes"]}
        results.note(f"{what}: owners", names)
        results.note(f"{what}: summary", found["summary"])
        time.sleep(11)
        complete = get(exporter, f"/api/v1/incidents/{found['id']}")
        results.check(f"{what}: complete after ten seconds", complete["complete"], "true", complete["complete"])
        of_victim = next(process for process in complete["processes"] if process["pid"] == victim.pid)
        how = {key: of_victim[key] for key in ("exit_status", "signal") if key in of_victim}
        release = tuple(int(part) for part in re.findall(r"\d+", os.uname().release)[:2])
        if release >= EXITS_SINCE:
            results.check(f"{what}: how the victim ended", how, ending, how == ending)
        else:
            results.note(f"{what}: how the victim ended", f"{how}, on Linux {os.uname().release}, which does not report it")
        for form in ("text", "trace"):
            _, body = exporter.get(f"/api/v1/incidents/{found['id']}?format={form}")
            with open(f"{setup.out}/{what}.{form}", "wb") as out:
                out.write(body)
    settle(gpu)


def neighbour(setup, results):
    """The victim requests 6 GiB when only 3 GiB are left, and ends with an OutOfMemoryError."""

    def refused(victim):
        victim.send(mib=6 * 1024)
        told = victim.hear(60)
        if not told.get("out_of_memory"):
            raise RuntimeError(f"the victim was not refused: {told}")
        victim.process.wait(60)
        return told["max_reserved"]

    two_jobs(setup, results, "incidents-neighbour", refused, {"exit_status": 1})


def killed(setup, results):
    """The victim is killed with SIGKILL at the peak."""

    def kill(victim):
        victim.process.kill()
        victim.process.wait()

    two_jobs(setup, results, "incidents-killed", kill, {"signal": 9})


def spike(setup, results):
    """A 20 ms spike of one process, and the end of another process within 5 s of the spike."""
    gpu = setup.gpu()
    room = allocatable(gpu) // MIB
    with Exporter(setup, "incidents-spike") as exporter, ExitStack() as stack:
        holder = Child("grower", "--mib", int(room * 0.5))
        stack.callback(holder.end)
        spiky = Child("spikes")
        stack.callback(spiky.end)
        holder.hear()
        spiky.hear()
        settle(gpu)
        before = gpu.memory()["used"]
        mib = (allocatable(gpu) - before) // MIB - 1024
        spiky.send(mib=int(mib), hold_ms=20)
        spiky.hear()
        time.sleep(1)
        holder.process.kill()
        found, took = await_incident(exporter, "ended_at_peak")
        soon(results, "incidents-spike", took)
        off = (found["peak"]["used_bytes"] - before) / MIB - mib
        results.check("incidents-spike: the spike is the peak", f"{off:+.2f} MiB", "within 4 MiB", abs(off) <= 4)
        results.note("incidents-spike: summary", found["summary"])
    settle(gpu)


def climb(setup, results):
    """A job whose memory climbs by 1 GiB a second up to the limit, where the job ends."""
    gpu = setup.gpu()
    room = allocatable(gpu) // MIB
    with Exporter(setup, "incidents-climb") as exporter, ExitStack() as stack:
        climber = Child("grower", "--mib", int(room * 0.9))
        stack.callback(climber.end)
        climber.hear()
        climber.send(mib=int(room), rate=1024)
        refused = climber.hear(120)
        found, took = await_incident(exporter, "ended_at_peak")
        soon(results, "incidents-climb", took)
        results.note("incidents-climb: the driver said", refused)
        results.check("incidents-climb: the limit was reported on the way", len(incidents(exporter, "near_limit")), "one incident", len(incidents(exporter, "near_limit")) == 1)
        results.check("incidents-climb: who ended", found["processes"][0]["pid"], climber.pid, found["processes"][0]["pid"] == climber.pid)
        results.note("incidents-climb: summary", found["summary"])
        try:
            climber.hear(5)
        except ChildFailed:
            pass  # the job has ended
    settle(gpu)


def story(setup, results):
    """Two jobs, of which one asks for more than is left and dies: incident, report, history, event and text have the same figures. Then small
    processes of constant size come and go beside a server that fills 98.5 %: no incident."""
    gpu = setup.gpu()
    room = allocatable(gpu) // MIB
    with ExitStack() as stack:
        exporter = stack.enter_context(Exporter(setup, "incidents-story"))
        prometheus = stack.enter_context(Prometheus(setup, "incidents-story", exporter.port, rules=sorted(Path(RULES).glob("*.yml")))) if setup.prometheus else None
        server = Child("grower", "--mib", int(room * 0.5), user=ADA)
        stack.callback(server.end)
        server.hear()
        job = Child("grower", "--mib", int(room * 0.05), user=BOB)
        stack.callback(job.end)
        job.hear()
        settle(gpu)
        witness = stack.enter_context(Witness(gpu))
        job.send(mib=int(room), rate=2048)
        refused = job.hear(120)
        job.process.wait(60)
        found, took = await_incident(exporter, "ended_at_peak")
        soon(results, "incidents-story", took)
        time.sleep(12)
        found = get(exporter, f"/api/v1/incidents/{found['id']}")
        used = found["peak"]["used_bytes"]
        listed = witness.last_with(job.pid)
        held = {process["pid"]: process.get("used_bytes") for process in found["processes"]}
        apart = max(abs((held.get(child.pid) or 0) - listed[child.pid]) for child in (job, server)) / MIB
        results.check("incidents-story: what each held", f"off by {apart:.2f} MiB", "NVML's last list, to the MiB", apart < 1)
        results.note("incidents-story: the driver said", refused)
        results.note("incidents-story: summary", found["summary"])

        history = get(exporter, f"/api/v1/history?of=gpus&from={found['at'] - 100:.3f}")["series"]
        peak = max((peak for series in history for peak in series.get("peaks", [])), key=lambda peak: peak["used_bytes"])
        events = [event for event in get(exporter, "/api/v1/events")["events"] if event["kind"] == "new_peak" and event["used_bytes"] == used]
        reports = [report for report in get(exporter, "/api/v1/reports")["reports"] if report["workload"] == found["workload"]]
        of_gpu = reports[0]["gpus"][0] if reports else {}
        own = next(process["peak_bytes"] for process in found["processes"] if process["pid"] == job.pid)
        of_holders = {holder.get("pid"): holder["used_bytes"] for holder in peak["holders"]}
        same = {
            "peak in history": (peak["used_bytes"], used),
            "holders in history": (of_holders, {pid: bytes_ for pid, bytes_ in held.items() if bytes_}),
            "event": ([event["held_by"] for event in events], [peak["held_by"]]),
            "report: own peak": (of_gpu.get("peak_bytes"), own),
            "report: needs more than": (of_gpu.get("needs_more_than_bytes"), own),
            "report: the rest of the device": (of_gpu.get("others_bytes"), used - own),
            "report: incident": (of_gpu.get("incident"), found["id"]),
            "report: no number": (of_gpu.get("advice_bytes"), None),
        }
        for what, (there, here) in same.items():
            results.check(f"incidents-story: {what}", there, f"as in the incident, {here}", there == here)
        results.note("incidents-story: history says", peak["held_by"])
        _, text = exporter.get(f"/api/v1/incidents/{found['id']}?format=text")
        _, told = exporter.get("/api/v1/reports?format=text")
        for name, body in (("incident", text), ("reports", told)):
            with open(f"{setup.out}/incidents-story.{name}.txt", "wb") as out:
                out.write(body)
        results.check("incidents-story: report and incident name the address", found["id"].encode() in text and f"/?incident={found['id']}".encode() in told, "true",
            f"/?incident={found['id']}".encode() in text and f"/?incident={found['id']}".encode() in told)  # fmt: skip

        if prometheus:
            told_elsewhere(setup, results, exporter, prometheus, found, own)
        else:
            results.note("incidents-story: alert and advice", "SKIPPED: no --prometheus")

        before = len(incidents(exporter, "ended_at_peak"))
        server.send(mib=int(room * 0.985) - gpu.memory()["used"] // MIB, piece=64)
        server.hear(120)
        time.sleep(15)
        for _ in range(4):
            small = Child("grower", "--mib", 64)
            stack.callback(small.end)
            small.hear()
            time.sleep(3)
            small.end()
            time.sleep(3)
        share = gpu.memory()["used"] / allocatable(gpu)
        time.sleep(3)
        after = len(incidents(exporter, "ended_at_peak"))
        results.check(f"incidents-story: four small processes end beside a server at {share:.3f}", f"{after - before} incidents", "none", after == before)
    settle(gpu)


def told_elsewhere(setup, results, exporter, prometheus, found, own):
    """What a mail and `advise` say about an incident of a workload that held `own` bytes."""
    uuid = found["gpu"]["uuid"]

    def alert():
        alerts = prometheus.alert("GpuMemoryIncident")["alerts"]
        return next((one for one in alerts if one["state"] == "firing" and one["labels"]["kind"] == "ended_at_peak"), None)

    mail = until("the alert about the incident", alert, 90)["annotations"]
    with open(f"{setup.out}/incidents-story.mail.json", "w") as out:
        json.dump(mail, out, indent=1)
    # The second before, in which the process that ended still held its memory.
    page = f"http://127.0.0.1:{exporter.port}/?gpu={uuid}&at={int(found['at']) - 1}"
    results.check("incidents-story: the alert's page", mail["page_url"], f"that GPU in the second before, {page}", mail["page_url"] == page)
    moment = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(found["at"]))
    results.check("incidents-story: the alert's time", mail["description"][:60], f"that of the incident, {moment}", moment in mail["description"])
    status, runbook = exporter.get(mail["runbook_url"].split(str(exporter.port), 1)[1].split("#")[0])
    anchor = f'id="{mail["runbook_url"].split("#")[1]}"'
    results.check("incidents-story: the alert's runbook", f"{mail['runbook_url']}: {status}", f"a section {anchor}", status == 200 and anchor.encode() in runbook)
    advice, _ = advised(setup, prometheus.url, found["workload"])
    same = {
        "advice: peak": (advice["driver_peak_bytes"], own),
        "advice: no number": (advice["advice_bytes"], None),
        "advice: reason": (advice["reason"], "shortage"),
        "advice: when": (advice.get("last_shortage"), int(found["at"])),
    }
    for what, (there, here) in same.items():
        results.check(f"incidents-story: {what}", there, f"as in the incident, {here}", there == here)


def none(setup, results):
    """A training job of five minutes at 90 % that ends normally, and a server that uses 92 % and keeps running."""
    gpu = setup.gpu()
    room = allocatable(gpu) // MIB
    with Exporter(setup, "incidents-none") as exporter:
        trains = Child("grower", "--mib", int(room * 0.9))
        trains.hear()
        time.sleep(300)
        trains.end()
        serves = Child("grower", "--mib", int(room * 0.92))
        serves.hear()
        time.sleep(45)
        listed = get(exporter, "/api/v1/incidents")["incidents"]
        results.check("incidents-none: 300 s at 90 %, then 45 s at 92 %", f"{len(listed)} incidents", "none", not listed)
        serves.end()
    settle(gpu)


class Pages:
    """Ten clients that send the requests of ten open pages (src/http/page.js) while the `with` block runs: every 2 s they
    request the machine and what was recorded since the last response, and every third time also events and incidents. Like a browser, a
    client keeps its connections and sends the requests of a group at the same time."""

    def __init__(self, exporter):
        self.exporter, self.ended, self.answered = exporter, threading.Event(), [0] * 10
        self.threads = [threading.Thread(target=self.page, args=(number,)) for number in range(10)]

    def page(self, number):
        connections = [http.client.HTTPConnection("127.0.0.1", self.exporter.port, timeout=10) for _ in range(6)]
        rounds = 0
        while not self.ended.wait(2):
            history = [f"history?of=all&from={time.time() - 5.25:.3f}&step=0.25"]
            for group in (["gpus", "processes"], history + (["events", "incidents"] if rounds % 3 == 0 else [])):
                sent = list(zip(connections, group))
                for connection, path in sent:
                    connection.request("GET", f"/api/v1/{path}")
                for connection, path in sent:
                    response = connection.getresponse()
                    response.read()
                    if response.status != 200:
                        raise RuntimeError(f"/api/v1/{path} answered {response.status}")
                    self.answered[number] += 1
            rounds += 1
        for connection in connections:
            connection.close()

    def __enter__(self):
        [thread.start() for thread in self.threads]
        return self

    def __exit__(self, *_):
        self.ended.set()
        [thread.join() for thread in self.threads]
        if min(self.answered) == 0:
            raise RuntimeError("a page got no response")


def cpu_of(exporters, seconds=12, beside=None):
    """The share of a core that each exporter uses, in percent, and the share of the bare loop `beside` in the same time."""
    bare = subprocess.Popen([*beside, "sample", "100", str(seconds - 2)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) if beside else None
    before = [cpu_seconds(exporter.pid) for exporter in exporters]
    time.sleep(seconds)
    used = [(cpu_seconds(exporter.pid) - start) / seconds * 100 for exporter, start in zip(exporters, before)]
    return used, json.loads(bare.communicate(timeout=60)[0])["cpu_share"] * 100 if bare else None


def pages(setup, results):
    """The cost of the recorder and of ten open pages: two exporters at the same time, one without a recorder, and the bare loop."""
    bare = [build(setup, "bare"), setup.library]
    with Crowd(16, "context"), Exporter(setup, "pages-off", "--recorder.max-memory-mib=0") as off, Exporter(setup, "pages-on") as on:
        time.sleep(5)
        (without, alone), _ = cpu_of([off, on])
        with Pages(on):
            (_, watched), floor = cpu_of([off, on], beside=bare)
        results.note("pages: CPU with 16 quiet processes", f"{without:.2f} % of a core without a recorder, {alone:.2f} % with one")
        results.check("pages: CPU with ten open pages, against the bare loop", f"{watched:.2f} % against {floor:.2f} %, {watched / floor:.2f} times",
            "at most 1.7 times", watched <= 1.7 * floor)  # fmt: skip
        taken = {"without": [], "with": []}
        for _ in range(150):
            for name, exporter in (("without", off), ("with", on)):
                time.sleep(0.03)
                taken[name].append(exporter.timed_get()[0])
        for name, values in taken.items():
            results.note(f"pages: a scrape alone, {name} a recorder", f"p50 {percentile(values, 0.5):.3f} ms, p99 {percentile(values, 0.99):.3f} ms")
        with Child("burst", "--mib", 512):
            time.sleep(3)
            (without, alone), _ = cpu_of([off, on])
            with Pages(on):
                (_, watched), _ = cpu_of([off, on])
            ticks = sum(value for _, value in on.scrape().rows("vram_exporter_missed_ticks_total"))
            results.note("pages: CPU while memory changes all the time",
                f"{without:.2f} % without a recorder, {alone:.2f} % with one, {watched:.2f} % with ten pages; {ticks:.0f} missed ticks")  # fmt: skip
        more = (resident_kib(on.pid) - resident_kib(off.pid)) / 1024
        results.check("pages: resident memory", f"{more:+.2f} MiB with a recorder", "at most 16 MiB more", more <= 16)
