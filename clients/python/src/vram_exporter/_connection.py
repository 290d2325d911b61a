"""The connection to the exporter: a Unix stream socket that never waits.

Invariants: no call blocks and none raises. The socket is used only by the process that opened it, and only while the descriptor number
still refers to this socket: a program may close descriptors that it did not open, and may then get the same number for a socket of its own.
"""

from __future__ import annotations

import _socket
import errno
import fcntl
import json
import os
import socket
import time
from collections import deque
from typing import Any, Deque, Dict, List, Optional, Tuple

from ._version import __version__

VERSION = 1
# The version in which an exporter may ask questions.
WITH_QUESTIONS = 2
# The shortest time between two attempts to connect, in seconds.
RETRY = 5.0
# The exporter refuses longer lines, in bytes without the line feed. It accepts one byte more.
LINE = 4095
_FLAGS = socket.MSG_DONTWAIT | getattr(socket, "MSG_NOSIGNAL", 0)
_CONTROL = {code: "?" for code in (*range(0x20), *range(0x7F, 0xA0))}
_LATER = (errno.EAGAIN, errno.EWOULDBLOCK, errno.EINTR, errno.ENOBUFS)


def _open() -> _socket.socket:
    """A socket whose descriptor number is not that of a standard stream, even if the program has closed one. Its class is the one below
    `socket.socket`, which gevent replaces."""
    opened = _socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    if opened.fileno() > 2:
        return opened
    try:
        return _socket.socket(fileno=fcntl.fcntl(opened.fileno(), fcntl.F_DUPFD_CLOEXEC, 3))
    finally:
        opened.close()


def _clean(text: str) -> str:
    """The text without the characters that the exporter refuses: control characters, and lone surrogates, which are not valid JSON."""
    return text.encode("utf-8", "replace").decode().translate(_CONTROL)


def line(message: Dict[str, Any]) -> bytes:
    """The line that is sent for a message."""
    clean = {key: _clean(value) if isinstance(value, str) else value for key, value in message.items()}
    return json.dumps(clean, separators=(",", ":")).encode("ascii") + b"\n"


def fits(message: Dict[str, Any]) -> bool:
    """Whether the exporter accepts the length of a message's line."""
    return len(line(message)) - 1 <= LINE


class Connection:
    """The connection of one process. Its methods must not be called by two threads at once."""

    def __init__(self, path: str, questions: bool = False) -> None:
        self._path = path
        self.questions = questions
        """Whether the next connection takes questions, unless the exporter turns out to be older."""
        self.asked: Deque[Dict[str, Any]] = deque(maxlen=4)
        """What the exporter asks on this connection, and the ends of its questions."""
        self._version = VERSION
        self._is_older = False
        self._pid = os.getpid()
        self._socket: Optional[_socket.socket] = None
        self._identity: Optional[Tuple[int, int]] = None
        self._unsent = b""
        self._received = b""
        self._retry_at = 0.0
        self.refused = False
        """Whether no further attempt is made, because the exporter does not support this version or `end` was called."""
        self.generation = 0
        """The number of connections so far. A new number means that every value must be sent again."""
        self.interval: Optional[float] = None
        """The time between two readings that the exporter suggests, in seconds."""

    def connected(self) -> bool:
        """Whether there is a connection, as far as it is known."""
        return self._socket is not None

    def ready(self) -> bool:
        """Connects if an attempt is due. Returns whether a message can be sent at once."""
        if self._socket is None:
            self._connect()
        if self._socket is not None and self._own():
            self._receive()
        if self._socket is not None and self._unsent:
            self._flush()
        return self._socket is not None and not self._unsent

    def send(self, lines: List[bytes]) -> None:
        """Sends as much as the socket accepts; the next call to `ready` sends the rest."""
        self._unsent += b"".join(lines)
        self._flush()

    def close(self) -> None:
        """Ends the connection."""
        self._unsent = self._received = b""
        taken, self._socket = self._socket, None
        if taken is None:
            return
        try:
            if self._same(taken):
                taken.close()
            else:
                taken.detach()
        except OSError:
            pass

    def end(self) -> None:
        """Ends the connection for good."""
        self.refused = True
        self.close()

    def _connect(self) -> None:
        now = time.monotonic()
        if self.refused or now < self._retry_at or os.getpid() != self._pid:
            return
        self._retry_at = now + RETRY
        try:
            opened = _open()
        except OSError:
            return
        try:
            opened.setblocking(False)
            opened.connect(self._path)
            status = os.fstat(opened.fileno())
        except (OSError, ValueError):
            opened.close()
            return
        self._socket, self._identity = opened, (status.st_dev, status.st_ino)
        self.generation += 1
        self.asked.clear()
        self._version = WITH_QUESTIONS if self.questions and not self._is_older else VERSION
        self._is_older = False
        self._unsent = line({"type": "hello", "version": self._version, "client": "vram-exporter-python/" + __version__})

    def _own(self) -> bool:
        """Whether the socket can be used. If the descriptor number now belongs to something else, drops the socket without closing it."""
        if self._socket is None:
            return False
        if os.getpid() == self._pid and self._same(self._socket):
            return True
        self._lose()
        return False

    def _same(self, opened: _socket.socket) -> bool:
        try:
            status = os.fstat(opened.fileno())
        except OSError:
            return False
        return (status.st_dev, status.st_ino) == self._identity

    def _lose(self) -> None:
        self.close()
        # With the older version, it connects at once.
        self._retry_at = time.monotonic() + (0.0 if self._is_older else RETRY)

    def _flush(self) -> None:
        if not self._own() or self._socket is None:
            return
        try:
            while self._unsent:
                self._unsent = self._unsent[self._socket.send(self._unsent, _FLAGS) :]
        except OSError as error:
            if error.errno not in _LATER:
                self._receive()  # The exporter may have sent the reason.
                self._lose()

    def _receive(self) -> None:
        if self._socket is None:
            return
        try:
            received = self._socket.recv(4096, socket.MSG_DONTWAIT)
        except OSError as error:
            if error.errno not in _LATER:
                self._lose()
            return
        lines = (self._received + received).split(b"\n")
        self._received = lines.pop()[-4096:]
        for text in lines:
            self._reply(text)
        if not received:
            self._lose()

    def _reply(self, text: bytes) -> None:
        try:
            reply = json.loads(text)
            if reply.get("type") == "error" and reply.get("reason") == "unsupported_version":
                self._is_older = self._version > VERSION and reply.get("version") == VERSION
                self.refused = not self._is_older
            elif reply.get("type") in ("leaks", "stop"):
                self.asked.append(reply)
            interval = reply.get("interval_seconds")
            if isinstance(interval, (int, float)) and 0.01 <= interval <= 1.5:
                self.interval = float(interval)
        except (ValueError, AttributeError, RecursionError):
            pass
