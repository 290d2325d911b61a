"""Numbers out of many runs: the median with the least and the greatest, and ratios of medians."""

import math
from dataclasses import dataclass


def percentile(values, share):
    """The least value that `share` (0 to 1) of the values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * share) - 1)]


def median(values):
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


@dataclass(frozen=True)
class Figure:
    """One figure over the runs."""

    median: float
    least: float
    greatest: float
    runs: int

    @classmethod
    def of(cls, values):
        """None where no run has it."""
        values = [value for value in values if value is not None]
        return cls(median(values), min(values), max(values), len(values)) if values else None


def ratio(figure, beside):
    """How many times `beside` the figure is; None where either is missing or there is nothing to divide by."""
    if figure is None or beside is None or not beside.median:
        return None
    return figure.median / beside.median


def line(points):
    """(cost at 0, cost of one more, largest deviation from the line as a share of the value there), by least squares of
    (number, cost); None for fewer than two different numbers."""
    numbers = [number for number, _ in points]
    if len(set(numbers)) < 2:
        return None
    middle, mean = sum(numbers) / len(points), sum(cost for _, cost in points) / len(points)
    spread = sum((number - middle) ** 2 for number in numbers)
    each = sum((number - middle) * (cost - mean) for number, cost in points) / spread
    base = mean - each * middle
    off = max((abs(cost - base - each * number) / abs(cost) for number, cost in points if cost), default=0.0)
    return base, each, off
