"""More kinds of hostile clients than those of tests/judges/load/hostile.py: slow senders, endless headers, pipelined requests, garbage and
half-closed connections."""

import socket

from hostile import REQUEST, Client, Deaf, Trickle, take_turns


def drain(connection):
    try:
        while connection.recv(1 << 18):
            pass
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
        drain(self.socket)


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
        drain(self.socket)


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
