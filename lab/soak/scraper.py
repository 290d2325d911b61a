"""One honest scraper, in a separate program so that no other work affects its times.

    scraper.py --port N --every S --seconds S --out FILE [--gzip] [--new-connection] [--limit S]

Each scrape is read completely, and its format and its counters are checked. FILE gets one JSON object per line.
A scrape is missed if no complete 200 response arrives within the limit (the interval, at most 10 s, as in
Prometheus)."""

import argparse
import gzip
import http.client
import json
import time

import exposition


class Scraper:
    def __init__(self, options):
        self.options = options
        self.limit = options.limit or min(options.every, 10.0)
        self.connection = None
        self.known = {}
        # A value is kept while its series is absent, because the counters of a lost GPU continue when the GPU is back.
        self.last = {}

    def get(self):
        """Seconds, status and body. If the server closed the idle connection, opens a new one, as Prometheus does."""
        headers = {"Accept-Encoding": "gzip"} if self.options.gzip else {}
        reused = self.connection is not None
        begun = time.monotonic()
        try:
            if not reused:
                self.connection = http.client.HTTPConnection("127.0.0.1", self.options.port, timeout=self.limit)
            self.connection.request("GET", "/metrics", headers=headers)
            response = self.connection.getresponse()
        except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError):
            self.close()
            if reused:
                return self.get()
            raise
        body = response.read()
        took = time.monotonic() - begun
        if response.getheader("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        if self.options.new_connection or response.will_close:
            self.close()
        return took, response.status, body

    def close(self):
        if self.connection is not None:
            self.connection.close()
        self.connection = None

    def scrape(self):
        record = {"at": time.time(), "missed": None, "problems": []}
        try:
            took, status, body = self.get()
        except (OSError, http.client.HTTPException, EOFError) as error:
            self.close()
            return record | {"missed": f"{type(error).__name__}: {error}"}
        record |= {"took": took, "status": status, "bytes": len(body)}
        if status != 200:
            return record | {"missed": f"status {status}"}
        if took > self.limit:
            return record | {"missed": f"after {took:.2f} s"}
        try:
            scrape = exposition.read(body.decode(), self.known)
        except (exposition.Malformed, UnicodeDecodeError) as error:
            return record | {"problems": [f"malformed: {error}"]}
        self.known = scrape.known
        return record | figures(scrape) | {"problems": list(self.fallen(scrape))}

    def fallen(self, scrape):
        """Each counter that is lower than it was before."""
        for series, value in scrape.counters():
            before = self.last.get(series)
            if before is not None and not value >= before:
                yield f"fell: {series[0]}{{{','.join(series[1:])}}} from {before} to {value}"
            self.last[series] = value


def figures(scrape):
    """The part of the report about the exporter's own state."""
    ups = [value for _, value in scrape.rows("gpu_up")]
    missed = scrape.rows("vram_exporter_missed_ticks_total")
    ticks = scrape.rows("vram_exporter_lane_duration_seconds_count")
    return {
        "series": len(scrape.values),
        "gpus": len(ups),
        "up": sum(ups),
        "faults": scrape.total("vram_exporter_faults_total"),
        "missed_ticks": sum(value for name, value in missed if 'lane="memory"' in name),
        "ticks": sum(value for name, value in ticks if 'lane="memory"' in name),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--every", type=float, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--gzip", action="store_true")
    parser.add_argument("--new-connection", action="store_true")
    parser.add_argument("--limit", type=float)
    options = parser.parse_args()
    scraper = Scraper(options)
    begun = time.monotonic()
    tick = 0
    with open(options.out, "w") as out:
        while (due := begun + tick * options.every) < begun + options.seconds:
            time.sleep(max(0.0, due - time.monotonic()))
            out.write(json.dumps(scraper.scrape()) + "\n")
            out.flush()
            # Scrapes for which this program itself was too late are left out; their absence shows in the number of scrapes.
            tick = max(tick + 1, int((time.monotonic() - begun) / options.every))


if __name__ == "__main__":
    main()
