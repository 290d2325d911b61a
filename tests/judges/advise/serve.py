"""A Prometheus on the made blocks, and a proxy in front of it that counts and may refuse requests; both on loopback."""

import contextlib
import http.client
import http.server
import json
import sys
import threading
import urllib.parse
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "dashboards"))
from machines import Prometheus, free_port, started, wait_until  # noqa: E402

HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "host"}


@contextlib.contextmanager
def prometheus(folder):
    """The port of a Prometheus with the blocks in folder/data, and its log of queries."""
    port, log_of_queries = free_port(), folder / "queries.log"
    config = folder / "prometheus.yml"
    config.write_text(json.dumps({"global": {"query_log_file": str(log_of_queries)}, "scrape_configs": []}))
    command = [
        "prometheus",
        f"--config.file={config}",
        f"--storage.tsdb.path={folder / 'data'}",
        "--storage.tsdb.retention.time=90d",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=warn",
    ]
    with open(folder / "log", "w+b") as log, started(command, log):
        asked = Prometheus(port)

        def ready():
            with contextlib.suppress(OSError, ValueError):
                return asked.instant("vector(1)")

        wait_until(ready, "Prometheus", log)
        yield port, log_of_queries


class Proxy:
    """Passes requests on to `port` and keeps them as (path, parameters, size of the answer). With `required`, a header without which it answers
    with 401, it also shows what credentials arrive. Use it as a context manager."""

    def __init__(self, port, required=None):
        self.asked, self.refused = [], 0
        proxy = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def pass_on(self):
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                if required and any(self.headers.get(name) != value for name, value in required.items()):
                    proxy.refused += 1
                    return self.reply(401, {}, b"unauthorized")
                connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
                with contextlib.closing(connection):
                    headers = {name: value for name, value in self.headers.items() if name.lower() not in HOP}
                    connection.request(self.command, self.path, body or None, headers)
                    answer = connection.getresponse()
                    content = answer.read()
                path, _, query = self.path.partition("?")
                parameters = dict(urllib.parse.parse_qsl(query) + urllib.parse.parse_qsl(body.decode()))
                proxy.asked.append((path, parameters, len(content)))
                return self.reply(answer.status, {name: value for name, value in answer.getheaders() if name.lower() not in HOP}, content)

            def reply(self, status, headers, content):
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_POST = pass_on

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()
