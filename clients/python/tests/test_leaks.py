"""The question which lines of the program grow: what counts, when the client looks, and whole programs."""

import collections
import json
import sys
import types
import unittest
from unittest import mock

from vram_exporter import _leaks, _sites, _steps
from vram_exporter._look import Block
from vram_exporter._objects import Remembered
from vram_exporter._peer import Peer

from . import support
from .recording_server import WELCOME
from .support import DEVICE, SECOND_DEVICE

FRAMES = {name: [{"filename": "/p/train.py", "line": line, "name": name}] for line, name in enumerate(("leak", "slow", "step", "window", "burst"), 1)}


def block(site, size=100, device=0):
    return Block(device, 512, size, FRAMES.get(site, ()))


def grown(*looks, device=0):
    """What is listed after these looks, each of which is a dictionary of blocks by their addresses."""
    comparison = _leaks.Comparison()
    for look in looks:
        comparison.add(look)
    return [(found["site"].split()[1], found["bytes"], found["live_bytes"]) for found in comparison.grown(device)]


class Compared(unittest.TestCase):
    def test_a_line_that_grows_and_keeps_is_listed_and_the_largest_growth_first(self):
        looks = [{n: block("slow") for n in range(look + 1)} for look in range(5)]
        for look, blocks in enumerate(looks):
            blocks.update({1000 + n: block("leak") for n in range(3 * look)})
        self.assertEqual(grown(*looks), [("leak", 1200, 1200), ("slow", 400, 500)])

    def test_a_line_that_pauses_is_not_listed(self):
        looks = [{n: block("leak") for n in range(count)} for count in (1, 2, 3, 3, 5)]
        self.assertEqual(grown(*looks), [])

    def test_activations_that_happen_to_grow_are_not_listed(self):
        """The looks come at ever later moments of a step, which uses the same addresses each time."""
        self.assertEqual(grown(*({n: block("step") for n in range(count)} for count in (1, 3, 5, 5, 7))), [])
        freed = [{100 * look + n: block("step") for n in range(look + 1)} for look in range(5)]
        self.assertEqual(grown(*freed), [], "at new addresses each time")

    def test_a_window_that_rolls_is_not_listed(self):
        self.assertEqual(grown(*({n: block("window") for n in range(3 * look, 3 * look + 10)} for look in range(5))), [])

    def test_another_size_or_site_at_the_address_is_another_block(self):
        def look(number):
            blocks = {n: block("burst") for n in range(number + 1)}
            # All of them are replaced between two looks.
            return {address: found._replace(size=512 * (number + 1)) for address, found in blocks.items()}

        self.assertEqual(grown(*map(look, range(5))), [])

    def test_each_device_has_its_own(self):
        looks = [{n: block("leak", device=1) for n in range(look + 1)} for look in range(4)]
        self.assertEqual((grown(*looks), grown(*looks, device=1)), ([], [("leak", 300, 400)]))

    def test_what_has_no_frames_is_counted(self):
        comparison = _leaks.Comparison()
        for count in (1, 2, 3):
            comparison.add({n: block("unknown") for n in range(count)})
        self.assertEqual((comparison.unrecorded, comparison.grown(0)), ({0: 300}, []))


class Answers(unittest.TestCase):
    """The stand-in for PyTorch in this process, and a clock of the test."""

    def setUp(self):
        self.now, self.timer = 1000.0, 0.0
        self.peers = [self.peer(), self.peer()]

    def peer(self):
        peer = Peer("/nowhere")
        peer.connection = types.SimpleNamespace(asked=collections.deque(), generation=1, connected=lambda: True)
        return peer

    def begin(self, **variables):
        self.torch = support.standin(self, **variables)
        self.core = self.torch._C
        self.sites = _sites.Sites(lambda: self.now, lambda: self.timer)
        self.leaks = _leaks.Leaks(self.sites, lambda: self.now)
        self.kept = []

    def settle(self):
        """Until the first phase is over and no window is open."""
        self.kept.append(self.torch.empty(1000))
        self.run_for(200)
        while self.core.history is not None:
            self.run_for(0.2)

    def ask(self, number=1, seconds=20, looks=5, peer=0, kind="leaks"):
        self.peers[peer].connection.asked.append({"type": kind, "id": number, "seconds": seconds, "looks": looks})

    def run_for(self, seconds, step=None):
        """Ticks as the client's thread does; `step` is a step of the program, ten of which are in a second."""
        end = self.now + seconds
        while self.now < end:
            self.sites.tick(1 << 20)
            self.leaks.tick(self.peers)
            if step is not None:
                step()
            self.now += 0.1

    def answer(self, peer=0):
        lines = [json.loads(line) for line in self.peers[peer].answers]
        self.peers[peer].answers.clear()
        return lines

    def leak(self):
        self.kept.append(self.torch.empty(1000))

    def test_a_planted_leak_is_first_and_nothing_else_is_listed(self):
        self.begin()
        self.settle()
        parameter = self.torch.nn.Parameter(1000)
        optimizer = self.torch.optim.Optimizer([parameter])
        optimizer.step()
        window = collections.deque(maxlen=30)

        def step():
            batch = self.torch.empty(5000)
            self.core.save_for_backward(4000)
            self.core.backward()
            window.append(self.torch.empty(7000))
            self.leak()
            optimizer.step()
            del batch

        self.run_for(5, step)
        self.ask(number=7)
        self.run_for(25, step)
        part, end = self.answer()
        self.assertEqual(end, {"type": "answered", "id": 7})
        (site,) = part.pop("sites")
        self.assertRegex(site["site"], r"^test_leaks\.py:\d+ leak$")
        self.assertAlmostEqual(site["bytes"], 200 * 1000, delta=2000)
        self.assertEqual(site["live_bytes"], site["bytes"], "those before had no frames")
        self.assertAlmostEqual(part.pop("steps"), 200, delta=2)
        self.assertGreater(part.pop("unrecorded_bytes"), 50 * 1000)
        self.assertEqual(part, {"type": "leak_sites", "id": 7, "framework": "pytorch", "device": DEVICE, "seconds": 20, "looks": 5, "more_sites": 0})

    def test_the_history_is_on_for_the_whole_time_and_then_off(self):
        self.begin()
        self.settle()
        calls = len(self.core.history_calls)
        self.ask(seconds=60, looks=20)
        self.run_for(0.2)
        for _ in range(50):
            self.assertIsNotNone(self.core.history)
            self.run_for(1)
        asked_until = self.now + 20
        while self.core.history is not None and self.now < asked_until:
            self.run_for(0.1)
        self.assertEqual(len(self.answer()), 2)
        self.assertEqual(self.core.history_calls[calls:], ["state", "paused", None])

    def test_a_question_in_the_first_phase_leaves_the_phase_as_it_is(self):
        self.begin()
        self.leak()
        self.run_for(2)
        self.ask(seconds=3, looks=3)
        self.run_for(5)
        self.assertEqual([line["type"] for line in self.answer()], ["leak_sites", "answered"])
        self.assertEqual(self.core.history_calls, ["state"])
        self.run_for(60)
        self.assertEqual(self.core.history_calls, ["state", "paused", None])

    def test_a_question_while_the_history_is_paused(self):
        self.begin()
        self.kept.append(self.torch.empty(1000))
        while self.core.history_calls[-1:] != ["paused"]:
            self.run_for(0.1)
        self.ask()
        self.run_for(25, self.leak)
        self.assertEqual(self.core.history_calls, ["state", "paused", "state", "paused", None])
        self.assertRegex(self.answer()[0]["sites"][0]["site"], r"^test_leaks\.py:\d+ leak$")

    def test_a_history_of_the_program_is_only_read(self):
        self.begin()
        self.torch.cuda.memory._record_memory_history()
        self.run_for(1)
        self.ask()
        self.run_for(25, self.leak)
        part, _ = self.answer()
        self.assertRegex(part["sites"][0]["site"], r"^test_leaks\.py:\d+ leak$")
        self.run_for(100)
        self.assertEqual(self.core.history_calls, ["all"])

    def test_a_history_that_the_program_begins_meanwhile_is_left_on(self):
        self.begin()
        self.settle()
        self.ask()
        self.run_for(7, self.leak)
        self.torch.cuda.memory._record_memory_history()
        self.run_for(300, self.leak)
        self.assertEqual(len(self.answer()), 2)
        self.assertEqual(self.core.history_calls[-1], "all")

    def test_a_program_that_ends_the_history_ends_the_question(self):
        self.begin()
        self.settle()
        self.ask()
        self.run_for(7)
        self.torch.cuda.memory._record_memory_history(enabled=None)
        self.run_for(7)
        self.assertEqual(self.answer(), [{"type": "answered", "id": 1, "reason": "history_ended"}])

    def test_one_question_at_a_time(self):
        self.begin()
        self.settle()
        self.ask(number=1)
        self.ask(number=2, peer=1)
        self.run_for(25)
        self.assertEqual(self.answer(1), [{"type": "answered", "id": 2, "reason": "busy"}])
        self.assertEqual(self.answer()[-1], {"type": "answered", "id": 1})
        self.ask(number=3, peer=1)
        self.run_for(25)
        self.assertEqual(self.answer(1)[-1], {"type": "answered", "id": 3})

    def is_idle_after(self, end):
        self.begin()
        self.settle()
        self.ask(seconds=600)
        self.run_for(1)
        self.assertIsNotNone(self.core.history)
        end()
        self.run_for(10)
        self.assertEqual((self.answer(), self.core.history), ([], None))
        self.assertIsNone(self.leaks.tick(self.peers))

    def test_an_asker_that_leaves_ends_the_looks(self):
        self.is_idle_after(lambda: self.ask(number=1, kind="stop"))

    def test_a_connection_that_ends_ends_the_looks(self):
        self.is_idle_after(lambda: setattr(self.peers[0].connection, "connected", lambda: False))
        self.peers[0] = self.peer()
        self.is_idle_after(lambda: setattr(self.peers[0].connection, "generation", 2))

    def test_the_end_of_another_question_ends_nothing(self):
        self.begin()
        self.settle()
        self.ask()
        self.run_for(1)
        self.ask(number=2, kind="stop")
        self.ask(number=1, kind="stop", peer=1)
        self.run_for(25)
        self.assertEqual(self.answer()[-1], {"type": "answered", "id": 1})

    def test_what_is_no_question_is_ignored(self):
        self.begin()
        self.settle()
        for wrong in ({"seconds": 0}, {"seconds": 601}, {"looks": 2}, {"looks": 21}, {"seconds": "5"}, {"seconds": None}, {"number": "x"}, {"number": None}):
            self.ask(**wrong)
        self.run_for(2)
        self.assertEqual((self.answer(), self.core.history), ([], None))

    def reason(self):
        self.ask()
        self.run_for(25)
        (answer,) = self.answer()
        return answer["reason"]

    def test_what_cannot_be_done_is_said(self):
        self.begin(initialise=False)
        self.assertEqual(self.reason(), "not_initialised")
        self.begin()
        with mock.patch.object(_leaks.Comparison, "add", side_effect=RuntimeError):
            self.assertEqual(self.reason(), "failed")
        self.begin(STANDIN_HISTORY="legacy")
        self.run_for(1)
        self.assertEqual(self.reason(), "not_available")

    def test_a_look_that_takes_too_long_is_the_last_one(self):
        self.begin()
        self.settle()
        self.sites._timer = mock.Mock(side_effect=[0.0, 0.0, 0.0, 5.0])
        self.assertEqual(self.reason(), "not_available")
        self.assertIsNone(self.core.history["context"])

    def test_the_budget_is_that_of_the_windows_alone(self):
        self.begin()
        self.settle()
        left = self.sites._budget.left
        self.ask(seconds=5, looks=20)
        self.run_for(5)
        self.assertGreaterEqual(self.sites._budget.left, left)

    def test_each_device_is_a_part_and_a_line_is_never_too_long(self):
        self.begin(STANDIN_DEVICES="2")
        self.settle()
        code = "def %s(): kept.append(torch.Tensor(10, device))"
        names, functions = ["\U00010400" * 110 + str(n) for n in range(15)], {}
        for name in names:
            exec(code % name, {"kept": self.kept, "torch": self.torch, "device": 1}, functions)
        self.ask()
        self.run_for(25, lambda: [function() for function in functions.values()])
        lines = list(self.peers[0].answers)
        self.assertTrue(all(len(line) <= 4096 for line in lines))
        first, second, _ = self.answer()
        self.assertEqual((first["device"], first["sites"], first["more_sites"]), (DEVICE, [], 0))
        self.assertEqual(second["device"], SECOND_DEVICE)
        self.assertEqual(len(second["sites"]) + second["more_sites"], 15)
        self.assertIn(len(second["sites"]), range(1, 10))

    def test_without_a_certain_uuid_nothing_is_sent_about_a_device(self):
        self.begin()
        self.settle()
        self.ask()
        with mock.patch.object(_leaks._torch, "device_uuid", return_value=None):
            self.run_for(25)
        self.assertEqual(self.answer(), [{"type": "answered", "id": 1}])


class Steps(unittest.TestCase):
    def setUp(self):
        self.torch = support.standin(self)

    def optimizer(self, *counts):
        optimizer = self.torch.optim.Optimizer([])
        optimizer.state = {object(): {"step": count} for count in counts}
        return optimizer

    def test_the_largest_count_of_any_optimizer(self):
        self.assertIsNone(_steps.steps(Remembered()))
        kept = [self.optimizer(3, 5), self.optimizer(4.0), self.optimizer()]
        self.assertEqual(_steps.steps(Remembered()), 5)
        del kept

    def test_what_is_no_readable_count_is_unknown(self):
        class Hostile(dict):
            def get(self, *_):
                raise AssertionError("code of the program")

            values = __iter__ = get

        for count in (None, "5", -1, float("nan"), float("inf"), True, object()):
            kept = self.optimizer(count)
            kept.state = Hostile(kept.state)
            self.assertIsNone(_steps.steps(Remembered()), count)
        kept.state = None
        self.assertIsNone(_steps.steps(Remembered()))

    def test_a_tensor_is_read_only_if_it_is_on_the_cpu(self):
        read = []

        class Tensor:
            def __init__(self, device, count):
                self._device, self.count = types.SimpleNamespace(type=device), count

            device = property(lambda self: self._device)

            def numel(self):
                return 1

            def item(self):
                read.append(self._device.type)
                return self.count

        with mock.patch.object(self.torch, "Tensor", Tensor):
            kept = self.optimizer(Tensor("cuda", 9.0), Tensor("cpu", 7.0), Tensor("meta", 8.0), type("Sub", (Tensor,), {})("cpu", 99.0))
            self.assertEqual((_steps.steps(Remembered()), read), (7, ["cpu"]))
        del kept


# A program that leaks a tensor in each step, as fast as it can, until it gets a line.
LEAKING = """
    import os, select, sys, time, torch
    import vram_exporter; vram_exporter.start(interval=0.02, sites={sites})
    {before}
    kept, parameter = [], torch.nn.Parameter(1000)
    optimizer = torch.optim.Optimizer([parameter])

    def step():
        kept.append(torch.empty(1000))
        batch = torch.empty(5000)
        optimizer.step()

    while not select.select([sys.stdin], [], [], 0.002)[0]: step()
    sys.stdin.readline()
    {then}
"""


class Programs(support.Case):
    def job(self, sites=True, before="", then=""):
        return self.program("", command=[sys.executable, self.write("train.py", LEAKING.format(sites=sites, before=before, then=then))])

    def connection(self, server, job):
        """Waits for a report, after which the connection can be asked."""
        self.assertTrue(server.wait(lambda s: s.values(job.pid)))
        return next(c for c in server.connections if c.pid == job.pid and c.closed_at is None)

    def answered(self, server, pid, number=1):
        """The parts of the answer and its end."""
        self.assertTrue(server.wait(lambda s: [m for m in s.messages("answered", pid) if m["id"] == number]))
        return [m for m in server.messages("leak_sites", pid) if m["id"] == number], [m for m in server.messages("answered", pid) if m["id"] == number]

    def test_a_question_is_answered_and_the_program_goes_on(self):
        server = self.server(reply={**WELCOME, "version": 2})
        job = self.job(then="print(torch._C.history_calls)")
        connection = self.connection(server, job)
        self.assertEqual(server.messages("hello")[0]["version"], 2)
        connection.send({"type": "leaks", "id": 1, "seconds": 1, "looks": 4})
        (part,), (end,) = self.answered(server, job.pid)
        self.assertEqual(end, {"type": "answered", "id": 1})
        self.assertRegex(part["sites"][0]["site"], r"^train\.py:\d+ step$")
        self.assertEqual((part["device"], part["looks"], len(part["sites"])), (DEVICE, 4, 1))
        self.assertGreater(part["steps"], 0)
        self.assertLessEqual(abs(part["sites"][0]["bytes"] / 1000 - part["steps"]), 200)
        self.go_on(job)
        self.assertEqual(self.finish(job), "['state']\n", "it was the first phase")
        self.assertEqual(connection.invalid, [])

    def test_without_sites_it_speaks_version_1_and_answers_nothing(self):
        server = self.server()
        job = self.job(sites=False, then="print([name for name in ('leaks', 'sites', 'steps') if 'vram_exporter._' + name in sys.modules])")
        connection = self.connection(server, job)
        self.assertEqual(server.messages("hello")[0]["version"], 1)
        connection.send({"type": "leaks", "id": 1, "seconds": 1, "looks": 4})
        seen = len(server.messages("report"))
        self.assertTrue(server.wait(lambda s: len(s.messages("report")) > seen + 5))
        self.go_on(job)
        self.assertEqual(self.finish(job), "[]\n")
        self.assertEqual(server.messages("answered"), [])

    def test_an_exporter_of_version_1_gets_version_1(self):
        def reply(message):
            if message.get("version") == 1:
                return WELCOME
            return {"type": "error", "version": 1, "reason": "unsupported_version", "message": "version 2 is not supported"}

        server = self.server(reply=reply)
        job = self.job()
        self.connection(server, job)
        self.assertTrue(server.wait(lambda s: len(s.messages("hello")) > 1))
        self.assertTrue(server.wait(lambda s: s.messages("report", job.pid)[-1:] and s.connections[-1].messages[-1:]))
        self.assertEqual([message["version"] for message in server.messages("hello")], [2, 1])
        self.assertTrue(server.wait(lambda s: s.values(job.pid).get(DEVICE, {}).get("allocated_bytes")))
        self.assertLess(server.connections[1].opened_at - server.connections[0].opened_at, 4.0, "it does not wait as after a failure")
        self.go_on(job)
        self.finish(job)

    def test_an_exporter_of_a_newer_version_is_left_alone(self):
        server = self.server(reply=lambda _: {"type": "error", "version": 3, "reason": "unsupported_version", "message": "no"})
        job = self.job()
        self.assertTrue(server.wait(lambda s: s.connections and s.connections[0].closed_at))
        self.go_on(job)
        self.finish(job)
        self.assertEqual(len(server.connections), 1)

    def test_an_exporter_that_floods_with_questions(self):
        server = self.server()
        job = self.job()
        connection = self.connection(server, job)
        noise = [{"type": "leaks", "id": n, "seconds": 600, "looks": 20, "more": "x" * 1000} for n in range(100)]
        for message in noise + ["leaks", [], {"type": ["leaks"]}, {"type": "leaks", "id": {"a": 1}}]:
            connection.send(message)
        connection.socket.sendall(b"\xff\n" + b"x" * 100000 + b"\n")
        connection.send({"type": "stop", "id": 0})
        self.assertTrue(server.wait(lambda s: s.messages("answered", job.pid)))
        self.assertEqual({message.get("reason") for message in server.messages("answered", job.pid)}, {"busy"})
        self.go_on(job)
        self.finish(job)

    def test_a_fork_while_a_question_is_open(self):
        server = self.server()
        fork = "end = time.monotonic() + 60\n    while not os.path.exists('fork') and time.monotonic() < end: step()\n"
        fork += "    child = os.fork()\n    if child == 0:\n        assert not vram_exporter.running()\n        os._exit(0)\n"
        fork += "    assert os.waitpid(child, 0)[1] == 0\n    sys.stdin.readline()\n    print(torch._C.history is not None)"
        job = self.program("", command=[sys.executable, self.write("train.py", LEAKING.format(sites=True, before="", then=fork))])
        connection = self.connection(server, job)
        connection.send({"type": "leaks", "id": 1, "seconds": 2, "looks": 3})
        self.go_on(job)
        self.write("fork", "")
        _, (end,) = self.answered(server, job.pid)
        self.assertEqual(end, {"type": "answered", "id": 1})
        self.assertEqual({c.pid for c in server.connections}, {job.pid}, "the child reports nothing")
        self.assertIsNone(connection.closed_at)
        self.go_on(job)
        self.assertEqual(self.finish(job), "True\n")


if __name__ == "__main__":
    unittest.main()
