"""Forks: a child never reports its parent's values, and reports its own only if it initialises CUDA itself."""

import sys
import unittest

from . import support
from .support import DEVICE, MIB


class Fork(support.Case):
    def test_the_parent_goes_on_and_the_child_is_silent(self):
        server = self.server()
        job = self.program(
            """
            import os, sys, vram_exporter, torch
            vram_exporter.start(interval=0.02)
            kept = [torch.empty(10 << 20)]
            sys.stdin.readline()
            child = os.fork()
            if child == 0:
                assert not vram_exporter.running(), "CUDA is lost in this child"
                assert len(os.listdir("/proc/self/task")) == 1
                with vram_exporter.measure("child") as m: pass
                assert m.devices == []
                sys.exit(0)
            assert os.waitpid(child, 0)[1] == 0
            kept.append(torch.empty(5 << 20))
            sys.stdin.readline()
            """
        )
        self.assertTrue(server.wait(lambda s: s.values(job.pid)))
        self.go_on(job)
        self.assertTrue(server.wait(lambda s: s.values(job.pid)[DEVICE]["allocated_bytes"] == 15 * MIB))
        self.assertEqual(len(server.connections), 1, "one connection, never interrupted")
        self.assertIsNone(server.connections[0].closed_at)
        self.go_on(job)
        self.finish(job)

    def test_a_child_that_initialises_cuda_itself_reports_itself(self):
        server = self.server()
        job = self.program(
            """
            import os, sys, vram_exporter, torch
            vram_exporter.start(interval=0.02)
            child = os.fork()
            kept = torch.empty((10 if child else 20) << 20)
            print(os.getpid(), flush=True)
            if child == 0:
                os.read(0, 1)
                sys.exit(0)
            os.waitpid(child, 0)
            """
        )
        pids = {int(job.stdout.readline()), int(job.stdout.readline())}
        self.assertTrue(server.wait(lambda s: {c.pid for c in s.connections if s.values(c.pid)} == pids))
        parent, child = job.pid, (pids - {job.pid}).pop()
        self.assertEqual(server.values(parent)[DEVICE]["allocated_bytes"], 10 * MIB)
        self.assertEqual(server.values(child)[DEVICE]["allocated_bytes"], 20 * MIB)
        self.go_on(job)
        self.finish(job)

    def test_workers_of_a_pool_do_not_disturb(self):
        server = self.server()
        job = self.program(
            """
            import multiprocessing, sys, vram_exporter, torch
            vram_exporter.start(interval=0.01)
            kept = torch.empty(10 << 20)
            sys.stdin.readline()
            context = multiprocessing.get_context("fork")
            for _ in range(5):
                with context.Pool(4) as pool: assert pool.map(abs, range(-50, 0)) == list(range(50, 0, -1))
            kept = [kept, torch.empty(1 << 20)]
            sys.stdin.readline()
            """
        )
        self.assertTrue(server.wait(lambda s: s.values(job.pid)))
        self.go_on(job)
        self.assertTrue(server.wait(lambda s: s.values(job.pid)[DEVICE]["allocated_bytes"] == 11 * MIB))
        self.assertEqual({connection.pid for connection in server.connections}, {job.pid})
        self.go_on(job)
        self.finish(job)

    def test_a_failed_allocation_in_a_child_is_not_sent_on_the_parents_connection(self):
        """This must hold even if the child is forked without Python's hooks."""
        server = self.server()
        job = self.program(
            """
            import ctypes, os, sys, vram_exporter, torch
            vram_exporter.start(interval=0.02)
            kept = torch.empty(10 << 20)
            sys.stdin.readline()
            child = ctypes.PyDLL(None).fork()
            if child == 0:
                from vram_exporter import _client
                _client._client.urgent({"type": "out_of_memory"})
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
            kept = [kept, torch.empty(1 << 20)]
            sys.stdin.readline()
            """
        )
        self.assertTrue(server.wait(lambda s: s.values(job.pid)))
        self.go_on(job)
        self.assertTrue(server.wait(lambda s: s.values(job.pid)[DEVICE]["allocated_bytes"] == 11 * MIB))
        self.assertEqual(server.messages("out_of_memory"), [])
        self.go_on(job)
        self.finish(job)

    def test_a_fork_raises_no_warning_because_of_the_client(self):
        if sys.version_info < (3, 12):
            self.missing("CPython 3.12, which warns of a fork with several threads")
        self.server()
        self.run_program(
            """
            import os, time, vram_exporter, torch, warnings
            warnings.simplefilter("error")
            vram_exporter.start(interval=0.01)
            kept = torch.empty(1 << 20)
            for _ in range(20):
                child = os.fork()
                if child == 0: os._exit(0)
                os.waitpid(child, 0)
            assert len(os.listdir("/proc/self/task")) == 2, "the thread runs again"
            """
        )

    def test_a_parent_that_waits_for_its_child_still_reports(self):
        """Even if it does nothing else after the fork, and if the program has a hook of its own."""
        hook = "os.register_at_fork(before=lambda: None, after_in_parent=lambda: len([None]))"
        for before, after in (("", ""), (hook, ""), ("", hook)):
            with self.subTest(before=before, after=after):
                self.path += "s"
                server = self.server()
                job = self.program(
                    """
                    import os, vram_exporter, torch
                    %s
                    vram_exporter.start(interval=0.02)
                    %s
                    kept = torch.empty(10 << 20)
                    input()
                    child = os.fork()
                    if child == 0:
                        print("forked", flush=True)
                        os.read(0, 1)
                        os._exit(0)
                    os.waitpid(child, 0)
                    """
                    % (before, after)
                )
                self.assertTrue(server.wait(lambda s: s.values(job.pid)))
                self.go_on(job)
                self.assertEqual(job.stdout.readline(), "forked\n")
                seen = len(server.messages("alive"))
                self.assertTrue(server.wait(lambda s: len(s.messages("alive")) > seen + 1), "it is silent while it waits")
                self.go_on(job)
                self.finish(job)

    def test_a_fork_inside_a_measured_region(self):
        self.server()
        out = self.run_program(
            """
            import os, vram_exporter, torch
            vram_exporter.start(interval=0.01)
            kept = torch.empty(1 << 20)
            with vram_exporter.measure("fork") as m:
                high = torch.empty(4 << 20)
                child = os.fork()
                if child == 0: os._exit(0)
                os.waitpid(child, 0)
            print(m.highest_allocated >> 20, m.exact)
            """
        )
        self.assertEqual(out, "5 True\n")

    def test_a_child_of_a_program_without_the_client_has_none(self):
        self.server()
        self.run_program("import os, vram_exporter\nif os.fork() == 0: assert not vram_exporter.running()\nelse: assert os.wait()[1] == 0")


if __name__ == "__main__":
    unittest.main()
