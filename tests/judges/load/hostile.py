"""Hostile clients on loopback. Each one takes a turn a few times a second. If the server has closed its connection, the client reconnects
after a second. The clients stop on request."""

import errno
import random
import socket
import struct
import time

REQUEST = b"GET /metrics HTTP/1.1\r\nHost: load\r\n\r\n"
AGAIN_AFTER = 1.0
# The first byte of TCP_INFO is one of these states, from the kernel's tcp_states.h.
SYN_SENT, CLOSED, CLOSE_WAIT = 2, 7, 8
NOT_NOW = (errno.EAGAIN, errno.EWOULDBLOCK, errno.EINPROGRESS)


class Client:
    """Connects and sends nothing."""

    name = "silent"
    # A small window fills up quickly, so a client that reads nothing has an effect at once.
    receive_buffer = None

    def __init__(self, port, number, request=REQUEST, source="127.0.0.1"):
        self.port, self.chance, self.request, self.source = port, random.Random(number), request, source
        self.socket, self.next = None, 0.0
        self.connected = self.ended = 0

    def turn(self, now):
        if self.socket is None:
            if now >= self.next:
                self.connect(now)
            return
        state = self.state()
        if state in (CLOSED, CLOSE_WAIT):
            self.ended += 1
            self.close()
            self.next = now + AGAIN_AFTER
        elif state != SYN_SENT:
            self.act(now)

    def connect(self, now):
        self.socket = socket.socket()
        self.socket.setblocking(False)
        self.socket.bind((self.source, 0))
        if self.receive_buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self.receive_buffer)
        if self.socket.connect_ex(("127.0.0.1", self.port)) not in (0, *NOT_NOW):
            self.close()
            self.next = now + AGAIN_AFTER
            return
        self.connected += 1
        self.begin(now)

    def begin(self, now):
        pass

    def act(self, now):
        pass

    def state(self):
        return struct.unpack("B", self.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1))[0]

    def send(self, data):
        """Sends data. Returns the number of bytes that were accepted."""
        try:
            return self.socket.send(data)
        except OSError:
            return 0  # the buffer is full, or the connection is closed: the next turn shows which

    def drain(self):
        try:
            while self.socket.recv(1 << 18):
                pass
        except OSError:
            pass

    def close(self):
        if self.socket is not None:
            self.socket.close()
        self.socket = None


class Deaf(Client):
    """Sends a request and reads nothing. Because the end of the connection comes after the unread bytes, the client rarely notices it."""

    name = "deaf"
    receive_buffer = 4096

    def begin(self, now):
        self.asked = False

    def act(self, now):
        if not self.asked:
            self.asked = self.send(self.request) > 0


class Trickle(Deaf):
    """Sends a request and reads its response a few bytes at a time, so that it never stops reading for long."""

    name = "trickle"

    def act(self, now):
        super().act(now)
        try:
            self.socket.recv(64)
        except OSError:
            pass


class Slow(Client):
    """Sends a request, one byte a second."""

    name = "slow"

    def begin(self, now):
        self.sent, self.due = 0, now

    def act(self, now):
        if now >= self.due and self.sent < len(REQUEST) - 1:
            self.sent += self.send(REQUEST[self.sent : self.sent + 1])
            self.due = now + 1.0


class Huge(Client):
    """Sends endless headers."""

    name = "huge headers"

    def begin(self, now):
        self.rest = b"GET /metrics HTTP/1.1\r\nHost: load\r\nX-Much: "

    def act(self, now):
        for _ in range(16):
            if not self.rest:
                self.rest = b"x" * 65536
            self.rest = self.rest[self.send(self.rest) :]


class Pipelining(Client):
    """Sends many requests at once, reads all responses, and repeats this."""

    name = "pipelined"
    MANY = 50

    def begin(self, now):
        self.rest = REQUEST * self.MANY

    def act(self, now):
        self.rest = self.rest[self.send(self.rest) :] if self.rest else REQUEST * self.MANY
        self.drain()


class Garbage(Client):
    """Sends invalid requests: random bytes, or text that is valid only at the start."""

    name = "garbage"
    BEGINS = (
        b"",
        b"GET ",
        b"GET /metrics HTTP/9.9\r\n",
        b"\x16\x03\x01\x02\x00",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"POST /metrics HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
    )

    def begin(self, now):
        self.rest = self.chance.choice(self.BEGINS) + self.chance.randbytes(2000)

    def act(self, now):
        if self.rest:
            self.rest = self.rest[self.send(self.rest) :]
        self.drain()


class HalfClosed(Client):
    """Sends a request, closes its sending side, and reads nothing."""

    name = "half-closed"
    receive_buffer = 4096

    def begin(self, now):
        self.asked = False

    def act(self, now):
        if not self.asked and self.send(self.request) > 0:
            self.asked = True
            try:
                self.socket.shutdown(socket.SHUT_WR)
            except OSError:
                pass  # the connection has already ended


KINDS = {kind.name: kind for kind in (Client, Deaf, Trickle, Slow, Huge, Pipelining, Garbage, HalfClosed)}


def run(port, counts, over):
    """`counts`: kind → number. Runs until `over` is set, then returns what happened to the connections of each kind."""
    clients = [kind(port, number) for name, count in counts.items() for kind in (KINDS[name],) for number in range(count)]
    take_turns(clients, over)
    counted = {name: {"clients": count, "connected": 0, "ended by the server": 0} for name, count in counts.items()}
    for client in clients:
        counted[client.name]["connected"] += client.connected
        counted[client.name]["ended by the server"] += client.ended
    return counted


def take_turns(clients, over):
    """Runs the clients until `over` is set."""
    while not over.wait(0.1):
        now = time.monotonic()
        for client in clients:
            client.turn(now)
    for client in clients:
        client.close()
