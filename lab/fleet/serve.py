"""Serves the expositions of many machines from one process, from recordings of the real exporter.

    serve.py --recordings FOLDER --machines 300 --mix 8x64 [--listen 127.0.0.1:9900] [--pods 3600] [--processes 600] [--events 1800]

| path | content |
|---|---|
| `/machine/N/metrics`, `/machine/N/dcgm` | what machine N serves now; 503 while it is unreachable |
| `/sd`, `/sd/dcgm` | the machines, for Prometheus' http_sd_configs; a removed machine is missing |

`?at=SECONDS` gives the text of another time. A mix such as `8x64:1,8x8r:4,8mig:1` gives each shape that many of every six machines. With
--clusters 2, machines of two clusters have the same instance names. Invariant: the same arguments and the same time give the same text.
"""

import argparse
import asyncio
import json
import sys
import time
import urllib.parse
import zlib
from pathlib import Path

import record
from machine import Machine, Owners, Plan
from template import Template

TEXT = "text/plain; version=0.0.4; charset=utf-8"


class Fleet:
    def __init__(self, recordings, mix, machines, plan, clusters=1, start=None):
        """`recordings` by shape; `mix` as (shape, weight)."""
        turns = [shape for shape, weight in mix for _ in range(weight)]
        self.start = time.time() if start is None else start
        self.clusters, self.plan = clusters, plan
        self.kinds = {}
        for kind, name in (("frames", "metrics"), ("dcgm", "dcgm")):
            prepared = {}
            for shape in dict.fromkeys(turns):
                template = Template(recordings[shape], kind)
                prepared[shape] = template, Owners(template)
            self.kinds[name] = [Machine(at, *self.with_plan(prepared[turns[at % len(turns)]])) for at in range(machines)]

    def with_plan(self, prepared):
        template, owners = prepared
        return template, self.plan, owners

    def discovery(self, host, kind, t):
        per_cluster = -(-len(self.kinds[kind]) // self.clusters)
        found = []
        for at, machine in enumerate(self.kinds[kind]):
            if machine.state(t).condition == "removed":
                continue
            labels = {"__metrics_path__": f"/machine/{at}/{kind}", "instance": f"node-{at % per_cluster:05}"}
            if self.clusters > 1:
                labels["cluster"] = f"cluster-{at // per_cluster}"
            found.append({"targets": [host], "labels": labels})
        return json.dumps(found)

    def answer(self, target, host):
        """(status, content type, text)."""
        url = urllib.parse.urlsplit(target)
        asked = urllib.parse.parse_qs(url.query).get("at")
        t = float(asked[0]) if asked else time.time() - self.start
        match url.path.strip("/").split("/"):
            case ["sd"]:
                return 200, "application/json", self.discovery(host, "metrics", t)
            case ["sd", "dcgm"]:
                return 200, "application/json", self.discovery(host, "dcgm", t)
            case ["machine", at, kind] if at.isdecimal() and kind in self.kinds and int(at) < len(self.kinds[kind]):
                text = self.kinds[kind][int(at)].text(t, self.start)
                return (200, TEXT, text) if text is not None else (503, "text/plain", "the machine is unreachable\n")
        return 404, "text/plain", f"{url.path}: not found\n"


REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 503: "Service Unavailable"}


async def serve_connection(fleet, level, reader, writer):
    try:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            request, *lines = head.split("\r\n")
            headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
            try:
                status, kind, text = fleet.answer(request.split(" ")[1], headers.get("host", ""))
            except (ValueError, IndexError) as error:
                status, kind, text = 400, "text/plain", f"{error}\n"
            body = text.encode()
            more = ""
            if level and "gzip" in headers.get("accept-encoding", ""):
                packer = zlib.compressobj(level, wbits=31)
                body = packer.compress(body) + packer.flush()
                more = "Content-Encoding: gzip\r\n"
            top = f"HTTP/1.1 {status} {REASONS[status]}\r\nContent-Type: {kind}\r\n{more}Content-Length: {len(body)}\r\n\r\n"
            writer.write(top.encode() + body)
            await writer.drain()
            if headers.get("connection", "").lower() == "close":
                break
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError):
        pass
    finally:
        writer.close()


async def serve(fleet, host, port, level=1):
    server = await asyncio.start_server(lambda r, w: serve_connection(fleet, level, r, w), host, port, backlog=1024)
    async with server:
        await server.serve_forever()


def mix_of(text):
    mix = []
    for part in text.split(","):
        shape, _, weight = part.partition(":")
        if not (weight or "1").isdecimal() or int(weight or 1) < 1:
            raise argparse.ArgumentTypeError(f"{part!r}: the weight must be a whole number of at least 1")
        mix.append((shape, int(weight or 1)))
    return mix


def address(text):
    host, _, port = text.rpartition(":")
    return host, int(port)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recordings", required=True, type=Path, help="the folder that record.py wrote")
    parser.add_argument("--machines", type=int, default=10)
    parser.add_argument("--mix", type=mix_of, default="8x64", help="shapes with weights")
    parser.add_argument("--listen", type=address, default="127.0.0.1:9900")
    parser.add_argument("--clusters", type=int, default=1)
    parser.add_argument("--start", type=float, help="Unix time at which the fleet's time is 0; now when absent")
    parser.add_argument("--gzip", type=int, default=1, help="level of compression for scrapers that accept it; 0: none")
    for name in ("seed", "pods", "processes", "events", "lasting"):
        default = getattr(Plan, name)
        parser.add_argument(f"--{name}", type=type(default), default=default, help="see Plan in machine.py")
    given = parser.parse_args()
    plan = Plan(given.seed, given.pods, given.processes, given.events, given.lasting)
    if plan.events and plan.events <= plan.lasting:
        parser.error("--events must be longer than --lasting")
    recordings = {}
    for shape, _ in given.mix:
        path = given.recordings / f"{shape}.json.gz"
        if not path.exists():
            parser.error(f"{path} does not exist: record.py --out {given.recordings} {shape}")
        recordings[shape] = record.read(path)
    fleet = Fleet(recordings, given.mix, given.machines, plan, given.clusters, given.start)
    print(f"{given.machines} machines on http://{given.listen[0]}:{given.listen[1]}/sd", flush=True)
    asyncio.run(serve(fleet, *given.listen, given.gzip))
    return 0


if __name__ == "__main__":
    sys.exit(main())
