"""Several sockets: each gets everything, whatever the others do."""

import os
import socket
import unittest

from vram_exporter import _client, _run
from vram_exporter._levels import Level
from vram_exporter._peer import Peer

from . import support
from .recording_server import RecordingServer
from .support import DEVICE, MIB

# A job with a level, a higher level that lasts only between two readings, a measured region and a failed allocation.
JOB = """
    import sys, vram_exporter, torch
    vram_exporter.start(interval=0.02)
    kept = torch.empty(10 << 20)
    sys.stdin.readline()
    with vram_exporter.measure("forward"):
        high = torch.empty(70 << 20); del high
    try: torch.empty(1 << 40)
    except torch.OutOfMemoryError: pass
    sys.stdin.readline()
"""


def shown(server):
    """The values of the only device of the only process that reports."""
    return next((server.values(c.pid).get(DEVICE, {}) for c in server.connections if server.values(c.pid)), {})


class Peers(support.Case):
    def setUp(self):
        super().setUp()
        self.other = os.path.join(self.folder, "t")
        self.both = os.pathsep.join([self.path, self.other])

    def second(self, **behaviour):
        server = RecordingServer(self.other, **behaviour)
        self.addCleanup(server.close)
        return server

    def gets_everything(self, server, job):
        self.assertTrue(server.wait(lambda s: shown(s).get("allocated_bytes") == 10 * MIB))
        return server

    def got_everything(self, server):
        self.assertTrue(server.wait(lambda s: shown(s).get("peak_bytes") == 80 * MIB and shown(s).get("out_of_memory") == 1))
        self.assertEqual(max(message["high_bytes"] for message in server.messages("report")), 80 * MIB)
        self.assertEqual(shown(server)["peak_reserved_bytes"], 80 * MIB)
        self.assertTrue(server.wait(lambda s: s.messages("measurement")))
        (measurement,) = server.messages("measurement")
        self.assertEqual((measurement["name"], measurement["peak_bytes"]), ("forward", 80 * MIB))
        (failed,) = server.messages("out_of_memory")
        self.assertEqual(failed["requested_bytes"], 1 << 40)
        self.assertEqual(server.messages()[0]["type"], "hello")
        self.assertEqual(server.connections[0].invalid, [])

    def through_both(self, servers, paths):
        job = self.program(JOB, VRAM_EXPORTER_SOCKET=paths)
        for server in servers:
            self.gets_everything(server, job)
        self.go_on(job)
        for server in servers:
            self.got_everything(server)
        self.go_on(job)
        self.finish(job)
        for server in servers:
            self.assertTrue(server.wait(lambda s: s.connections[0].closed_at))
            self.assertEqual(len(server.connections), 1)

    def test_two_exporters_both_get_everything(self):
        self.through_both([self.server(), self.second()], self.both)

    def test_empty_entries_and_duplicates_are_ignored(self):
        self.through_both([self.server(), self.second()], os.pathsep.join(["", self.path, self.path, "", self.other, ""]))

    def test_an_absent_exporter_does_not_affect_the_other(self):
        for paths in (self.both, os.pathsep.join([self.other, self.path])):
            with self.subTest(paths=paths):
                self.through_both([self.server()], paths)
                os.unlink(self.path)

    def test_an_exporter_that_never_reads_does_not_affect_the_other(self):
        """Its socket is full, so that nothing can be sent to it."""
        self.second(read=False)
        server = self.server()
        job = self.program(
            """
            import sys, time, vram_exporter, torch
            from vram_exporter import _client
            vram_exporter.start(interval=0.01)
            kept = [torch.empty(1 << 20)]
            client, end = _client._client, time.monotonic() + 60
            full = client._peers[0]
            while not (full.connection and full.connection._unsent) and time.monotonic() < end:
                with client._lock:
                    if full.connection: full.connection.send([b"x" * 3000])
            assert full.connection._unsent, "the buffer of the socket is not full"
            kept.append(torch.empty(4 << 20))
            try: torch.empty(1 << 40)
            except torch.OutOfMemoryError: pass
            sys.stdin.readline()
            print(len(full.urgent))
            """,
            VRAM_EXPORTER_SOCKET=os.pathsep.join([self.other, self.path]),
        )
        self.assertTrue(server.wait(lambda s: shown(s).get("allocated_bytes") == 5 * MIB and s.messages("out_of_memory")))
        self.go_on(job)
        self.assertEqual(self.finish(job), "1\n", "it is kept for the full socket only")

    def test_an_exporter_that_accepts_nobody_does_not_affect_the_other(self):
        self.second(accept=False, backlog=0)
        full = socket.socket(socket.AF_UNIX)
        self.addCleanup(full.close)
        full.connect(self.other)
        self.through_both([self.server()], os.pathsep.join([self.other, self.path]))

    def test_an_exporter_that_comes_later_gets_the_highest_level_since_the_start(self):
        first = self.server()
        job = self.program(JOB, VRAM_EXPORTER_SOCKET=self.both)
        self.gets_everything(first, job)
        self.go_on(job)
        self.got_everything(first)
        second = self.second()
        self.assertTrue(second.wait(lambda s: shown(s).get("peak_bytes") == 80 * MIB))
        self.got_everything(second)
        self.assertEqual(len(first.messages("out_of_memory")), 1, "nothing is sent twice")
        self.go_on(job)
        self.finish(job)

    def test_the_shortest_interval_that_an_exporter_suggests_is_used(self):
        servers = [self.server(reply={"type": "welcome", "version": 1, "interval_seconds": 0.4})]
        servers.append(self.second(reply={"type": "welcome", "version": 1, "interval_seconds": 0.05}))
        job = self.program(
            """
            import sys, time, vram_exporter, torch
            vram_exporter.start()
            kept = torch.empty(1 << 20)
            sys.stdin.readline()
            from vram_exporter import _client
            client, end = _client._client, time.monotonic() + 60
            while [peer.interval for peer in client._peers] != [0.4, 0.05] and time.monotonic() < end: time.sleep(0.01)
            client.pause()
            print(client._report())
            client._interval = 0.3
            print(client._report())
            """,
            VRAM_EXPORTER_SOCKET=self.both,
        )
        for server in servers:
            self.assertTrue(server.wait(shown))
        self.go_on(job)
        self.assertEqual(self.finish(job), "0.05\n0.3\n")

    def test_a_fork_leaves_both_connections_to_the_parent(self):
        servers = [self.server(), self.second()]
        job = self.program(
            """
            import os, sys, vram_exporter, torch
            vram_exporter.start(interval=0.02)
            child = os.fork()
            kept = [torch.empty((10 if child else 20) << 20)]
            sys.stdout.write("%d\\n" % os.getpid()); sys.stdout.flush()
            if child == 0:
                os.read(0, 1)
                sys.exit(0)
            os.waitpid(child, 0)
            grandchild = os.fork()
            if grandchild == 0:
                # CUDA is lost here. Nothing may remain of the parent's connections.
                files = ["/proc/self/fd/" + name for name in os.listdir("/proc/self/fd")]
                os._exit(sum(os.path.islink(file) and os.readlink(file).startswith("socket:") for file in files))
            assert os.waitpid(grandchild, 0)[1] == 0, "a socket was inherited"
            kept.append(torch.empty(5 << 20))
            sys.stdin.readline()
            """,
            VRAM_EXPORTER_SOCKET=self.both,
        )
        pids = {int(job.stdout.readline()), int(job.stdout.readline())}
        for server in servers:
            self.assertTrue(server.wait(lambda s: {c.pid for c in s.connections if s.values(c.pid)} == pids))
        self.go_on(job)
        for server in servers:
            self.assertTrue(server.wait(lambda s: s.values(job.pid).get(DEVICE, {}).get("allocated_bytes") == 15 * MIB))
            self.assertEqual(len(server.connections), 2, "one for each process")
        self.go_on(job)
        self.finish(job)

    def test_what_happens_after_the_last_reading_is_reported_at_the_end(self):
        servers = [self.server(), self.second()]
        job = self.program(
            """
            import sys, vram_exporter, torch
            vram_exporter.start(interval=1.5)
            kept = [torch.empty(10 << 20)]
            sys.stdin.readline()
            high = torch.empty(30 << 20); del high
            """,
            VRAM_EXPORTER_SOCKET=self.both,
        )
        for server in servers:
            self.assertTrue(server.wait(shown))
        self.go_on(job)
        self.finish(job)
        for server in servers:
            self.assertTrue(server.wait(lambda s: s.connections[0].closed_at))
            self.assertEqual(max(message["peak_bytes"] for message in server.messages("report") if "peak_bytes" in message), 40 * MIB)


class Resend(unittest.TestCase):
    def test_a_level_is_sent_again_after_a_report_that_was_none_of_the_levels(self):
        peer, level = Peer("/nowhere"), Level("pytorch", DEVICE, 5 * MIB, 5 * MIB, {"reserved_bytes": 8 * MIB})
        self.assertEqual(peer._message(level)["reserved_bytes"], 8 * MIB)
        self.assertIsNone(peer._message(level))
        peer.resend.add(("pytorch", DEVICE))
        again = peer._message(level)
        self.assertEqual((again["allocated_bytes"], again["reserved_bytes"]), (5 * MIB, 8 * MIB))
        self.assertIsNone(peer._message(level))


class Paths(unittest.TestCase):
    def test_a_list_has_at_most_four_paths_each_once(self):
        self.assertEqual(_client._paths("/a"), ["/a"])
        self.assertEqual(_client._paths("/a::/b:/a:"), ["/a", "/b"])
        self.assertEqual(_client._paths("/1:/2:/3:/4:/5"), ["/1", "/2", "/3", "/4"])
        for empty in ("", ":", "::"):
            self.assertEqual(_client._paths(empty), [_client.DEFAULT_SOCKET])

    def test_vram_run_makes_each_path_absolute(self):
        here = os.getcwd()
        made = _run.environment({}, "s:/t::u")["VRAM_EXPORTER_SOCKET"]
        self.assertEqual(made, "%s/s:/t:%s/u" % (here, here))

    def test_what_an_absent_peer_is_to_get_is_bounded(self):
        peer = Peer("/nonexistent/socket")
        for number in range(1000):
            peer.urgent.append(b"{}\n")
            peer.measured(("pytorch", DEVICE, "forward"), {"peak_bytes": number})
            peer.report([Level("pytorch", DEVICE, 1, 1000 - number, {})])
        self.assertEqual(len(peer.urgent), 32)
        self.assertEqual(peer._measurements, {("pytorch", DEVICE, "forward"): {"peak_bytes": 999}})
        self.assertEqual(peer._highs, {("pytorch", DEVICE): 1000})


if __name__ == "__main__":
    unittest.main()
