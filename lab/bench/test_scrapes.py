"""Tests that the scrapers read every response completely, detect which servers keep a connection open, and send only one request for each
scrape."""

import gzip
import os
import shutil
import subprocess
import tempfile
import threading
import time
import types
import unittest
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from unittest import mock

import client
import limit
import machine
import measure
import scrapes

# A library for LD_PRELOAD that delays `connect`.
SLOW_CONNECT = """
#define _GNU_SOURCE
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>
int connect(int file, const struct sockaddr *at, socklen_t size) {
    usleep(30000);
    return (int)syscall(SYS_connect, file, at, size);
}
"""
# Its middle looks like the end of a chunked body.
TEXT = b"x" * 10 + b"0\r\n\r\n" + b"y" * 10


class Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        server = self.server
        server.asked += 1
        body = server.body(server.asked)
        time.sleep(server.takes)
        if server.packs and "gzip" in self.headers.get("Accept-Encoding", ""):
            body = gzip.compress(body)
        self.send_response(server.status)
        if server.packs and "gzip" in self.headers.get("Accept-Encoding", ""):
            self.send_header("Content-Encoding", "gzip")
        if server.closes:
            self.send_header("Connection", "close")
        by_length = server.form == "length"
        self.send_header(*(("Content-Length", str(len(body) + server.lacks)) if by_length else ("Transfer-Encoding", "chunked")))
        self.end_headers()
        if by_length:
            self.wfile.write(body)
            self.close_connection = self.close_connection or bool(server.lacks)
            return
        for piece in filter(None, (body[:15], body[15:])):
            self.wfile.write(b"%x;note\r\n%s\r\n" % (len(piece), piece))
            self.wfile.flush()
        self.wfile.write(b"0\r\n")
        if server.form == "trailer":
            time.sleep(0.01)
            self.wfile.write(b"Note: x\r\n")
        self.wfile.write(b"\r\n")

    def log_message(self, *_):
        """Logs nothing."""


class Served(unittest.TestCase):
    def served(self, text=TEXT, **more):
        """A server; `asked` counts its requests. `text`: the body, or a function of the number of the request."""
        server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
        server.daemon_threads, server.asked = True, 0
        server.body = text if callable(text) else lambda _: text
        given = {"form": "length", "closes": False, "packs": False, "status": 200, "lacks": 0, "takes": 0} | more
        for name, value in given.items():
            setattr(server, name, value)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        return server


class PythonClient(Served):
    def test_an_answer_is_whole_over_a_new_and_a_kept_connection(self):
        for form in ("chunked", "length"):
            server = self.served(form=form)
            self.assertEqual(client.get(server.server_port).text.encode(), TEXT)
            with client.Prometheus(server.server_port) as prometheus, mock.patch.object(client, "connect", wraps=client.connect) as connects:
                for _ in range(3):
                    self.assertEqual(prometheus.scrape().text.encode(), TEXT)
            self.assertEqual((server.asked, connects.call_count), (4, 1))

    def test_a_scrape_is_one_request_to_a_server_that_closes_too(self):
        server = self.served(closes=True, packs=True)
        with client.Prometheus(server.server_port) as prometheus:
            for _ in range(3):
                self.assertEqual(prometheus.scrape().text.encode(), TEXT)
            self.assertFalse(prometheus.keeps)
        self.assertEqual(server.asked, 3)

    def test_the_connect_is_in_the_time(self):
        real = client.connect

        def slow(address):
            time.sleep(0.05)
            return real(address)

        with mock.patch.object(client, "connect", slow):
            self.assertGreaterEqual(client.get(self.served().server_port).milliseconds, 50)

    def test_half_an_answer_is_none(self):
        head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        self.assertIsNone(client.whole(bytearray(head[:-1]), False))
        self.assertIsNone(client.whole(bytearray(head + b"5\r\nhel"), False))
        self.assertEqual(client.whole(bytearray(head + b"5\r\nhello\r\n0\r\n\r\n"), False)[2], b"hello")
        self.assertIsNone(client.whole(bytearray(b"HTTP/1.1 200 OK\r\n\r\nabc"), False))
        self.assertEqual(client.whole(bytearray(b"HTTP/1.1 200 OK\r\n\r\nabc"), True)[2], b"abc")


@unittest.skipUnless(shutil.which("gcc"), "there is no gcc")
class CClient(Served):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.program = machine.build(Path(folder.name) / "client", machine.SCRAPER, "gcc")

    def times(self, server, kind, count=5):
        return scrapes.times(self.program, server.server_port, kind, count, 60)

    def test_so_many_are_recorded_and_one_is_not(self):
        for form in ("chunked", "trailer", "length"):
            for kind in scrapes.KINDS:
                server = self.served(form=form, packs=True)
                self.assertEqual((len(self.times(server, kind)), server.asked), (5, 6), (form, kind))

    def test_they_are_milliseconds_from_the_request_to_the_end(self):
        for kind in ("new", "kept"):
            server, begun = self.served(takes=0.03), time.perf_counter()
            found = self.times(server, kind)
            self.assertLessEqual(sum(found), 1000 * (time.perf_counter() - begun))
            self.assertGreaterEqual(min(found), 30)

    def test_the_connect_is_in_the_time_of_a_new_connection(self):
        slow = self.program.with_name("slow.c")
        slow.write_text(SLOW_CONNECT)
        subprocess.run(["gcc", "-shared", "-fPIC", "-o", slow.with_suffix(".so"), slow], check=True)
        with mock.patch.dict(os.environ, LD_PRELOAD=str(slow.with_suffix(".so"))):
            self.assertGreaterEqual(min(self.times(self.served(), "new", 2)), 30)

    def test_turns_are_taken_until_the_seconds_are_full(self):
        taken = []

        def times(program, address, kind, count, seconds):
            taken.append((address, kind, round(seconds, 3)))
            return [10.0] * min(count, round(seconds / 0.01))

        with mock.patch.object(scrapes, "times", times):
            found = scrapes.scrape_times(None, {"one": 1, "other": 2}, ("new", "alone"), 0.6)
        self.assertEqual([turn[2] for turn in taken if turn[:2] == (1, "new")], [0.25, 0.25, 0.1])
        self.assertEqual([turn[0] for turn in taken if turn[1] == "new"], [1, 2] * 3)
        self.assertEqual((found["one"]["new"]["count"], found["other"]["alone"]["count"]), (60, 25))

    def test_a_rest_in_which_no_scrape_has_room_is_no_turn(self):
        asked = []

        def times(program, address, kind, count, seconds):
            asked.append(f"{seconds:.6f}")
            return [99.9999]

        with mock.patch.object(scrapes, "times", times):
            scrapes.scrape_times(None, {"it": 1}, ("new",), 0.2)
        self.assertEqual(asked, ["0.200000", "0.100000"])

    def test_a_long_answer_is_read_to_its_end(self):
        for form in ("chunked", "length"):
            self.assertEqual(len(self.times(self.served(b"0\r\n\r\n" * 4_000_000, form=form), "kept", 2)), 2)

    def test_what_a_server_does_not_do_has_no_times(self):
        server = self.served(closes=True)
        self.assertIsNone(self.times(server, "kept"))
        self.assertEqual(server.asked, 1)
        self.assertIsNone(self.times(server, "new, gzip"))
        taken = scrapes.scrape_times(self.program, {"it": server.server_port}, scrapes.KINDS, 0.002)["it"]
        self.assertEqual({kind for kind, of in taken.items() if of}, {"new", "alone"})
        self.assertGreaterEqual(taken["new"]["count"], 1)

    def test_the_seconds_end_a_turn(self):
        server = self.served()
        self.assertEqual(len(scrapes.times(self.program, server.server_port, "new", 1000, 1e-6)), 1)

    def test_a_bad_answer_is_no_time(self):
        for wrong in ({"status": 503}, {"lacks": 5}):
            with self.assertRaises(RuntimeError):
                self.times(self.served(**wrong), "new")
        server = self.served()
        server.shutdown()
        server.server_close()
        with self.assertRaises(RuntimeError):
            self.times(server, "kept")


class Starts(Served):
    def running(self, server):
        subject = types.SimpleNamespace(name="it", used="used")
        return types.SimpleNamespace(begun=time.perf_counter(), alive=lambda: None, address=server.server_port, subject=subject)

    def test_the_first_data_tell_the_memory_of_every_gpu(self):
        server = self.served(lambda asked: b"".join(b'used{gpu="%d"} 1\n' % gpu for gpu in range(min(asked - 1, 2))))
        measure.first_data(self.running(server), 2)
        self.assertEqual(server.asked, 3)

    def test_the_bare_start_is_no_longer_than_it_took(self):
        with tempfile.TemporaryDirectory() as folder:
            bare = Path(folder) / "bare"
            bare.write_text("#!/bin/sh\nsleep 0.2\necho '{\"used\": [1, 2]}'\n")
            bare.chmod(0o755)
            there = types.SimpleNamespace(library="none", gpus=2, environment=dict)
            begun = time.perf_counter()
            took = limit.first_ms(bare, there)
            self.assertLessEqual(took, 1000 * (time.perf_counter() - begun))
            self.assertGreater(took, 0)
