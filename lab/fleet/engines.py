"""Starts the engines that store the fleet, each on loopback in a folder of its own.

Invariant: everything started here is stopped when its context ends, and the shipped scrape job and rules are used as they are; only
targets, intervals of scrapes and what a test names are replaced.
"""

import contextlib
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "tests/judges"))
sys.path.append(str(HERE.parents[1] / "tests/judges/dashboards"))
sys.path.append(str(HERE.parent / "dashboards"))

from harness import ROOT, Server, cpu_seconds, finish, free_port, resident_kib
from harness.prometheus import Api, command_of

RULES = ROOT / "deploy/prometheus/rules"
JOB = yaml.safe_load((ROOT / "deploy/prometheus/scrape.yml").read_text())["scrape_configs"][0]


class Engine(Server):
    """A running program and what is known about it."""

    def __init__(self, command, port, ready, folder):
        super().__init__(command, port, ready, folder / "log")
        self.folder, self.api = folder, Api(port)

    @property
    def name(self):
        return self.folder.name

    def stop(self, number):
        """Ends the process with a signal. `start` starts it again, with the same command, ports and data."""
        self.process.send_signal(number)
        self.process.wait(60)

    def own(self, name):
        """A sample of its own metrics, without labels."""
        found = [line for line in self.get("/metrics").splitlines() if line.startswith(name + " ")]
        return float(found[0].split()[1]) if found else None

    def cpu(self):
        return cpu_seconds(self.pid)

    def memory(self, field="VmRSS"):
        return resident_kib(self.pid, field) * 1024

    def disk(self, under="."):
        return sum(path.stat().st_size for path in (self.folder / under).rglob("*") if path.is_file())


def judged(problems):
    """Runs `problems` with a rig in a temporary folder, and prints what it finds. Returns the exit status."""
    with contextlib.ExitStack() as stack:
        found = list(problems(Rig(stack, stack.enter_context(tempfile.TemporaryDirectory()))))
    return finish(found)


class Rig:
    """Engines in a folder, all of which end together."""

    def __init__(self, stack, folder):
        self.stack, self.folder = stack, Path(folder)

    def start(self, name, command, port, path, kind=Engine):
        folder = self.folder / name
        folder.mkdir(parents=True, exist_ok=True)
        return self.stack.enter_context(kind(command, port, path, folder))

    def fleet(self, recordings, machines, mix, *flags):
        port = free_port()
        command = [sys.executable, HERE / "serve.py", f"--recordings={recordings}", f"--machines={machines}", f"--mix={mix}"]
        return self.start("fleet", [*command, f"--listen=127.0.0.1:{port}", *flags], port, "/sd")

    def prometheus(self, name, fleet, program="prometheus", flags=(), storage=True, **settings):
        return self.configured(name, configuration(fleet and fleet.port, **settings), program, flags, storage)

    def configured(self, name, content, program="prometheus", flags=(), storage=True):
        folder, port = self.folder / name, free_port()
        folder.mkdir(parents=True, exist_ok=True)
        command = [word for word in command_of(folder, content, port, program) if storage or not word.startswith("--storage.tsdb.path")]
        return self.start(name, [*command, *flags], port, "/-/ready")


def shipped_rules(folder, interval=None):
    """The shipped rules in a folder, each group evaluated every `interval` if it is given."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in sorted(RULES.glob("*.yml")):
        rules = yaml.safe_load(path.read_text())
        for group in rules["groups"] if interval else ():
            group["interval"] = interval
        (folder / path.name).write_text(yaml.safe_dump(rules, width=10**6))
    return f"{folder}/*.yml"


def groups():
    for path in sorted(RULES.glob("*.yml")):
        yield from yaml.safe_load(path.read_text())["groups"]


def configuration(port, every="15s", rules=None, shard=None, shards=1, relabel=(), write=None, external=None, sd="/sd", past=None):
    """The shipped scrape job for a fleet on `port`; one of `shards` by the name of the node, so that the
    division does not depend on the port."""
    job = {key: value for key, value in JOB.items() if key != "static_configs"}
    job |= {"scrape_interval": every, "scrape_timeout": min(every, "5s", key=seconds)}
    job["http_sd_configs"] = [{"url": f"http://127.0.0.1:{port}{sd}", "refresh_interval": "5s"}]
    if shards > 1:
        job["relabel_configs"] = [
            {
                "source_labels": ["instance"],
                "modulus": shards,
                "target_label": "__tmp_shard",
                "action": "hashmod",
            },
            {"source_labels": ["__tmp_shard"], "regex": str(shard), "action": "keep"},
        ]
    if relabel:
        job["metric_relabel_configs"] = list(relabel)
    whole = {"global": {"scrape_interval": every, "evaluation_interval": every}, "scrape_configs": [job] if port else []}
    if external:
        whole["global"]["external_labels"] = external
    if rules:
        whole["rule_files"] = [rules]
    if past:
        whole["storage"] = {"tsdb": {"out_of_order_time_window": past}}
    if write:
        whole["remote_write"] = [{"url": url, "queue_config": {"max_shards": 4}} for url in write]
    return whole


def seconds(text):
    units = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
    unit = text.lstrip("0123456789.")
    return float(text[: -len(unit)]) * units[unit]


def rule_problems(api):
    """Rules that did not load or could not be evaluated."""
    found = api.ask("rules")["groups"]
    expected = {group["name"]: len(group["rules"]) for group in groups()}
    loaded = {group["name"]: len(group["rules"]) for group in found}
    if loaded != expected:
        yield f"the groups {loaded} are loaded, not {expected}"
    for group in found:
        for rule in group["rules"]:
            if rule["health"] != "ok":
                yield f"{group['name']}: {rule['name']}: {rule['health']}: {rule.get('lastError')}"


def count(api, selector, **when):
    found = api.instant(f"count({selector})", **when)
    return int(float(found[0]["value"][1])) if found else 0


def run(*command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=600)
    if done.returncode:
        raise SystemExit(f"{command[0]}: {done.stdout[-1500:]}{done.stderr[-1500:]}")
    return done.stdout
