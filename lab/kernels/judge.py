"""What a guest must print under its kernel: a row of the table, and what is wrong with it.

The rules say again what the crate's README promises, so a change of the crate that breaks a promise is found.
"""

import re

# The lines of tests/killed.rs and of the guest.
GUEST = re.compile(r"guest: (\S+) (x86_64|aarch64)$", re.M)
KERNEL = re.compile(
    r"^kernel: (?P<way>\w+) (?P<functions>\d+) functions, (?P<seen>\d+) calls seen, (?P<lost>\d+) lost, "
    r"code changed at (?P<before>\d+), (?P<during>\d+) and (?P<after>\d+) places, "
    r"a call takes (?P<time_before>\S+), (?P<time_during>\S+) and (?P<time_after>\S+), gone after (?P<gone>\S+)$",
    re.M,
)
SKIP = re.compile(r"SKIPPED: (\S+): (.*)$", re.M)
UNITS = {"ns": 1e-9, "µs": 1e-6, "ms": 1e-3, "s": 1.0}
# Of 30 calls the test's library exports 28. The test makes 1,000 and one that is refused.
FUNCTIONS, CALLS = 28, 1001
TESTS = ("killed", "probes")


def seconds(text):
    number, unit = re.fullmatch(r"([0-9.]+)(\D+)", text).groups()
    return float(number) * UNITS[unit]


def refusal(release, machine):
    """A part of the message with which the crate must refuse this kernel; `None` if it must attach."""
    major, minor, patch = (int(number) for number in re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", release).groups(default="0"))
    if (major, minor) < (5, 15):
        return f"the kernel {release} is too old: "
    dangerous = (major, minor) == (6, 11) or ((major, minor) == (6, 12) and patch < 14) or ((major, minor) == (6, 13) and patch < 3)
    return "CVE-2025-21834" if machine == "x86_64" and dangerous else None


def ways(release):
    """The ways of attaching that the kernel has, the one that is chosen first."""
    major, minor = (int(number) for number in re.match(r"(\d+)\.(\d+)", release).groups())
    return ["Multi", "PerfEvent"] if (major, minor) >= (6, 6) else ["PerfEvent"]


def judge(said):
    """The cells of the row, and the list of what is wrong."""
    guest = GUEST.search(said)
    if not guest:
        return ["did not boot"] + [""] * 6, ["the guest has not started"]
    release, machine = guest.groups()
    wrong = [f"the test program {test} failed" for test in TESTS if f"guest: {test} ended with 0\n" not in said]
    wrong += [f"the kernel says: {line}" for line in re.findall(r"^guest: dmesg: (.*)$", said, re.M)]
    if "guest: end\n" not in said:
        wrong.append("the guest has not ended")
    rows = [row.groupdict() for row in KERNEL.finditer(said)]
    skips = SKIP.findall(said)
    refused = refusal(release, machine)
    if refused:
        messages = {why for test, why in skips}
        wrong += [f"a test was skipped for another reason: {why}" for why in messages if refused not in why]
        if rows or not messages:
            wrong.append("the kernel was not refused")
        return [release, machine, "refused", *[""] * 4], wrong
    if [row["way"] for row in rows] != ways(release):
        wrong.append(f"attached with {[row['way'] for row in rows]}, not with {ways(release)}")
    # Without uprobe_multi the tests of both ways skip the one.
    missing = "bpf(BPF_LINK_CREATE, uprobe_multi): "
    wrong += [f"{test} was skipped: {why}" for test, why in skips if "Multi" in ways(release) or not why.startswith(missing)]
    for row in rows:
        expected = {"functions": FUNCTIONS, "seen": CALLS, "lost": 0, "before": 0, "during": FUNCTIONS, "after": 0}
        wrong += [f"{row['way']}: {name} is {row[name]}, not {value}" for name, value in expected.items() if int(row[name]) != value]
        before, during, after = (seconds(row[f"time_{when}"]) for when in ("before", "during", "after"))
        if not after - before < (during - before) / 2:
            wrong.append(f"{row['way']}: a call takes {row['time_after']} after the watching program was killed")

    def cell(text):
        return ", ".join(dict.fromkeys(text.format(**row) for row in rows))

    gone = ", ".join(f"{seconds(row['gone']):.1f} s" for row in rows)
    after = f"{cell('{after} of {during} breakpoints')} after {gone}"
    return [release, machine, cell("{way}"), cell("{functions}"), cell("{seen}"), cell("{lost}"), after], wrong
