"""Checks of what the Python client tells about PyTorch's memory: roles, call sites and failed allocations."""

import json
import os
import random
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack

from check_incidents import await_incident
from children import HERE, ended, reporting, with_client
from exporter import Exporter
from results import percentile

SCRIPT = "site_jobs.py"
TRAININGS = ("gpt", "gpt_compiled", "gpt_checkpointed", "unet", "lora")
# The first looks of a process are 5 s apart.
LOOK = 5.0
LONG_LOOK = 25.0
# Two pairs of programs fit into ten minutes.
COST_SECONDS = int(os.environ.get("COST_SECONDS", 255))
ARMS = ("off", "off again", "sites")
# What the client did in a step of site_cost.py.
IDLE, RECORDED, LOOKED = 0, 1, 2
OF_ROLES = ("parameters", "gradients", "optimizer_state", "activations")


class Watched(Exporter):
    """An exporter that takes in reports with call sites."""

    def __init__(self, setup, name):
        self.socket = os.path.join(setup.out, f"{name}.sock")
        super().__init__(setup, name, f"--allocator.socket={self.socket}", "--allocator.sites=true", "--process.interval=1s")

    def job(self, *words, **environment):
        """A job under `vram-run --sites`."""
        return ended(reporting(self.socket, *words, flags=["--sites"], environment=environment, script=SCRIPT))


def roles_of(scrape, pid):
    return {labels["role"]: int(value) for labels, value in scrape.rows("gpu_process_allocator_role_bytes", pid=pid)}


def sites_of(scrape, pid):
    rows = [(int(value), labels["site"], labels["role"]) for labels, value in scrape.rows("gpu_process_allocator_site_bytes", pid=pid)]
    return sorted(rows, reverse=True)


def looked(exporter):
    """One scrape so late that what it has is of a look that began after now, even if looks are rarer than usual because each takes long."""
    time.sleep(LONG_LOOK)
    return exporter.scrape()


def compare(results, name, said, scrape):
    """The roles beside what the program says about itself."""
    roles, sites = roles_of(scrape, said["pid"]), sites_of(scrape, said["pid"])
    if not roles:
        return results.check(f"{name}, {said['at']}: roles told", "none", "some", False)
    where = f"{name}, {said['at']}"
    total = sum(roles.values())
    rows = {}
    for role in OF_ROLES:
        if role in said:
            told = roles.get(role, 0)
            rows[role] = (said[role], told, round((told / said[role] - 1) * 100, 3) if said[role] else told)
    rest = {role: roles.get(role, 0) for role in ("other", "unknown")}
    results.note(f"{where}: bytes by the program, bytes told, % more", rows)
    results.note(f"{where}: allocated by PyTorch, sum of the roles, other and unknown", (said["allocated"], total, rest))
    results.note(f"{where}: largest call sites", sites[:6])
    for role in OF_ROLES[:3]:
        if role in rows:
            own, told, _ = rows[role]
            results.check(f"{where}: {role} within 1 %", told, own, abs(told - own) <= 0.01 * own)
    if "held" in said:
        return results.note(f"{where}: held in lists, told as other", (said["held"], roles.get("other")))
    share = sum(rest.values()) / total
    goal = 0.1 if name == "unet" and "activations" in said else 0.05
    results.check(f"{where}: other and unknown", f"{share:.2%}", f"at most {goal:.0%}", share <= goal)


def roles(setup, results):
    """Each job pauses in its first 30 s, in which the client looks every 5 s. The compiled ones, which take long to start, come last."""
    planned = [(name, at) for at in ("step", "forward") for name in TRAININGS] + [("generate",)]
    with Watched(setup, "sites-roles") as exporter:
        for compiled in (False, True):
            with ExitStack() as stack:
                chosen = [words for words in planned if ("compiled" in words[0]) == compiled]
                jobs = [(words[0], stack.enter_context(exporter.job(*words))) for words in chosen]
                told = [(name, job.hear()) for name, job in jobs]
                scrape = looked(exporter)
                for name, said in told:
                    compare(results, name, said, scrape)


def expandable(setup, results):
    for at in ("step", "forward"):
        with Watched(setup, "sites-expandable") as exporter, exporter.job("gpt", at, PYTORCH_ALLOC_CONF="expandable_segments:True") as job:
            said = job.hear()
            compare(results, "gpt with expandable segments", said, looked(exporter))


def facts(setup, results):
    for name in ("facts", "stress"):
        done = subprocess.run(
            [sys.executable, os.path.join(HERE, SCRIPT), name], env={**os.environ, **with_client()}, capture_output=True, text=True, timeout=200
        )
        results.check(f"{name}: ends", done.returncode, "0", done.returncode == 0)
        results.note(name, done.stdout.strip().split("\n")[-1] if done.stdout else done.stderr[-2000:])


def failure(setup, results):
    """An allocation fails, the process dies at once, and the incident tells what the memory was."""
    with Watched(setup, "sites-failure") as exporter, exporter.job("full") as job:
        job.hear()
        time.sleep(2 * LOOK)
        job.send()
        failed = job.hear()
        incident, _ = await_incident(exporter, "out_of_memory")
        out = incident["out_of_memory"]
        results.note("failure: what the program saw", failed)
        results.note("failure: the incident", out)
        memory = out.get("memory", {})
        results.check("failure: call sites told", len(memory.get("sites", ())), "10", len(memory.get("sites", ())) == 10)
        sums = sum(site["bytes"] for site in memory["sites"]) + memory.get("other_bytes", 0) + memory.get("unrecorded_bytes", 0)
        own = failed["allocated"]
        results.check("failure: sum of the call sites", sums, f"{own} (1 %)", abs(sums - own) <= 0.01 * own)
        results.check("failure: seconds before", memory["seconds_before"], "0.1", memory["seconds_before"] < 0.1)
        with open(os.path.join(setup.out, "failure.json"), "w") as out_file:
            json.dump(incident, out_file, indent=1)
        _, text = exporter.get(f"/api/v1/incidents/{incident['id']}?format=text")
        with open(os.path.join(setup.out, "failure.txt"), "wb") as out_file:
            out_file.write(text)


def leaks(setup, results):
    """`vram leaks` of programs that keep tensors: two trainings and a generation loop, one after another."""
    for name in ("leak", "graph_leak", "generate"):
        with Watched(setup, "sites-leaks") as exporter, exporter.job(name) as job:
            said = job.hear()
            job.send()
            command = [setup.tool, "leaks", str(said["pid"]), f"--socket={exporter.socket}", "--seconds=15"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=60)
            results.note(f"leaks, {name}: what it prints", (done.returncode, done.stdout, done.stderr))
            rows = [line.split() for line in done.stdout.split("\n") if "site_jobs.py:" in line]
            first, planted = (rows[0][-2] if rows else None), f"site_jobs.py:{said['line']}"
            results.check(f"leaks, {name}: the first line", first, planted, first == planted)


def cost(setup, results):
    """The mean time of a step with sites against without, over whole cycles of a window, and without again. Two programs run at a time if there
    are two GPUs."""
    programs = ["4 layers, 512 wide", "12 layers, 1024 wide", "24 layers, 256 wide", "generation"]
    gpus = len(subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True).stdout.strip().split("\n"))
    together = min(gpus, 2)
    while programs:
        started = [(name, start_cost(name, gpu)) for gpu, name in enumerate(programs[:together])]
        del programs[:together]
        for name, process in started:
            output, errors = process.communicate(timeout=COST_SECONDS + 120)
            cycles = [json.loads(line) for line in output.split("\n") if line.startswith("{")]
            if cycles:
                tell_cost(results, name, cycles)
            else:
                results.check(f"cost, {name}: ends", process.returncode, "0, with cycles", False)
                results.note(f"cost, {name}", errors[-2000:])


def start_cost(name, gpu):
    command = [sys.executable, os.path.join(HERE, "site_cost.py"), name, str(COST_SECONDS)]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": str(gpu)}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def tell_cost(results, name, cycles):
    rounds = [of_round for cycle in cycles for of_round in cycle["rounds"]]
    sums = [{arm: (len(steps), sum(seconds for seconds, _ in steps)) for arm, steps in of_round.items()} for of_round in rounds]
    means = {arm: mean_step(sums, arm) * 1e3 for arm in ARMS}
    results.note(f"cost, {name}: ms a step, rounds, cycles", (means, len(rounds), len(cycles)))
    results.note(f"cost, {name}: off again against off", spread(sums, lambda some: mean_step(some, "off again") / mean_step(some, "off")))
    middle, low, high = spread(sums, against_off)
    results.check(f"cost, {name}: sites against off", f"{middle:.4f} ({low:.4f} to {high:.4f})", "at most 1.02", middle <= 1.02)
    looks = [look for cycle in cycles for look in cycle["looks"]]
    results.note(f"cost, {name}: of what", parts(rounds, looks))


def parts(rounds, looks):
    """What recording and looks cost, from the medians of steps."""
    without = [seconds for of_round in rounds for arm in ARMS[:2] for seconds, _ in of_round[arm]]
    sites = [step for of_round in rounds for step in of_round["sites"]]
    usual = statistics.median(without)
    median = {did: statistics.median([seconds for seconds, what in sites if what == did] or [0]) for did in (IDLE, RECORDED, LOOKED)}
    waited = sum(seconds - usual for seconds, what in sites if what == LOOKED)
    taken = {did: sum(seconds for seconds, what in sites if what == did) for did in (IDLE, RECORDED, LOOKED)}
    return {
        "median of a step without, ms": usual * 1e3,
        "its 1st and 99th percentile, ms": [percentile(without, share) * 1e3 for share in (0.01, 0.99)],
        "idle against without": median[IDLE] / usual,
        "recorded against without": median[RECORDED] / usual,
        "seconds idle, recorded, during looks": list(taken.values()),
        "looks, seconds from begin to end, counted, waited": (len(looks), sum(look[0] for look in looks), sum(look[1] for look in looks), waited),
    }


def mean_step(sums, arm):
    """Seconds."""
    return sum(of_round[arm][1] for of_round in sums) / sum(of_round[arm][0] for of_round in sums)


def against_off(sums):
    return 2 * mean_step(sums, "sites") / (mean_step(sums, "off") + mean_step(sums, "off again"))


def spread(sums, figure):
    """A figure of all rounds, and the middle 95 % of the same figure of 1,000 draws of as many rounds."""
    rng = random.Random(1)
    drawn = sorted(figure(rng.choices(sums, k=len(sums))) for _ in range(1000))
    return figure(sums), drawn[25], drawn[974]
