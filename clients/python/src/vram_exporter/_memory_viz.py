"""Files with PyTorch's snapshot at a failed allocation, which https://pytorch.org/memory_viz opens.

Invariants: no exception leaves this module. No file of others is overwritten, and a file that has its content is complete. The number of
files, their size and the time that one takes are bounded.
"""

from __future__ import annotations

import os
import pickle
import time
from typing import Any, BinaryIO, Callable, Dict, Optional

from ._thread import lock

# The number of files of one process, and the shortest time between two, in seconds.
FILES = 4
EVERY = 60.0
# The maximum number of blocks and events in a snapshot, the maximum size of a file in bytes, and the longest time that one takes in seconds.
ENTRIES = 200_000
SIZE = 64 << 20
LONGEST = 5.0
# The longest path that the exporter accepts, in bytes.
PATH = 1024
# The page reads no newer protocol, and that of Python 3.14 is newer.
_PROTOCOL = 4
# The number of names that are tried: a folder may have files of an earlier process with the same pid.
_NAMES = 100


class Files:
    """The files of this process in a folder, which is made if it does not exist."""

    def __init__(self, folder: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder, self._clock = os.path.abspath(folder), clock
        self._count = 0
        self._at = 0.0
        self._lock = lock()

    def write(self, snapshot: Dict[str, Any]) -> Optional[str]:
        """Writes a snapshot, if that is allowed now. Returns the path of the complete file. Does not wait for another thread that writes."""
        if not self._lock.acquire(blocking=False):
            return None
        try:
            now = self._clock()
            if self._count >= FILES or (self._count and now - self._at < EVERY) or _entries(snapshot) > ENTRIES:
                return None
            self._count, self._at = self._count + 1, now
            return self._write(snapshot, now + LONGEST)
        except Exception:
            return None
        finally:
            self._lock.release()

    def _write(self, snapshot: Dict[str, Any], limit: float) -> Optional[str]:
        os.makedirs(self._folder, 0o700, exist_ok=True)
        path = self._reserve()
        if path is None:
            return None
        temporary, incomplete = path + ".part", [path]
        try:
            with os.fdopen(_create(temporary), "wb") as file:
                incomplete.append(temporary)
                pickle.Pickler(_Bounded(file, limit, self._clock), _PROTOCOL).dump(snapshot)
            os.rename(temporary, path)
            incomplete.clear()
        finally:
            for name in incomplete:
                _remove(name)
        return path

    def _reserve(self) -> Optional[str]:
        """Creates an empty file whose name nothing has, because renaming replaces what has the name. Returns its path."""
        host = "".join(character if character.isalnum() or character in ".-" else "_" for character in os.uname().nodename[:64])
        for number in range(1, _NAMES + 1):
            path = os.path.join(self._folder, "%s-%d-%d.pickle" % (host, os.getpid(), number))
            # The exporter would refuse another path.
            if not path.isprintable() or len(os.fsencode(path)) > PATH:
                return None
            try:
                os.fdopen(_create(path), "wb").close()
                return path
            except FileExistsError:
                pass
        return None


class _Bounded:
    """A file that takes at most `SIZE` bytes, until `limit`."""

    def __init__(self, file: BinaryIO, limit: float, clock: Callable[[], float]) -> None:
        self._file, self._limit, self._clock, self._left = file, limit, clock, SIZE

    def write(self, data: Any) -> int:
        self._left -= len(data)
        if self._left < 0 or self._clock() > self._limit:
            raise ValueError("the snapshot is too large")
        return self._file.write(data)


def _entries(snapshot: Dict[str, Any]) -> int:
    return sum(len(segment["blocks"]) for segment in snapshot["segments"]) + sum(map(len, snapshot.get("device_traces", ())))


def _create(path: str) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass
