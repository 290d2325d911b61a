"""Measured regions: the highest level of each, without resetting the program's peaks."""

import unittest
from unittest import mock

from vram_exporter import _allocators
from vram_exporter._allocators import Allocators

from . import support
from .support import DEVICE, MIB


class Measure(support.Case):
    def measure(self, text, **variables):
        """Runs a program in which `hold(MiB)` allocates memory; 100 MiB are allocated from the start. Returns what the program prints."""
        start = "import threading, vram_exporter, torch\nfrom vram_exporter import measure, dry_run\nhold = lambda mib: torch.empty(mib << 20)\nbase = hold(100)\n"
        mib = "def mib(m): return [v and v >> 20 for v in (m.allocated_before, m.allocated_after, m.highest_allocated)]\n"
        return self.run_program(start + mib + support.textwrap.dedent(text), **variables)

    def test_the_highest_level_equals_pytorchs_own(self):
        out = self.measure(
            """
            torch.cuda.reset_peak_memory_stats()
            with measure("region") as m:
                a = hold(50); del a
                b = hold(20)
            print(mib(m), m.exact, m.highest_allocated == torch.cuda.max_memory_allocated())
            print(m.highest_reserved == torch.cuda.max_memory_reserved(), m.reserved_exact, m.devices[0].name, m.seconds > 0)
            """
        )
        self.assertEqual(out, "[100, 120, 150] True True\nTrue True pytorch:0 True\n")

    def test_nested_regions_have_their_own_peaks(self):
        out = self.measure(
            """
            with measure("outer") as outer:
                with measure("inner") as inner:
                    a = hold(20); del a
                b = hold(70); del b
            print(mib(outer), outer.exact, mib(inner), inner.exact)
            """
        )
        self.assertEqual(out, "[100, 100, 170] True [100, 100, 120] True\n")

    def test_the_users_peak_is_untouched(self):
        out = self.measure(
            """
            a = hold(300); del a
            with measure("region") as m: b = hold(10)
            print(torch.cuda.max_memory_allocated() >> 20)
            """
        )
        self.assertEqual(out, "400\n")

    def test_below_an_older_peak_the_result_has_bounds(self):
        out = self.measure(
            """
            a = hold(300); del a
            with measure("region") as m:
                b = hold(10); del b
                c = hold(30); del c
            print(mib(m), m.at_most_allocated >> 20, m.exact)
            with measure("nothing") as m: pass
            print(mib(m), m.exact)
            """
        )
        # 100 MiB from the start, and 10 and 30 MiB in the region: if nothing had been freed, 140 MiB.
        self.assertEqual(out, "[100, 100, 100] 140 False\n[100, 100, 100] True\n")

    def test_a_reset_inside_a_region_is_noticed(self):
        out = self.measure(
            """
            a = hold(200); del a
            with measure("region") as m:
                a = hold(300); del a
                torch.cuda.reset_peak_memory_stats()
                b = hold(10); del b
            print(mib(m), m.exact, m.at_most_allocated >> 20)
            """
        )
        self.assertEqual(out, "[100, 100, 110] False 410\n")

    def test_a_reset_that_no_figure_reveals_gives_a_level_that_was_reached(self):
        """The documented limitation of `exact`: every peak has grown again, so nothing reveals the reset."""
        out = self.measure(
            """
            with measure("region") as m:
                a = hold(300); del a
                torch.cuda.reset_peak_memory_stats()
                b = hold(310); del b
                torch.cuda.reset_peak_memory_stats()
                c = hold(5); del c
            print(mib(m))
            """
        )
        self.assertEqual(out, "[100, 100, 105]\n")

    def test_a_reset_between_two_readings_costs_only_its_interval(self):
        out = self.measure(
            """
            with measure("region") as m:
                with measure("first"):
                    a = hold(10); del a
                    torch.cuda.reset_peak_memory_stats()
                b = hold(50)
            print(mib(m), m.exact)
            """
        )
        self.assertEqual(out, "[100, 150, 150] True\n")

    def test_regions_in_threads_do_not_disturb_each_other(self):
        out = self.measure(
            """
            inside, highest, results = threading.Barrier(2), threading.Barrier(2), {}
            def work(number):
                with measure("thread") as m:
                    inside.wait()
                    held = hold(10 * number)
                    highest.wait()
                    del held
                results[number] = m
            threads = [threading.Thread(target=work, args=(number,)) for number in (1, 2)]
            for thread in threads: thread.start()
            for thread in threads: thread.join()
            print([(results[n].highest_allocated >> 20, results[n].exact) for n in (1, 2)])
            """
        )
        self.assertEqual(out, "[(130, True), (130, True)]\n", "memory belongs to the process: each region contains both")

    def test_many_concurrent_regions_of_one_object(self):
        out = self.measure(
            """
            region, errors, measured = measure("shared"), [], []
            def work():
                for _ in range(200):
                    with region as m: a = hold(1); del a
                    measured.append(m.problem is None)
                    if m.seconds is None: errors.append(str(m))
                    elif m.problem is None and not 101 << 20 <= m.devices[0].at_most_allocated: errors.append(str(m))
                    elif m.problem is not None and (m.devices or "uses a GPU" in str(m)): errors.append(str(m))
            threads = [threading.Thread(target=work) for _ in range(8)]
            for thread in threads: thread.start()
            for thread in threads: thread.join()
            from vram_exporter import _client
            print(errors[:1], _client.allocators()._listeners, region._open, any(measured))
            """
        )
        self.assertEqual(out, "[] [] {} True\n")

    def test_readings_of_the_thread_raise_the_result(self):
        out = self.measure(
            """
            import time
            a = hold(300); del a
            vram_exporter.start(socket="/nonexistent", interval=0.01)
            from vram_exporter import _client
            with measure("region") as m:
                b = hold(50)
                count, end = torch._C.calls["_cuda_memoryStats"], time.monotonic() + 60
                while torch._C.calls["_cuda_memoryStats"] < count + 3 and time.monotonic() < end: time.sleep(0.01)
                del b
            print(mib(m), m.exact)
            """
        )
        self.assertEqual(out, "[100, 100, 150] True\n")

    def test_a_device_first_used_in_the_region(self):
        out = self.measure(
            """
            with measure("region") as m: a = torch.empty(7 << 20, "cuda:1")
            print([(d.name, d.allocated_before >> 20, d.highest_allocated >> 20, d.exact) for d in m.devices], m.main.name)
            """,
            STANDIN_DEVICES="3",
        )
        self.assertEqual(out, "[('pytorch:0', 100, 100, True), ('pytorch:1', 0, 7, True)] pytorch:0\n")

    def test_a_region_that_initialises_cuda(self):
        out = self.run_program(
            """
            import vram_exporter, torch
            with vram_exporter.measure("all") as m:
                a = torch.empty(9 << 20); del a
            print(m.allocated_before, m.highest_allocated >> 20, m.exact, m.reserved_before)
            """
        )
        self.assertEqual(out, "0 9 True 0\n")

    def test_decorators(self):
        out = self.measure(
            """
            import asyncio
            @measure
            def step(mib): a = hold(mib); return mib + 1
            @measure("named")
            def other(): raise ValueError("the program's own")
            @measure
            async def later(): a = hold(5); return 6
            print(step(11), step.last.name, step.last.highest_allocated >> 20, step.__name__)
            try: other()
            except ValueError as error: print(error, other.last.name, other.last.seconds > 0)
            a = hold(100); del a
            torch.cuda.reset_peak_memory_stats()
            print(asyncio.run(later()), later.last.highest_allocated >> 20)
            """
        )
        self.assertEqual(out, "12 step 111 step\nthe program's own named True\n6 105\n")

    def test_a_dry_run(self):
        out = self.measure(
            """
            m = dry_run(lambda mib, more: hold(mib + more), 20, more=5)
            print(mib(m), m.exact, m.highest_allocated - m.allocated_before >> 20)
            try: dry_run(lambda: 1 / 0)
            except ZeroDivisionError: print("passed on")
            """
        )
        self.assertEqual(out, "[100, 100, 125] True 25\npassed on\n")

    def test_cudamallocasync_is_measured_by_its_peak(self):
        out = self.measure(
            """
            with measure("region") as m: a = hold(50); del a
            print(mib(m), m.exact)
            with measure("below") as m: a = hold(10); del a
            print(mib(m), m.exact, m.at_most_allocated >> 20)
            """,
            STANDIN_BACKEND="cudaMallocAsync",
        )
        self.assertEqual(out, "[100, 100, 150] True\n[100, 100, 100] False 150\n")

    def test_a_region_waits_for_no_reading_for_long(self):
        out = self.measure(
            """
            from vram_exporter import _client
            allocators = _client.allocators()
            with allocators._lock:  # As if a framework held up a reading, or a finaliser measured in the middle of one.
                with measure("held up") as m: a = hold(1)
            print(m.devices, m.seconds > 0, str(m).partition(",")[2])
            """
        )
        self.assertEqual(out, "[] True  not measured: a reading of another thread did not end in time\n")

    def test_a_reading_that_is_held_up_at_the_end_is_said(self):
        out = self.measure(
            """
            from vram_exporter import _client
            with measure("held up") as m: _client.allocators()._lock.acquire()
            print(m.devices, m.seconds > 0, m.problem, _client.allocators()._listeners)
            """
        )
        self.assertEqual(out, "[] True a reading of another thread did not end in time []\n")

    def test_a_finaliser_in_the_middle_of_a_reading_does_not_wait(self):
        out = self.measure(
            """
            from vram_exporter import _client
            results, reader, allocators = [], torch._C._cuda_memoryStats, _client.allocators()
            def reading(ordinal):
                if not results:
                    results.append(None)
                    lock, allocators._lock = allocators._lock, None  # Waiting for it is an error.
                    with measure("inner") as inner: pass
                    allocators._lock = lock
                    results.append(inner.problem)
                return reader(ordinal)
            torch._C._cuda_memoryStats = reading
            with measure("outer") as m: pass
            print(results[1], mib(m))
            """
        )
        self.assertEqual(out, "a reading of another thread did not end in time [100, 100, 100]\n")

    def test_a_framework_that_cannot_be_read_is_said(self):
        out = self.measure(
            """
            torch._C.raising = RuntimeError("broken")
            with measure("broken") as m: pass
            print(m.devices, str(m).partition(",")[2])
            """
        )
        self.assertEqual(out, "[]  not measured: pytorch could not be read\n")

    def test_a_gpu_without_figures_is_said(self):
        out = self.measure(
            """
            with measure("amd") as m: pass
            print(m.devices, str(m).partition(",")[2])
            """,
            STANDIN_HIP="1",
        )
        self.assertEqual(out, "[]  not measured: pytorch provides no figures of a GPU\n")

    def test_a_region_goes_on_waiting_while_readings_end(self):
        allocators = Allocators([])

        class Contended:
            """A lock that others take first: three times, and each of their readings ends."""

            left = 3

            def acquire(self, timeout):
                self.left -= 1
                allocators._ended += self.left >= 0
                return self.left < 0

            def release(self):
                pass

        allocators._lock, called = Contended(), []
        self.assertTrue(allocators.listen(called.append, lambda: called.append("begun")))
        self.assertEqual(called, ["begun"])
        allocators._lock = Contended()
        allocators._lock.left = 10**9
        with mock.patch.object(_allocators, "LONGEST_WAIT", 0.0):
            self.assertFalse(allocators.unlisten(called.append, lambda: called.append("ended")), "the wait has an end")

    def test_results_are_sent(self):
        server = self.server()
        job = self.program(
            """
            import sys, vram_exporter, torch
            vram_exporter.start(interval=0.02)
            kept = torch.empty(100 << 20)
            sys.stdin.readline()
            for number in range(40):
                with vram_exporter.measure("name %d" % number): a = torch.empty(1 << 20); del a
            with vram_exporter.measure("x" * 100): pass
            sys.stdin.readline()
            """
        )
        self.assertTrue(server.wait(lambda s: s.values(job.pid)))
        self.go_on(job)
        self.assertTrue(server.wait(lambda s: len(s.messages("measurement")) >= 32))
        self.go_on(job)
        self.finish(job)
        first = [message for message in server.messages("measurement") if message["name"] == "name 0"][0]
        seconds = first.pop("seconds")
        self.assertGreater(seconds, 0)
        wanted = {"type": "measurement", "framework": "pytorch", "device": DEVICE, "name": "name 0", "peak_bytes": 101 * MIB, "peak_reserved_bytes": 102 * MIB, "exact": True}
        self.assertEqual(first, wanted)
        self.assertEqual(len({message["name"] for message in server.messages("measurement")}), 32, "the exporter takes no more names")

    def test_names_are_cut_and_cleaned(self):
        server = self.server()
        job = self.program(
            """
            import sys, vram_exporter, torch
            vram_exporter.start(interval=0.02)
            kept = torch.empty(1 << 20)
            for name in ("x" * 100, "\\udc80\\n\\"'{}", ""):
                with vram_exporter.measure(name): pass
            sys.stdin.readline()
            """
        )
        self.assertTrue(server.wait(lambda s: len(s.messages("measurement")) >= 3))
        self.go_on(job)
        self.finish(job)
        self.assertEqual({message["name"] for message in server.messages("measurement")}, {"x" * 64, "??\"'{}", "region"})
        self.assertEqual(server.connections[0].invalid, [])


if __name__ == "__main__":
    unittest.main()
