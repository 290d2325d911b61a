"""Shows in seconds that the soak's checks can fail: a correct stand-in passes, and each stand-in that leaks, forgets,
refuses or sends malformed text fails exactly the check for that fault.

    self_test.py"""

import random
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests/judges"))

import exposition
import fake_exporter
import soak
import trend
import verdict
from harness import Server, finish, free_port

HERE = Path(__file__).resolve().parent
SECONDS, WARM_UP, EVERY = 10.0, 2.0, 0.2
# In MiB an hour: 0.14 MiB a second, a seventieth of the leak. In a few seconds no smaller slope can be detected.
GROWTH = 500.0
# Fault → the beginning of the name of the check that must fail.
REFUSED = {
    "honest": None,
    "memory": "anon: slope",
    "descriptors": "fds",
    "threads": "threads",
    "reset": "format and counters",
    "reset-after-absence": "format and counters",
    "twice": "format and counters",
    "malformed": "format and counters",
    "refuses": "scrapes",
    "late": "scrapes",
    "dies": "the exporter ran",
}


def refused(fault, folder):
    """The names of the checks that a stand-in with this fault does not pass."""
    out = Path(folder) / fault
    out.mkdir()
    port = free_port()
    with Server([sys.executable, HERE / "fake_exporter.py", port, fault], port) as fake:
        scrapers = [soak.Scraper("every 0.3 s", 0.3, ("--limit=1",)), soak.Scraper("every 1 s", 1.0, ("--new-connection", "--gzip"))]
        seen = soak.observe(fake.process, port, SECONDS, WARM_UP, EVERY, scrapers, out)
    return [check.name for check in verdict.judge(seen, verdict.Bounds(GROWTH, 1.0, short=True)) if not check.ok]


def judge(fault, folder):
    """The error in the judgement of this fault, if there is one."""
    names, expected = refused(fault, folder), REFUSED[fault]
    if expected is None:
        return [f"{fault}: refused by {names}"] if names else []
    return [] if any(name.startswith(expected) for name in names) else [f"{fault}: not refused by {expected!r}, only by {names}"]


def slopes():
    """The slope of known lines, with and without noise."""
    chance = random.Random(1)
    for per_hour, noise, expected in ((0.0, 0.2, "flat"), (30.0, 0.2, "grows"), (1.0, 8.0, "not shown")):
        samples = [(5.0 * n, 40 + per_hour * 5 * n / 3600 + chance.gauss(0, noise)) for n in range(600)]
        found = trend.slope(samples, 300)
        if found.verdict(2.0) != expected or not found.low <= per_hour <= found.high:
            yield f"a slope of {per_hour} MiB an hour is {found.verdict(2.0)}: {found}"


def felt_faults():
    """Faults that had no effect, and GPUs that did not come back."""
    calm = {"gpus": 8, "up": 8, "faults": 0, "missed_ticks": 0}
    records = [calm | {"at": at} for at in range(100)]
    history = [{"name": "lost", "counts": True, "from": start, "until": start + 5} for start in (10, 30, 50)]
    if [check.ok for check in verdict.faults(history, records)] != [False, True]:
        yield "faults that no counter showed pass"
    away = [record | {"faults": record["at"], "up": 7 if record["at"] > 12 else 8} for record in records]
    if [check.ok for check in verdict.faults(history, away)] != [True, False]:
        yield "a GPU that stays away passes"


def expositions():
    """Text that the reader must accept, and text that it must refuse."""
    head = "# HELP a A.\n# TYPE a counter\n"
    taken = exposition.read(head + 'a{x="1",y="\\"\\\\\\n,}"} 3\na NaN\na{x="2"} +Inf\n', {})
    if len(list(taken.counters())) != 3:
        yield "three counters are not read as three"
    tails = ("a 1\na 1\n", "a 1", 'a{x="1" 1\n', 'a{x="1",x="2"} 1\n', head + "a 1\n", "", "a x\n", "b 1\n", "\n", "a 1 2 3x\n")
    for bad in ("a 1\n", *(head + tail for tail in tails)):
        try:
            exposition.read(bad, {})
        except exposition.Malformed:
            continue
        yield f"accepted although it is malformed: {bad!r}"


def main():
    begun = time.monotonic()
    if set(REFUSED) != set(fake_exporter.FAULTS):
        sys.exit("a stand-in's fault is not judged")
    wrong = [*slopes(), *felt_faults(), *expositions()]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(len(REFUSED)) as pool:
        for found in pool.map(lambda fault: judge(fault, folder), REFUSED):
            wrong += found
    print(f"soak's checks: {len(REFUSED)} stand-ins judged in {time.monotonic() - begun:.0f} s, {len(wrong)} wrongly")
    sys.exit(finish(wrong))


if __name__ == "__main__":
    main()
