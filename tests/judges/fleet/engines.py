"""Starts the engines that store the fleet, each on loopback in a folder of its own.

Invariant: everything started here is stopped when its context ends, and the shipped scrape job and rules are used as they are; only
targets, intervals of scrapes and what a test names are replaced.
"""

import contextlib
import json
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

import yaml

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "dashboards"))
from machines import Prometheus, free_port, started  # noqa: E402

ROOT = HERE.parents[2]
RULES = ROOT / "deploy/prometheus/rules"
JOB = yaml.safe_load((ROOT / "deploy/prometheus/scrape.yml").read_text())["scrape_configs"][0]
READY = 60


def get(url, timeout=60):
    with urllib.request.urlopen(url, timeout=timeout) as answer:
        return answer.read().decode()


def until(ready, what, log=None, limit=READY):
    """Waits until `ready` returns something true, and returns it."""
    end = time.monotonic() + limit
    while True:
        with contextlib.suppress(OSError, ValueError):
            found = ready()
            if found:
                return found
        if time.monotonic() > end:
            tail = log.read_bytes()[-2000:].decode(errors="replace") if log else ""
            raise SystemExit(f"{what} is not ready after {limit} s. {tail}")
        time.sleep(0.2)


class Api(Prometheus):
    """Prometheus' API of any engine, with time for long answers. An error of the engine is a ValueError with its text."""

    def ask(self, path, **parameters):
        text = urllib.parse.urlencode(parameters)
        # Some queries are too long for a URL.
        request = (self.base + path, text.encode()) if path.startswith("query") else (f"{self.base}{path}?{text}",)
        try:
            with urllib.request.urlopen(*request, timeout=300) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            text = error.read().decode(errors="replace")
            raise ValueError(text[:500]) from None


class Engine:
    """A running program and what is known about it."""

    def __init__(self, process, port, folder):
        self.process, self.port, self.folder = process, port, folder
        self.api = Api(port)

    def stop(self, number):
        """Ends the process with a signal."""
        self.process.send_signal(number)
        self.process.wait(60)

    def resume(self):
        """Starts it again, with the same command, ports and data."""
        self.process = self.restarted()
        self.ready()

    def own(self, name):
        """A sample of its own metrics, without labels."""
        found = [line for line in get(f"http://127.0.0.1:{self.port}/metrics").splitlines() if line.startswith(name + " ")]
        return float(found[0].split()[1]) if found else None

    def cpu(self):
        """Processor seconds of the process. Unlike the time that passes, these hardly depend on what else runs on the machine."""
        total = 0
        for task in Path(f"/proc/{self.process.pid}/task").iterdir():
            with contextlib.suppress(OSError):
                total += int((task / "schedstat").read_text().split()[0])
        return total / 1e9

    def memory(self, key="VmRSS"):
        found = [line for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines() if line.startswith(key)]
        return int(found[0].split()[1]) * 1024

    def disk(self, under="."):
        return sum(path.stat().st_size for path in (self.folder / under).rglob("*") if path.is_file())


def judged(problems):
    """Runs `problems` with a rig in a temporary folder, and prints what it finds. Returns the exit status."""
    with contextlib.ExitStack() as stack:
        found = list(problems(Rig(stack, stack.enter_context(tempfile.TemporaryDirectory()))))
    for problem in found:
        print(problem, file=sys.stderr)
    return 1 if found else 0


class Rig:
    """Engines in a folder, all of which end together."""

    def __init__(self, stack, folder):
        self.stack, self.folder = stack, Path(folder)

    def start(self, name, command, port, path, kind=Engine):
        folder = self.folder / name
        folder.mkdir(parents=True, exist_ok=True)
        log = folder / "log"
        output = self.stack.enter_context(open(log, "ab"))
        words = [str(word) for word in command]
        engine = kind(self.stack.enter_context(started(words, output)), port, folder)
        engine.restarted = lambda: self.stack.enter_context(started(words, output))
        engine.ready = lambda: until(lambda: get(f"http://127.0.0.1:{port}{path}") is not None, name, log)
        engine.ready()
        return engine

    def fleet(self, recordings, machines, mix, *flags):
        port = free_port()
        command = [sys.executable, HERE / "serve.py", f"--recordings={recordings}", f"--machines={machines}", f"--mix={mix}"]
        return self.start("fleet", [*command, f"--listen=127.0.0.1:{port}", *flags], port, "/sd")

    def prometheus(self, name, fleet, program="prometheus", flags=(), storage=True, **settings):
        folder = self.folder / name
        folder.mkdir(parents=True, exist_ok=True)
        port = free_port()
        path = folder / "prometheus.yml"
        # JSON is valid YAML.
        path.write_text(json.dumps(configuration(fleet and fleet.port, **settings)))
        command = [program, f"--config.file={path}", f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn", *flags]
        if storage:
            command.append(f"--storage.tsdb.path={folder / 'data'}")
        return self.start(name, command, port, "/-/ready")


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
    url = f"http://127.0.0.1:{api.port}/api/v1/rules"
    found = json.loads(get(url))["data"]["groups"]
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
