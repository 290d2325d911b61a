"""The checks of what other tools tell about the failure of `sites-failure`, and of what they had to be told: PyTorch's snapshots, pytorch_memlab,
stormlog and memray beside the Python client with call sites. docs/allocators.md has the result as a table."""

import collections
import contextlib
import importlib.util
import json
import os
import pickle
import re
import signal
import statistics
import subprocess
import sys
import time

from check_incidents import incidents
from check_sites import LOOK, Watched, roles_of, sites_of
from children import HERE, Child, ended, reporting

SCRIPT = "tool_jobs.py"
PACKAGES = ("pytorch_memlab", "stormlog", "memray")
# The jobs of a check run side by side, each with a tenth of the GPU.
FAILING = (
    ("plain", "uncaught"),
    ("snapshot", "reported"),
    ("observer", "exit"),
    ("report", "reported"),
    ("lines", "reported"),
    ("stormlog", "exit"),
    ("memray", "exit"),
    ("sites", "exit"),
    ("late", "exit"),
)
ENDING = (
    ("snapshot", "exit"),
    ("lines", "exit"),
    ("lines", "uncaught"),
    ("snapshot", "kill"),
    ("observer", "kill"),
    ("lines", "kill"),
    ("stormlog", "kill"),
    ("memray", "kill"),
    ("sites", "kill"),
)
# Which of them have written something about the memory when the process is gone.
TELL = {
    ("snapshot", "reported"): True,
    ("snapshot", "exit"): False,
    ("snapshot", "kill"): False,
    ("observer", "exit"): True,
    ("observer", "kill"): False,
    ("report", "reported"): True,
    ("lines", "reported"): True,
    ("lines", "exit"): False,
    ("lines", "uncaught"): True,
    ("lines", "kill"): False,
    ("stormlog", "exit"): True,
    ("stormlog", "kill"): True,
    ("memray", "exit"): True,
    ("memray", "kill"): True,
    ("sites", "exit"): True,
    ("late", "exit"): True,
}
TIMED = ("plain", "plain again", "snapshot", "lines", "stormlog", "memray", "sites")
TIMED_ROUNDS = 12
# The client records call sites for 30 s from the first allocation; the job `late` fails after that.
LATE = 45.0


def environment(setup):
    paths = [setup.tools, os.environ.get("PYTHONPATH")]
    return {"PYTHONPATH": os.pathsep.join(path for path in paths if path)}


def start(setup, exporter, tool, ending, folder):
    os.makedirs(folder)
    if tool in ("sites", "late"):
        return reporting(exporter.socket, "plain", ending, folder, flags=["--sites"], script=SCRIPT)
    if tool == "memray":
        prefix = [sys.executable, "-m", "memray", "run", "--quiet", "--native", "--output", os.path.join(folder, "memray.bin")]
        return Child("plain", ending, folder, environment=environment(setup), prefix=prefix, program=os.path.join(HERE, SCRIPT))
    return Child(tool.split()[0], ending, folder, environment=environment(setup), script=SCRIPT)


def files_of(folder):
    """The files below the folder, with their sizes."""
    found = {}
    for place, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(place, name)
            found[os.path.relpath(path, folder)] = os.path.getsize(path)
    return found


def present(setup, results):
    """Whether the tools are there, in the given folder or installed."""
    sys.path[:0] = [setup.tools] if setup.tools else []
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        results.note("tools: not on this machine", missing)
    return not missing


def failing(setup, results):
    if present(setup, results):
        side_by_side(setup, results, "tools-failing", FAILING)


def endings(setup, results):
    if present(setup, results):
        side_by_side(setup, results, "tools-endings", ENDING)


def side_by_side(setup, results, name, jobs):
    # A repeated failure of one workload within ten minutes is part of the first one's incident, so the job `late` has its own exporter.
    with Watched(setup, name) as exporter, Watched(setup, f"{name}-late") as late:
        together(setup, results, {"late": late}, exporter, os.path.join(setup.out, name), jobs)


def together(setup, results, own, exporter, out, jobs):
    """Runs the jobs beside each other and reads what their tools tell. `own` has the exporters of those that have one of their own."""
    folders = {job: os.path.join(out, "-".join(job)) for job in jobs}
    watched = [job for job in jobs if job[0] in ("sites", "late")]
    told_to = {job: own.get(job[0], exporter) for job in jobs}
    others = [job for job in jobs if job not in watched]
    with contextlib.ExitStack() as stack:
        children = {job: stack.enter_context(ended(start(setup, told_to[job], *job, folders[job]))) for job in jobs}
        pids = {job: children[job].hear()["pid"] for job in watched}
        begun = time.monotonic()
        time.sleep(2 * LOOK)
        scrapes = {job: told_to[job].scrape() for job in watched}
        before = {job: (roles_of(scrapes[job], pid), sites_of(scrapes[job], pid)) for job, pid in pids.items()}
        children[watched[0]].send()
        for job in others:
            children[job].hear()
            children[job].send()
        if len(watched) > 1:
            time.sleep(max(0.0, begun + LATE - time.monotonic()))
            children[watched[1]].send()
        for (tool, ending), child in children.items():
            if ending in ("reported", "exit"):
                results.note(f"{tool}, {ending}: what the program saw", child.hear())
            status = child.process.wait(timeout=100)
            expected = -signal.SIGKILL if ending == "kill" else 1
            results.check(f"{tool}, {ending}: status", status, expected, status == expected)
    for job, folder in folders.items():
        tool, ending = job
        results.note(f"{tool}, {ending}: files", files_of(folder))
        if job in watched:
            told = sites(told_to[job], folder, ending, pids[job], before[job])
        else:
            told = READERS[tool](setup, folder) if tool in READERS else {}
        for what, figure in told.items():
            results.note(f"{tool}, {ending}: {what}", figure)
        if job in TELL:
            results.check(f"{tool}, {ending}: tells about the memory", bool(told), TELL[job], bool(told) == TELL[job])


def save(folder, name, text):
    with open(os.path.join(folder, name), "w") as out:
        out.write(text)


def answer(setup, folder, name, *command):
    """Runs a command of a tool and keeps what it prints. The lines, if it succeeds."""
    done = subprocess.run([sys.executable, "-m", *command], env={**os.environ, **environment(setup)}, capture_output=True, text=True, timeout=100)
    save(folder, name, done.stdout + done.stderr)
    return done.stdout.splitlines() if done.returncode == 0 else []


def line_of(frame):
    return f"{os.path.basename(frame['filename'])}:{frame['line']} {frame['name']}"


def lines_that_hold(blocks):
    """The bytes by the innermost line of the program."""
    holding = collections.Counter()
    for block in blocks:
        lines = [line_of(frame) for frame in block["frames"] if os.path.dirname(frame["filename"]) == HERE]
        holding[lines[0] if lines else "no line of the program"] += block["requested_size"]
    return holding.most_common(8)


def snapshot(_setup, folder, path=None):
    """What a snapshot has, and the texts and the page that PyTorch makes of it."""
    path = path or os.path.join(folder, "snapshot.pickle")
    if not os.path.exists(path):
        return {}
    with open(path, "rb") as file:
        found = pickle.load(file)
    events = [event for trace in found["device_traces"] for event in trace]
    failed = [event for event in events if event["action"] == "oom"][-1]
    blocks = [block for segment in found["segments"] for block in segment["blocks"]]
    live = [block for block in blocks if block["state"].startswith("active")]
    frames = [(os.path.basename(frame["filename"]), frame["line"], frame["name"][:80]) for frame in failed["frames"]]
    from torch.cuda import _memory_viz

    save(folder, "trace.txt", _memory_viz.trace(found))
    save(folder, "segments.txt", _memory_viz.segsum(found))
    save(folder, "stacks.txt", _memory_viz.memory(found, format_flamegraph=str))
    page = _memory_viz.trace_plot(found)
    return {
        "the failed request": (failed["size"], failed["device_free"]),
        "its frames, and those of Python": (len(frames), [frame for frame in frames if frame[0].endswith(".py")]),
        "its operation": [frame for frame in frames if "at::_ops::" in frame[2]],
        "events": collections.Counter(event["action"] for event in events),
        "live blocks, bytes": (len(live), sum(block["size"] for block in live)),
        "lines that hold most": lines_that_hold(live),
        "keys of a block": sorted(live[0]),
        "largest free block": max((block["size"] for block in blocks if block["state"] == "inactive"), default=0),
        "bytes of the page, and what it loads": (len(page), re.findall(r'from "(https:[^"]*)"', page)),
    }


def printed(_setup, folder):
    """The sums of pytorch_memlab's reporter and one of its rows, or the rows of its line profiler with a GiB and more."""
    with open(os.path.join(folder, "output.txt")) as file:
        lines = file.read().splitlines()
    told = [line.strip() for line in lines if line.startswith(("Total", "The allocated", "words.weight ")) or re.match(r"\s*[\d.]+G\s", line)]
    return {"lines, some of them": (len(lines), told)} if told else {}


def stormlog(setup, folder):
    told, files = {}, files_of(folder)
    samples = [path for path in files if path.startswith("telemetry") and path.endswith(".jsonl")]
    for path in samples:
        with open(os.path.join(folder, path)) as file:
            lines = file.read().splitlines()
        last = json.loads(lines[-1])
        told["samples on disk, the last"] = (len(lines), {key: value for key, value in last.items() if key.endswith("_bytes")})
    for bundle in sorted({os.path.dirname(path) for path in files if path.startswith("oom_dumps")}):
        bundle = os.path.join(folder, bundle)
        with open(os.path.join(bundle, "metadata.json")) as file:
            custom = json.load(file)["custom_metadata"]
        told["its sample"] = {key: value for key, value in custom.items() if key.startswith("sample_")}
        with open(os.path.join(bundle, "cuda_allocation_attribution.json")) as file:
            found = json.load(file)["attributed_allocations"]
        named = collections.Counter()
        for allocation in found:
            named[(allocation["names"] or ["no name"])[0]] += allocation["size_bytes"]
        told["allocations with a tensor, their bytes by name"] = (len(found), sum(named.values()), named.most_common(6))
        shot = snapshot(setup, folder, os.path.join(bundle, "cuda_allocator_snapshot.pickle"))
        told.update({f"snapshot, {what}": figure for what, figure in shot.items()})
    return told


def memray(setup, folder):
    path = os.path.join(folder, "memray.bin")
    if not os.path.exists(path):
        return {}
    command = [sys.executable, "-m", "memray", "stats", "-n", "20", path]
    done = subprocess.run(command, env={**os.environ, **environment(setup)}, capture_output=True, text=True, timeout=100)
    save(folder, "stats.txt", done.stdout + done.stderr)
    lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
    return {"stats": lines[:45]} if done.returncode == 0 else {}


def incident_of(exporter, pid, limit=20.0):
    """The incident of the process's failed allocation."""
    begun = time.monotonic()
    while time.monotonic() - begun < limit:
        for incident in incidents(exporter, "out_of_memory"):
            if incident["out_of_memory"]["pid"] == pid:
                return incident
        time.sleep(0.1)
    raise RuntimeError(f"no incident of the process {pid} within {limit:.0f} s")


def sites(exporter, folder, ending, pid, before):
    told = {"roles and sites before it grows": before}
    if ending == "exit":
        incident = incident_of(exporter, pid)
        told["the incident"] = incident["out_of_memory"]
        save(folder, "incident.json", json.dumps(incident, indent=1))
        _, text = exporter.get(f"/api/v1/incidents/{incident['id']}?format=text")
        save(folder, "incident.txt", text.decode())
        return told
    for name in ("incidents", "events", "reports"):
        _, body = exporter.get(f"/api/v1/{name}")
        save(folder, f"{name}.json", body.decode())
    told["call sites after the end"] = sites_of(exporter.scrape(), pid)
    return told


READERS = {"snapshot": snapshot, "observer": snapshot, "report": printed, "lines": printed, "stormlog": stormlog, "memray": memray}


def cost(setup, results):
    if present(setup, results):
        with Watched(setup, "tools-cost") as exporter:
            in_turn(setup, results, exporter)


def in_turn(setup, results, exporter):
    """Steps with each tool, eight at a time in turn, beside those without; the processes that wait are stopped. A program without a tool
    runs twice, so that its ratio shows what chance does."""
    with contextlib.ExitStack() as stack:
        children = {}
        for tool in TIMED:
            folder = os.path.join(setup.out, "tools-steps", tool.replace(" ", "-"))
            children[tool] = stack.enter_context(ended(start(setup, exporter, tool, "steps", folder)))
        pids = {tool: child.hear()["pid"] for tool, child in children.items()}
        times = collections.defaultdict(list)
        for pid in pids.values():
            os.kill(pid, signal.SIGSTOP)
        try:
            for number in range(TIMED_ROUNDS + 2):
                order = TIMED[number % len(TIMED) :] + TIMED[: number % len(TIMED)]
                for tool in order:
                    os.kill(pids[tool], signal.SIGCONT)
                    children[tool].send()
                    times[tool].append(children[tool].hear()["seconds"] / 8)
                    os.kill(pids[tool], signal.SIGSTOP)
        finally:
            for pid in pids.values():
                os.kill(pid, signal.SIGCONT)
    for tool in TIMED:
        ratios = sorted(mine / plain for mine, plain in list(zip(times[tool], times["plain"]))[2:])
        quarter = len(ratios) // 4
        figure = [round(value, 3) for value in (statistics.median(ratios), ratios[quarter], ratios[-1 - quarter])]
        results.note(f"{tool}: ms of a step, ratio to plain and its quartiles", (round(statistics.median(times[tool]) * 1e3, 2), *figure))
