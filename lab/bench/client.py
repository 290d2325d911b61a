"""A scraper that reads whole responses: over a new connection each time, or as Prometheus does."""

import gzip
import socket
import time
from dataclasses import dataclass

PIECE = 1 << 18
TIMEOUT = 30.0


class BadAnswer(Exception):
    pass


class Closed(BadAnswer):
    """The server closed the connection before it responded."""


@dataclass
class Answer:
    milliseconds: float
    # Bytes of the body as sent, without the chunk framing.
    sent: int
    compressed: bool
    # Whether the connection may be used again.
    kept: bool
    text: str


def connect(address):
    """`address`: a port on 127.0.0.1, or the path of a socket file."""
    if isinstance(address, int):
        connection = socket.create_connection(("127.0.0.1", address), timeout=TIMEOUT)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(TIMEOUT)
    try:
        connection.connect(address)
    except OSError:
        connection.close()
        raise
    return connection


def request(compressed, close):
    lines = [b"GET /metrics HTTP/1.1", b"Host: localhost"]
    lines += [b"Accept-Encoding: gzip"] if compressed else []
    lines += [b"Connection: close"] if close else []
    return b"\r\n".join(lines) + b"\r\n\r\n"


def parse_head(data):
    """(status, headers, offset of the body) of a response; None while its head is incomplete."""
    end = data.find(b"\r\n\r\n")
    if end < 0:
        return None
    first, *rest = bytes(data[:end]).decode("latin-1").split("\r\n")
    pairs = (line.partition(":") for line in rest)
    headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
    headers[""] = first.split()[0]
    return int(first.split()[1]), headers, end + 4


def unchunk(data):
    """The bytes of a chunked body; None while it is incomplete."""
    pieces, at = [], 0
    while True:
        line = data.find(b"\r\n", at)
        if line < 0:
            return None
        size = int(bytes(data[at:line]).split(b";")[0], 16)
        at = line + 2
        if len(data) < at + size + 2:
            return None
        if size == 0:
            return b"".join(pieces)
        pieces.append(bytes(data[at : at + size]))
        at += size + 2


def whole(data, ended):
    """(status, headers, body) of a response; None while it is incomplete. `ended`: no more bytes will arrive."""
    head = parse_head(data)
    if head is None:
        return None
    status, headers, at = head
    if headers.get("transfer-encoding", "").lower() == "chunked":
        # Parsed only when it may be complete, so that reading a long response takes linear time.
        body = unchunk(data[at:]) if data.endswith(b"0\r\n\r\n") else None
    elif "content-length" in headers:
        body = data[at:] if len(data) - at >= int(headers["content-length"]) else None
    else:
        body = data[at:] if ended else None
    return None if body is None else (status, headers, bytes(body))


def keeps(headers):
    asked = headers.get("connection", "").lower()
    return asked == "keep-alive" if headers[""] == "HTTP/1.0" else asked != "close"


def receive(connection):
    """Reads one response. Returns the time of its last byte, and its parts."""
    data = bytearray()
    while True:
        piece = connection.recv(PIECE)
        at = time.perf_counter_ns()
        data += piece
        parts = whole(data, ended=not piece)
        if parts is not None:
            return at, parts
        if not data:
            raise Closed("the connection was closed before an answer")
        if not piece:
            raise BadAnswer(f"the answer ended after {len(data)} bytes")


def answer(begun, at, parts):
    status, headers, body = parts
    if status != 200:
        raise BadAnswer(f"/metrics answered {status}")
    compressed = headers.get("content-encoding", "") == "gzip"
    text = gzip.decompress(body) if compressed else body
    return Answer((at - begun) / 1e6, len(body), compressed, keeps(headers), text.decode())


def get(address, compressed=False):
    """One scrape over a new connection, from connecting to the last byte."""
    begun = time.perf_counter_ns()
    with connect(address) as connection:
        connection.sendall(request(compressed, close=True))
        return answer(begun, *receive(connection))


class Prometheus:
    """Scrapes as Prometheus does: with gzip, over one connection if the server keeps it open. Once the server has closed it, every later
    scrape uses a new connection. A response that announces the close is still valid."""

    def __init__(self, address):
        self.address, self.connection, self.keeps = address, None, True

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.drop()

    def drop(self):
        if self.connection:
            self.connection.close()
        self.connection = None

    def scrape(self):
        if not self.keeps:
            return get(self.address, compressed=True)
        try:
            found = self.over_kept()
        except (Closed, BrokenPipeError, ConnectionResetError):
            # Closed while idle. A server that has ended refuses the new connection too.
            self.drop()
            self.keeps = False
            return get(self.address, compressed=True)
        if not found.kept:
            self.drop()
            self.keeps = False
        return found

    def over_kept(self):
        begun = time.perf_counter_ns()
        self.connection = self.connection or connect(self.address)
        self.connection.sendall(request(compressed=True, close=False))
        return answer(begun, *receive(self.connection))
