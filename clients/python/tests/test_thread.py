"""What the client's thread waits for, and that it is a real one in a program whose threads are replaced."""

import threading
import time
import unittest

from vram_exporter import _thread

from . import support
from .support import DEVICE


class Event(unittest.TestCase):
    def test_it_is_like_that_of_the_standard_library(self):
        for event in (_thread.Event(), threading.Event()):
            found = [event.is_set(), event.wait(0.0)]
            event.set(), event.set()
            found += [event.is_set(), event.wait(0.0), event.wait(5.0)]
            event.clear(), event.clear()
            found += [event.is_set(), event.wait(0.0)]
            event.set()
            found += [event.wait(0.0)]
            self.assertEqual(found, [False, False, True, True, True, False, False, True])

    def test_a_thread_that_waits_goes_on_when_it_is_set(self):
        event, waiting, seen = _thread.Event(), threading.Event(), []

        def wait():
            waiting.set()
            seen.append(event.wait(60.0))

        thread = threading.Thread(target=wait)
        thread.start()
        waiting.wait(60.0)
        event.set()
        thread.join(60.0)
        self.assertEqual((seen, event.is_set()), ([True], True))

    def test_nothing_is_missed_by_a_thread_that_clears_it(self):
        event, done, handled = _thread.Event(), threading.Event(), []
        asked = []

        def work():
            while not done.is_set():
                if event.wait(60.0):
                    event.clear()
                    handled.append(len(asked))

        thread = threading.Thread(target=work)
        thread.start()
        for number in range(2000):
            asked.append(number)
            event.set()
        limit = time.monotonic() + 60
        while (not handled or handled[-1] < 2000) and time.monotonic() < limit:
            event.wait(0.0)
        done.set()
        event.set()
        thread.join(60.0)
        self.assertEqual(handled[-1], 2000)


class Replaced(support.Case):
    def test_no_replaced_function_is_called(self):
        """A stand-in for gevent, which keeps the originals in the same way."""
        server = self.server()
        job = self.program(
            """
            import _thread, os, socket, sys, threading, time, types, torch
            originals, refused = {}, []
            def refuse(module, name):
                def replaced(*words, **more):
                    if sys._getframe(1).f_globals["__name__"].startswith("vram_exporter"): refused.append(name)
                    return originals[module, name](*words, **more)
                return replaced
            for module, names in ((_thread, ("start_new_thread", "allocate_lock", "get_ident")), (time, ("sleep",)), (socket, ("socket",)), (threading, ("Lock", "Event"))):
                for name in names:
                    originals[module.__name__, name] = getattr(module, name)
                    setattr(module, name, refuse(module.__name__, name))
            sys.modules["gevent.monkey"] = types.SimpleNamespace(get_original=lambda module, name: originals[module, name])
            import vram_exporter
            print(vram_exporter.start(interval=0.02, sites=True), flush=True)
            kept = torch.empty(1000)
            input()
            child = os.fork()
            if child == 0: os._exit(0)
            os.waitpid(child, 0)
            with vram_exporter.measure("step") as m: kept = [kept, torch.empty(500)]
            print(m.problem, m.highest_allocated, flush=True)
            input()
            try: torch.empty(1 << 40)
            except torch.OutOfMemoryError: print("caught")
            vram_exporter.stop()
            print(refused)
            """
        )
        self.assertEqual(job.stdout.readline(), "True\n")
        self.assertTrue(server.wait(lambda s: s.values(job.pid).get(DEVICE, {}).get("allocated_bytes") == 1024))
        self.go_on(job)
        self.assertEqual(job.stdout.readline(), "None 1536\n")
        self.assertTrue(server.wait(lambda s: s.values(job.pid)[DEVICE]["allocated_bytes"] == 1536), "the thread runs again after the fork")
        self.go_on(job)
        self.assertEqual(self.finish(job), "caught\n[]\n")
        self.assertEqual(len(server.messages("out_of_memory")), 1)


if __name__ == "__main__":
    unittest.main()
