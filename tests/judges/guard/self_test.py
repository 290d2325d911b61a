"""Shows with invented figures that the guard's checks can fail.

    self_test.py"""

import sys

import check

PART = "part: 1\n\ndesc: Trigger: {trigger}\nevents: Ir\nfn=(1)\n0 {total}\n\ntotals: {total}\n\n"


def verdicts():
    """For each measured figure, a part of the expected report, or None if no report is expected. The known figure is 1000."""
    cases = {
        "the same": (1000, None),
        "a little more": (1099, None),
        "a little less": (901, None),
        "more": (1101, "growth"),
        "much more": (5000, "1000 instructions became 5000 (+400.0%)"),
        "less": (899, "lower the baseline"),
    }
    for name, (now, expected) in cases.items():
        reported = list(check.problems({"tick": 1000}, {"tick": now}))
        if expected is None and reported or expected is not None and (len(reported) != 1 or expected not in reported[0]):
            yield f"{name}: {reported}"
    for known, found in (({"tick": 1, "gone": 1}, {"tick": 1}), ({"tick": 1}, {"tick": 1, "new": 1})):
        reported = list(check.problems(known, found))
        if len(reported) != 1 or "--update" not in reported[0]:
            yield f"{known} and {found}: {reported}"
    reported = list(check.problems({"one": 100, "other": 100}, {"one": 200, "other": 50}))
    if len(reported) != 2:
        yield f"two that are wrong: {reported}"


def refused(counted, times):
    try:
        check.per_step(counted, times)
    except check.Unusable:
        return True
    return False


def counts():
    """A step's instructions come from the difference between the parts; unsteady or unmarked counts are refused."""
    figure = check.per_step([9999, 1000 * 50 + 7, 2000 * 50 + 7], 1000)
    if figure != 50:
        yield f"50 instructions a step are {figure}"
    for counted in ([], [1, 100], [1, 100, 200, 300], [1, 100, 100], [1, 200, 100], [1, 100_000, 250_000], [1, 100_000, 195_000]):
        if not refused(counted, 100):
            yield f"{counted} is accepted as a figure"


def files():
    """Parts that end with a mark are read in order; the last part is not read."""
    marked = f"--dump-before={check.MARK}"
    text = "".join(PART.format(trigger=marked, total=total) for total in (5, 100, 200))
    text += PART.format(trigger="Program termination", total=77)
    found = check.parts("# callgrind format\n" + text)
    if found != [5, 100, 200]:
        yield f"the parts 5, 100, 200 are {found}"


def main():
    wrong = [*verdicts(), *counts(), *files()]
    print(f"the guard's checks: {len(wrong)} wrong")
    return check.finish(wrong)


if __name__ == "__main__":
    sys.exit(main())
