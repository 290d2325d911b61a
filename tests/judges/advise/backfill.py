"""Writes series as OpenMetrics text and turns them into Prometheus blocks with promtool.

A series is given as runs of equal values, and a run as the indices of its first and last scrape, so that two weeks of scrapes take little
memory. Each block has a file of its own, because promtool reads the whole file for each block that it writes.
"""

import concurrent.futures
import os
from typing import NamedTuple

from harness.exporter import series_name
from harness.promtool import blocks_from

# Seconds between two scrapes. With the exporter's peak window of 60 s, no peak is lost.
STEP = 60
# The length of a block in seconds: 2 h multiplied by 3 until promtool's limit is reached.
BLOCK = 54 * 3600


class Run(NamedTuple):
    """The scrapes from `first` to `last`, both included, read `value`."""

    first: int
    last: int
    value: float


class Series(NamedTuple):
    """`begin` is the Unix time of scrape 0 in seconds; each instance has its own. `labels` is a dict of texts."""

    family: str
    labels: dict
    begin: int
    runs: list


def lines(series, low, high):
    """The lines of the samples at `low` <= time < `high`."""
    name, begin = series_name(series.family, series.labels), series.begin
    first_index, last_index = -((begin - low) // STEP), (high - 1 - begin) // STEP
    for first, last, value in series.runs:
        first, last = max(first, first_index), min(last, last_index)
        if first <= last:
            stem = f"{name} {value} "
            yield stem + f"\n{stem}".join(map(str, range(begin + first * STEP, begin + last * STEP + 1, STEP))) + "\n"


def piece(every, folder, low, high):
    """One block. Returns the size of its text in bytes; 0 if there is no sample."""
    path = folder / f"piece-{low}"
    with open(path, "w", encoding="utf-8") as file:
        for series in every:
            file.writelines(lines(series, low, high))
        size = file.tell()
        file.write("# EOF\n")
    if size:
        blocks_from("openmetrics", "--quiet", f"--max-block-duration={BLOCK}s", path, folder / "data")
    path.unlink()
    return size


def write(every, folder):
    """All series as blocks in folder/data. Returns the number of samples and the size of the text in bytes."""
    ends = [(series.begin + series.runs[0].first * STEP, series.begin + series.runs[-1].last * STEP) for series in every]
    lows = range(min(low for low, _ in ends) // BLOCK * BLOCK, max(high for _, high in ends) + 1, BLOCK)
    (folder / "data").mkdir(exist_ok=True)
    with concurrent.futures.ProcessPoolExecutor(min(4, os.cpu_count() or 1)) as workers:
        sizes = [workers.submit(piece, every, folder, low, low + BLOCK) for low in lows]
        size = sum(done.result() for done in sizes)
    return sum(run.last - run.first + 1 for series in every for run in series.runs), size
