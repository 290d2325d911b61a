#!/usr/bin/env python3
"""Checks the page in a headless Chromium, with the real exporter on simulated machines.

    check.py [--exporter PROGRAM] [--simulator LIBRARY] [--only NAME] [--seconds NUMBER]

It needs Chromium and the websocket-client package. Without them it prints SKIPPED and succeeds, unless
VRAM_EXPORTER_TEST_REQUIRE_ALL is set.
"""
import json
import math
import os
import re
import socket
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import harness.exporter
from harness import simulator_of, skipped, until

try:
    from harness.browser import Browser, program
except ImportError:
    program = None

# The name of a process is the last part of its path, up to a space; its user may have any name. Both are in moving.toml.
HOSTILE = "<iframe>hacked\u202e"
HOSTILE_USER = "<img src=hacked onerror=window.hacked=1>"
HERE = Path(__file__).resolve().parent
MOVING, SUCCESSION, SLICES = (str(HERE / f"{name}.toml") for name in ("moving", "succession", "slices"))
ABSENT = '[[fault]]\nkind = "absent"\ngpu = 0\nmig = 2\n'
LOST = '[[fault]]\ncall = "*"\ngpu = 0\nkind = "error"\ncode = "GPU_IS_LOST"\n'
UNLOADED = '[[fault]]\ncall = "*"\nkind = "error"\ncode = "DRIVER_NOT_LOADED"\n'
OPENING = '[[fault]]\ncall = "nvmlInit_v2"\nkind = "slow"\ndelay = "10s"\n'
# From a phone to a wide screen.
WIDTHS = (380, 500, 768, 1280, 1920, 2560)


class Exporter(harness.exporter.Exporter):
    """The exporter on a simulated machine."""

    def __init__(self, options, scenario, control="", port=None):
        self.options, self.folder = options, tempfile.TemporaryDirectory(prefix="page-check-")
        machine = harness.exporter.Machine(self.folder.name, options.simulator, scenario, control)
        self.control = machine.control
        super().__init__(options.exporter, *machine.flags, port=port, environment=machine.environment, ready="/healthz")

    def __exit__(self, *_):
        super().__exit__()
        self.folder.cleanup()

    @property
    def page(self):
        return self.url + "/"

    def json(self, path):
        return json.loads(self.get(path))

    def status(self, path):
        return harness.request(self.url + path)[0]


def live(tab, url):
    """Opens the page and waits until its script has replaced the table."""
    tab.open(url)
    tab.until("the page is live", "!document.querySelector('#live')?.hidden && document.querySelector('.status')?.innerText === 'Live'")
    # The marker survives every update, but not a reload.
    tab.run("window.marker = 1")


def innocent(tab, url):
    """Checks that the tab requested nothing from any host except the exporter, and that the browser reported no problem."""
    elsewhere = [request for request in tab.requests if not request.startswith((url, "data:", "about:"))]
    assert not elsewhere, f"loaded from elsewhere: {elsewhere}"
    assert not tab.complaints, f"complaints: {tab.complaints}"


def updates_itself(exporter, browser):
    with browser.tab() as tab:
        live(tab, exporter.page)
        used = ".gpu .stats dd"
        exporter.control('[[process]]\npid = 5005\ngpu = 0\nuser = "bob"\ncommand = ["/usr/bin/late.py"]\nmemory = "50GiB"\n')
        tab.until("a process that starts is shown", "document.querySelector('table').ownerDocument.body.innerText.includes('late.py')")
        tab.until("the used memory rises", f"parseFloat(document.querySelector({used!r}).innerText) > 70")
        exporter.control("")
        tab.until("its end is shown", "[...document.querySelectorAll('tr.soft')].some((row) => /late.py[^]* ago/.test(row.innerText))")
        tab.until("its start and end are events", "/late.py 5005 of .* appeared/.test(document.querySelector('#live').innerText)"
                  " && /late.py 5005 of .* ended after/.test(document.querySelector('#live').innerText)")
        assert tab.run("window.marker") == 1, "the page was reloaded"
        assert tab.run("document.title").endswith(" – vram-exporter"), tab.run("document.title")
        # The page names the highest value, even if a reading every 15 s would have missed it.
        tab.until("the highest value is named",
                  "/Highest: [0-9.]+ GiB at .*held by .*reading every 15 s/.test(document.querySelector('.fact').innerText)")
        innocent(tab, exporter.page)


def reads_by_pointer_and_keyboard(exporter, browser):
    with browser.tab() as tab:
        live(tab, exporter.page)
        tab.until("something is recorded", "document.querySelector('.fact').innerText.includes('Highest')")
        x, y = tab.middle(".chart canvas")
        # The drag goes from the newest values to the left, where something has already been recorded.
        right = x + tab.run("document.querySelector('.chart canvas').clientWidth") / 2 - 12
        tab.mouse("mouseMoved", right, y, False)
        tab.mouse("mousePressed", right, y, True)
        for step in range(1, 11):
            tab.mouse("mouseMoved", right - 8 * step, y, True)
        tab.mouse("mouseReleased", right - 80, y, False)
        said = "document.querySelector('.reading').innerText"
        tab.until("a drag selects a span", f"/ to .*: min .*, mean .*, max .*JSON/.test({said})")
        link = tab.run("document.querySelector('.reading a').getAttribute('href')")
        assert exporter.status(link) == 200, link

        tab.run("document.querySelector('.chart').focus()")
        tab.key("Escape", 27)
        tab.key("ArrowLeft", 37)
        tab.until("an arrow moves a cursor", f"/: min .*, max .*, last .*serve.py/.test({said})")
        for _ in range(5):
            tab.key("ArrowLeft", 37, shift=True)
        tab.until("shift and arrow select a span", f"/ to .*mean /.test({said})")
        assert tab.run("getComputedStyle(document.activeElement).outlineStyle") != "none", "the focus is not visible"
        tab.key("Escape", 27)
        tab.until("escape ends the selection", f"{said} === ''")
        # Every control can be reached with the Tab key alone, and has a name.
        tab.run("document.activeElement.blur()")
        reached = set()
        for _ in range(80):
            tab.key("Tab", 9)
            reached.add(tab.run("[document.activeElement.tagName, document.activeElement.className].join(' ').trim()"))
        wanted = {"A", "BUTTON", "SELECT", "INPUT", "SUMMARY", "DIV chart", "DIV scroll"}
        assert wanted <= reached, f"not reached by keyboard: {wanted - reached}"
        nodes = tab.call("Accessibility.getFullAXTree")["nodes"]
        roles = {"button", "link", "combobox", "searchbox", "group", "region"}
        nameless = [node for node in nodes if node.get("role", {}).get("value") in roles and not node.get("ignored")
                    and not node.get("name", {}).get("value") and node["role"]["value"] != "group"]
        assert not nameless, f"controls without a name: {nameless}"
        innocent(tab, exporter.page)


def hostile_names_are_text(exporter, browser):
    for scenario in (None, "hostile-names"):
        with Exporter(exporter.options, scenario or MOVING) as machine, browser.tab() as tab:
            live(tab, machine.page)
            name = 'quote"back\\slash{brace="x"}' if scenario else HOSTILE[:-1]
            names = [name] if scenario else [name, HOSTILE_USER]
            for name in names:
                tab.until("the name is shown as text", f"document.querySelector('#live').innerText.includes({json.dumps(name)})")
            assert tab.run("window.hacked") is None
            assert tab.run("document.querySelectorAll('body script, body img, iframe, object').length") == 0
            assert "\u202e" not in tab.run("document.body.textContent"), "a name changes the direction of the text"
            innocent(tab, machine.page)


def policy_is_enforced(exporter, browser):
    """Checks that even if hostile markup got into the page, it could neither run nor load anything."""
    with browser.tab() as tab:
        live(tab, exporter.page)
        before = len(tab.complaints)
        inline = ("const node = document.createElement('script'); try { node.textContent = 'window.hacked = 1';"
                  " document.body.append(node); } catch { } window.hacked")
        assert tab.run(inline) is None, "an inline script ran"
        tab.run("document.body.append(Object.assign(new Image(), { src: 'http://198.51.100.1/x.png' }))")
        until("the browser reports it", lambda: tab.run("1") and len(tab.complaints) > before)


def follows_the_driver(exporter, browser):
    with Exporter(exporter.options, MOVING, OPENING) as machine, browser.tab() as tab:
        live(tab, machine.page)
        note = "document.querySelector('#live .note').innerText"
        tab.until("it reports that the driver is being opened", f"{note} === 'Starting: the driver is being opened.'")
        machine.control("")
        tab.until("the GPUs appear", "document.querySelectorAll('.gpu').length === 2")
        machine.control(UNLOADED)
        tab.until("it reports that the driver is gone", f"{note}.startsWith('No GPU can be read')")
        tab.until("the cards say so", "[...document.querySelectorAll('.state')].every((state) => state.innerText === 'gone')")
        machine.control("")
        tab.until("the driver is back", "[...document.querySelectorAll('.state')].every((state) => state.innerText === 'up')")
        tab.until("the events tell", "/driver was closed/.test(document.querySelector('#live').innerText)")
        harness.end(machine.process)
        tab.until("it reports that there is no answer",
                  "/^No answer since [0-9:]+: trying again every/.test(document.querySelector('.status').innerText)")
        machine.start()
        tab.until("it is live again", "document.querySelector('.status').innerText === 'Live'")
        assert tab.run("window.marker") == 1, "the page was reloaded"
        innocent(tab, machine.page)


def pauses(exporter, browser):
    with browser.tab() as tab:
        live(tab, exporter.page)
        button = "document.querySelector('.controls button')"
        tab.run(f"{button}.click()")
        tab.until("it says so", "document.querySelector('.status').innerText.startsWith('Paused')")
        tab.run(f"{button}.click()")
        before = len(tab.requests)
        until("it goes on", lambda: tab.run("document.querySelector('.status').innerText") == "Live" and len(tab.requests) > before)


def sorts_and_filters(exporter, browser):
    with Exporter(exporter.options, "eight-h200") as machine, browser.tab() as tab:
        live(tab, machine.page)
        rows = "document.querySelectorAll('.list tbody tr')"
        tab.until("the first rows", f"{rows}.length === 50 && document.querySelector('.list > button').innerText === '+462 more'")
        tab.click(".list > button")
        tab.until("all rows", f"{rows}.length === 512")
        tab.run("document.querySelectorAll('.list th button')[2].click()")
        pids = f"[...{rows}].map((row) => Number(row.children[2].innerText))"
        tab.until("sorted by pid", f"(() => {{ const pids = {pids}; return pids.every((pid, at) => at === 0 || pid <= pids[at - 1]); }})()")
        assert tab.run("document.querySelectorAll('.list th')[2].getAttribute('aria-sort')") == "descending"
        pid = tab.run(f"{pids}[7]")
        tab.run("document.querySelector('input').focus()")
        tab.call("Input.insertText", text=str(pid))
        tab.until("only one is left", f"{rows}.length === 1 && {pids}[0] === {pid}")
        innocent(tab, machine.page)


def fits_every_width(exporter, browser):
    for scenario in ("hostile-names", "mig-h100", "mixed"):
        with Exporter(exporter.options, scenario) as machine, browser.tab() as tab:
            live(tab, machine.page)
            for width in WIDTHS:
                tab.resize(width)
                tab.until(f"{scenario} fits {width} px", "document.documentElement.scrollWidth <= window.innerWidth"
                          " && [...document.querySelectorAll('.gpu')].every((card) => card.scrollWidth <= card.clientWidth)"
                          " && [...document.querySelectorAll('.band')].every(({ clientWidth }) => clientWidth > 150"
                          " && clientWidth <= window.innerWidth)")
            innocent(tab, machine.page)


def has_one_address(exporter, browser):
    """What is shown can be passed on: span, filter, GPU, moment and incident are in the address, and the address shows them again."""
    search = "new URLSearchParams(location.search)"
    with Exporter(exporter.options, "demo") as machine, browser.tab() as tab:
        live(tab, machine.page)
        tab.run("(() => { const span = document.querySelector('select[name=span]'); span.value = '1'; span.dispatchEvent(new Event('change')); })()")
        tab.run("document.querySelector('input').focus()")
        tab.call("Input.insertText", text="serve & <b>")
        tab.until("span and filter are in the address", f"{search}.get('span') === '900' && {search}.get('filter') === 'serve & <b>'")
        tab.run("document.querySelectorAll('.card.gpu details').forEach((box) => { box.open = true; })")
        tab.until("a peak is a link", "Boolean(document.querySelector('.card.gpu tbody a'))")
        tab.run("document.querySelector('.card.gpu tbody a').click()")
        tab.until("the moment is in the address", f"{search}.get('at') > 1.7e9 && {search}.get('gpu')?.startsWith('GPU-')")
        tab.until("the charts are fixed", "/^At /.test(document.querySelector('.status').innerText)")
        opened = "(() => { const box = document.querySelector('[aria-labelledby=incidents] details'); if (box) box.open = true; return Boolean(box); })()"
        until("an incident", lambda: tab.run(opened), limit=120)
        tab.until("it is in the address", f"{search}.get('incident')")
        address, at = tab.run("location.search"), tab.run(f"Number({search}.get('at'))")
        # The link at the cursor can be clicked, also while the page is paused.
        tab.run("[...document.querySelectorAll('.controls button')].find((button) => button.innerText === 'Pause').click()")
        tab.run("document.querySelector('.chart').focus()")
        # To the right: the peak can have been just after the exporter's start, before which nothing is known.
        tab.key("ArrowRight", 39)
        tab.key("ArrowRight", 39)
        tab.until("the cursor has a link", "Boolean(document.querySelector('.reading a'))")
        linked = tab.run("Number(new URL(document.querySelector('.reading a').href).searchParams.get('at'))")
        tab.click(".reading a")
        tab.until("the link leads to its moment", f"Math.abs(Number({search}.get('at')) - {linked}) < 0.02")
        tab.until("it is shown", "/: min .*last/.test(document.querySelector('.reading').innerText)")
        with browser.tab() as other:
            other.open(machine.page + address)
            other.until("the same moment", "/^At /.test(document.querySelector('.status')?.innerText ?? '')")
            other.until("the cursor is at it", "[...document.querySelectorAll('.reading')].some((said) => /: min .*last/.test(said.innerText))")
            other.until("the same span and filter", "document.querySelector('select[name=span]').value === '1' && document.querySelector('input').value === 'serve & <b>'")
            other.until("the same incident is open", "Boolean(document.querySelector('[aria-labelledby=incidents] details[open] table'))")
            link = other.run("[...document.querySelectorAll('.reading a')].map((link) => new URL(link.href).searchParams.get('at'))[0]")
            assert abs(float(link) - at) < 0.02, (link, at)
            other.run("[...document.querySelectorAll('.controls button')].find((button) => button.innerText === 'Follow the time').click()")
            other.until("the charts follow the time", f"document.querySelector('.status').innerText === 'Live' && {search}.get('at') === null")
            innocent(other, machine.page)
        with browser.tab() as other:
            other.open(machine.page + "?incident=%3Cimg%20src%3Dx%3E&at=NaN&span=7&gpu=none")
            other.until("what is not kept is said", "/The incident <img src=x> is not kept/.test(document.querySelector('#live').innerText)")
            other.until("nonsense is ignored", "document.querySelector('.status').innerText === 'Live' && document.querySelector('select[name=span]').value === '0'")
            innocent(other, machine.page)
        innocent(tab, machine.page)


def shown(amount):
    """An amount of memory as the page writes it."""
    mib = amount / (1 << 20)
    return f"{mib / 1024:.1f} GiB" if mib >= 1024 else f"{mib:.0f} MiB"


def held_at(series, moment):
    """The last value of the part of a recorded series in which the moment is; None if it is not known."""
    return next((last for begin, _, _, last in reversed(series["memory"]["points"]) if begin <= moment), None)


def history_at(exporter, moment):
    """What is recorded for a moment: the memory of each GPU and MIG device by UUID, and each process as the page's table shows it."""
    # The parts begin where those of the page begin.
    begin = math.floor((moment - 150) * 4) / 4
    answer = exporter.json(f"/api/v1/history?of=all&from={begin:.3f}&to={moment + 150:.3f}&step=0.25")
    gpus, processes = {}, set()
    for series in answer["series"]:
        held = held_at(series, moment)
        if "process" in series and held is not None:
            who = series["process"]
            processes.add((str(series["gpu"]), who["name"], str(who["pid"]), who.get("user"), who.get("workload"), shown(held)))
        elif "process" not in series and "workload" not in series:
            gpus[series.get("mig_uuid", series["uuid"])] = held
    return gpus, processes


# The first six columns of the table of processes, and of each card the figures, the badge and the owners.
TABLE = "[...document.querySelectorAll('[aria-labelledby=processes] tbody tr')].map((row) => [...row.children].map((cell) => cell.innerText))"
FIGURES = "[...document.querySelectorAll('.gpu')].map((card) => [...card.querySelectorAll('.stats > div')].map((figure) => [...figure.children].map((part) => part.innerText)))"
BADGES = "[...document.querySelectorAll('.gpu .state')].map((badge) => badge.innerText)"
HEADING = "document.querySelector('#processes').innerText"


def shows_a_moment(exporter, browser):
    """At a chosen moment, every part shows what is recorded for it: after the processes have changed, and after the GPU is lost."""
    with Exporter(exporter.options, SUCCESSION) as machine, browser.tab() as tab:
        def change():
            """When the first process ended, once the second one has replaced it in the history."""
            events = {(event["kind"], event.get("pid")): event["at"] for event in machine.json("/api/v1/events")["events"]}
            return ("process_started", 5252) in events and events.get(("process_ended", 5151))

        def holds_much(pid):
            return any(process["pid"] == pid and process.get("used_bytes", 0) > 40 << 30
                       for process in machine.json("/api/v1/processes")["processes"])

        moment = until("the first process ends", change) - 4
        until("the others hold more than they did", lambda: holds_much(5252) and holds_much(5353))
        used, processes = history_at(machine, moment)
        # What the page must show differs from what there is now.
        assert {(name, held) for _, name, _, _, _, held in processes} == {("first.py", "20.5 GiB"), ("grows.py", "7.5 GiB")}, processes
        total = {gpu["uuid"]: gpu["total_bytes"] for gpu in machine.json("/api/v1/gpus")["gpus"]}
        address = f"{machine.page}?gpu={next(iter(used))}&at={moment:.6f}"

        def opened(when, badges):
            """Opens the moment, and returns the rows of the table and the figures of the cards."""
            tab.open(address)
            tab.until(f"the moment, {when}", f"/^At [-0-9: ]+$/.test(document.querySelector('.status')?.innerText ?? '')"
                      f" && /^Processes at [-0-9: ]+$/.test({HEADING}) && {TABLE}.length > 0")
            rows = tab.run(TABLE)
            assert {tuple(row[:6]) for row in rows} == processes, f"{when}: {rows}"
            for row in rows:
                assert row[7] == row[10] == "" and "ago" not in row[11], f"{when}: a value of now: {row}"
            assert tab.run(BADGES) == badges, f"{when}: {tab.run(BADGES)}"
            owners = tab.text(".gpu .owners")
            assert re.search(r"slurm:77 20\.5 GiB", owners) and "slurm:78 not at that moment" in owners, f"{when}: {owners}"
            return {row[1]: row for row in rows}, tab.run(FIGURES)

        rows, figures = opened("while all work", ["", ""])
        assert figures == [[["used", f"{shown(bytes)} of {shown(total[uuid])}"]] for uuid, bytes in used.items()], figures
        # Facts that name their own time stay.
        assert rows["first.py"][6] == "20.5 GiB" and re.search(r"\d\d:\d\d:\d\d", rows["first.py"][11]), rows
        tab.run("[...document.querySelectorAll('.controls button')].find((button) => button.innerText === 'Follow the time').click()")
        tab.until("the present is shown", f"{HEADING} === 'Processes' && {TABLE}.some((row) => row[1] === 'second.py')"
                  f" && {BADGES}.every((badge) => badge === 'up')")
        innocent(tab, machine.page)

        machine.control(LOST)
        tab.until("the GPU is lost", f"{BADGES}[0] === 'not readable'")
        _, figures = opened("after the loss", ["not readable now", ""])
        lost, _ = used
        assert figures[0][0][1].startswith(shown(used[lost])), figures
        innocent(tab, machine.page)

        tab.open(f"{machine.page}?at={moment - 5000:.0f}")
        tab.until("nothing is recorded before the exporter's start", "/^At /.test(document.querySelector('.status')?.innerText ?? '')"
                  " && /Nothing is recorded for this time/.test(document.querySelector('[aria-labelledby=processes]').innerText)"
                  f" && {TABLE}.length === 0 && {FIGURES}.every((figures) => figures.join() === 'used,not recorded')")
        innocent(tab, machine.page)


# How many pixels of a canvas are close to a colour of the style sheet.
PIXELS = """((canvas, name) => {
  const [red, green, blue] = getComputedStyle(document.documentElement).getPropertyValue(name).match(/[0-9a-f]{2}/g).map((part) => parseInt(part, 16));
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width || 1, canvas.height || 1);
  let count = 0;
  for (let at = 0; at < data.length; at += 4) {
    const far = Math.abs(data[at] - red) + Math.abs(data[at + 1] - green) + Math.abs(data[at + 2] - blue);
    if (data[at + 3] > 100 && far < 40) count += 1;
  }
  return count;
})"""


def shows_mig_devices(exporter, browser):
    """Each MIG device has a chart with its limit and its peaks, and is named by all that a label can name; also after it is gone."""
    with Exporter(exporter.options, SLICES) as machine, browser.tab() as tab:
        live(tab, machine.page)
        until("both devices are listed", lambda: len(machine.json("/api/v1/gpus")["gpus"][0]["mig_devices"]) == 2)
        lines = [line for line in machine.get("/metrics").splitlines() if line.startswith("gpu_mig_memory_total_bytes{")]
        # The names come from the labels that an alert has.
        labels = {label["mig_uuid"]: label for label in (dict(re.findall(r'(\w+)="([^"]*)"', line)) for line in lines)}
        index = {device["uuid"]: device["index"] for device in machine.json("/api/v1/gpus")["gpus"][0]["mig_devices"]}
        names = [f"MIG {index[uuid]}: GPU instance {label['gpu_instance']}, {label['profile']}, {uuid}"
                 for uuid, label in sorted(labels.items(), key=lambda item: index[item[0]])]
        assert len(names) == 2 and all(label["gpu_instance"] != str(index[uuid]) for uuid, label in labels.items()), names
        titles = "[...document.querySelectorAll('.mig h3')].map((title) => title.innerText)"
        until("the devices are named", lambda: tab.run(titles) == names)

        def recorded():
            """The limit of each device, once both are recorded: the recorder begins after a device is listed."""
            series = machine.json("/api/v1/history?of=gpus")["series"]
            found = {one["mig_uuid"]: one.get("allocatable_bytes") for one in series if "mig_uuid" in one}
            return found if found.keys() == index.keys() and all(found.values()) else None

        limits = until("both devices are recorded", recorded)
        figure = "((mig, name) => [...mig.querySelectorAll('.stats > div')].find((figure) => figure.firstChild.innerText === name)?.lastChild.innerText)"
        steady, spiky = sorted(index, key=index.get)
        wanted = [shown(limits[steady]), shown(limits[spiky])]
        assert wanted[0] != wanted[1], limits
        shown_limits = f"[...document.querySelectorAll('.mig')].map((mig) => {figure}(mig, 'limit'))"
        until(f"the limits {wanted} are shown", lambda: tab.run(shown_limits) == wanted)
        for position, (least_dots, most_dots) in enumerate(((0, 0), (20, 100000))):
            canvas = f"document.querySelectorAll('.mig canvas')[{position}]"
            tab.run(f"{canvas}.scrollIntoView({{ block: 'center' }})")
            for name, least, most in (("--bad", 100, 100000), ("--fill", 20, 100000), ("--ink", least_dots, most_dots)):
                tab.until(f"{names[position]} has a line or dots of {name}", f"(() => {{ const count = {PIXELS}({canvas}, '{name}'); return count >= {least} && count <= {most}; }})()")
        tab.until("the highest value is named", "/Highest: 8\\.[0-9] GiB at .*, held by .*spiky.py/.test(document.querySelectorAll('.mig .fact:not([hidden])')[1].innerText)")
        tab.until("the table names the devices alike", f"{TABLE}.map((row) => row[0]).sort().join() === '0, MIG 0,0, MIG 2'")
        events = "document.querySelector('[aria-labelledby=events]').innerText"
        named = f"GPU 0 MIG {index[spiky]} (GPU instance {labels[spiky]['gpu_instance']}) "
        tab.until("events name the device", f"{events}.includes({json.dumps(named)})")
        # The charts of a card share their cursor, and the one that is used says what is there.
        tab.run("document.querySelectorAll('.mig .chart')[1].focus()")
        tab.key("ArrowLeft", 37)
        tab.until("the chart can be read by keyboard", "/: min .*last .*spiky.py/.test(document.querySelectorAll('.mig .reading')[1].innerText)")
        assert "steady.py" not in tab.run("document.querySelectorAll('.mig .reading')[1].innerText"), "the neighbour's memory is named"
        assert tab.run("document.querySelector('.gpu .reading').innerText") == "", "two charts speak"
        innocent(tab, machine.page)

        def early():
            """A moment at which both devices have been recorded for a while."""
            at, since = machine.json("/api/v1/gpus")["at"], machine.json("/api/v1/history?of=gpus")["recorded_since"]
            return at - since > 10 and at - 4

        moment = until("something is recorded", early)
        marked = "document.querySelector('.mig[aria-current=true]')"

        def opened(when):
            tab.open(f"{machine.page}?gpu={spiky}&at={moment:.6f}")
            tab.until(f"the device is marked, {when}", f"{marked}?.querySelector('h3').innerText === {json.dumps(names[1])}")
            tab.until("it is in sight", f"(() => {{ const {{ top, bottom }} = {marked}.getBoundingClientRect(); return top < innerHeight && bottom > 0; }})()")
            tab.until(f"its chart says what is at the moment, {when}", f"/: min .*last/.test({marked}.querySelector('.reading').innerText)")
            used, processes = history_at(machine, moment)
            tab.until(f"it holds {shown(used[spiky])}, as in the history, {when}",
                      f"{figure}({marked}, 'used')?.startsWith({json.dumps(shown(used[spiky]))})")
            until(f"the table shows {processes}, as the history does, {when}",
                  lambda: {tuple(row[1:6]) for row in tab.run(TABLE)} == {row[1:] for row in processes})
            innocent(tab, machine.page)

        opened("while it is there")
        assert tab.run(f"{figure}({marked}, 'now')") is None
        machine.control(ABSENT)
        until("the device is gone", lambda: len(machine.json("/api/v1/gpus")["gpus"][0]["mig_devices"]) == 1, limit=180)
        opened("after it is gone")
        tab.until("events still name it", f"{events}.includes({json.dumps(named)})")
        tab.until("it is marked as gone", f"{figure}({marked}, 'now') === 'gone'")


AMOUNT = re.compile(r"([0-9.]+) (B|KiB|MiB|GiB)\b")
UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def amounts(text):
    """The amounts in a text in bytes, each with the error of its rounding."""
    for number, unit in AMOUNT.findall(text):
        digits = len(number.partition(".")[2])
        yield float(number) * UNITS[unit], UNITS[unit] * 0.5 / 10**digits


def adds_up(peak, said):
    """Whether the holders in a row add up to the peak, or the row says that they do not; `None` if the row has no sentence of these."""
    (used, error), *_ = amounts(peak)
    if said.startswith("holders unknown: "):
        return True
    if said.startswith("processes listed "):
        # The figures that differ come first: what was listed, and the peak.
        (held, _), (of, more), *_ = amounts(said)
        if re.search(r" (more|less) than this peak: ", said):
            sign = -1 if " more than this peak: " in said else 1
            return abs(held + sign * of - used) <= 3 * (error + more) + 0.1 * (1 << 30)
        return held < of and abs(of - used) <= error + more
    if not said.startswith("held by "):
        return None
    held = list(amounts(said))
    return abs(sum(amount for amount, _ in held) - used) <= (64 << 20) + error + sum(error for _, error in held)


def holders_add_up(exporter, browser):
    """Reads the list of peaks of every GPU, in spans of 5 min, 15 min and 2 h, while the machine works."""
    for scenario in ("demo", "eight-h200"):
        with Exporter(exporter.options, scenario) as machine, browser.tab() as tab:
            live(tab, machine.page)
            # As in the page, the rows are written when the list is open.
            tab.run("setInterval(() => document.querySelectorAll('.card.gpu details').forEach((box) => { box.open = true; }), 200)")
            rows, end = {}, time.monotonic() + exporter.options.seconds
            while time.monotonic() < end:
                for span in ("0", "1", "4"):
                    choose = f"const span = document.querySelector('select[name=span]'); span.value = '{span}'; span.dispatchEvent(new Event('change'))"
                    tab.run(f"(() => {{ {choose}; }})()")
                    tab.until("it is live", "document.querySelector('.status').innerText === 'Live'")
                    time.sleep(5)
                    read = "[...document.querySelectorAll('.card.gpu details tbody tr')].map((row) => [...row.children].map((cell) => cell.innerText))"
                    facts = "[...document.querySelectorAll('.fact')].map((fact) => fact.innerText)"
                    found = [tuple(row) for row in tab.run(read)]
                    highest = [re.match(r"Highest: (\S+ \S+) at \S+, (.*)\. (?:A reading|None of)", fact) for fact in tab.run(facts)]
                    found += [("highest", *match.groups()) for match in highest if match]
                    rows |= {row: adds_up(row[1], row[2]) for row in found}
            wrong = [row for row, right in rows.items() if not right]
            kinds = {kind: sum(row[2].startswith(kind) for row in rows) for kind in ("held by ", "processes listed ", "holders unknown: ")}
            print(f"    {scenario}: {len(rows)} rows in {exporter.options.seconds} s, {len(wrong)} that do not add up without saying so; {kinds}")
            assert len(rows) >= 10 and kinds["held by "] > 0, f"too few rows: {rows}"
            assert not wrong, f"{len(wrong)} of {len(rows)} rows: {wrong[:5]}"
            innocent(tab, machine.page)


def has_both_schemes(exporter, browser):
    colours = []
    for dark in (False, True):
        with browser.tab(dark=dark) as tab:
            live(tab, exporter.page)
            colours.append(tab.run("getComputedStyle(document.body).backgroundColor"))
    assert colours[0] != colours[1], colours


def works_without_script(exporter, browser):
    with browser.tab(script=False, width=380) as tab:
        tab.open(exporter.page)
        text = until("the table names the process", lambda: "serve.py" in tab.text("#table table") and tab.text("#table table"))
        assert "GPU" in text and HOSTILE[:-1] in text, text
        assert tab.run("document.querySelector('#live')") is None
        assert tab.run("document.documentElement.scrollWidth <= window.innerWidth"), "wider than the window"
        until("the page reloads itself", lambda: tab.run("1") and tab.requests.count(exporter.page) >= 2)
        innocent(tab, exporter.page)


def tells_the_demo(exporter, browser):
    with Exporter(exporter.options, "demo") as machine, browser.tab() as tab:
        live(tab, machine.page)
        tab.call("Emulation.setFocusEmulationEnabled", enabled=True)
        origin = machine.page.rstrip("/")
        tab.call("Browser.grantPermissions", origin=origin, permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])
        began = time.monotonic()
        opened = ("(() => { const node = [...document.querySelectorAll('[aria-labelledby=incidents] details')]"
                  ".find((details) => details.innerText.includes('ended at the memory limit')); if (node) node.open = true; return Boolean(node); })()")
        until("a job ends at its peak", lambda: tab.run(opened), limit=120)
        print(f"    the incident was on the page {time.monotonic() - began:.0f} s after it was opened")
        box = "document.querySelector('[aria-labelledby=incidents] details[open]')"
        tab.until("it opens on what was held", f"/import.py/.test({box}.querySelector('table')?.innerText)")
        for format in ("json", "text", "trace"):
            href = tab.run(f"{box}.querySelector('a[href$=\"format={format}\"]').getAttribute('href')")
            assert exporter.status("/") == 200 and machine.status(href) == 200, href
        tab.run(f"[...{box}.querySelectorAll('button')].find((button) => button.innerText === 'Copy as text').click()")
        tab.until("the text is copied", f"[...{box}.querySelectorAll('button')].some((button) => button.innerText === 'Copied')")
        assert "import.py" in tab.run("navigator.clipboard.readText()")
        tab.until("memory that no process owns", "/not attributed\\s+5.0 GiB/.test(document.querySelector('.cards').innerText)")
        innocent(tab, machine.page)


class Client:
    """A process on the simulated GPU, this one, that reports about its allocator."""

    def __init__(self, path, uuid):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(path)
        self.of = {"framework": "pytorch", "device": uuid}
        self.socket.sendall(b'{"type":"hello","version":1}\n')

    def send(self, kind, **keys):
        self.socket.sendall(json.dumps({"type": kind, **self.of, **keys}).encode() + b"\n")


def explains_a_failure(exporter, browser):
    """A failed allocation of a client in this process: the same facts on the page, in the text and in the JSON."""
    gib = 1 << 30
    site = lambda name, role, held: {"site": name, "role": role, "bytes": held * gib}  # noqa: E731
    with tempfile.TemporaryDirectory(prefix="page-check-") as folder:
        process = f'[[gpu]]\nmodel = "H200"\n[[process]]\npid = {os.getpid()}\ncommand = ["train.py"]\nmemory = "50GiB"\n'
        machine, path = harness.exporter.Machine(folder, exporter.options.simulator, process), f"{folder}/allocator.sock"
        flags = [flag for flag in machine.flags if not flag.startswith("--path.procfs")]
        flags += ["--path.procfs=/proc", f"--allocator.socket={path}", "--allocator.sites=true"]
        started = harness.exporter.Exporter(exporter.options.exporter, *flags, environment=machine.environment, ready="/healthz")
        with started as own, browser.tab() as tab:
            answer = lambda name: json.loads(own.get(f"/api/v1/{name}"))  # noqa: E731
            until("the process is listed", lambda: answer("processes")["processes"])
            client = Client(path, answer("gpus")["gpus"][0]["uuid"])
            client.send("report", allocated_bytes=44 * gib, reserved_bytes=47 * gib)
            client.send("sites", roles={"parameters": 13 * gib, "activations": 30 * gib, "gradients": gib}, other_bytes=3 * gib,
                        sites=[site("train.py:12 step", "activations", 30), site("<b>load.py:3</b> \u202e", "parameters", 10),
                               site("train.py:12 step", "gradients", 1)])
            client.send("growth", seconds=12, sites=[site("train.py:12 step", "activations", 5)])
            client.send("modules", modules=[{"module": "blocks.3.mlp", "bytes": 3 * gib}], other_bytes=gib)
            client.send("out_of_memory", requested_bytes=2 * gib, allocated_bytes=44 * gib, reserved_bytes=47 * gib,
                        largest_free_block_bytes=gib, site="train.py:12 step", frames=["functional.py:7 linear", "train.py:12 step"])
            listed = until("the incident", lambda: answer("incidents")["incidents"])[0]
            incident = answer(f"incidents/{listed['id']}")
            live(tab, f"{own.url}/?incident={listed['id']}")
            box = "document.querySelector('.incident')"
            tab.until("the facts are shown", f"{box}?.querySelectorAll('.facts li').length === 5")
            shown = tab.run(f"[...{box}.querySelectorAll('.facts li')].map((fact) => fact.innerText)")
            text = own.get(f"/api/v1/incidents/{listed['id']}?format=text")
            assert shown == incident["facts"] and all(f"\n{fact}\n" in text for fact in shown), (shown, incident["facts"], text)
            read = "[...table.tBodies[0].rows].map((row) => [...row.cells].map((cell) => cell.innerText))"
            rows = tab.run(f"[...{box}.querySelectorAll('table')].map((table) => {read})")
            wanted = [
                [["31.0 GiB", "activations 30.0 GiB, gradients 1.0 GiB", "train.py:12 step"], ["10.0 GiB", "parameters", "<b>load.py:3</b>"],
                 ["3.0 GiB", "", "other call sites"]],
                [["+5.0 GiB", "activations", "train.py:12 step"]],
                [["3.0 GiB", "blocks.3.mlp"], ["1.0 GiB", "other modules"]],
            ]
            seen = [[[re.sub(r"[^ -~]", "", cell).strip() for cell in row] for row in table] for table in rows[:3]]
            assert seen == wanted, seen
            # The bars have the scale of the largest call site, and a role has the colour of its name in the legend.
            painted = "(node) => getComputedStyle(node).backgroundColor"
            share = "piece.getBoundingClientRect().width / piece.parentNode.getBoundingClientRect().width"
            pieces = tab.run(f"[...{box}.querySelectorAll('.stacked span')].map((piece) => [{share}, ({painted})(piece)])")
            assert [round(width * 31) for width, _ in pieces] == [30, 1, 10, 3], pieces
            legend = dict(tab.run(f"[...{box}.querySelectorAll('.legend li')].map((item) => [item.innerText, ({painted})(item.firstChild)])"))
            names = ("activations 30.0 GiB", "gradients 1.0 GiB", "parameters 13.0 GiB")
            assert [legend.get(name) for name in names] == [colour for _, colour in pieces[:3]], (legend, pieces)
            assert len({colour for _, colour in pieces}) == 4, pieces
            tab.run(f"{box}.querySelector('details').open = true")
            stack = f"[...{box}.querySelectorAll('ol li')].map((frame) => frame.innerText)"
            assert tab.run(stack) == ["functional.py:7 linear", "train.py:12 step"]
            until("it is complete", lambda: answer(f"incidents/{listed['id']}")["complete"], limit=30)
            complete = f"{box}.parentNode.loaded && {box}.querySelector('details').open"
            until("the page has it complete, and the stack stays open", lambda: tab.run(complete), limit=30)
            assert tab.run("document.querySelectorAll('.incident b').length") == 0, "a name became markup"
            assert tab.run("document.documentElement.scrollWidth <= window.innerWidth"), "wider than the window"
            innocent(tab, own.url + "/")


CHECKS = (
    updates_itself, reads_by_pointer_and_keyboard, hostile_names_are_text, policy_is_enforced, follows_the_driver, pauses,
    sorts_and_filters, fits_every_width, has_both_schemes, works_without_script, tells_the_demo, explains_a_failure, has_one_address, shows_a_moment,
    shows_mig_devices, holders_add_up,
)


def main():
    parser = harness.arguments(__doc__, simulator=True)
    parser.add_argument("--seconds", type=float, default=30, help="how long the list of peaks of each machine is read")
    parser.add_argument("--only", help="run only the checks whose names contain this")
    options = parser.parse_args()
    options.simulator = simulator_of(options)
    if not options.simulator.exists():
        parser.error(f"--simulator: {options.simulator} does not exist")
    lacking = "websocket-client" if program is None else "" if program() else "chromium"
    if lacking:
        return skipped(f"{lacking} is not installed")
    failed = 0
    with Browser() as browser, Exporter(options, MOVING) as exporter:
        for check in CHECKS:
            if options.only and options.only not in check.__name__:
                continue
            begin = time.monotonic()
            try:
                check(exporter, browser)
                verdict = "ok"
            except AssertionError as error:
                verdict, failed = f"FAILED: {error}", failed + 1
            print(f"{check.__name__} ({time.monotonic() - begin:.0f} s): {verdict}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
