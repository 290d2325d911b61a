"""A Prometheus on the made blocks, and a proxy in front of it that counts and may refuse requests; both on loopback."""

import contextlib
import http.client
import urllib.parse

from harness import until
from harness.prometheus import Prometheus
from harness.serving import Handler, Serving

HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "host"}


@contextlib.contextmanager
def prometheus(folder):
    """The port of a Prometheus with the blocks in folder/data, and its log of queries."""
    log_of_queries = folder / "queries.log"
    configuration = {"global": {"query_log_file": str(log_of_queries)}, "scrape_configs": []}
    with Prometheus(folder, configuration, "--storage.tsdb.retention.time=90d") as asked:
        until("Prometheus answers", lambda: asked.instant("vector(1)"), log=asked.output)
        yield asked.port, log_of_queries


class Proxy(Serving):
    """Passes requests on to `port` and keeps them as (path, parameters, size of the answer). With `required`, a header without which it answers
    with 401, it also shows what credentials arrive."""

    def __init__(self, port, required=None):
        self.asked, self.refused = [], 0
        proxy = self

        class Passing(Handler):
            protocol_version = "HTTP/1.1"

            def pass_on(self):
                body = self.content()
                if required and any(self.headers.get(name) != value for name, value in required.items()):
                    proxy.refused += 1
                    return self.reply(401, b"unauthorized")
                connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
                with contextlib.closing(connection):
                    headers = {name: value for name, value in self.headers.items() if name.lower() not in HOP}
                    connection.request(self.command, self.path, body or None, headers)
                    answer = connection.getresponse()
                    content = answer.read()
                path, _, query = self.path.partition("?")
                parameters = dict(urllib.parse.parse_qsl(query) + urllib.parse.parse_qsl(body.decode()))
                proxy.asked.append((path, parameters, len(content)))
                return self.reply(answer.status, content, {name: value for name, value in answer.getheaders() if name.lower() not in HOP})

            do_GET = do_POST = pass_on

        super().__init__(Passing)
