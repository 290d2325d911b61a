"""Statistics over many runs: the median with minimum and maximum, and ratios of medians."""

import math
from dataclasses import dataclass


def percentile(values, share):
    """The smallest value that `share` (0 to 1) of the values do not exceed."""
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
        """None if no run has the figure."""
        values = [value for value in values if value is not None]
        return cls(median(values), min(values), max(values), len(values)) if values else None


def ratio(figure, beside):
    """The figure divided by `beside`; None if either is missing or the divisor is 0."""
    if figure is None or beside is None or not beside.median:
        return None
    return figure.median / beside.median


def line(points):
    """(cost at 0, cost of one more, largest deviation from the line as a share of the line's value), by a least-squares fit to
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


def plane(points):
    """(cost at 0, cost of one more of the first, cost of one more of the second), by a least-squares fit to (first, second, cost); None
    unless the points differ in both."""
    rows = [(1.0, float(first), float(second)) for first, second, _ in points]
    costs = [cost for *_, cost in points]
    normal = [[sum(row[i] * row[j] for row in rows) for j in range(3)] for i in range(3)]
    right = [sum(row[i] * cost for row, cost in zip(rows, costs)) for i in range(3)]
    whole, most = determinant(normal), normal[0][0] * normal[1][1] * normal[2][2]
    if whole <= 1e-9 * most:
        return None
    replaced = [[[right[i] if j == k else normal[i][j] for j in range(3)] for i in range(3)] for k in range(3)]
    return tuple(determinant(each) / whole for each in replaced)


def determinant(of):
    (a, b, c), (d, e, f), (g, h, i) = of
    return a * (e * i - f * h) - b * (d * i - f * g) + c * (d * h - e * g)
