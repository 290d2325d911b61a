"""The thread, the connection, and everything that can go wrong with the exporter: none of it affects the program."""

import os
import socket
import unittest

import vram_exporter

from . import support
from .recording_server import UNSUPPORTED
from .support import DEVICE, MIB

# A job that allocates and frees, and waits for a line at each step.
JOB = """
    import sys, vram_exporter, torch
    vram_exporter.start(interval=0.02)
    kept = [torch.empty(10 << 20)]
    print("allocated", flush=True)
    sys.stdin.readline()
    kept.append(torch.empty(30 << 20))
    print("more", flush=True)
    sys.stdin.readline()
    print("done", flush=True)
"""


def allocated(amount, device=DEVICE):
    """A condition: some process shows `amount` on `device`."""
    return lambda server: any(server.values(c.pid).get(device, {}).get("allocated_bytes") == amount for c in server.connections)


class Reports(support.Case):
    def test_a_program_reports_what_its_allocator_holds(self):
        server = self.server()
        job = self.program(JOB)
        self.assertTrue(server.wait(allocated(10 * MIB)))
        self.go_on(job)
        self.assertTrue(server.wait(allocated(40 * MIB)))
        self.assertEqual(server.connections[0].pid, job.pid)
        values = server.values(job.pid)[DEVICE]
        self.assertEqual(values["reserved_bytes"], 40 * MIB)
        self.assertEqual(values["peak_bytes"], 40 * MIB)
        self.assertEqual((values["retries"], values["out_of_memory"]), (0, 0))
        self.assertNotIn("inactive_split_bytes", values)
        self.go_on(job)
        self.finish(job)
        self.assertTrue(server.wait(lambda s: s.connections[0].closed_at), "the end of the program ends the connection")

    def test_the_first_message_is_hello_and_every_line_is_valid(self):
        server = self.server()
        job = self.program(JOB)
        self.assertTrue(server.wait(allocated(10 * MIB)))
        self.go_on(job), self.go_on(job)
        self.finish(job)
        messages = server.messages()
        self.assertEqual(messages[0], {"type": "hello", "version": 1, "client": "vram-exporter-python/" + vram_exporter.__version__})
        self.assertEqual(server.connections[0].invalid, [])
        for message in messages[1:]:
            if message["type"] == "report":
                self.assertGreaterEqual(message["high_bytes"], message["allocated_bytes"])

    def test_an_unchanged_program_sends_only_that_it_is_alive(self):
        server = self.server()
        job = self.program(JOB)
        self.assertTrue(server.wait(lambda s: len(s.messages("alive")) >= 2))
        self.assertEqual(len(server.messages("report")), 1)
        times = [at for at, message in server.connections[0].messages]
        self.assertLess(max(later - earlier for earlier, later in zip(times, times[1:])), 5.0)
        self.go_on(job), self.go_on(job)
        self.finish(job)

    def test_a_peak_between_two_readings_is_reported(self):
        server = self.server()
        job = self.program(
            """
            import sys, vram_exporter, torch
            vram_exporter.start(interval=0.5)
            kept = torch.empty(10 << 20)
            sys.stdin.readline()
            high = torch.empty(70 << 20); del high
            sys.stdin.readline()
            """
        )
        self.assertTrue(server.wait(allocated(10 * MIB)))
        self.go_on(job)
        report = server.wait(lambda s: [m for m in s.messages("report") if m["high_bytes"] == 80 * MIB])
        self.assertTrue(report)
        self.assertEqual((report[0]["allocated_bytes"], report[0]["peak_bytes"]), (10 * MIB, 80 * MIB))
        self.go_on(job)
        self.finish(job)

    def test_resets_by_the_user_lower_nothing(self):
        server = self.server()
        job = self.program(
            """
            import sys, vram_exporter, torch
            vram_exporter.start(interval=0.02)
            try: torch.empty(1 << 40)
            except torch.OutOfMemoryError: pass
            high = torch.empty(70 << 20)
            sys.stdin.readline()
            del high
            torch.cuda.reset_peak_memory_stats(); torch.cuda.reset_accumulated_memory_stats()
            kept = torch.empty(20 << 20)
            sys.stdin.readline()
            """
        )
        self.assertTrue(server.wait(allocated(70 * MIB)))
        self.go_on(job)
        self.assertTrue(server.wait(allocated(20 * MIB)))
        values = server.values(job.pid)[DEVICE]
        self.assertEqual((values["peak_bytes"], values["out_of_memory"]), (70 * MIB, 1))
        self.go_on(job)
        self.finish(job)

    def test_only_devices_that_the_program_uses_are_reported(self):
        server = self.server()
        job = self.program(JOB.replace('torch.empty(30 << 20)', 'torch.empty(30 << 20, "cuda:1")'), STANDIN_DEVICES="4")
        self.assertTrue(server.wait(allocated(10 * MIB)))
        self.assertEqual(list(server.values(job.pid)), [DEVICE])
        self.go_on(job)
        self.assertTrue(server.wait(allocated(30 * MIB, support.SECOND_DEVICE)))
        self.assertEqual(len(server.values(job.pid)), 2)
        self.go_on(job)
        self.finish(job)

    def test_the_exporters_interval_is_used(self):
        server = self.server(reply={"type": "welcome", "version": 1, "interval_seconds": 0.05})
        job = self.program(
            """
            import sys, time, vram_exporter, torch
            vram_exporter.start()
            kept = torch.empty(1 << 20)
            sys.stdin.readline()
            from vram_exporter import _client
            end = time.monotonic() + 60
            while _client._client._peers[0].connection.interval != 0.05 and time.monotonic() < end: time.sleep(0.01)
            print(_client._client._peers[0].connection.interval)
            """
        )
        self.assertTrue(server.wait(allocated(MIB)))
        self.go_on(job)
        self.assertEqual(self.finish(job), "0.05\n")

    def test_a_program_without_cuda_opens_no_connection(self):
        server = self.server()
        self.run_program(
            """
            import time, vram_exporter, torch
            vram_exporter.start(interval=0.01)
            from vram_exporter import _client
            ticks, tick = [], _client._client._tick
            _client._client._tick = lambda: ticks.append(1) or tick()
            end = time.monotonic() + 60
            while len(ticks) < 20 and time.monotonic() < end: time.sleep(0.01)
            assert len(ticks) >= 20
            assert not torch.cuda._initialized, "the client initialised CUDA"
            assert torch._C.calls["_cuda_memoryStats"] == 0
            """
        )
        self.assertEqual(server.connections, [])

    def test_the_client_imports_no_framework(self):
        out = self.run_program(
            """
            import sys, vram_exporter
            vram_exporter.start(interval=0.01)
            with vram_exporter.measure("nothing") as m: pass
            print(m.devices, [name for name in ("torch", "jax", "tensorflow") if name in sys.modules])
            """
        )
        self.assertEqual(out, "[] []\n")


class Trouble(support.Case):
    def job_is_unharmed(self, job):
        self.go_on(job), self.go_on(job)
        self.assertEqual(self.finish(job), "allocated\nmore\ndone\n")

    def test_no_exporter(self):
        self.job_is_unharmed(self.program(JOB))

    def test_a_path_that_is_no_socket(self):
        self.write("s", "a file")
        self.job_is_unharmed(self.program(JOB))

    def test_a_path_that_is_too_long(self):
        self.job_is_unharmed(self.program(JOB, VRAM_EXPORTER_SOCKET="/" + "x" * 300))

    def test_an_exporter_that_comes_later_is_found(self):
        job = self.program(JOB)
        self.assertEqual(job.stdout.readline(), "allocated\n")
        server = self.server()
        self.assertTrue(server.wait(allocated(10 * MIB)))
        self.go_on(job), self.go_on(job)
        self.finish(job)

    def test_a_killed_exporter_is_found_again_with_all_values(self):
        server = self.server()
        job = self.program(JOB)
        self.assertTrue(server.wait(allocated(10 * MIB)))
        server.close()
        os.unlink(self.path)
        second = self.server()
        self.assertTrue(second.wait(allocated(10 * MIB)))
        self.assertEqual(second.messages()[0]["type"], "hello")
        self.assertIn("peak_bytes", second.values(job.pid)[DEVICE])
        self.job_is_unharmed(job)

    def test_a_killed_exporter_with_the_default_action_of_sigpipe(self):
        server = self.server()
        job = self.program("import signal; signal.signal(signal.SIGPIPE, signal.SIG_DFL)\n" + support.textwrap.dedent(JOB))
        self.assertTrue(server.wait(allocated(10 * MIB)))
        server.close()
        self.job_is_unharmed(job)

    def test_a_send_that_fails_raises_no_signal(self):
        """The other side has shut down its reading end; only a send reveals this."""
        server = self.server()
        job = self.program(
            """
            import signal, sys
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)
            from vram_exporter import _connection
            connection = _connection.Connection(sys.argv[1])
            assert connection.ready()
            sys.stdin.readline()
            connection.send([b"{}\\n"])
            print(connection._socket)
            """,
            self.path,
        )
        self.assertTrue(server.wait(lambda s: s.messages("hello")))
        server.connections[0].socket.shutdown(socket.SHUT_RD)
        self.go_on(job)
        self.assertEqual(self.finish(job), "None\n")

    def test_a_hanging_exporter_with_a_full_buffer(self):
        server = self.server(read=False)
        job = self.program(
            """
            import time, vram_exporter, torch
            from vram_exporter import _client
            vram_exporter.start(interval=0.01)
            client = _client._client
            kept, end = [], time.monotonic() + 60
            while not (client._peers[0].connection and client._peers[0].connection._unsent) and time.monotonic() < end:
                kept.append(torch.empty(1 << 20))
                for _ in range(100): client.urgent({"type": "alive", "padding": "x" * 3000})
                assert len(client._peers[0].urgent) <= 32, "the queue is bounded"
            assert client._peers[0].connection._unsent, "the buffer of the socket is not full"
            size = len(client._peers[0].connection._unsent)
            for _ in range(300): client.urgent({"type": "alive", "padding": "x" * 3000})
            assert len(client._peers[0].connection._unsent) <= size, "what waits is bounded"
            print("done")
            """
        )
        self.assertEqual(self.finish(job), "done\n")
        self.assertEqual(len(server.connections), 1)

    def test_an_exporter_that_accepts_nobody(self):
        self.server(accept=False, backlog=0)
        full = socket.socket(socket.AF_UNIX)
        self.addCleanup(full.close)
        full.connect(self.path)
        self.job_is_unharmed(self.program(JOB))

    def test_an_exporter_of_another_version_is_tried_once(self):
        server = self.server(reply=UNSUPPORTED, close_after_reply=True)
        job = self.program(
            """
            import sys, time, vram_exporter, torch
            from vram_exporter import _client, _connection
            _connection.RETRY = 0.05
            vram_exporter.start(interval=0.02)
            kept = torch.empty(1 << 20)
            end = time.monotonic() + 60
            while time.monotonic() < end and not (_client._client._peers[0].connection and _client._client._peers[0].connection.refused): time.sleep(0.01)
            tick, ticks = _client._client._tick, []
            _client._client._tick = lambda: ticks.append(1) or tick()
            while len(ticks) < 20 and time.monotonic() < end: time.sleep(0.02)
            print(_client._client._peers[0].connection.refused, len(ticks) >= 20)
            """
        )
        self.assertEqual(self.finish(job), "True True\n")
        self.assertEqual(len(server.connections), 1)

    def test_nonsense_from_the_exporter(self):
        for reply in ([1, 2], {"type": "welcome", "interval_seconds": "soon"}, {"type": "error", "reason": 7}, "\ud800"):
            with self.subTest(reply=reply):
                server = self.server(reply=reply)
                job = self.program(JOB)
                self.assertTrue(server.wait(allocated(10 * MIB)))
                self.job_is_unharmed(job)
                server.close()
                os.unlink(self.path)

    def test_exceptions_inside_pytorch(self):
        server = self.server()
        job = self.program(
            """
            import sys, vram_exporter, torch
            from vram_exporter import _allocators
            _allocators.REST = 0.05
            vram_exporter.start(interval=0.02)
            kept = torch.empty(1 << 20)
            sys.stdin.readline()
            class Hostile(Exception):
                def __str__(self): raise RuntimeError
            torch._C.raising = Hostile()
            with vram_exporter.measure("failing") as m: kept = [kept, torch.empty(4 << 20)]
            print(m.devices)
            torch._C.raising = None
            sys.stdin.readline()
            """
        )
        self.assertTrue(server.wait(allocated(MIB)))
        self.go_on(job)
        self.assertTrue(server.wait(allocated(5 * MIB)))
        self.go_on(job)
        self.assertEqual(self.finish(job), "[]\n")

    def test_a_program_that_closes_all_descriptors(self):
        """The descriptor number of the client's socket may then be that of the program's own socket."""
        server = self.server()
        job = self.program(
            """
            import os, socket, sys, vram_exporter, torch
            from vram_exporter import _client
            vram_exporter.start(interval=0.02)
            kept = torch.empty(1 << 20)
            sys.stdin.readline()
            number = _client._client._peers[0].connection._socket.fileno()
            ours, theirs = socket.socketpair()
            os.dup2(ours.fileno(), number)
            kept = [kept, torch.empty(3 << 20)]
            sys.stdin.readline()
            theirs.setblocking(False)
            try: print(theirs.recv(100))
            except BlockingIOError: print("nothing")
            os.fstat(number)
            """
        )
        self.assertTrue(server.wait(allocated(MIB)))
        self.go_on(job)
        # The client gives up the descriptor number and connects again.
        self.assertTrue(server.wait(allocated(4 * MIB)))
        self.assertEqual(len(server.connections), 2)
        self.go_on(job)
        self.assertEqual(self.finish(job), "nothing\n")

    def test_closed_standard_streams_are_not_replaced_by_the_socket(self):
        server = self.server()
        job = self.program(
            """
            import os, sys, time, vram_exporter, torch
            from vram_exporter import _client
            out = os.dup(1); os.close(1)
            vram_exporter.start(interval=0.02)
            kept = torch.empty(1 << 20)
            sys.stdin.readline()
            number = _client._client._peers[0].connection._socket.fileno()
            os.write(out, b"above\\n" if number > 2 else b"taken\\n")
            os._exit(0)
            """
        )
        self.assertTrue(server.wait(allocated(MIB)))
        self.go_on(job)
        self.assertEqual(self.finish(job), "above\n")

    def test_start_and_stop_can_be_repeated(self):
        server = self.server()
        job = self.program(
            """
            import os, sys, threading, vram_exporter, torch
            kept = torch.empty(1 << 20)
            for _ in range(3):
                assert vram_exporter.start(interval=0.02) and threading.active_count() == 1 and vram_exporter.start() and vram_exporter.running()
                sys.stdin.readline()
                vram_exporter.stop(); vram_exporter.stop()
                assert not vram_exporter.running()
            print(len(os.listdir("/proc/self/task")))
            """
        )
        for number in range(1, 4):
            self.assertTrue(server.wait(lambda s: len(s.connections) >= number and s.values(job.pid)))
            self.go_on(job)
            self.assertTrue(server.wait(lambda s: s.connections[number - 1].closed_at))
        self.assertEqual(self.finish(job), "1\n")

    def test_a_failed_connect_is_retried_every_five_seconds_at_most(self):
        from vram_exporter import _connection

        connection = _connection.Connection(self.path)
        self.assertFalse(connection.ready())
        server = self.server()
        self.assertFalse(connection.ready(), "it is not yet time")
        connection._retry_at -= 5.0
        self.assertTrue(connection.ready())
        self.assertTrue(server.wait(lambda s: s.messages("hello")))
        connection.close()


if __name__ == "__main__":
    unittest.main()
