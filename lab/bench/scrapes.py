"""How long scrapes take, measured by the C client, because the work of a Python client would shift every ratio towards 1."""

import json
import subprocess

from figures import percentile

# The kinds of scrape, as arguments of the client: over a new or a kept-alive connection, plain or with gzip. `alone`: over a new
# connection, after a pause.
KINDS = {
    "new": ("new", "plain"),
    "alone": ("alone", "plain"),
    "new, gzip": ("new", "gzip"),
    "kept": ("kept", "plain"),
    "kept, gzip": ("kept", "gzip"),
}
# The length of a turn in seconds, and the maximum number of scrapes in it. The first two scrapes in a turn find the processors idle, which
# makes them a tenth of a millisecond slower. With a fast server, far more than a hundred must follow, or those two determine the p99.
TURN, MOST = 0.25, 50_000
# A time too short for one scrape, in seconds.
LEAST = 1e-5
# The client's pause before an `alone` scrape, in seconds, and the number of scrapes in such a turn. Each of them finds the processors idle.
PAUSE, MOST_ALONE = {"alone": 0.02}, 25
# Extra seconds for the unrecorded scrape and the last recorded one: in both, the client allows 30 s between two bytes.
WAIT = 120.0


def times(program, address, kind, count, seconds):
    """The milliseconds that each scrape takes, for `count` scrapes or as many as fit into `seconds`, after one that is not recorded. None
    if the server does not support this kind of scrape."""
    where = f"127.0.0.1:{address}" if isinstance(address, int) else address
    command = [str(program), where, "/metrics", str(count), f"{seconds:.6f}", *KINDS[kind]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + WAIT)
    if done.returncode:
        raise RuntimeError(f"scrapes of {where}: {done.stderr.strip() or f'status {done.returncode}'}")
    found = json.loads(done.stdout)["microseconds"]
    return [value / 1000 for value in found] or None


def scrape_times(program, addresses, kinds, seconds):
    """The figures of the scrapes, by the address's name and by kind. The pairs of address and kind take turns;
    each gets `seconds` in all. A kind that a server does not support is None."""
    taken = {name: {kind: [] for kind in kinds} for name in addresses}
    left = {(name, kind): seconds for name in addresses for kind in kinds}
    while left:
        for name, kind in list(left):
            most = MOST_ALONE if kind in PAUSE else MOST
            found = times(program, addresses[name], kind, most, min(TURN, left[name, kind]))
            if found:
                taken[name][kind] += found
                left[name, kind] -= sum(found) / 1000 + PAUSE.get(kind, 0) * len(found)
            # If less time is left than a scrape takes, this kind of scrape is done: the client's time limit would be rounded to 0.
            if not found or left[name, kind] < LEAST:
                del left[name, kind]
    return {name: {kind: summary(values) for kind, values in by_kind.items()} for name, by_kind in taken.items()}


def summary(values):
    if not values:
        return None
    return {"p50": percentile(values, 0.5), "p99": percentile(values, 0.99), "count": len(values), "longest": max(values)}
