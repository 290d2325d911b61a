"""Checks of the recorder: what it calls an incident, what it reports about an incident, and what the recorder costs."""

import json
import os
import threading
import time
from contextlib import ExitStack

from cgroups import Cgroup, CgroupsUnavailable
from check_memory import MIB, settle
from children import Child, ChildFailed
from exporter import Exporter, cpu_seconds, resident_kib

GIB = 1 << 30
# The users and groups of the two jobs.
ADA, BOB = 20011, 20012
JOB = "/slurmstepd.scope/job_4711/step_0/user/task_0"
SERVICE = "/system.slice/neighbour.service"
# An incident must appear within this time, in seconds.
SOON = 10


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


def two_jobs(setup, results, what, finish):
    """The victim holds 60 GiB (on an H200), and the neighbour grows until 3 GiB are left; then `finish` ends the victim."""
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
        neighbour = Child("grower", "--mib", int(room * 0.14), user=BOB)
        stack.callback(neighbour.end)
        for group, child in zip(groups, (victim, neighbour)):
            group.take(child.pid)
        reserved = victim.hear(180)["reserved"]
        neighbour.hear()
        settle(gpu)
        # The victim starts more than ten seconds before its end, so that only the neighbour grows in the last ten seconds.
        time.sleep(10)
        context = gpu.processes()[victim.pid] - reserved
        left = (allocatable(gpu) - gpu.memory()["used"]) // MIB
        witness = stack.enter_context(Witness(gpu))
        neighbour.send(mib=int(left - 3 * 1024), rate=8 * 1024)
        neighbour.hear(60)
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
        results.check(f"{what}: who grew most", found["grew_most"], f"the neighbour, {neighbour.pid}", found["grew_most"][:1] == [neighbour.pid])
        names = {process["pid"]: (process.get("user"), process.get("workload")) for process in found["processes"]}
        results.note(f"{what}: owners", names)
        results.note(f"{what}: summary", found["summary"])
        time.sleep(11)
        complete = get(exporter, f"/api/v1/incidents/{found['id']}")
        results.check(f"{what}: complete after ten seconds", complete["complete"], "true", complete["complete"])
        for form in ("text", "trace"):
            _, body = exporter.get(f"/api/v1/incidents/{found['id']}?format={form}")
            with open(f"{setup.out}/{what}.{form}", "wb") as out:
                out.write(body)
    settle(gpu)


def neighbour(setup, results):
    """The victim requests 6 GiB when only 3 GiB are left, and its OutOfMemoryError ends it."""

    def refused(victim):
        victim.send(mib=6 * 1024)
        told = victim.hear(60)
        if not told.get("out_of_memory"):
            raise RuntimeError(f"the victim was not refused: {told}")
        return told["max_reserved"]

    two_jobs(setup, results, "incidents-neighbour", refused)


def killed(setup, results):
    """The victim is killed with SIGKILL at the peak."""
    two_jobs(setup, results, "incidents-killed", lambda victim: victim.process.kill())


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
            pass  # it has ended
    settle(gpu)


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


def pages(setup, results):
    """The cost of ten clients that send the same requests as ten open pages, compared with the exporter without clients, and with the
    exporter without a recorder."""
    seconds = 15

    def cost(name, flags, clients):
        ended = threading.Event()

        def page(exporter):
            while not ended.wait(2):
                for path in ("gpus", "processes", f"history?from={time.time() - 10}", "events?limit=50", "incidents"):
                    exporter.get(f"/api/v1/{path}")

        with Exporter(setup, name, *flags) as exporter, Child("burst", "--mib", 512) as _, ExitStack() as stack:
            threads = [threading.Thread(target=page, args=(exporter,)) for _ in range(clients)]
            [thread.start() for thread in threads]
            stack.callback(lambda: (ended.set(), [thread.join() for thread in threads]))
            time.sleep(5)
            before, missed = cpu_seconds(exporter.pid), exporter.scrape().rows("vram_exporter_missed_ticks_total")
            time.sleep(seconds)
            used = (cpu_seconds(exporter.pid) - before) / seconds * 100
            after = exporter.scrape().rows("vram_exporter_missed_ticks_total")
            lost = sum(value for _, value in after) - sum(value for _, value in missed)
            return used, resident_kib(exporter.pid) / 1024, lost

    for name, flags, clients in (("off", ["--recorder.max-memory-mib=0"], 0), ("on", [], 0), ("on, ten pages", [], 10)):
        used, resident, lost = cost(f"pages-{name.split(',')[0]}-{clients}", flags, clients)
        results.note(f"pages: recorder {name}, memory that changes all the time", f"{used:.2f} % of a core, {resident:.2f} MiB resident, {lost:.0f} missed ticks")
