"""Judges the observations of a soak. Each check has a name, a figure and a result; the run passes if all checks do."""

from dataclasses import dataclass

import trend

KIB_PER_MIB = 1024
# The highest allowed ratio of the late half's maximum to the early half's.
PEAK_ALLOWED = 1.10
# By how much the lowest tenth and the highest value of the late half may exceed those of the early half. A connection or a thread that is
# just starting or ending is not a leak. The number of watched processes varies, and the simulator replaces all their files when it is
# opened again. None: no bound.
MARGINS = {"fds": (1, 3), "threads": (1, 2), "process_files": (None, 60), "ended": (40, None)}


@dataclass
class Bounds:
    """The amount of growth that is allowed."""

    growth: float = 2.0  # MiB an hour
    block_seconds: float = 360.0
    # A short run only shows that the checks work; the confidence interval of its slope is too wide to rule out growth.
    short: bool = False


@dataclass
class Check:
    name: str
    figure: str
    ok: bool


def memory(samples, key, bounds):
    series = [(sample["at"], sample[key] / KIB_PER_MIB) for sample in samples]
    slope = trend.slope(series, bounds.block_seconds)
    verdict = slope.verdict(bounds.growth)
    ok = verdict == "flat" or (bounds.short and verdict == "not shown")
    figure = (
        f"{verdict}: {slope.per_hour:+.2f} MiB an hour (95 %: {slope.low:+.2f} to {slope.high:+.2f}, {slope.blocks} blocks; "
        f"allowed {bounds.growth:g})"
    )
    yield Check(f"{key}: slope", figure, ok)
    values = [value for _, value in series]
    _, early, _, late = trend.halves(values)
    yield Check(f"{key}: highest", f"early half {early:.2f} MiB, late half {late:.2f} MiB", late <= early * PEAK_ALLOWED)


def number(samples, key):
    values = [sample[key] for sample in samples]
    floor, ceiling = MARGINS[key]
    floor_early, early, floor_late, late = trend.halves(values)
    figure = f"lowest tenth {floor_early} then {floor_late}, highest {early} then {late}"
    rose = floor is not None and floor_late > floor_early + floor
    yield Check(key, figure, not rose and (ceiling is None or late <= early + ceiling))


def scrapes(name, records, due):
    """`due`: the number of scrapes that the interval requires."""
    missed = [record["missed"] for record in records if record["missed"]]
    took = [record["took"] for record in records if not record["missed"]]
    figure = f"{len(records)} of {due} due, {len(missed)} missed"
    if took:
        figure += f", p50 {1000 * trend.quantile(took, 0.5):.1f} ms, p99 {1000 * trend.quantile(took, 0.99):.1f} ms"
        figure += f", longest {1000 * max(took):.1f} ms"
    if missed:
        figure += f"; first: {missed[0]}"
    # A tenth of the scrapes may be lost to other load on this machine; the figure shows this.
    yield Check(f"scrapes, {name}", figure, bool(took) and not missed and len(records) >= 0.9 * due)
    problems = [problem for record in records for problem in record["problems"]]
    figure = f"{len(problems)} in {len(took)} scrapes" + (f"; first: {problems[0]}" if problems else "")
    yield Check(f"format and counters, {name}", figure, not problems)


def faults(history, records):
    """Checks that each fault took effect, and that its effect was gone after it ended; otherwise the soak tested nothing."""
    good = [record for record in records if "up" in record]
    unfelt, unhealed, judged = [], [], 0
    for place, episode in enumerate(history):
        before = [record for record in good if record["at"] <= episode["from"]]
        after = history[place + 1]["from"] if place + 1 < len(history) else None
        later = [r for r in good if r["at"] >= episode["until"] and (after is None or r["at"] < after)]
        if not before or not later:
            continue
        judged += 1
        if episode["counts"] and felt(later[0]) <= felt(before[-1]):
            unfelt.append(episode["name"])
        # The run may have ended before the recovery from the last fault.
        if after is not None and later[-1]["up"] < before[0]["gpus"]:
            unhealed.append(f"{episode['name']} ({later[-1]['up']:.0f} of {before[0]['gpus']} GPUs up)")
    yield Check("faults that took effect", f"{judged - len(unfelt)} of {judged}" + listed(unfelt), judged > 0 and not unfelt)
    figure = f"{judged - len(unhealed)} of {judged}" + listed(unhealed)
    yield Check("GPUs that recovered", figure, not unhealed)


def felt(record):
    return record["faults"] + record["missed_ticks"]


def listed(names):
    return ": not " + ", ".join(sorted(set(names))) if names else ""


def judge(seen, bounds):
    """`seen`: a soak.Observation."""
    judged = [sample for sample in seen.samples if sample["at"] >= seen.warm_at]
    checks = [Check("the exporter ran to the end", "yes" if seen.alive else "no", seen.alive)]
    if len(judged) < 4 * trend.LEAST_BLOCKS:
        return [*checks, Check("samples after the warm-up", f"{len(judged)}: too few to judge", False)]
    for key in ("rss", "anon"):
        checks += memory(judged, key, bounds)
    for key in MARGINS:
        checks += number(judged, key)
    for scraper in seen.scrapers:
        checks += scrapes(scraper.name, scraper.records, scraper.due(seen.seconds))
    if seen.history is not None:
        checks += faults(seen.history, seen.scrapers[0].records)
    return checks
