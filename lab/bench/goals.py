"""The goals, and whether they were met: each goal with both of its figures."""

from dataclasses import dataclass, replace

from figures import ratio

# CPU_OVER_BARE, SCRAPE_OVER_STATIC and START_OVER_BARE are ratios to the bare loop or the static file. TIMES_FASTER is a peer's time
# divided by ours, MEMORY_OVER_BARE is in MiB, and MEMORY_SHARE is a share of the lightest peer's memory.
CPU_OVER_BARE = 1.6
TIMES_FASTER = 10
MEMORY_OVER_BARE = 6
MEMORY_SHARE = 1 / 3
SCRAPE_OVER_STATIC = 1.5
START_OVER_BARE = 1.3
START_MS = 100
BINARY_MIB = 8
# Fewer runs give figures but no verdict, because one bad run would decide it.
RUNS_TO_JUDGE = 5


@dataclass(frozen=True)
class Goal:
    what: str
    goal: str
    figure: str
    # None if a figure is missing or has too few runs.
    met: bool | None
    # Reported in place of "met" or "missed" if `met` is None.
    unjudged: str = "not judged"


def of_enough(judged, runs):
    """The same goals, without a verdict if there are too few runs."""
    reported = f"not judged: {runs} run" + ("" if runs == 1 else "s")
    return [goal if runs >= RUNS_TO_JUDGE else replace(goal, met=None, unjudged=reported) for goal in judged]


def against(what, goal, ours, beside, most, unit):
    """Our figure must be at most `most` times the other."""
    if ours is None or beside is None:
        return Goal(what, goal, "not measured", None)
    times = ratio(ours, beside)
    figure = f"{ours.median:.3g} {unit} against {beside.median:.3g} {unit}"
    return Goal(what, goal, figure + (f": {times:.2f} times" if times is not None else ""), ours.median <= most * beside.median)


def at_most(what, goal, ours, most, unit):
    if ours is None:
        return Goal(what, goal, "not measured", None)
    return Goal(what, goal, f"{ours.median:.3g} {unit}", ours.median <= most)


def best(peers, figure):
    """(name, figure) of the peer with the lowest figure."""
    shown = [(peer, by_name[figure]) for peer, by_name in peers.items() if by_name.get(figure)]
    return min(shown, key=lambda pair: pair[1].median, default=(None, None))


def spikes(ours, what="spikes of 20 ms caught"):
    if ours.get("spikes made") is None:
        return Goal(what, "all", "not measured", None)
    seen, made = ours["spikes"], ours["spikes made"]
    return Goal(what, "all", f"{seen} of {made}", seen == made)


def judge(table, simulated, binary_bytes):
    """`table`: for each subject, its figures by name, as report.table returns them."""
    ours, bare, static = (table.get(name, {}) for name in ("ours", "bare", "static"))
    peers = {name: of for name, of in table.items() if name not in ("ours", "again", "before", "bare", "static")}
    get = ours.get
    if not simulated:
        for cpu in ("cpu", "cpu unscraped"):
            what = "CPU at 100 Hz, " + ("no scrape" if "unscraped" in cpu else "one scrape a second")
            yield against(what, f"at most {CPU_OVER_BARE} times the bare loop", get(cpu), bare.get("cpu"), CPU_OVER_BARE, "%")
    for name, of in peers.items():
        yield against("CPU at 100 Hz, one scrape a second", f"less than {name} at its default or 1 Hz", get("cpu"), of.get("cpu"), 1, "%")
    yield from memory(ours, bare, peers, simulated)
    for share in ("p50", "p99"):
        figure = f"new {share}"
        if not simulated:
            goal = f"at most {SCRAPE_OVER_STATIC} times the static file"
            # As a Prometheus server scrapes: one request, long after the previous one.
            alone = f"alone {share}"
            yield against(f"scrape {share}, alone", goal, get(alone), static.get(alone), SCRAPE_OVER_STATIC, "ms")
        name, fastest = best(peers, figure)
        goal = f"{TIMES_FASTER} times faster than the fastest peer ({name or 'none'})"
        yield against(f"scrape {share}, new connection", goal, get(figure), fastest, 1 / TIMES_FASTER, "ms")
    yield spikes(ours)
    if simulated:
        yield at_most("start to first data", f"under {START_MS} ms", get("start"), START_MS, "ms")
    else:
        goal = f"under {START_OVER_BARE} times nvmlInit and one sample"
        yield against("start to first data", goal, get("start"), bare.get("start"), START_OVER_BARE, "ms")
        yield Goal("disturbance of workloads", "not distinguishable from none", "measured by lab/gpu/verify.py --only pace", None)
    size = binary_bytes / 2**20
    yield Goal("the program's file", f"at most {BINARY_MIB} MiB", f"{size:.2f} MiB", size <= BINARY_MIB)


def memory(ours, bare, peers, simulated):
    what = "resident memory"
    get = ours.get
    if simulated:
        name, lightest = best(peers, "memory")
        goal = f"at most a third of the lightest peer ({name or 'none'})"
        yield against(what, goal, get("memory"), lightest, MEMORY_SHARE, "MiB")
        return
    if get("memory") and bare.get("memory"):
        over = ours["memory"].median - bare["memory"].median
        figure = f"{ours['memory'].median:.2f} MiB against {bare['memory'].median:.2f} MiB: {over:.2f} MiB over"
        yield Goal(what, f"at most the bare loop and {MEMORY_OVER_BARE} MiB", figure, over <= MEMORY_OVER_BARE)
    for name, of in peers.items():
        yield against(what, f"less than {name}", get("memory"), of.get("memory"), 1, "MiB")
