"""One run of one subject: start, cost, spikes, scrapes. The figures are not judged here."""

import contextlib
import time
from concurrent.futures import ThreadPoolExecutor

import client
import exposition
import proc
import spikes
from scrapes import KINDS, scrape_times

# A subject that shows nothing after this time is broken.
READY_WITHIN = 90.0
POLL = 0.0002


class ShowsNothing(RuntimeError):
    """A subject does not show the expected series within its time limit."""


def first_data(running, gpus):
    """Milliseconds from the start of the program to the end of the first scrape that shows the memory of every GPU."""
    deadline = running.begun + READY_WITHIN
    reported = "nothing"
    while time.perf_counter() < deadline:
        running.alive()
        try:
            asked = time.perf_counter()
            answer = client.get(running.address)
            shown = exposition.shown(answer.text, running.subject.used)
            if shown >= gpus:
                return 1000 * (asked - running.begun) + answer.milliseconds
            reported = f"{shown} of {gpus} GPUs"
        except (OSError, client.BadAnswer) as error:
            reported = str(error)
        time.sleep(POLL)
    raise ShowsNothing(f"{running.subject.name} shows no memory of every GPU after {READY_WITHIN:.0f} s: {reported}")


def each_second(seconds, work):
    """Calls `work` once a second, and returns after the given number of seconds."""
    begun = time.monotonic()
    for second in range(round(seconds)):
        time.sleep(max(0.0, begun + second - time.monotonic()))
        work()
    time.sleep(max(0.0, begun + seconds - time.monotonic()))


def cpu_share(running, seconds, scrape):
    """Share of one core over `seconds`, with one scrape a second or with none."""
    clock = proc.Clock(running.pid)
    each_second(seconds, lambda: (scrape() if scrape else None, clock.look()))
    return clock.share(running.subject.children)


def memory(running, children):
    """Memory in KiB. The kernel keeps no maximum for a process together with its children, so the maximum here is the subject's own plus
    the highest sum measured for its children."""
    shown = proc.memory(running.pid)
    most = children.most if children else 0
    return shown | {"children": most, "highest": shown["highest"] + most}


def spikes_seen(running, machine, count, every):
    """Scrapes once a second. Returns, for each spike, the first series that showed it, or None."""
    calm, scrapes, over = exposition.gpu_memory(client.get(running.address).text), [], None
    with ThreadPoolExecutor(1) as orders:
        ordered = orders.submit(machine.spike, count, every)
        while over is None or time.monotonic() < over + spikes.TAIL:
            begun = time.monotonic()
            scrapes.append(exposition.gpu_memory(client.get(running.address).text))
            if over is None and ordered.done():
                # Raises an error, which ends the run, if the spikes were not made.
                ordered.result()
                over = time.monotonic()
            time.sleep(max(0.0, begun + 1.0 - time.monotonic()))
    if not calm:
        raise RuntimeError(f"{running.subject.name} shows no known figure of memory")
    return spikes.caught(calm, scrapes, spikes.heights(count))


def sizes(running):
    """Series, processes, and bytes of the body as sent, plain and, if the server supports it, with gzip."""
    plain, packed = client.get(running.address), client.get(running.address, compressed=True)
    reported = {"series": exposition.count(plain.text), "processes": exposition.pids(plain.text), "bytes": plain.sent}
    return reported | {"gzip bytes": packed.sent if packed.compressed else None}


def start_only(subject, machine, out):
    """Milliseconds to the first data; nothing else is measured."""
    with subject.start(machine, out) as running:
        return first_data(running, machine.gpus)


def run(subject, machine, plan, out, scraper, beside=None, unscraped=False):
    """One run. `scraper`: the C client. `beside`: a function that takes a string and returns a context manager that serves the
    string at an address; that server and the subject are scraped in turn. `unscraped`: whether to measure the subject's cost without
    scrapes too."""
    found = {"subject": subject.name, "at": time.time()}
    with subject.start(machine, out) as running:
        found["start_ms"] = first_data(running, machine.gpus)
        with proc.Children(running.pid) if subject.children else contextlib.nullcontext() as children:
            time.sleep(plan.settle)
            with client.Prometheus(running.address) as prometheus:
                found["cpu"] = cpu_share(running, plan.window, prometheus.scrape)
            if unscraped:
                found["cpu_unscraped"] = cpu_share(running, plan.window, None)
            found["memory_steady"] = memory(running, children)
            if plan.spikes:
                found["spikes"] = spikes_seen(running, machine, plan.spikes, plan.spike_every)
        if plan.scrape_seconds:
            found |= {"sizes": sizes(running)} | scrapes(running, plan, scraper, beside)
            found["memory_after_scrapes"] = proc.memory(running.pid)
        running.alive()
    return found


def scrapes(running, plan, scraper, beside):
    if not beside:
        return {"scrape": scrape_times(scraper, {"it": running.address}, KINDS, plan.scrape_seconds)["it"]}
    with beside(client.get(running.address).text) as server:
        taken = scrape_times(scraper, {"it": running.address, "static": server.address}, KINDS, plan.scrape_seconds)
        return {"scrape": taken["it"], "static": taken["static"]}
