"""Compares what engines answer to the same question about the same data.

Invariant: answers are equal only if they have the same series, each with the same moments and the same values; a deviation is counted,
never rounded away.
"""

import dataclasses
import math

# Two engines may add up in another order.
ROUNDING = 1e-9


@dataclasses.dataclass
class Verdict:
    """`missing` and `surplus`: series that only the reference or only the other engine has; `moments`: series with other moments;
    `deviation`: the largest relative difference of a value that both have."""

    series: int = 0
    missing: int = 0
    surplus: int = 0
    moments: int = 0
    deviation: float = 0
    example: str = ""
    rounding: float = ROUNDING

    @property
    def equal(self):
        return not (self.missing or self.surplus or self.moments) and self.deviation <= self.rounding

    def __str__(self):
        if self.equal:
            return f"equal, {self.series} series"
        parts = [(self.missing, "missing"), (self.surplus, "surplus"), (self.moments, "with other moments")]
        words = [f"{count} {word}" for count, word in parts if count]
        return f"{self.series} series, {', '.join(words) or 'all there'}, largest deviation {self.deviation:.2g}: {self.example}"


def points(result, ignored):
    """Each series as labels → {moment: value}; the same labels twice is an error."""
    found = {}
    for one in result:
        labels = frozenset((k, v) for k, v in one["metric"].items() if k not in ignored and v)
        if labels in found:
            raise ValueError(f"two series with the labels {dict(labels)}")
        pairs = one["values"] if "values" in one else [one["value"]]
        found[labels] = {round(float(t), 3): float(v) for t, v in pairs}
    return found


def deviation(a, b):
    if a == b or (math.isnan(a) and math.isnan(b)):
        return 0.0
    if not (math.isfinite(a) and math.isfinite(b)):
        return math.inf
    return abs(a - b) / max(abs(a), abs(b))


def compared(reference, other, ignored=(), rounding=ROUNDING):
    """`ignored`: labels that one of the engines adds, or a name that it keeps."""
    left, right = points(reference, ignored), points(other, ignored)
    verdict = Verdict(len(left), len(left.keys() - right.keys()), len(right.keys() - left.keys()), rounding=rounding)
    for labels in [*(left.keys() ^ right.keys())][:1]:
        verdict.example = f"{'only the reference' if labels in left else 'only the other'} has {dict(labels)}"
    for labels in left.keys() & right.keys():
        if left[labels].keys() != right[labels].keys():
            verdict.moments += 1
            verdict.example = verdict.example or f"{dict(labels)}: {len(left[labels])} and {len(right[labels])} moments"
        for moment in left[labels].keys() & right[labels].keys():
            found = deviation(left[labels][moment], right[labels][moment])
            if found > verdict.deviation:
                verdict.deviation = found
                if found > rounding and not (verdict.missing or verdict.surplus):
                    verdict.example = f"{dict(labels)}: {left[labels][moment]!r} and {right[labels][moment]!r}"
    return verdict
