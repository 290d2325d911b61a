"""Spikes of known height, and how many of them a subject's figures show.

Each spike is a fifth higher than the one before. A figure that holds the highest value, for a window or forever, therefore shows a new
value for each spike, and no spike can be mistaken for another."""

HOLD_MS = 20
FIRST_MIB = 2048
STEP = 1.2
SEEN = 0.9
# How long after the last spike a subject that refreshes once a second may still show the spike, in seconds.
TAIL = 2.0


def heights(count):
    """MiB of each spike."""
    return [round(FIRST_MIB * STEP**number) for number in range(count)]


def caught(calm, scrapes, mibs):
    """For each spike, the first series that shows it, or None. `calm`: bytes by series before the first spike; `scrapes`:
    the same for each scrape from then on. A series shows a spike when it rises above its calm value by at least 0.9 of the
    spike's height, and by less than 0.9 of the next one's. A series that was absent counts as 0."""
    bounds = [SEEN * mib * 2**20 for mib in [*mibs, mibs[-1] * STEP]]
    first = [None] * len(mibs)
    for shown in scrapes:
        for series, value in shown.items():
            rise = value - calm.get(series, 0.0)
            for number in range(len(mibs)):
                if first[number] is None and bounds[number] <= rise < bounds[number + 1]:
                    first[number] = series
    return first
