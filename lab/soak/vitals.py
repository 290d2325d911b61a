"""What the kernel reports about a process: memory in KiB, file descriptors, threads."""

import os
import time


def fields(path, wanted):
    found = {}
    with open(path) as file:
        for line in file:
            name, _, rest = line.partition(":")
            if name in wanted:
                found[wanted[name]] = int(rest.split()[0])
    return found


def descriptors(pid, procfs):
    """`fds`: all descriptors except the files of watched processes, whose number varies with the processes; `ended`: the
    files of watched processes that have ended."""
    count = {"fds": 0, "process_files": 0, "ended": 0}
    for number in os.listdir(f"/proc/{pid}/fd"):
        try:
            target = os.readlink(f"/proc/{pid}/fd/{number}")
        except FileNotFoundError:
            continue  # closed in the meantime
        inside = procfs is not None and target.startswith(f"{procfs}/")
        count["process_files" if inside else "fds"] += 1
        count["ended"] += inside and target.endswith("(deleted)")
    return count


def read(pid, procfs=None):
    """One sample, or None once the process has ended. `procfs`: the folder of the watched processes."""
    try:
        sample = {"at": time.time()} | descriptors(pid, procfs)
        sample |= fields(f"/proc/{pid}/status", {"VmRSS": "rss", "VmSize": "virtual", "Threads": "threads"})
        sample |= fields(
            f"/proc/{pid}/smaps_rollup",
            {"Pss": "pss", "Pss_Anon": "anon", "Pss_File": "file", "Private_Dirty": "dirty", "Swap": "swap"},
        )
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The status of a process that has ended but has not been waited for shows no memory.
    return sample if "rss" in sample else None
