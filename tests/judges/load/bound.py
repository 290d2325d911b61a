#!/usr/bin/env python3
"""Does the exporter live within 256 MiB, and answer honest clients, while others ask for every path and hardly read?

    bound.py [--exporter target/release/vram-exporter] [--quick]

The exporter runs on a simulated machine in a memory cgroup (version 1 or 2) of its own. Where none can be made, its resident memory is watched
instead, and a line says so. Clients on loopback ask for every path of both listeners, as HTTP/1.1 and 1.0, with and without gzip,
pipelined, with HEAD and with bodies. Half of them read nothing, half read 64 bytes each tenth of a second. In the first phase all of them ask for the longest
answers and read nothing, in the second they ask for every path from one address, in the third from one address each. A scraper and a prober with addresses of their own ask once a second, each over a new connection.

The exit status is 1 if the exporter ended or used more than the limit, or a probe was not answered with 200 within the limit, or a scrape
was not answered completely in the first two phases.

`--quick`: eight GPUs with 64 processes, for 10 s a phase. Otherwise eight with 24 and sixteen with 640, for 60 s a phase."""

import contextlib
import http.client
import json
import os
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import harness
import hostile
from harness.exporter import Machine

CLIENTS = 120
ONE, MANY = ["127.0.0.3"], [f"127.0.1.{number}" for number in range(1, 121)]
SCRAPER, PROBER = "127.0.0.2", "127.0.0.4"
API = ("gpus", "processes", "workloads", "history?of=all", "events?limit=4096", "incidents", "reports?limit=1024")
API += ("reports?format=lines&limit=1024", "reports?format=text&limit=1024")
PATHS = ["/metrics", "/", "/page.js", "/page.css", "/nowhere", "/healthz", "/readyz", *(f"/api/v1/{path}" for path in API)]
# The answers that are long on every machine are asked for more often.
PATHS += ["/metrics", "/api/v1/history?of=all"] * 4
FORMS = (
    "GET {} HTTP/1.1\r\nHost: load\r\n\r\n",
    "GET {} HTTP/1.1\r\nHost: load\r\nAccept-Encoding: gzip\r\n\r\n",
    "GET {} HTTP/1.1\r\nHost: load\r\nAccept: application/openmetrics-text\r\n\r\n",
    "GET {} HTTP/1.0\r\n\r\n",
    "GET {} HTTP/1.1\r\nHost: load\r\n\r\n" * 5,
    "HEAD {} HTTP/1.1\r\nHost: load\r\n\r\n",
    "POST {} HTTP/1.1\r\nHost: load\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
)
# How long the recorder collects before the crowd comes: the history of processes grows with it.
AGE = {True: 15.0, False: 75.0}
SIZES = {True: ((8, 64),), False: ((8, 24), (16, 640))}
PHASE = {True: 10.0, False: 60.0}
# The memory limit of the shipped deployments in MiB, and how many MiB resident memory may grow: the budget of 32 MiB, heads, and what the heap keeps.
MIB, GROWTH = 256, 96
# Seconds within which an honest request must be answered: Prometheus' default.
LIMIT = 10.0
# Name, addresses of the crowd, and the share of the honest scrapes that must be answered. Clients of many addresses can hold every response for 5 s
# (SECURITY.md), so no share is demanded there.
PHASES = (("longest answers", [], 1.0), ("one address", ONE, 1.0), ("many addresses", MANY, 0.0))


def scenario(gpus, processes):
    """A machine whose processes change their memory all the time. The first GPU fills up, which makes incidents."""
    text = f'seed = 7\n[[gpu]]\nmodel = "H200"\ncount = {gpus}\n'
    for gpu in range(gpus):
        text += f'[[process]]\ngpu = {gpu}\ncount = {processes}\ncommand = ["/usr/bin/python3", "train.py", "--rank={{n}}"]\nuser = "ada"\n'
        text += f'cgroup = "0::/system.slice/slurmstepd.scope/job_{gpu}/step_0/user/task_{{n}}"\n'
        most = 120 * 1024 // processes
        text += f'memory = [{{ kind = "noise", low = "{most // 4}MiB", high = "{most}MiB", every = "200ms" }}]\n'
    text += '[[process]]\ngpu = 0\ncommand = ["/usr/bin/python3", "leak.py"]\nuser = "bob"\n'
    text += 'memory = [{ kind = "noise", low = "1GiB", high = "139GiB", every = "900ms" }]\n'
    return text


class Cgroup:
    """A memory cgroup with a limit; `folder` is None if none can be made."""

    def __init__(self):
        self.folder, name = None, f"vram-exporter-bound-{os.getpid()}"
        two = Path("/sys/fs/cgroup/cgroup.controllers").exists()
        parent = Path("/sys/fs/cgroup") if two else Path("/sys/fs/cgroup/memory")
        self.files = ("memory.max", "memory.peak", "memory.events") if two else ("memory.limit_in_bytes", "memory.max_usage_in_bytes", "memory.oom_control")
        try:
            folder = parent / name
            folder.mkdir()
            self.folder = folder
            (folder / self.files[0]).write_text(str(MIB << 20))
        except OSError as error:
            print(f"NO MEMORY CGROUP: resident memory is watched instead ({error})")
            self.remove()

    def command(self, command):
        if self.folder is None:
            return command
        return ["sh", "-c", f'echo $$ > "{self.folder}/cgroup.procs" && exec "$@"', "sh", *command]

    def peak(self):
        """MiB; None without a cgroup, or if the kernel does not count it."""
        try:
            return int((self.folder / self.files[1]).read_text()) / (1 << 20) if self.folder else None
        except OSError:
            return None

    def kills(self):
        if self.folder is None:
            return 0
        lines = (self.folder / self.files[2]).read_text().splitlines()
        return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)

    def remove(self):
        for _ in range(50):
            try:
                if self.folder is not None:
                    self.folder.rmdir()
                break
            except OSError:
                time.sleep(0.1)
        self.folder = None


def ask(port, path, source, headers):
    """(what came back, seconds): `answered`, or why not. The body must be complete."""
    begun = time.monotonic()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT, source_address=(source, 0))
    try:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        answer.read()
        outcome = "answered" if answer.status == 200 else f"status {answer.status}"
    except (OSError, http.client.HTTPException) as error:
        outcome = f"{type(error).__name__}: {error}"
    finally:
        connection.close()
    took = time.monotonic() - begun
    return ("late" if outcome == "answered" and took > LIMIT else outcome), took


def crowd(ports, addresses, incident):
    """The hostile clients: each path in each form, in turn, half deaf and half slow. Without addresses: one address, deaf clients only, the
    two longest answers only, without compression."""
    if not addresses:
        longest = ("/metrics", "/api/v1/history?of=all")
        requests = [FORMS[0].replace("{}", longest[number % 2]).encode() for number in range(CLIENTS)]
        return [hostile.Deaf(ports[0], number, request, ONE[0]) for number, request in enumerate(requests)]
    paths = PATHS + [f"/api/v1/incidents/{incident}{form}" for form in ("", "?format=text", "?format=trace") if incident]
    clients = []
    for number in range(CLIENTS):
        path, form = paths[number % len(paths)], FORMS[number // 2 % len(FORMS)]
        kind = (hostile.Deaf, hostile.Trickle)[number // len(paths) % 2]
        port = ports[1] if path == "/metrics" and number % 3 == 0 else ports[0]
        clients.append(kind(port, number, form.replace("{}", path).encode(), addresses[number % len(addresses)]))
    return clients


def honest(port, source, path, headers, over, records):
    while not over.is_set():
        records.append(ask(port, path, source, headers))
        over.wait(max(0.0, 1.0 - records[-1][1]))


def run_phase(name, process, ports, addresses, incident, seconds):
    over, scrapes, probes, resident = threading.Event(), [], [], [0]
    clients = crowd(ports, addresses, incident)
    work = [(hostile.take_turns, (clients, over))]
    work += [(honest, (ports[0], SCRAPER, "/metrics", {"Accept-Encoding": "gzip"}, over, scrapes))]
    work += [(honest, (ports[0], PROBER, "/healthz", {}, over, probes))]
    threads = [threading.Thread(target=target, args=arguments) for target, arguments in work]
    for thread in threads:
        thread.start()
    end = time.monotonic() + seconds
    while time.monotonic() < end and process.poll() is None:
        with contextlib.suppress(OSError, StopIteration):  # The exporter has ended.
            resident.append(harness.resident_kib(process.pid) / 1024)
        time.sleep(0.5)
    over.set()
    for thread in threads:
        thread.join()
    # A crowd that could not connect would prove nothing.
    connected, ended = (sum(getattr(client, what) for client in clients) for what in ("connected", "ended"))
    return {"name": name, "scrapes": scrapes, "probes": probes, "resident": max(resident), "connected": connected, "ended": ended}


def judge(phase, least):
    """The violated conditions, one line each."""
    for what, share in (("scrapes", least), ("probes", 1.0)):
        wrong = [outcome for outcome, _ in phase[what] if outcome != "answered"]
        if not phase[what] or len(wrong) > (1.0 - share) * len(phase[what]):
            yield f"{phase['name']}: {len(wrong)} of {len(phase[what])} {what} were not answered: {sorted(set(wrong))[:5]}"
    if phase["connected"] < CLIENTS:
        yield f"{phase['name']}: only {phase['connected']} hostile connections"


def machine(gpus, processes, options, out):
    """Runs both phases on one machine; yields the violated conditions."""
    simulated = Machine(out, harness.simulator_of(options), scenario(gpus, processes), control=None)
    ports = [harness.free_port(), harness.free_port()]
    cgroup = Cgroup()
    command = [str(options.exporter), f"--web.listen-address=127.0.0.1:{ports[0]}", f"--dcgm.listen-address=127.0.0.1:{ports[1]}"]
    command += [*simulated.flags, f"--process.series-limit={processes}"]
    exporter = harness.Server(cgroup.command(command), ports[0], log=out / "exporter.log", environment=simulated.environment)
    with contextlib.ExitStack() as stack:
        stack.callback(cgroup.remove)
        process = stack.enter_context(exporter).process
        time.sleep(AGE[options.quick])
        quiet = harness.resident_kib(process.pid) / 1024
        listed = json.loads(exporter.get("/api/v1/incidents", timeout=LIMIT))["incidents"]
        if not listed:
            yield f"{gpus} x {processes}: no incident was recorded, so their paths are not covered"
        incident = listed[0]["id"] if listed else None
        for name, addresses, least in PHASES:
            phase = run_phase(f"{gpus} x {processes}, {name}", process, ports, addresses, incident, PHASE[options.quick])
            yield from judge(phase, least)
            print(row(phase, quiet, cgroup))
            highest = max(phase["resident"], cgroup.peak() or 0)
            if highest > MIB:
                yield f"{phase['name']}: {highest:.0f} MiB, the limit is {MIB}"
            if phase["resident"] > quiet + GROWTH:
                yield f"{phase['name']}: resident memory grew by {phase['resident'] - quiet:.0f} MiB, {GROWTH} are allowed"
            if process.poll() is not None or cgroup.kills():
                yield f"{phase['name']}: the exporter ended (status {process.poll()}, {cgroup.kills()} kills for memory)"
                return


def row(phase, quiet, cgroup):
    answered = {what: sum(outcome == "answered" for outcome, _ in phase[what]) for what in ("scrapes", "probes")}
    longest = {what: max((took for _, took in phase[what]), default=0) for what in answered}
    peak = f"{cgroup.peak():.1f}" if cgroup.peak() is not None else "unknown"
    cells = [phase["name"], f"{quiet:.1f}", f"{phase['resident']:.1f}", peak, phase["connected"], phase["ended"]]
    cells += [f"{answered[what]} of {len(phase[what])}, longest {longest[what]:.2f} s" for what in answered]
    return "| " + " | ".join(map(str, cells)) + " |"


def main():
    parser = harness.arguments(__doc__, simulator=True)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    out = Path(tempfile.mkdtemp(prefix="bound-")).resolve()
    print("| phase | RSS MiB before | highest RSS MiB | cgroup's peak MiB | connections | ended by the server | scrapes answered | probes answered |")
    print("|---|---|---|---|---|---|---|---|")
    wrong = [line for gpus, processes in SIZES[options.quick] for line in machine(gpus, processes, options, out / f"{gpus}x{processes}")]
    print("\n".join(f"NO: {line}" for line in wrong) or "every bound holds")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
