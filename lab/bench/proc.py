"""What the kernel reports about a process: CPU time in seconds, memory in KiB."""

import glob
import os
import threading
import time

TICK = 1 / os.sysconf("SC_CLK_TCK")
MEMORY = {"VmRSS": "rss", "VmHWM": "highest", "RssAnon": "anon", "RssFile": "file", "RssShmem": "shmem"}


def read(path):
    with open(path) as file:
        return file.read()


def memory_fields(status):
    """From /proc/PID/status: KiB by name; lines that the kernel does not write are absent."""
    lines = (line.partition(":") for line in status.splitlines())
    return {MEMORY[name]: int(rest.split()[0]) for name, _, rest in lines if name in MEMORY}


def stat_seconds(stat):
    """From /proc/PID/stat: CPU seconds of the process, including threads that have ended, and of children that it has waited for. The
    process name may contain blanks and parentheses, so fields are counted from the last closing parenthesis."""
    columns = stat.rpartition(")")[2].split()
    own, children = (sum(map(int, columns[first : first + 2])) * TICK for first in (11, 13))
    return own, children


def thread_seconds(pid):
    """CPU seconds of each thread, from the scheduler's nanosecond counters; empty if the kernel does not provide them."""
    found = {}
    for path in glob.glob(f"/proc/{pid}/task/*/schedstat"):
        try:
            found[path.split("/")[4]] = int(read(path).split()[0]) / 1e9
        except (OSError, IndexError):
            continue  # that thread has ended
    return found if any(found.values()) else {}


class Clock:
    """The CPU time that a process uses from now on.

    When a thread ends, its nanosecond counter disappears, so its last reading is kept. A thread that starts and ends between two
    readings is never seen. The clock ticks of /proc/PID/stat include all threads but have steps of 10 ms, so they are used only
    if they amount to more.
    """

    def __init__(self, pid):
        self.pid, self.first = pid, thread_seconds(pid)
        self.last = dict(self.first)
        self.ticks, self.children = stat_seconds(read(f"/proc/{pid}/stat"))
        self.begun = time.monotonic()

    def look(self):
        """Must be called from time to time, at least at the end."""
        self.last |= thread_seconds(self.pid)
        ticks, children = stat_seconds(read(f"/proc/{self.pid}/stat"))
        return spent(self.first, self.last, ticks - self.ticks), children - self.children

    def share(self, with_children):
        """Share of one core since the beginning."""
        own, children = self.look()
        return (own + (children if with_children else 0)) / (time.monotonic() - self.begun)


def spent(first, last, ticks):
    """CPU seconds between two readings of the threads, but at least the minimum that follows from the process's ticks. User and system time are each
    rounded down to a whole tick, so the real increase in their sum may be up to two ticks less than shown."""
    if not last:
        return ticks
    counted = sum(seconds - first.get(thread, 0) for thread, seconds in last.items())
    return max(counted, ticks - 2 * TICK)


def memory(pid):
    return memory_fields(read(f"/proc/{pid}/status"))


class Children:
    """Watches the children of a process, some of which live only for milliseconds, and keeps the highest sum of their memory, in KiB."""

    def __init__(self, pid, every=0.002):
        self.pid, self.every, self.most = pid, every, 0
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.watch, daemon=True)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.thread.join()

    def watch(self):
        while not self.over.wait(self.every):
            self.most = max(self.most, sum(self.held(child) for child in self.alive()))

    def alive(self):
        for path in glob.glob(f"/proc/{self.pid}/task/*/children"):
            try:
                yield from read(path).split()
            except OSError:
                continue

    @staticmethod
    def held(child):
        try:
            return memory(child).get("rss", 0)
        except OSError:
            return 0
