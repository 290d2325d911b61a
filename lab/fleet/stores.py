"""Starts the engines that keep the fleet's data: VictoriaMetrics with vmalert, and Thanos with its receiver, query and rule.

Each takes the samples of Prometheus' remote write at `write_url`, and answers Prometheus' API. docs/fleet.md explains each flag that
is not about addresses and folders. Invariant: an engine gets no other flags than those in docs/fleet.md.
"""

import json

import engines
from harness import free_port, listens, until

ANY_AGE = ("-retentionPeriod=100y",)


class Store(engines.Engine):
    """An engine, with the address for remote write. `extra` are labels that it adds to every series."""

    write_url, extra = "", ()


def prometheus(rig, program="prometheus", name="prometheus", flags=(), **settings):
    """A Prometheus as a receiver."""
    flags = ["--web.enable-remote-write-receiver", "--storage.tsdb.retention.time=10y", *flags]
    engine = rig.prometheus(name, None, program=program, flags=flags, past="30d", **settings)
    engine.write_url, engine.extra = f"http://127.0.0.1:{engine.port}/api/v1/write", ()
    return engine


def victoria_metrics(rig, program, name="victoria-metrics", flags=()):
    port = free_port()
    folder = rig.folder / name
    command = [program, f"-storageDataPath={folder / 'data'}", f"-httpListenAddr=127.0.0.1:{port}", *ANY_AGE, *flags]
    # Its answers leave out the last 30 s otherwise, in which not all samples may have arrived.
    engine = rig.start(name, [*command, "-search.latencyOffset=0s"], port, "/health", Store)
    engine.write_url = f"http://127.0.0.1:{port}/api/v1/write"
    return engine


def vmalert(rig, program, store, rules, name="vmalert"):
    """Evaluates the shipped rules on VictoriaMetrics, and writes the results there."""
    port = free_port()
    base = f"http://127.0.0.1:{store.port}"
    command = [program, f"-rule={rules}", f"-datasource.url={base}", f"-remoteWrite.url={base}", f"-remoteRead.url={base}"]
    # It evaluates the rules for a moment 30 s ago, at which all samples have arrived: -rule.evalDelay.
    command += ["-notifier.blackhole", f"-httpListenAddr=127.0.0.1:{port}"]
    return rig.start(name, command, port, "/health", Store)


class Thanos:
    """A receiver and a query; `rules` evaluates rules on them."""

    def __init__(self, rig, program, name="thanos"):
        self.rig, self.program, self.name = rig, program, name
        self.grpc, self.remote, self.web = free_port(), free_port(), free_port()
        self.receiver = self.receive()
        self.query = self.ask([self.grpc])
        self.query.write_url = f"http://127.0.0.1:{self.remote}/api/v1/receive"
        self.query.extra = ("tenant_id",)

    def receive(self):
        folder = self.rig.folder / f"{self.name}-receive"
        command = [self.program, "receive", f"--tsdb.path={folder / 'data'}", '--label=receive_replica="0"', "--log.level=warn"]
        command += [f"--grpc-address=127.0.0.1:{self.grpc}", f"--http-address=127.0.0.1:{self.web}"]
        command += [f"--remote-write.address=127.0.0.1:{self.remote}", "--tsdb.retention=10y", "--tsdb.out-of-order.time-window=30d"]
        command += [f"--receive.capnproto-address=127.0.0.1:{free_port()}"]
        engine = self.rig.start(f"{self.name}-receive", command, self.web, "/-/ready", Store)
        # It says that it is ready before it listens for remote write.
        until("the receiver listens", lambda: listens(self.remote))
        return engine

    def ask(self, stores):
        port, grpc = free_port(), free_port()
        command = [self.program, "query", f"--http-address=127.0.0.1:{port}", f"--grpc-address=127.0.0.1:{grpc}"]
        command += ["--query.replica-label=receive_replica", "--query.replica-label=prometheus_replica", "--log.level=warn"]
        command += [f"--endpoint=127.0.0.1:{one}" for one in stores]
        engine = self.rig.start(f"{self.name}-query", command, port, "/-/ready", Store)
        engine.extra = ()
        return engine

    def rules(self, pattern):
        """Thanos rule without a database of its own: it writes its results to the receiver."""
        port, grpc = free_port(), free_port()
        folder = self.rig.folder / f"{self.name}-rule"
        folder.mkdir(parents=True, exist_ok=True)
        write = folder / "write.yml"
        write.write_text(json.dumps({"remote_write": [{"url": self.query.write_url}]}))
        command = [self.program, "rule", f"--data-dir={folder / 'data'}", f"--rule-file={pattern}", "--label=rule_replica=\"0\""]
        command += [f"--query=127.0.0.1:{self.query.port}", f"--http-address=127.0.0.1:{port}", f"--grpc-address=127.0.0.1:{grpc}"]
        # Samples that agents write arrive late.
        command += [f"--remote-write.config-file={write}", "--rule-query-offset=30s", "--log.level=warn"]
        return self.rig.start(f"{self.name}-rule", command, port, "/-/ready", Store)


def agent(rig, fleet, urls, program="prometheus", name="agent", **settings):
    """A Prometheus in agent mode: it scrapes, buffers on disk, and writes to each URL."""
    folder = rig.folder / name
    flags = ["--enable-feature=agent" if program == "prometheus" else "--agent", f"--storage.agent.path={folder / 'data'}"]
    return rig.prometheus(name, fleet, program=program, flags=flags, storage=False, write=urls, **settings)
