"""Takes pictures of every dashboard in a Grafana that shows the data of made_fleet.py, and lists what is cut off.

    python3 lab/dashboards/look.py GRAFANA END FOLDER [--case=CASE …] [--page=PAGE …] [--width=PIXELS …] [--theme=THEME …]

GRAFANA is the address of a Grafana with these dashboards, its data source is the Prometheus of made_fleet.py, and END the time in milliseconds
that made_fleet.py prints. The pictures are for a person to look at, and are not compared with anything. FOLDER/found.txt gets a line
for each text that is longer than its place, each list that is longer than its panel, and each panel that shows an error.

It needs Chromium and the websocket-client package.
"""

import argparse
import base64
import signal
import sys
import time
import urllib.parse
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests/judges"))
sys.path.append(str(Path(__file__).resolve().parents[2] / "tests/judges/dashboards"))

import dashboards
from harness import until
from harness.browser import Browser, Tab

HOUR, DAY = 3_600_000, 86_400_000
PAGES = ("fleet", "gpu", "workloads", "exporter")
# Variables for each page, and the length of the time range. The GPU page shows one node, therefore `fleet` and `week` name it.
CASES = {
    "idle": ({"instance": "node-d"}, HOUR),
    "busy": ({"instance": "node-a"}, HOUR),
    "gpu": ({"instance": "node-a", "gpu": "GPU-node-a-2", "workload": "training/evaluate-28811/main"}, 2 * HOUR),
    "mig": ({"instance": "node-b"}, HOUR),
    "mig-device": ({"instance": "node-b", "gpu": "GPU-node-b-0", "mig": "MIG-node-b-0-3", "workload": "tenant-3/app-3/main"}, HOUR),
    "broken": ({"instance": "node-e"}, HOUR),
    "silent": ({"instance": "node-f"}, HOUR),
    "bare": ({"instance": "node-c"}, HOUR),
    "fleet": ({}, HOUR),
    "week": ({}, 7 * DAY),
}
# Content that is cut off or that scrolls, by the title of its panel. A cell shows its text in full when the mouse is over it.
FIND = """
(() => {
  const found = [];
  for (const panel of document.querySelectorAll('[data-testid^="data-testid Panel header "], [data-testid="panel-content"]')) {
    const section = panel.closest('section') || panel;
    const title = section.querySelector('h2')?.innerText || section.getAttribute('data-testid') || '?';
    if (section.querySelector('[data-testid="data-testid Panel status error"]')) found.push([title, 'error', '']);
    for (const node of section.querySelectorAll('*')) {
      const style = getComputedStyle(node);
      const text = [...node.childNodes].some((child) => child.nodeType === 3 && child.nodeValue.trim());
      const cell = ['gridcell', 'columnheader', 'cell'].includes(node.getAttribute('role'));
      if ((text || cell) && style.overflowX !== 'visible' && node.scrollWidth > node.clientWidth + 1)
        found.push([title, 'cut off', node.innerText.slice(0, 90)]);
      if (/auto|scroll/.test(style.overflowY) && node.scrollHeight > node.clientHeight + 4 && node.clientHeight > 20)
        found.push([title, 'scrolls down', `${node.scrollHeight} of ${node.clientHeight}`]);
      if (/auto|scroll/.test(style.overflowX) && node.scrollWidth > node.clientWidth + 4 && node.clientWidth > 20)
        found.push([title, 'scrolls sideways', `${node.scrollWidth} of ${node.clientWidth}`]);
    }
  }
  return [...new Set(found.map((line) => line.join(': ')))];
})()
"""
# The height of the dashboard; the page itself does not scroll, because the window is higher.
BOTTOM = """
Math.max(400, ...[...document.querySelectorAll('.react-grid-item, [data-testid^="dashboard-row-title"]')]
  .map((node) => node.getBoundingClientRect().bottom))
"""
READY = """document.querySelector('.react-grid-item') && !document.querySelector('[aria-label="Panel loading bar"]')"""
HIGH = 7000


class Page(Tab):
    """A tab that knows how many requests have no answer yet."""

    def __init__(self, *arguments, **options):
        self.open_requests = set()
        super().__init__(*arguments, **options)

    def note(self, message):
        method, request = message.get("method"), message.get("params", {}).get("requestId")
        if method == "Network.requestWillBeSent":
            self.open_requests.add(request)
        elif method in ("Network.loadingFinished", "Network.loadingFailed"):
            self.open_requests.discard(request)
        super().note(message)

    def settled(self):
        """Waits until nothing was requested or loading for a second."""
        quiet = time.monotonic()

        def still():
            nonlocal quiet
            ready = self.run(READY)
            if self.open_requests or not ready:
                quiet = time.monotonic()
            return time.monotonic() - quiet > 1

        until("a dashboard whose queries have answers", still, 120)

    def save(self, path):
        clip = {"x": 0, "y": 0, "width": self.run("innerWidth"), "height": self.run(BOTTOM) + 16, "scale": 1}
        picture = self.call("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=False)
        path.write_bytes(base64.b64decode(picture["data"]))


def opened(browser, width, height=HIGH):
    """A page of this width, with the menu docked."""
    page = browser.page(width, height)
    script = "localStorage.setItem('grafana.navigation.docked', 'true'); localStorage.setItem('grafana.navigation.open', 'true')"
    page.call("Page.addScriptToEvaluateOnNewDocument", source=script)
    return page


class Looking(Browser):
    def page(self, width, height):
        tab = self.tab(width=width, height=height)
        target = tab.call("Target.getTargetInfo")["targetInfo"]["targetId"]
        tab.socket.close()
        return Page(f"ws://127.0.0.1:{self.port}/devtools/page/{target}", width=width, height=height)


def address(grafana, page, case, end, theme):
    chosen, span = CASES[case]
    known = {variable["name"] for variable in dashboards.variables(dashboards.read()[f"{page}.json"])}
    fields = {f"var-{name}": value for name, value in chosen.items() if name in known}
    fields |= {"from": end - span, "to": end, "theme": theme}
    return f"{grafana}/d/vram-exporter-{page}/x?{urllib.parse.urlencode(fields)}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("grafana")
    parser.add_argument("end", type=int)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--case", action="append", choices=CASES)
    parser.add_argument("--page", action="append", choices=PAGES)
    parser.add_argument("--width", action="append", type=int)
    parser.add_argument("--theme", action="append", choices=("dark", "light"))
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    # Ends the browser too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    found = {}
    with Looking() as browser:
        for case in options.case or CASES:
            for name in options.page or PAGES:
                for theme in options.theme or ("dark", "light"):
                    widths = options.width or [1400, 1920]
                    page = opened(browser, widths[0])
                    page.call("Page.navigate", url=address(options.grafana, name, case, options.end, theme))
                    for width in widths:
                        page.resize(width, HIGH)
                        page.settled()
                        picture = f"{name}-{case}-{width}-{theme}"
                        page.save(options.folder / f"{picture}.png")
                        for line in page.run(FIND):
                            found.setdefault(f"{name}: {line}", []).append(f"{case}-{width}-{theme}")
                        print(picture, flush=True)
                    page.call("Page.close")
                    page.socket.close()
                    text = "".join(f"{line}\n    {' '.join(where)}\n" for line, where in sorted(found.items()))
                    (options.folder / "found.txt").write_text(text)


if __name__ == "__main__":
    main()
