"""Whether a figure grows: its slope with a confidence interval, and its floor and ceiling in the early and the late half."""

import math
from dataclasses import dataclass

# Two-sided 95 % quantiles of Student's t by degrees of freedom.
STUDENT = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13, 2.12, 2.11, 2.10)
LEAST_BLOCKS = 6
MOST_BLOCKS = 20


@dataclass
class Slope:
    """The slope per hour, with the bounds of its 95 % confidence interval."""

    per_hour: float
    low: float
    high: float
    blocks: int

    def verdict(self, allowed):
        if self.low > allowed:
            return "grows"
        return "flat" if self.high <= allowed else "not shown"


def slope(samples, block_seconds):
    """A least-squares fit to the means of blocks, because consecutive samples are not independent. A block holds a
    whole round of faults if the run is long enough for six rounds."""
    begun, ended = samples[0][0], samples[-1][0]
    count = max(LEAST_BLOCKS, min(MOST_BLOCKS, int((ended - begun) / block_seconds)))
    width = (ended - begun) / count
    blocks = [[] for _ in range(count)]
    for at, value in samples:
        blocks[min(count - 1, int((at - begun) / width))].append((at, value))
    points = [tuple(sum(column) / len(block) for column in zip(*block)) for block in blocks if block]
    if len(points) < 3:
        raise ValueError(f"{len(samples)} samples are too few for a slope")
    middle = sum(at for at, _ in points) / len(points)
    mean = sum(value for _, value in points) / len(points)
    spread = sum((at - middle) ** 2 for at, _ in points)
    per_second = sum((at - middle) * (value - mean) for at, value in points) / spread
    rest = sum((value - mean - per_second * (at - middle)) ** 2 for at, value in points)
    free = len(points) - 2
    error = STUDENT[min(free, len(STUDENT)) - 1] * math.sqrt(rest / free / spread)
    return Slope(*(3600 * bound for bound in (per_second, per_second - error, per_second + error)), len(points))


def quantile(values, share):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def halves(values):
    """The lowest tenth and the highest value of the first half, and those of the second."""
    middle = len(values) // 2
    early, late = values[:middle], values[middle:]
    return quantile(early, 0.1), max(early), quantile(late, 0.1), max(late)
