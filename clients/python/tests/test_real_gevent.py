"""Programs in which gevent replaces the threads, locks and sockets of the standard library.

Nothing here waits for a child with `os.waitpid`: gevent 26.9.0 by itself sometimes misses the end of a child.
"""

import os
import sys
import unittest

from . import support
from .support import DEVICE

PATCH = "from gevent import monkey; monkey.patch_all()"
START = "import vram_exporter; vram_exporter.start(interval=0.02, sites=True)"

# The program never lets another greenlet run: even reading its standard input does not.
JOB = """
    {first}
    {second}
    import os, sys, threading, torch
    import vram_exporter._sites as sites
    sites.EVERY = 0.05
    kept = [torch.empty(1000)]
    print(type(threading.Lock()).__module__, flush=True)
    os.read(0, 1)
    {then}
    kept.append(torch.empty(500))
    os.read(0, 1)
    try: torch.empty(1 << 40)
    except torch.OutOfMemoryError: print("caught")
    print([thread.name for thread in threading.enumerate()])
"""
FORK = """
    ended, closes = os.pipe()
    if os.fork() == 0:
        os._exit(vram_exporter.running())
    os.fdopen(closes, "w").close()  # gevent replaces os.close, too.
    os.read(ended, 1)
"""


class RealGevent(support.Case):
    def setUp(self):
        super().setUp()
        if not support.installed("gevent"):
            self.missing("gevent", tool=True)

    def reports_everything(self, first, second, then="", **variables):
        server = self.server()
        job = self.program("", command=[sys.executable, self.write("train.py", JOB.format(first=first, second=second, then=then))], **variables)
        self.assertTrue(job.stdout.readline().startswith("gevent"))
        self.assertTrue(server.wait(lambda s: s.values(job.pid).get(DEVICE, {}).get("allocated_bytes") == 1024))
        self.assertTrue(server.wait(lambda s: s.messages("sites")))
        self.go_on(job)
        self.assertTrue(server.wait(lambda s: s.values(job.pid)[DEVICE]["allocated_bytes"] == 1536))
        self.go_on(job)
        self.assertEqual(self.finish(job), "caught\n['MainThread']\n")
        (failure,) = server.messages("out_of_memory")
        self.assertRegex(failure["site"], r"^train\.py:\d+ <module>$")
        self.assertEqual({connection.pid for connection in server.connections}, {job.pid})
        self.assertEqual(server.connections[0].invalid, [])

    def test_a_client_that_starts_after_it(self):
        self.reports_everything(PATCH, START)

    def test_a_client_that_starts_before_it(self):
        self.reports_everything(START, PATCH)

    def test_a_client_that_starts_after_it_and_a_fork(self):
        self.reports_everything(PATCH, START, FORK)

    def test_a_client_that_starts_before_it_and_a_fork(self):
        self.reports_everything(START, PATCH, FORK)

    def test_vram_run(self):
        bootstrap = os.path.join(support.SOURCE, "vram_exporter", "_bootstrap")
        path = os.pathsep.join([bootstrap, support.SOURCE, support.STANDIN])
        self.reports_everything(PATCH, "import vram_exporter", VRAM_EXPORTER_ARM="1", VRAM_EXPORTER_SITES="1", PYTHONPATH=path, VRAM_EXPORTER_INTERVAL="0.02")

    def test_greenlets_that_allocate_and_measure(self):
        server = self.server()
        text = """
            from gevent import monkey; monkey.patch_all()
            import gevent, threading, torch, vram_exporter
            vram_exporter.start(interval=0.01, sites=True)
            import vram_exporter._sites as sites
            sites.EVERY = 0.05
            from vram_exporter import _oom
            while not _oom.watching(): gevent.sleep(0.01)
            peaks = []
            def work(number):
                for _ in range(20):
                    with vram_exporter.measure("step") as measured:
                        kept = torch.empty(512)
                        gevent.sleep(0.001)
                        del kept
                    peaks.append(measured.highest_allocated if measured.problem is None else 512)  # A busy machine
            def fail():
                for _ in range(5):
                    try: torch.empty(1 << 40)
                    except torch.OutOfMemoryError: gevent.sleep(0.001)
            greenlets = [gevent.spawn(work, number) for number in range(10)] + [gevent.spawn(fail), threading.Thread(target=work, args=(0,))]
            greenlets[-1].start()
            for greenlet in greenlets: greenlet.join()
            print(len(peaks), min(peaks) >= 512, max(peaks) <= 11 * 512)
            vram_exporter.stop()
            print(vram_exporter.running(), torch._C.history["context"] is None)
        """
        job = self.program("", command=[sys.executable, self.write("train.py", text)])
        self.assertEqual(self.finish(job), "220 True True\nFalse True\n")
        self.assertEqual(len(server.messages("out_of_memory")), 5)
        self.assertRegex(server.messages("out_of_memory")[0]["site"], r"^train\.py:\d+ fail$")


if __name__ == "__main__":
    unittest.main()
