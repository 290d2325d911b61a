"""Honest scrapers that all scrape at the same moments, in a separate program so that no other work affects their times.

    honest.py --port N --count 50 --every S --seconds S --limit S --out FILE

Half of them keep their connections, and half open a new one each time; all request gzip, as Prometheus does. FILE gets one JSON object
for each scrape: `answered` (200, complete), `refused` (503, or closed before any byte of a response), `late` (neither within
the limit) or `broken` (anything else)."""

import argparse
import asyncio
import json
import time

KEPT = b"GET /metrics HTTP/1.1\r\nHost: load\r\nAccept-Encoding: gzip\r\n\r\n"
CLOSED = KEPT.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
LINE_LIMIT = 1 << 16


class Refused(Exception):
    """The connection was closed before any byte of a response arrived."""


class Scraper:
    def __init__(self, options, keeps):
        self.options, self.keeps = options, keeps
        self.reader = self.writer = None

    async def scrape(self):
        begun = time.monotonic()
        try:
            outcome = await asyncio.wait_for(self.attempt(), self.options.limit)
        except asyncio.TimeoutError:
            outcome = "late"
        except (Refused, ConnectionRefusedError):
            outcome = "refused"
        except (OSError, EOFError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            outcome = f"broken: {type(error).__name__}: {error}"
        took = time.monotonic() - begun
        if outcome != "answered" or not self.keeps:
            self.close()
        return {"at": time.time(), "outcome": outcome, "took": took}

    async def attempt(self):
        reused = self.writer is not None
        try:
            return await self.ask()
        except Refused:
            if not reused:
                raise
        # The server closed the connection while it was idle. That is not a refusal; a new connection is used.
        self.close()
        return await self.ask()

    async def ask(self):
        if self.writer is None:
            self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.options.port, limit=LINE_LIMIT)
        try:
            self.writer.write(KEPT if self.keeps else CLOSED)
            first = await self.reader.read(1)
        except ConnectionError:
            raise Refused from None
        if not first:
            raise Refused
        head = first + await self.reader.readuntil(b"\r\n\r\n")
        status, headers = parse(head)
        await self.body(headers)
        if headers.get("connection") == "close":
            self.close()
        return {200: "answered", 503: "refused"}.get(status) or f"broken: status {status}"

    async def body(self, headers):
        if headers.get("transfer-encoding") != "chunked":
            if "content-length" in headers:
                await self.reader.readexactly(int(headers["content-length"]))
            else:
                await self.reader.read()
            return
        size = 1
        while size:
            size = int(await self.reader.readuntil(b"\r\n"), 16)
            await self.reader.readexactly(size + 2)

    def close(self):
        if self.writer is not None:
            self.writer.transport.abort()
        self.reader = self.writer = None


def parse(head):
    lines = head.decode("latin-1").split("\r\n")
    pairs = (line.partition(":") for line in lines[1:] if line)
    return int(lines[0].split(" ")[1]), {name.lower(): value.strip().lower() for name, _, value in pairs}


async def run(options):
    scrapers = [Scraper(options, number % 2 == 0) for number in range(options.count)]
    begun, tick = time.monotonic(), 0
    with open(options.out, "w") as out:
        while (due := begun + tick * options.every) < begun + options.seconds:
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            for record in await asyncio.gather(*(scraper.scrape() for scraper in scrapers)):
                out.write(json.dumps(record) + "\n")
            tick = max(tick + 1, int((time.monotonic() - begun) / options.every))
    for scraper in scrapers:
        scraper.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--every", type=float, default=1.0)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--limit", type=float, default=1.0)
    parser.add_argument("--out", required=True)
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
