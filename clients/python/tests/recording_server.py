"""A stand-in for the exporter's socket: records each message with the pid that the kernel reports, and can misbehave on demand."""

import json
import os
import socket
import struct
import threading
import time

WELCOME = {"type": "welcome", "version": 1, "interval_seconds": 0.2}
UNSUPPORTED = {"type": "error", "version": 1, "reason": "unsupported_version", "message": "version 1 is not supported"}


class Connection:
    """What one client sent. `messages` holds (time, message); `closed_at` is `None` while the connection is open."""

    def __init__(self, accepted, pid):
        self.socket, self.pid = accepted, pid
        self.opened_at = time.monotonic()
        self.closed_at = None
        self.messages = []
        self.alive_at_message = []
        self.invalid = []

    def send(self, message):
        self.socket.sendall(json.dumps(message).encode() + b"\n")


class RecordingServer:
    """Listens at `path`. `reply` is the answer to `hello` (`None`: no answer), or a function that gets the message and returns the answer. With `read=False`, it accepts and never reads; with
    `accept=False`, it only listens, with room for `backlog` clients."""

    def __init__(self, path, reply=WELCOME, read=True, accept=True, close_after_reply=False, backlog=128):
        self.path = path
        self.reply, self.read, self.close_after_reply = reply, read, close_after_reply
        self.connections = []
        self.changed = threading.Condition()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(path)
        self._listener.listen(backlog)
        if accept:
            threading.Thread(target=self._accept, daemon=True).start()

    def close(self):
        """Ends as a killed exporter does: all connections are closed, and the socket file remains."""
        try:
            self._listener.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self._listener.close()
        with self.changed:
            connections = list(self.connections)
        for connection in connections:
            try:
                connection.socket.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            connection.socket.close()

    def wait(self, condition, seconds=30.0):
        """Waits until `condition(self)` is true, and returns its value; after `seconds`, returns a false value."""
        deadline = time.monotonic() + seconds
        with self.changed:
            while True:
                value = condition(self)
                left = deadline - time.monotonic()
                if value or left <= 0:
                    return value
                self.changed.wait(min(left, 0.5))

    def messages(self, kind=None, pid=None):
        """The messages received so far; those of each connection are in order."""
        return [
            message
            for connection in list(self.connections)
            if pid is None or connection.pid == pid
            for _, message in list(connection.messages)
            if kind is None or message.get("type") == kind
        ]

    def values(self, pid, framework="pytorch"):
        """The values that the exporter would hold: {device: {key: value}} of the process's open connections."""
        values = {}
        for connection in list(self.connections):
            if connection.pid != pid or connection.closed_at is not None:
                continue
            for _, message in list(connection.messages):
                if message.get("type") == "report" and message.get("framework") == framework:
                    device = values.setdefault(message["device"], {})
                    device.pop("high_bytes", None)
                    for key, value in message.items():
                        if key not in ("type", "framework", "device"):
                            device[key] = value
                    for key in [key for key, value in device.items() if value is None]:
                        del device[key]
        return values

    def _accept(self):
        while True:
            try:
                accepted, _ = self._listener.accept()
            except OSError:
                return
            pid = struct.unpack("3i", accepted.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
            connection = Connection(accepted, pid)
            with self.changed:
                self.connections.append(connection)
                self.changed.notify_all()
            if self.read:
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection):
        buffered = b""
        while True:
            try:
                received = connection.socket.recv(65536)
            except OSError:
                received = b""
            now = time.monotonic()
            alive = os.path.exists("/proc/%d" % connection.pid)
            with self.changed:
                if not received:
                    connection.closed_at = now
                    self.changed.notify_all()
                    return
                buffered += received
                *lines, buffered = buffered.split(b"\n")
                for line in lines:
                    self._take(connection, line, now, alive)
                self.changed.notify_all()

    def _take(self, connection, line, now, alive):
        try:
            message = json.loads(line)
        except ValueError:
            connection.invalid.append(line)
            return
        if len(line) >= 4096:
            connection.invalid.append(line)
        connection.messages.append((now, message))
        connection.alive_at_message.append(alive)
        reply = self.reply(message) if callable(self.reply) else self.reply
        if message.get("type") == "hello" and reply is not None:
            try:
                connection.send(reply)
                if self.close_after_reply or (callable(self.reply) and reply["type"] == "error"):
                    connection.socket.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
