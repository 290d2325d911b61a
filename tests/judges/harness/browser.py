"""A headless Chromium, controlled with the DevTools protocol. Needs the websocket-client package."""
import json
import os
import shutil
import subprocess
import tempfile

import websocket

from harness import PATIENCE, end, get, tail, undone_on_failure, until


def program():
    """The path of a Chromium binary, or None."""
    named = os.environ.get("CHROMIUM")
    return named or next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Browser:
    """A browser with a profile of its own. Use it as a context manager."""

    def __init__(self, flags=()):
        self.flags, self.profile, self.process = flags, None, None

    @undone_on_failure
    def __enter__(self):
        self.profile = tempfile.TemporaryDirectory(prefix="page-check-", ignore_cleanup_errors=True)
        flags = [
            "--headless=new", "--remote-debugging-port=0", "--remote-allow-origins=*", f"--user-data-dir={self.profile.name}",
            "--no-first-run", "--no-default-browser-check", "--disable-background-networking", "--disable-component-update",
            "--disable-sync", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", "--mute-audio",
            *self.flags,
        ]
        if os.geteuid() == 0:
            # Chromium refuses to run as root with its sandbox. It can run without one, because it loads only the page that is checked.
            flags.append("--no-sandbox")
        with open(os.path.join(self.profile.name, "log"), "wb") as log:
            self.process = subprocess.Popen([program(), *flags, "about:blank"], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.port = until("the browser's port", self.read_port, pause=0.05)

    def read_port(self):
        if self.process.poll() is not None:
            raise AssertionError(f"the browser ended: {tail(os.path.join(self.profile.name, 'log'))}")
        with open(os.path.join(self.profile.name, "DevToolsActivePort")) as file:
            return int(file.readline())

    def __exit__(self, *_):
        if self.process:
            end(self.process)
        if self.profile:
            self.profile.cleanup()

    def tab(self, **options):
        target = json.loads(get(f"http://127.0.0.1:{self.port}/json/new?about:blank", method="PUT"))
        return Tab(target["webSocketDebuggerUrl"], **options)


class Tab:
    """One page. Records every request, and every problem that the browser reports."""

    def __init__(self, url, width=1280, height=900, dark=False, script=True):
        self.socket = websocket.create_connection(url, timeout=PATIENCE, suppress_origin=True)
        self.last = 0
        self.requests, self.complaints = [], []
        for domain in ("Page", "Runtime", "Network", "Log", "Audits"):
            self.call(f"{domain}.enable")
        self.resize(width, height)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        if not script:
            self.call("Emulation.setScriptExecutionDisabled", value=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def call(self, method, **params):
        self.last += 1
        self.socket.send(json.dumps({"id": self.last, "method": method, "params": params}))
        while True:
            message = json.loads(self.socket.recv())
            if message.get("id") == self.last:
                if "error" in message:
                    raise AssertionError(f"{method}: {message['error']}")
                return message["result"]
            self.note(message)

    def note(self, message):
        method, params = message.get("method"), message.get("params", {})
        if method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method == "Audits.issueAdded":
            self.complaints.append(json.dumps(params["issue"]))
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(params["exceptionDetails"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] == "error" and params["entry"]["source"] != "network":
            self.complaints.append(json.dumps(params["entry"]))
        elif method == "Runtime.consoleAPICalled" and params["type"] == "error":
            self.complaints.append(json.dumps(params["args"]))

    def open(self, url):
        self.call("Page.navigate", url=url)
        until("the page is loaded", lambda: self.url() == url and self.run("document.readyState") == "complete", pause=0.05)
        self.call("Page.bringToFront")

    def url(self):
        tree = self.call("Page.getFrameTree")
        return tree["frameTree"]["frame"]["url"]

    def run(self, expression):
        """The value of an expression. DevTools evaluates it even if the page's own scripts are disabled."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise AssertionError(f"{expression}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def text(self, selector):
        """The text of all elements that match the selector."""
        return self.run(f"[...document.querySelectorAll({json.dumps(selector)})].map((node) => node.innerText).join('\\n')")

    def until(self, what, expression):
        return until(what, lambda: self.run(expression), pause=0.05)

    def key(self, key, code, shift=False):
        for kind in ("keyDown", "keyUp"):
            modifiers = 8 if shift else 0
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, modifiers=modifiers)

    def mouse(self, kind, x, y, pressed):
        buttons = {"button": "left", "buttons": 1 if pressed else 0, "clickCount": 1}
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **buttons)

    def click(self, selector):
        x, y = self.middle(selector)
        self.mouse("mousePressed", x, y, True)
        self.mouse("mouseReleased", x, y, False)

    def middle(self, selector):
        return self.run(
            f"(() => {{ const node = document.querySelector({json.dumps(selector)}); node.scrollIntoView({{ block: 'center' }});"
            " const box = node.getBoundingClientRect(); return [box.x + box.width / 2, box.y + box.height / 2]; })()"
        )

    def resize(self, width, height=900):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
