"""Failed allocations of PyTorch: reported at once, and without any effect on the program."""

import re
import sys
import unittest
from unittest import mock

from vram_exporter import _connection, _torch

from . import support
from .support import DEVICE, MIB

# Ends with the exception, like a job that does not catch it.
DYING = """
    import sys, vram_exporter, torch
    {setup}
    kept = torch.empty(10 << 20)
    sys.stdin.readline()
    torch.empty(1 << 40)
"""


class OutOfMemory(support.Case):
    def dying(self, setup="vram_exporter.start(interval=0.02)", **variables):
        return self.program(DYING.format(setup=setup), **variables)

    def test_a_failed_allocation_arrives_before_the_process_ends(self):
        server = self.server()
        job = self.dying()
        self.assertTrue(server.wait(lambda s: s.values(job.pid)))
        self.go_on(job)
        (message,) = server.wait(lambda s: s.messages("out_of_memory"))
        wanted = {
            "type": "out_of_memory",
            "framework": "pytorch",
            "device": DEVICE,
            "requested_bytes": 1 << 40,
            "free_bytes": (1 << 37) - 10 * MIB,
            "total_bytes": 1 << 37,
            "allocated_bytes": 10 * MIB,
            "reserved_bytes": 10 * MIB,
        }
        self.assertEqual(message, wanted)
        connection = server.connections[0]
        position = [m["type"] for _, m in connection.messages].index("out_of_memory")
        self.assertTrue(connection.alive_at_message[position])
        _, err = job.communicate(timeout=support.LIMIT)
        self.assertEqual(job.returncode, 1)
        self.assertIn("Tried to allocate 1024.00 GiB. GPU 0 has a total capacity of 128.00 GiB of which 127.99 GiB is free.", err)

    def test_a_process_killed_right_after_the_failure_has_reported_it(self):
        """Only the observer has run: no thread and no exit handler had time to send."""
        server = self.server()
        job = self.program(
            """
            import os, signal, sys, vram_exporter, torch
            vram_exporter.start(interval=0.5)
            kept = torch.empty(10 << 20)
            sys.stdin.readline()
            from vram_exporter import _client
            _client._client._run = None
            _client._client.pause()  # There is no thread that could send it later.
            try: torch.empty(1 << 40)
            except torch.OutOfMemoryError: os.kill(os.getpid(), signal.SIGKILL)
            """
        )
        self.assertTrue(server.wait(lambda s: s.values(job.pid)))
        self.go_on(job)
        self.assertEqual(len(server.wait(lambda s: s.messages("out_of_memory"))), 1)
        job.wait(support.LIMIT)
        self.assertEqual(job.returncode, -9)

    def test_the_very_first_allocation_that_fails_is_reported(self):
        server = self.server()
        job = self.program(
            """
            import sys, time, vram_exporter, torch
            vram_exporter.start(interval=0.02)
            from vram_exporter import _oom
            end = time.monotonic() + 60
            while not _oom.watching() and time.monotonic() < end: time.sleep(0.01)
            assert not torch.cuda.is_initialized()
            torch.empty(1 << 40)
            """
        )
        (message,) = server.wait(lambda s: s.messages("out_of_memory"))
        self.assertEqual((message["requested_bytes"], message["allocated_bytes"]), (1 << 40, 0))
        job.communicate(timeout=support.LIMIT)
        self.assertEqual(job.returncode, 1)

    def test_the_users_observer_hook_and_message_are_untouched(self):
        setup = """
    torch.cuda.init()
    torch._C._cuda_attach_out_of_memory_observer(lambda *a: print("observer", a, flush=True))
    sys.excepthook = lambda kind, value, trace: print(kind.__name__, value, file=sys.stderr)
"""
        self.server()
        outcomes = []
        for start in ("vram_exporter.start(interval=0.02)", ""):
            job = self.dying(setup + "    " + start)
            out, err = job.communicate("\n", timeout=support.LIMIT)
            outcomes.append((job.returncode, out, re.sub("0x[0-9a-f]+", "0x", err)))
        self.assertEqual(outcomes[0], outcomes[1])
        self.assertIn("observer (0, 1099511627776,", outcomes[0][1])
        self.assertIn("OutOfMemoryError CUDA out of memory.", outcomes[0][2])

    def test_the_observer_is_attached_once(self):
        self.server()
        out = self.run_program(
            """
            import time, vram_exporter, torch
            torch.cuda.init()
            for _ in range(3):
                vram_exporter.start(interval=0.01)
                from vram_exporter import _oom
                end = time.monotonic() + 60
                while not _oom.watching() and time.monotonic() < end: time.sleep(0.01)
                vram_exporter.stop()
            print(len(torch._C.observers))
            """
        )
        self.assertEqual(out, "1\n")

    def test_after_stop_nothing_is_reported(self):
        server = self.server()
        job = self.program(
            """
            import sys, vram_exporter, torch
            vram_exporter.start(interval=0.02)
            kept = torch.empty(10 << 20)
            sys.stdin.readline()
            vram_exporter.stop()
            try: torch.empty(1 << 40)
            except torch.OutOfMemoryError: print("caught")
            """
        )
        self.assertTrue(server.wait(lambda s: s.values(job.pid)))
        self.go_on(job)
        self.assertEqual(self.finish(job), "caught\n")
        self.assertTrue(server.wait(lambda s: s.connections[0].closed_at))
        self.assertEqual(server.messages("out_of_memory"), [])

    def test_the_observer_never_raises(self):
        from vram_exporter import _oom

        seen = []

        def hostile(message):
            seen.append(message)
            raise KeyboardInterrupt

        previous = _oom._send
        self.addCleanup(setattr, _oom, "_send", previous)
        with mock.patch.object(_torch, "device_uuid", return_value=DEVICE):
            for send in (hostile, None, 7):
                _oom._send = send
                _oom._recent.clear()
                self.assertIsNone(_oom._observe(0, 1, 2, 3))
            self.assertIsNone(_oom._observe("a", None, object(), []))
        self.assertEqual([message["requested_bytes"] for message in seen], [1])

    def observed(self, before):
        """The report of a failure about which `before` knows more."""
        from vram_exporter import _oom

        sent = []
        for name, value in (("_send", sent.append), ("_before", before)):
            self.addCleanup(setattr, _oom, name, getattr(_oom, name))
            setattr(_oom, name, value)
        _oom._recent.clear()
        with mock.patch.object(_torch, "device_uuid", return_value=DEVICE):
            _oom._observe(0, 1, 2, 3)
        return sent[0]

    def test_the_frame_of_the_program_is_passed_on(self):
        frames = []
        message = self.observed(lambda device, caller: frames.append((device, caller.f_code.co_name)) or {"site": "train.py:7 step"})
        self.assertEqual(frames, [(0, "observed")])
        self.assertEqual(message["site"], "train.py:7 step")

    def test_a_thread_without_frames_has_no_caller(self):
        seen = []
        with mock.patch.object(sys, "_getframe", side_effect=ValueError("call stack is not deep enough")):
            message = self.observed(lambda _, caller: seen.append(caller) or {})
        self.assertEqual(seen, [None])
        self.assertEqual(message["requested_bytes"], 1)

    def test_what_the_line_has_no_room_for_is_left_out(self):
        long = "\U0001f600" * 128  # 1536 bytes in the line.
        message = self.observed(lambda *_: {"site": "a", "frames": ["b" + str(i) + long for i in range(16)], "snapshot_path": "/p" * 500})
        self.assertEqual(message["frames"], ["b0" + long])
        self.assertEqual((message["site"], message["snapshot_path"]), ("a", "/p" * 500))
        message = self.observed(lambda *_: {"site": long, "frames": [long] * 16, "snapshot_path": "/" + "\u00e9" * 511})
        self.assertEqual(set(message) & {"site", "frames", "snapshot_path"}, {"snapshot_path"})
        for kept in ({"site": "a", "frames": ["a"] * 16}, {"snapshot_path": "/p"}, {}):
            message = self.observed(lambda *_: dict(kept))
            self.assertEqual({key: message[key] for key in kept}, kept)
            self.assertTrue(_connection.fits(message))

    def test_without_a_certain_uuid_nothing_is_sent(self):
        from vram_exporter import _oom

        sent = []
        previous = _oom._send
        self.addCleanup(setattr, _oom, "_send", previous)
        _oom._send = sent.append
        with mock.patch.object(_torch, "device_uuid", return_value=None):
            _oom._observe(0, 1, 2, 3)
        self.assertEqual(sent, [])

    def test_the_observer_does_not_wait_for_a_thread_that_sends(self):
        server = self.server()
        job = self.program(
            """
            import sys, threading, vram_exporter, torch
            vram_exporter.start(interval=0.02)
            kept = torch.empty(10 << 20)
            sys.stdin.readline()
            from vram_exporter import _client
            client = _client._client
            with client._lock:  # It is not released before the observer has returned.
                try: torch.empty(1 << 40)
                except torch.OutOfMemoryError: print("caught", len(client._peers[0].urgent), flush=True)
            sys.stdin.readline()
            """
        )
        self.assertTrue(server.wait(lambda s: s.values(job.pid)))
        self.go_on(job)
        self.assertEqual(len(server.wait(lambda s: s.messages("out_of_memory"))), 1, "the thread sends it")
        self.go_on(job)
        self.assertEqual(self.finish(job), "caught 1\n")

    def test_a_loop_of_failures_is_counted_and_sent_within_bounds(self):
        server = self.server()
        job = self.program(
            """
            import sys, vram_exporter, torch
            vram_exporter.start(interval=0.02)
            kept = torch.empty(10 << 20)
            sys.stdin.readline()
            for _ in range(200):
                try: torch.empty(1 << 40)
                except torch.OutOfMemoryError: pass
            sys.stdin.readline()
            """
        )
        self.assertTrue(server.wait(lambda s: s.values(job.pid)))
        self.go_on(job)
        self.assertTrue(server.wait(lambda s: s.values(job.pid)[DEVICE]["out_of_memory"] == 200))
        sent = len(server.messages("out_of_memory"))
        self.assertEqual(sent, 10, "the exporter takes 20 in 20 seconds from all processes of a user")
        self.go_on(job)
        self.finish(job)

    def test_a_limit_of_the_program_is_not_the_total_of_the_device(self):
        server = self.server()
        job = self.dying("vram_exporter.start(interval=0.02); torch._C.fraction = 0.5")
        self.assertTrue(server.wait(lambda s: s.values(job.pid)))
        job.communicate("\n", timeout=support.LIMIT)
        (message,) = server.messages("out_of_memory")
        self.assertNotIn("total_bytes", message)
        self.assertEqual(message["requested_bytes"], 1 << 40)

    def test_cudamallocasync_has_no_observer(self):
        server = self.server()
        job = self.dying(STANDIN_BACKEND="cudaMallocAsync")
        self.assertTrue(server.wait(lambda s: s.values(job.pid)))
        self.assertEqual(set(server.values(job.pid)[DEVICE]), {"allocated_bytes", "high_bytes", "reserved_bytes", "peak_bytes", "peak_reserved_bytes"})
        self.go_on(job)
        job.communicate(timeout=support.LIMIT)
        self.assertEqual(server.messages("out_of_memory"), [])


if __name__ == "__main__":
    unittest.main()
