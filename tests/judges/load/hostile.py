"""Hostile clients on loopback: silent ones, and those that hardly read. Each one takes a turn a few times a second. If the server has closed its
connection, the client reconnects after a second. The clients stop on request. lab/load/rude.py has more kinds."""

import contextlib
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
        with contextlib.suppress(OSError):
            self.socket.recv(64)


def take_turns(clients, over):
    """Runs the clients until `over` is set."""
    while not over.wait(0.1):
        now = time.monotonic()
        for client in clients:
            client.turn(now)
    for client in clients:
        client.close()
