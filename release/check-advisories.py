#!/usr/bin/env python3
"""Checks the lock file against the RustSec advisory database, which cargo-deny downloads. An exception in deny.toml has to end on a day.

    release/check-advisories.py             checks the exceptions, then the lock file; needs cargo-deny and network access
    release/check-advisories.py --ignored   checks the exceptions alone

An exception is an entry of `ignore` in the section [advisories] of deny.toml:

    { id = "RUSTSEC-2026-0001", reason = "until 2026-12-31: only on Windows" }

It fails without a day, after that day, and if the day is more than HALF_A_YEAR days away.
"""

import datetime
import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
REASON = re.compile(r"until (\d{4}-\d{2}-\d{2}): \S.*")
HALF_A_YEAR = 183


def problem(entry, today):
    """Why an exception does not count; None if it does."""
    if not isinstance(entry, dict) or not isinstance(entry.get("id"), str):
        return f"{entry!r} is not of the form {{ id = \"RUSTSEC-…\", reason = \"until YYYY-MM-DD: why\" }}"
    found = REASON.fullmatch(str(entry.get("reason", "")))
    try:
        end = datetime.date.fromisoformat(found.group(1)) if found else None
    except ValueError:
        end = None
    if end is None:
        return f"{entry['id']} has no reason of the form \"until YYYY-MM-DD: why\""
    if end < today:
        return f"{entry['id']} was ignored until {end}: remove the entry, or say until when it has to be ignored now"
    if (end - today).days > HALF_A_YEAR:
        return f"{entry['id']} is ignored until {end}: at most {HALF_A_YEAR} days are allowed"
    return None


def main(arguments):
    if arguments not in ([], ["--ignored"]):
        raise SystemExit(__doc__)
    ignored = tomllib.loads((ROOT / "deny.toml").read_text()).get("advisories", {}).get("ignore", [])
    problems = [found for entry in ignored if (found := problem(entry, datetime.date.today()))]
    for found in problems:
        print(f"deny.toml: {found}", file=sys.stderr)
    if problems:
        return 1
    print(f"deny.toml: {len(ignored)} advisories are ignored, each until a day that is still to come")
    if arguments:
        return 0
    # An exception that matches nothing is of no use any more, and is an error.
    command = ["cargo", "deny", "--locked", "check", "-D", "advisory-not-detected", "advisories"]
    return subprocess.run(command, cwd=ROOT).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
