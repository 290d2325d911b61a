"""When the client asks JAX for a profile and what it makes of it, with a clock of the tests; and the sites of whole programs."""

import base64
import os
import sys
import unittest
from unittest import mock

from vram_exporter import _jax_sites, _uuid
from vram_exporter._sites import SHARE

from . import support
from .support import DEVICE, SECOND_DEVICE
from .test_pprof import RECORDED

TICK = 0.2


class Looks(unittest.TestCase):
    """The stand-in for JAX in this process; each look costs `cost` seconds."""

    def setUp(self):
        self.now, self.cost, self._timer = 1000.0, 0.002, 0.0
        self.amounts = {}
        devices = {0: DEVICE, 1: SECOND_DEVICE}
        patch = mock.patch.object(_uuid, "of_ordinal", side_effect=devices.get)
        patch.start()
        self.addCleanup(patch.stop)

    def begin(self, **variables):
        self.jax = support.standin_jax(self, **variables)
        self.bridge = sys.modules["jax._src.xla_bridge"]
        self.backend = self.bridge._backends["cuda"]
        self.sites = _jax_sites.JaxSites(lambda: self.now, self.timer)

    def timer(self):
        """Every pair of calls is `cost` apart."""
        self._timer += self.cost
        return self._timer

    def tick(self, allocated):
        """The messages about sites of one tick; `amounts` is what came with the latest ones."""
        looks = self.sites.tick(allocated)
        self.amounts = {look.pair[1]: {key: value for key, value in look.messages[0].items() if key.endswith("_bytes")} for look in looks} or self.amounts
        return [message for look in looks for message in look.messages if message["type"] == "sites"]

    def run_for(self, seconds, allocated=1 << 20):
        messages, end = [], self.now + seconds
        while self.now < end:
            messages += self.tick(allocated)
            self.now += TICK
        return messages

    def looks(self):
        return self.backend.calls.count("heap_profile")

    def test_a_look(self):
        self.begin()
        kept = [self.jax.ones(1000) for _ in range(3)]
        other = self.jax.ones(500)
        (message,) = self.tick(1)
        self.assertEqual((message["type"], message["framework"], message["device"]), ("sites", "jax", DEVICE))
        self.assertEqual([(site["bytes"], site["role"]) for site in message["sites"]], [(3000, "unknown"), (500, "unknown")])
        for site in message["sites"]:
            self.assertRegex(site["site"], r"^test_jax_sites\.py:\d+ ")
        self.assertEqual((message["roles"], message["other_bytes"], message["unknown_bytes"]), ({"unknown": 3500}, 0, 0))
        self.assertEqual(self.amounts, {DEVICE: {"allocated_bytes": 3500, "reserved_bytes": self.bridge.POOL}})
        del kept, other

    def test_growth_follows_each_look_but_the_first(self):
        self.begin()
        kept = [self.jax.ones(1000)]
        self.assertEqual([[message["type"] for message in look.messages] for look in self.sites.tick(1)], [["report", "sites"]])
        kept.append(self.jax.ones(300))
        self.now += 7
        (look,) = self.sites.tick(1)
        self.assertEqual([message["type"] for message in look.messages], ["report", "sites", "growth"])
        growth = look.messages[2]
        self.assertEqual((growth["framework"], growth["seconds"], [(row["role"], row["bytes"]) for row in growth["sites"]]), ("jax", 7, [("unknown", 300)]))
        del kept

    def test_the_sum_is_that_of_the_profile(self):
        """With more lines than a message has, and arrays without frames."""
        self.begin()
        namespace, kept = {"jax": self.jax}, []
        for number in range(20):
            exec(compile("made = jax.ones(%d)" % (100 + number), "/home/me/line%d.py" % number, "exec"), namespace)
            kept.append(namespace["made"])
        kept.append(self.jax.ones(7))
        kept[-1].frames = []
        (message,) = self.tick(1)
        self.assertEqual((len(message["sites"]), message["unknown_bytes"]), (10, 7))
        total = sum(array.nbytes for array in kept)
        self.assertEqual(sum(site["bytes"] for site in message["sites"]) + message["other_bytes"] + 7, total)
        self.assertEqual(message["roles"], {"unknown": total})

    def test_each_device_has_its_own(self):
        self.begin(STANDIN_DEVICES="3")
        kept = [self.jax.ones(10), self.jax.ones(20, device="cuda:1"), self.jax.ones(30, device="cuda:2"), self.jax.ones(40, device="cpu:0")]
        messages = self.tick(1)
        self.assertEqual([(message["device"], message["roles"]["unknown"]) for message in messages], [(DEVICE, 10), (SECOND_DEVICE, 20)])
        del kept

    def test_the_number_in_a_name_is_not_the_ordinal(self):
        """In a program of several processes, JAX numbers the devices of all of them."""
        self.begin()
        (device,) = self.backend.local_devices()
        kept = self.jax.ones(10, device="cuda:5")
        with mock.patch.object(type(device), "__str__", lambda _: "cuda:5"):
            (message,) = self.tick(1)
        self.assertEqual((message["device"], message["roles"]["unknown"]), (DEVICE, 10))
        del kept

    def test_at_most_one_look_in_five_seconds(self):
        self.begin()
        kept = self.jax.ones(10)
        self.assertEqual(len(self.run_for(100)), 20)
        del kept

    def test_the_average_cost_is_at_most_two_percent(self):
        self.begin()
        kept = self.jax.ones(10)
        self.cost = 0.5
        spent = self.cost * len(self.run_for(1000))
        self.assertLessEqual(spent, SHARE * 1000 + self.cost)
        self.assertGreater(spent, 0.9 * SHARE * 1000)
        del kept

    def test_a_very_long_look_is_the_last_one(self):
        self.begin()
        kept = self.jax.ones(10)
        self.cost = 2.5
        self.assertEqual(len(self.run_for(1000)), 1)
        del kept

    def test_nothing_is_asked_while_nothing_is_allocated(self):
        self.begin()
        self.assertEqual(self.run_for(100, allocated=0), [])
        self.assertEqual(self.backend.calls, [])

    def test_only_backends_of_gpus_that_exist_are_asked(self):
        self.begin()
        other = mock.Mock(platform="cpu")
        for backends in ({}, {"cpu": other}, None):
            with mock.patch.object(self.bridge, "_backends", backends):
                self.assertEqual(self.run_for(100), [])
        with mock.patch.dict(sys.modules):
            del sys.modules["jax._src.xla_bridge"]
            self.assertEqual(self.run_for(100), [])
        self.assertEqual((self.backend.calls, other.method_calls), ([], []))

    def test_another_process_does_nothing(self):
        """Even one that was forked without Python's hooks."""
        self.begin()
        kept = self.jax.ones(10)
        with mock.patch.object(os, "getpid", return_value=os.getpid() + 1):
            self.assertEqual(self.run_for(100), [])
        self.assertEqual(self.backend.calls, [])
        del kept

    def test_an_exception_ends_it(self):
        for name in ("heap_profile", "live_arrays", "local_devices"):
            for error in (RuntimeError("hostile"), MemoryError(), AttributeError(name)):
                with self.subTest(name=name, error=error):
                    self.begin()
                    kept = self.jax.ones(10)
                    with mock.patch.object(self.backend, name, side_effect=error):
                        self.assertEqual(self.run_for(1), [])
                    self.assertEqual(self.run_for(100), [])
                    self.assertEqual(self.looks(), 1 if name == "local_devices" else 0)
                    del kept

    def test_a_profile_that_cannot_be_read_is_no_look(self):
        self.begin()
        kept = self.jax.ones(10)
        for profile in (b"", b"\x1f\x8b", b"\xff" * 1000, bytes(5 << 20), "text", None):
            with self.subTest(profile=type(profile)), mock.patch.object(self.backend, "heap_profile", return_value=profile):
                self.assertEqual(self.run_for(10), [])
        del kept

    def test_arrays_in_host_memory_hide_the_rest(self):
        """The profile counts them as memory of the device."""
        self.begin()
        kept = self.jax.ones(1000)
        for kind in ("pinned_host", "unpinned_host"):
            hosts = self.jax.ones(10, memory_kind=kind)
            self.assertEqual(self.run_for(20), [])
            del hosts
            self.assertEqual(len(self.run_for(5)), 1)
        kept.sharding.memory_kind = None
        self.assertEqual(len(self.run_for(5)), 1, "the default memory of the device")

    def test_a_profile_with_more_than_is_allocated_is_no_look(self):
        self.begin()
        kept = self.jax.ones(1000)
        (device,) = self.backend.local_devices()
        for used, count in ((999, 0), (1000, 1)):
            with mock.patch.object(device, "memory_stats", return_value={"bytes_in_use": used}):
                self.assertEqual(len(self.run_for(5)), count)
        self.assertEqual(self.amounts, {DEVICE: {"allocated_bytes": 1000}}, "an allocator without a pool")
        del kept

    def test_a_device_without_figures_or_without_a_certain_uuid(self):
        self.begin()
        kept = self.jax.ones(1000)
        (device,) = self.backend.local_devices()
        with mock.patch.object(device, "memory_stats", return_value=None):
            self.assertEqual(self.run_for(10), [])
        _uuid.of_ordinal.side_effect = lambda ordinal: None
        self.assertEqual(self.run_for(10), [])
        del kept

    def test_the_recorded_profile(self):
        self.begin()
        (device,) = self.backend.local_devices()
        stats = {"bytes_in_use": RECORDED["bytes_in_use"], "pool_bytes": RECORDED["pool_bytes"]}
        with mock.patch.object(self.backend, "heap_profile", return_value=base64.b64decode(RECORDED["profile"])), mock.patch.object(
            device, "memory_stats", return_value=stats
        ):
            (message,) = self.tick(1)
        by_function = {}
        for site in message["sites"]:
            self.assertRegex(site["site"], r"^record_jax_profile\.py:\d+ \w+")
            name = site["site"].split()[1].partition(".")[0]
            by_function[name] = by_function.get(name, 0) + site["bytes"]
        self.assertEqual(by_function, RECORDED["bytes_by_function"])
        self.assertEqual((message["other_bytes"], message["unknown_bytes"]), (0, 0))


# A program that holds two lists of arrays; the client looks often.
TRAIN = """
    import sys, jax
    import vram_exporter
    from vram_exporter import _jax_sites, _uuid
    _jax_sites.EVERY = 0.05
    _uuid.of_ordinal = lambda ordinal: %r
    vram_exporter.start(interval=0.02, sites=True)

    def weights():
        return [jax.ones(1000) for _ in range(4)]

    kept = weights()
    sys.stdin.readline()
    {then}
""" % (
    DEVICE
)


class Programs(support.Case):
    def job(self, then="", **variables):
        return self.program("", command=[sys.executable, self.write("train.py", TRAIN.replace("{then}", then))], **variables)

    def shows_its_sites(self, server, total=4000):
        message = server.wait(lambda s: [m for m in s.messages("sites") if m["framework"] == "jax" and m["roles"] == {"unknown": total}])
        self.assertTrue(message, server.messages("sites")[-1:])
        self.assertEqual((message[0]["device"], message[0]["other_bytes"], message[0]["unknown_bytes"]), (DEVICE, 0, 0))
        self.assertRegex(message[0]["sites"][0]["site"], r"^train\.py:\d+ (weights|<listcomp>)$")

    def test_a_report_of_the_same_moment_precedes_it(self):
        server = self.server()
        job = self.job()
        self.shows_its_sites(server)
        self.go_on(job)
        self.finish(job)
        messages = [message for message in server.messages() if message.get("framework") == "jax"]
        for before, message in zip(messages, messages[1:]):
            if message["type"] == "sites":
                self.assertEqual((before["type"], before["device"]), ("report", DEVICE))
                self.assertGreaterEqual(before["allocated_bytes"], message["roles"]["unknown"])
        self.assertEqual(server.connections[0].invalid, [])

    def test_pytorch_and_jax_on_the_same_device(self):
        server = self.server()
        job = self.job("import torch; other = torch.empty(700); import vram_exporter._sites as sites; sites.EVERY = 0.05; sys.stdin.readline()")
        self.shows_its_sites(server)
        self.go_on(job)
        self.assertTrue(server.wait(lambda s: [m for m in s.messages("sites") if m["framework"] == "pytorch" and sum(m["roles"].values()) == 700]))
        self.go_on(job)
        self.finish(job)
        seen = len(server.messages("sites"))
        self.assertGreater(seen, 1)

    def test_off_means_that_nothing_is_asked(self):
        self.server()
        out = self.run_program(
            """
            import time, jax, vram_exporter
            from vram_exporter import _client, _uuid
            _uuid.of_ordinal = lambda ordinal: "GPU-1"
            kept = jax.ones(10)
            vram_exporter.start(interval=0.01)
            end = time.monotonic() + 60
            while not _client.allocators().trackers and time.monotonic() < end: time.sleep(0.01)
            vram_exporter.stop()
            print(len(_client.allocators().trackers), jax.xla_bridge._backends["cuda"].calls)
            """
        )
        self.assertEqual(out, "1 []\n")

    def test_a_forked_child_has_its_own(self):
        server = self.server()
        then = "import os; child = os.fork(); more = jax.ones(500); sys.stdin.readline(); child and os.waitpid(child, 0)"
        job = self.job(then)
        self.shows_its_sites(server)
        job.stdin.write("\n")
        job.stdin.flush()
        self.assertTrue(server.wait(lambda s: len({c.pid for c in s.connections for _, m in list(c.messages) if m.get("roles") == {"unknown": 4500}}) == 2))
        job.stdin.write("\n\n")
        job.stdin.close()
        job.stdin = None
        job.wait(support.LIMIT)
        self.assertEqual(job.returncode, 0)

    def test_a_look_that_fails_disturbs_nothing(self):
        server = self.server()
        then = """
    def fail(): raise SystemError("no")
    jax.xla_bridge._backends["cuda"].heap_profile = fail
    kept.append(jax.ones(96))
    sys.stdin.readline()
"""
        job = self.job(then)
        self.shows_its_sites(server)
        self.go_on(job)
        self.assertTrue(server.wait(lambda s: s.values(job.pid, "jax").get(DEVICE, {}).get("allocated_bytes") == 4096), "the values go on")
        self.go_on(job)
        self.finish(job)


if __name__ == "__main__":
    unittest.main()
