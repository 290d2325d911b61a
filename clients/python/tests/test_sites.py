"""When PyTorch records frames and when the client looks at them, with a clock of the tests; and the sites of whole programs."""

import os
import pickle
import re
import sys
import threading
import unittest
from unittest import mock

from vram_exporter import _run, _sites

from . import support
from .support import DEVICE

TICK = 0.2


def of_kind(look, kind):
    return [message for message in look.messages if message["type"] == kind]


class Windows(unittest.TestCase):
    """The stand-in for PyTorch in this process; each look costs `cost` seconds."""

    def setUp(self):
        self.now, self.cost, self._timer = 1000.0, 0.02, 0.0
        self.spent = []

    def begin(self, initialise=True, **variables):
        self.torch = support.standin(self, initialise, **variables)
        self.core = self.torch._C
        self.sites = _sites.Sites(lambda: self.now, self.timer)
        return self.sites

    def timer(self):
        """Every pair of calls is `cost` apart."""
        self._timer += self.cost
        return self._timer

    def run_for(self, seconds, allocated=1 << 20, kind="sites", taken=()):
        """Ticks for some time. Returns the messages of this kind, and notes for each tick whether it recorded."""
        messages, end = [], self.now + seconds
        while self.now < end:
            for look in self.sites.tick(allocated(self.now) if callable(allocated) else allocated, taken):
                messages += of_kind(look, kind)
            self.spent.append(self.recording())
            self.now += TICK
        return messages

    def recording(self):
        return self.core.history is not None and self.core.history["context"] is not None

    def failure(self, ordinal):
        """The look because of a failed allocation, or `None`; and the further keys of its report."""
        looks = []
        details = self.sites.failed(ordinal, sys._getframe(0), looks.append)
        return (looks or [None])[0], details

    def failed(self, ordinal, kind="sites"):
        """The message of this kind about a failed allocation, or `None`."""
        look, _ = self.failure(ordinal)
        return None if look is None else (of_kind(look, kind) or [None])[0]

    def recorded(self, since=0.0):
        """The estimated cost of recording since then, in seconds."""
        return sum(self.spent[int(since / TICK) :]) * TICK * _sites.RECORDING

    def looks(self):
        return self.core.calls.get("_cuda_memorySnapshot", 0)

    def settled(self):
        """After the first phase, and with a full budget."""
        self.begin()
        self.run_for(3000)
        while self.recording():
            self.run_for(TICK)

    def after_a_window(self):
        self.settled()
        for wanted in (True, False):
            while self.recording() != wanted:
                self.run_for(TICK)

    def test_nothing_is_asked_before_cuda_is_initialised(self):
        self.begin(initialise=False)
        self.assertEqual(self.run_for(100), [])
        self.assertEqual(self.core.calls, {"_cuda_memoryStats": 0})

    def test_even_the_first_allocation_has_frames(self):
        sites = self.begin(initialise=False)
        self.torch.cuda._lazy_call(sites.initialised)
        kept = self.torch.empty(1000)
        self.assertEqual(self.core.history, {"enabled": "state", "context": "alloc", "stacks": "python"})
        (message,) = self.run_for(6)
        self.assertEqual(message["device"], DEVICE)
        self.assertEqual((message["unknown_bytes"], message["sites"][0]["bytes"]), (0, 1000))
        self.assertRegex(message["sites"][0]["site"], r"^test_sites\.py:\d+ test_even_the_first_allocation_has_frames$")
        self.assertEqual(message["sites"][0]["role"], "other")
        del kept

    def first_phase(self, allocated):
        self.begin()
        start = self.now
        self.run_for(300, lambda now: allocated(now - start))
        self.assertIn(False, self.spent)
        return self.spent.index(False) * TICK

    def test_the_first_phase_lasts_30_seconds(self):
        self.assertAlmostEqual(self.first_phase(lambda _: 1), 30, delta=1)

    def test_the_first_phase_begins_with_the_first_allocation(self):
        self.assertAlmostEqual(self.first_phase(lambda lasted: int(lasted > 100)), 130, delta=1)

    def test_the_first_phase_lasts_while_the_memory_grows(self):
        self.assertAlmostEqual(self.first_phase(lambda lasted: min(int(lasted), 50)), 55, delta=1.5)

    def test_the_first_phase_has_a_limit(self):
        self.assertAlmostEqual(self.first_phase(lambda lasted: int(lasted)), 90, delta=2)

    def test_what_is_allocated_after_a_long_pause_belongs_to_the_first_phase(self):
        self.begin()
        kept = self.torch.empty(10)
        self.run_for(5, taken=(10,))
        debt = self.sites._budget.left
        self.assertEqual(len(self.run_for(600, taken=(10,))), 1, "one look at memory that stays as it is")
        self.assertGreater(self.sites._budget.left, debt, "recording nothing costs nothing")
        self.assertEqual(len(self.run_for(6, allocated=1 << 21, taken=(10,))), 1, "some was freed")
        start = len(self.spent)
        for number in range(300):
            self.run_for(TICK, allocated=1 << 22, taken=(20 + number,))
        self.assertAlmostEqual(self.spent[start:].index(False) * TICK, 30, delta=1.5)
        del kept

    def test_a_program_with_unknown_totals_is_never_thought_to_pause(self):
        for taken in ((), (None,), (10, None)):
            with self.subTest(taken=taken):
                self.spent = []
                self.begin()
                self.run_for(40, taken=taken)
                self.assertAlmostEqual(self.spent.index(False) * TICK, 30, delta=1)

    def test_the_first_phase_ends_with_a_look(self):
        self.begin()
        kept = self.torch.empty(10)
        self.assertEqual(len(self.run_for(29)), 5, "a look every five seconds")
        self.assertEqual(len(self.run_for(2)), 1)
        self.assertFalse(self.recording())
        self.run_for(1)
        self.assertIsNone(self.core.history)
        del kept

    def test_the_average_cost_is_at_most_two_percent(self):
        for cost in (0.002, 0.05, 0.3):
            with self.subTest(cost=cost):
                self.spent, self.cost = [], cost
                self.begin()
                kept = self.torch.empty(10)
                self.run_for(1000)
                early = self.looks()
                messages = self.run_for(10000)
                # A window begins with one snapshot and ends with a look, which takes two. Here each of them costs the same.
                costs = self.recorded(1000) + cost * 2 * (self.looks() - early) / 3
                self.assertLessEqual(costs, 0.02 * 10000 + 1.0)
                self.assertGreater(costs, 0.01 * 10000, "the budget is used")
                self.assertGreater(len(messages), 50)
                self.assertLessEqual(self.recorded(), 0.02 * 11000 + _sites.RECORDING * _sites.FIRST)
                del kept

    def test_a_dear_look_makes_windows_rarer(self):
        counts = []
        for self.cost in (0.01, 0.5):
            self.begin()
            kept = self.torch.empty(10)
            counts.append(len(self.run_for(5000)))
            del kept
        self.assertGreater(counts[0], 1.5 * counts[1])

    def test_a_window_lasts_five_seconds_and_ends_with_a_look(self):
        self.settled()
        kept = self.torch.empty(10)
        before = len(self.core.history_calls)
        messages = self.run_for(120)
        calls = self.core.history_calls[before:]
        self.assertEqual(calls, ["state", "paused", None] * (len(calls) // 3))
        self.assertEqual(len(messages), len(calls) // 3)
        self.assertGreaterEqual(len(messages), 2)
        lengths = "".join("x" if on else " " for on in self.spent[-600:]).split()
        self.assertEqual({round(len(length) * TICK) for length in lengths}, {5})
        del kept

    def model(self):
        """A model whose forward pass saves 1000 bytes for the backward pass, and the result of operations that autograd recorded."""

        class Model(self.torch.nn.Module):
            def forward(this):
                self.core.save_for_backward(1000)

        return Model(), self.torch.Tensor(4, requires_grad=True, is_leaf=False)

    def test_a_pause_is_not_made_up_for(self):
        self.settled()
        self.now += 100000  # The process was stopped.
        self.spent = []
        self.run_for(100)
        self.assertLessEqual(sum(self.spent) * TICK, 20)

    def test_what_outlived_a_pause_is_no_activation(self):
        self.begin()
        forward, loss = self.model()
        self.run_for(TICK)
        forward()
        self.assertEqual(self.run_for(40)[-1]["roles"]["activations"], 1000)
        later = self.run_for(3000)
        self.assertEqual({message["roles"].get("activations") for message in later}, {0})
        self.assertEqual(later[-1]["sites"][0]["bytes"], 1000, "it still has its site")
        while not self.recording():
            self.run_for(TICK)
        forward()
        self.assertEqual(self.run_for(6)[-1]["roles"]["activations"], 1000)
        del loss

    def test_a_history_of_the_program_is_read_and_left_alone(self):
        self.begin()
        self.torch.cuda.memory._record_memory_history()
        kept = self.torch.empty(1000)
        messages = self.run_for(1000)
        self.assertGreater(len(messages), 50)
        self.assertEqual(messages[-1]["sites"][0]["bytes"], 1000)
        self.assertEqual(self.core.history_calls, ["all"])
        self.sites.end()
        self.assertEqual(self.core.history_calls, ["all"])
        del kept

    def test_looks_at_a_history_of_the_program_are_bounded_too(self):
        self.begin()
        self.torch.cuda.memory._record_memory_history()
        self.cost = 0.4
        self.run_for(2000)
        self.assertLessEqual(self.looks() / 2 * 0.4, 0.02 * 2000 + 1)
        self.assertGreater(self.looks(), 20)

    def test_a_history_that_the_program_begins_in_the_middle_is_not_ended(self):
        for end in (lambda: self.run_for(300), lambda: (self.run_for(6), self.sites.end())):
            self.begin()
            self.run_for(20)
            self.torch.cuda.memory._record_memory_history()
            kept = [self.torch.empty(10) for _ in range(3)]
            end()
            self.assertEqual(self.core.history_calls, ["state", "all"])
            self.assertEqual(self.core.history["enabled"], "all")
            del kept

    def test_when_the_program_ends_its_history_the_windows_begin(self):
        self.begin()
        self.torch.cuda.memory._record_memory_history()
        self.run_for(100)
        self.torch.cuda.memory._record_memory_history(enabled=None)
        self.run_for(300)
        self.assertEqual(self.core.history_calls[:4], ["all", None, "state", "paused"])

    def test_a_program_that_ends_the_clients_history(self):
        self.begin()
        kept = self.torch.empty(10)
        self.run_for(10)
        self.torch.cuda.memory._record_memory_history(enabled=None)
        self.run_for(5)
        self.assertEqual(self.core.history_calls, ["state", None])
        self.run_for(3000)
        self.assertGreater(self.core.history_calls.count("state"), 10)
        del kept

    def unavailable(self):
        kept = self.torch.empty(10)
        self.sites.initialised()
        self.assertEqual(self.run_for(100), [])
        self.assertIsNone(self.failed(0))
        self.sites.end()
        self.assertEqual(set(self.core.calls) - {"_cuda_memoryStats"}, set())
        del kept

    def test_an_old_pytorch(self):
        self.begin(STANDIN_HISTORY="legacy")
        self.unavailable()

    def test_cudamallocasync(self):
        self.begin(STANDIN_BACKEND="cudaMallocAsync")
        self.unavailable()

    def test_a_build_for_amd(self):
        self.begin(STANDIN_HIP="1")
        self.unavailable()

    def test_a_pytorch_without_one_of_the_functions(self):
        for place, name in (("cuda.memory", "_record_memory_history"), ("cuda.memory", "_snapshot"), ("_C", "_cuda_isHistoryEnabled")):
            with self.subTest(name=name):
                self.begin()
                delattr(sys.modules["torch." + place], name)
                self.unavailable()
        self.begin()
        del sys.modules["torch.cuda.memory"]
        self.unavailable()

    def test_another_process_does_nothing(self):
        """Even one that was forked without Python's hooks."""
        self.begin()
        self.run_for(1)
        calls = dict(self.core.calls)
        with mock.patch.object(os, "getpid", return_value=os.getpid() + 1):
            self.assertEqual(self.run_for(100), [])
            self.assertIsNone(self.failed(0))
            self.sites.initialised()
            self.sites.end()
        self.assertEqual(self.core.calls, calls)

    def test_memory_that_has_grown_begins_a_window_at_once(self):
        self.begin()
        self.run_for(40)
        self.assertFalse(self.recording())
        for allocated, begins in ((1 << 20, False), (int(1.05 * (1 << 20)), False), (1 << 21, False)):
            self.run_for(60, allocated)
            self.assertEqual(self.recording(), begins, "the first phase is not paid for")
        self.after_a_window()
        self.run_for(6)
        self.assertFalse(self.recording())
        self.run_for(1, 1 << 21)
        self.assertTrue(self.recording())
        self.run_for(3, 1 << 22)
        self.run_for(8, 1 << 22)
        self.assertFalse(self.recording(), "what it recorded in the window is no growth")

    def test_growth_costs_no_more_than_two_percent(self):
        self.settled()
        since, start = len(self.spent) * TICK, self.now
        self.run_for(3000, lambda now: int(1.2 ** ((now - start) / 10) * (1 << 20)))
        self.assertLessEqual(self.recorded(since), 0.02 * 3000 + 3)

    def test_a_history_that_the_program_begins_in_a_pause_is_not_ended(self):
        self.after_a_window()
        self.assertEqual(self.core.history["context"], None)
        self.torch.cuda.memory._record_memory_history()
        kept = [self.torch.empty(10) for _ in range(3)]
        self.run_for(100)
        self.assertEqual(self.core.history["enabled"], "all")
        del kept

    def test_a_look_during_a_backward_pass_leaves_gradients_out(self):
        self.begin()
        weight = self.torch.nn.Parameter(10)
        weight.grad = self.torch.Tensor(10)
        ended = threading.Lock()
        ended.acquire()
        thread = threading.Thread(target=lambda: self.torch.autograd.graph._engine_run_backward(ended.acquire))
        thread.start()
        while not _sites._threads.in_backward():
            pass
        found = self.run_for(6)
        ended.release()
        thread.join()
        found += self.run_for(6)
        self.assertNotIn("gradients", found[0]["roles"])
        self.assertEqual((found[0]["roles"]["unknown"], found[1]["roles"]["gradients"]), (10, 10))

    def test_no_look_while_pytorch_compiles(self):
        self.begin()
        kept = self.torch.empty(10)
        with mock.patch.object(_sites._threads, "compiling", return_value=True):
            self.assertEqual(self.run_for(40), [])
            self.assertFalse(self.recording(), "the first phase ends all the same")
        self.assertNotEqual(self.run_for(500), [])
        del kept

    def test_an_allocation_that_fails_in_a_thread_of_autograd(self):
        self.begin()
        self.run_for(TICK)
        ended = threading.Lock()
        ended.acquire()
        thread = threading.Thread(target=lambda: self.torch.autograd.graph._engine_run_backward(ended.acquire))  # began
        thread.start()
        while _sites._threads.waiting() is None:
            pass
        details = self.sites.failed(0, None, lambda _: None)
        ended.release()
        thread.join()
        self.assertRegex(details["site"], r"^test_sites\.py:\d+ <lambda>$")
        self.assertEqual(self.sites.failed(0, None, lambda _: None).get("site"), None)

    def test_gradients_are_read_at_a_failure_in_a_backward_pass(self):
        for devices, known in (("1", True), ("2", False)):
            self.begin(STANDIN_DEVICES=devices)
            weight = self.torch.nn.Parameter(10)
            weight.grad = self.torch.Tensor(10)
            other = self.torch.Tensor(10, device=int(devices) - 1)
            self.run_for(TICK)
            found = self.torch.autograd.graph._engine_run_backward(lambda: self.failed(0))
            self.assertEqual("gradients" in found["roles"], known)
            del other

    def test_an_exception_ends_it(self):
        for error in (RuntimeError("hostile"), KeyError("blocks"), MemoryError()):
            self.begin()
            self.run_for(1)
            with mock.patch.object(sys.modules["torch.cuda.memory"], "_snapshot", side_effect=error):
                self.assertEqual(self.run_for(10), [])
            self.assertEqual(self.core.history_calls, ["state", "paused"])
            self.assertEqual(self.run_for(1000), [])
            self.assertEqual(self.core.history_calls, ["state", "paused"])

    def test_an_exception_of_the_search_makes_the_roles_unknown(self):
        self.begin()
        kept = self.torch.empty(10)
        with mock.patch.object(_sites._roles, "gather", side_effect=RuntimeError):
            messages = self.run_for(6)
        self.assertEqual(messages[0]["roles"], {"unknown": 10})
        del kept

    def test_a_very_long_look_is_the_last_one(self):
        self.begin()
        kept = self.torch.empty(10)
        self.cost = 2.5
        self.assertEqual(len(self.run_for(1000)), 1)
        self.assertEqual(self.core.history_calls, ["state", "paused"])
        del kept

    def test_after_the_end_nothing_is_done(self):
        self.begin()
        self.run_for(1)
        self.sites.end()
        self.sites.initialised()
        self.assertEqual((self.run_for(100), self.failed(0)), ([], None))
        self.assertEqual(self.core.history_calls, ["state", "paused"])

    def test_without_a_certain_uuid_nothing_is_sent(self):
        self.begin()
        kept = self.torch.empty(10)
        with mock.patch.object(_sites._torch, "device_uuid", return_value=None):
            self.assertEqual(self.run_for(50), [])
        del kept

    def test_a_failed_allocation(self):
        self.begin(STANDIN_DEVICES="2")
        kept = [self.torch.Tensor(10), self.torch.Tensor(20, 1)]
        self.assertIsNone(self.failed(1), "nothing is known before the first tick")
        self.now += 1
        self.run_for(TICK)
        look, _ = self.failure(1)
        self.assertEqual([message["type"] for message in look.messages], ["report", "sites"])
        self.assertEqual(look.pair, ("pytorch", support.SECOND_DEVICE))
        self.assertEqual({message["device"] for message in look.messages}, {support.SECOND_DEVICE})
        self.assertEqual(sum(look.messages[1]["roles"].values()), 20)
        self.assertEqual(look.messages[0]["reserved_bytes"], self.core.allocator.reserved(1))
        self.now += 0.5
        self.assertIsNone(self.failed(0), "one in a second")
        self.now += 0.6
        self.assertEqual(sum(self.failed(0)["roles"].values()), 10)
        self.now += 2
        self.assertIsNone(self.failed(5))
        del kept

    def test_what_is_known_about_a_failure_besides(self):
        self.begin(STANDIN_DEVICES="2")
        kept = [self.torch.Tensor(1000), self.torch.Tensor(5000), self.torch.Tensor(7000), self.torch.Tensor(9000, 1)]
        self.run_for(TICK)
        del kept[1:3]
        self.now += 1
        details = self.failure(0)[1]
        self.assertEqual(set(details), {"site", "frames", "largest_free_block_bytes"})
        self.assertRegex(details["site"], r"^test_sites\.py:\d+ failure$")
        self.assertEqual(details["frames"][0], details["site"])
        self.assertRegex(details["frames"][1], r"^test_sites\.py:\d+ test_what_is_known_about_a_failure_besides$")
        self.assertEqual(details["largest_free_block_bytes"], 7168)
        self.assertEqual(set(self.failure(0)[1]), {"site", "frames"}, "there is no look, so no snapshot")
        self.now += 2
        self.assertEqual(self.failure(1)[1]["largest_free_block_bytes"], 0)
        self.sites.end()
        self.now += 2
        self.assertEqual(set(self.failure(1)[1]), {"site", "frames"})
        del kept

    def test_growth_follows_each_look_but_the_first(self):
        self.begin()
        kept = [self.torch.empty(100)]
        self.assertEqual(self.run_for(6, kind="growth"), [])
        kept += [self.torch.empty(1000), self.torch.empty(3000)]
        (message,) = self.run_for(5, kind="growth")
        self.assertEqual((message["device"], message["seconds"]), (DEVICE, 6))
        self.assertEqual([(row["role"], row["bytes"]) for row in message["sites"]], [("other", 4000)])
        self.assertRegex(message["sites"][0]["site"], r"^test_sites\.py:\d+ test_growth_follows")
        self.assertEqual([row["sites"] for row in self.run_for(5, kind="growth")], [[]])
        kept.append(self.torch.empty(50))
        look, _ = self.failure(0)
        self.assertEqual([message["type"] for message in look.messages], ["report", "sites", "growth"])
        self.assertEqual([row["bytes"] for row in look.messages[2]["sites"]], [50])
        del kept

    def test_the_modules_of_the_program_end_a_look(self):
        self.begin()
        model = type("Model", (self.torch.nn.Module,), {})()
        model.head = type("Model", (self.torch.nn.Module,), {})()
        model.head.weight = self.torch.nn.Parameter(1000)
        self.run_for(TICK)
        looks = [self.failure(0)[0]]
        self.now += 2
        looks.append(self.failure(0)[0])
        self.assertEqual([[message["type"] for message in look.messages] for look in looks], [["report", "sites", "modules"], ["report", "sites", "growth", "modules"]])
        self.assertEqual(looks[1].messages[3]["modules"], [{"module": "head", "bytes": 1000}])
        with mock.patch.object(_sites._roles, "gather", return_value=None):
            self.assertEqual(self.run_for(6, kind="modules"), [])
        self.assertEqual(len(self.run_for(5, kind="modules")), 1)
        del model

    def test_a_look_without_amounts_has_no_report(self):
        self.begin()
        kept = self.torch.empty(10)
        with mock.patch.object(_sites._torch, "amounts", return_value={}):
            self.assertEqual(self.run_for(6, kind="report"), [])
        self.assertEqual(len(self.run_for(6, kind="report")), 1)
        del kept

    def test_a_failed_allocation_long_after_a_window_has_no_activations(self):
        self.settled()
        forward, loss = self.model()
        while not self.recording():
            self.run_for(TICK)
        forward()
        while self.recording():
            self.run_for(TICK)
        self.now += 2
        self.assertEqual(self.failed(0)["roles"]["activations"], 1000)
        self.now += 5
        roles = self.failed(0)["roles"]
        self.assertNotIn("activations", roles)
        self.assertEqual(roles["unknown"], 1000)
        del loss


# A training program with each role; the client looks often.
TRAIN = """
    import select, sys, torch
    {start}
    import vram_exporter._sites as sites
    sites.EVERY = 0.05

    class Model(torch.nn.Module):
        def forward(self):
            torch._C.save_for_backward(4000)

    {wait}
    weight = torch.nn.Parameter(1000)
    optimizer = torch.optim.Optimizer([weight])
    loss = torch.Tensor(8, requires_grad=True, is_leaf=False)
    Model()()
    weight.grad = torch.Tensor(1000)
    optimizer.step()
    batch = torch.empty(500)
    while not select.select([sys.stdin], [], [], 0.01)[0]: pass
    sys.stdin.readline()
    {then}
"""
ROLES = {"parameters": 1000, "gradients": 1000, "optimizer_state": 2000, "activations": 4000, "other": 508, "unknown": 0}
# CUDA may be initialised before the client has seen PyTorch, in which case the first allocations would have no frames.
WATCHED = "from vram_exporter import _oom; import time\n    while not _oom.watching(): time.sleep(0.01)"


def training(start="import vram_exporter; vram_exporter.start(interval=0.02, sites=True)", wait=WATCHED, then=""):
    return TRAIN.format(start=start, wait=wait, then=then)


def complete(server):
    return [message for message in server.messages("sites") if message["roles"] == ROLES]


class Programs(support.Case):
    def job(self, text, **variables):
        return self.program("", command=[sys.executable, self.write("train.py", text)], **variables)

    def shows_its_sites(self, server):
        message = server.wait(complete)
        self.assertTrue(message, server.messages("sites")[-1:])
        message = message[0]
        self.assertEqual((message["framework"], message["device"], message["other_bytes"], message["unknown_bytes"]), ("pytorch", DEVICE, 0, 0))
        self.assertEqual(message["sites"][0]["role"], "activations")
        self.assertRegex(message["sites"][0]["site"], r"^train\.py:\d+ forward$")
        self.assertEqual(sum(site["bytes"] for site in message["sites"]), sum(ROLES.values()))
        self.assertEqual({site["site"].partition(":")[0] for site in message["sites"]}, {"train.py"})

    def test_the_python_interface(self):
        server = self.server()
        job = self.job(training(then="torch._C.backward(); vram_exporter.stop(); print(torch._C.history)"))
        self.shows_its_sites(server)
        self.go_on(job)
        self.assertIn("'context': None", self.finish(job), "nothing is recorded after the end of the client")
        self.assertEqual(server.connections[0].invalid, [])

    def test_a_client_that_is_running_already(self):
        server = self.server()
        start = "import vram_exporter; vram_exporter.start(interval=0.02); assert 'vram_exporter._sites' not in sys.modules; vram_exporter.start(sites=True)"
        job = self.job(training(start))
        self.shows_its_sites(server)
        self.go_on(job)
        self.finish(job)

    def test_the_environment_variable(self):
        server = self.server()
        job = self.job(training("import vram_exporter; vram_exporter.start(interval=0.02)"), VRAM_EXPORTER_SITES="1")
        self.shows_its_sites(server)
        self.go_on(job)
        self.finish(job)

    def test_vram_run(self):
        server = self.server()
        child = self.write("train.py", training(start=""))
        parent = self.write("parent.py", "import subprocess, sys\nsys.exit(subprocess.call([sys.executable, %r]))" % child)
        start = "import sys; sys.path.insert(0, %r); from vram_exporter._run import main; main(sys.argv[1:])" % support.SOURCE
        words = ["--sites", "--interval", "0.02", sys.executable, parent]
        job = self.program("", command=[sys.executable, "-c", start, *words], PYTHONPATH=support.STANDIN)
        self.shows_its_sites(server)
        self.go_on(job)
        self.finish(job)

    def test_vram_run_sets_the_variable_only_if_asked(self):
        self.assertEqual(_run.environment({}, sites=True)["VRAM_EXPORTER_SITES"], "1")
        self.assertNotIn("VRAM_EXPORTER_SITES", _run.environment({}))
        self.assertEqual(_run.environment({"VRAM_EXPORTER_SITES": "1"})["VRAM_EXPORTER_SITES"], "1", "children inherit it")

    def test_vram_run_passes_the_folder_for_snapshots_on(self):
        made = _run.environment({}, sites=True, snapshots="a")
        self.assertEqual(made["VRAM_EXPORTER_SNAPSHOTS"], os.path.abspath("a"))
        self.assertNotIn("VRAM_EXPORTER_SNAPSHOTS", _run.environment({}, sites=True))
        start = "import sys; sys.path.insert(0, %r); from vram_exporter._run import main; main(sys.argv[1:])" % support.SOURCE
        show = [sys.executable, "-c", "import os; print(os.environ['VRAM_EXPORTER_SNAPSHOTS'])"]
        for words, variables in (["--sites"], {}), ([], {"VRAM_EXPORTER_SITES": "1"}):
            job = self.program("", command=[sys.executable, "-c", start, *words, "--snapshots", "a", *show], **variables)
            self.assertEqual(self.finish(job), os.path.join(self.folder, "a") + "\n")
        for words in (["--snapshots", "a", "true"], ["--snapshots", "a", "--pid", "1"]):
            job = self.program("", command=[sys.executable, "-c", start, *words])
            self.assertIn("--snapshots needs --sites", job.communicate(timeout=support.LIMIT)[1])
            self.assertEqual(job.returncode, 2)

    def test_off_means_that_nothing_is_imported_and_nothing_is_called(self):
        server = self.server()
        for value in (None, "", "0", "true"):
            with self.subTest(value=value):
                variables = {} if value is None else {"VRAM_EXPORTER_SITES": value}
                out = self.run_program(
                    """
                    import os, sys, time, vram_exporter, torch
                    vram_exporter.start(interval=0.01, sites=False if os.environ.get("VRAM_EXPORTER_SITES") == "0" else None)
                    kept = torch.empty(1000)
                    end = time.monotonic() + 60
                    while torch._C.calls["_cuda_memoryStats"] < 5 and time.monotonic() < end: time.sleep(0.01)
                    try: torch.empty(1 << 40)
                    except torch.OutOfMemoryError: pass
                    names = ["vram_exporter._" + name for name in ("sites", "jax_sites", "pprof", "look", "roles", "frames", "growth", "modules", "memory_viz")]
                    print([name for name in names if name in sys.modules], [name for name in torch._C.calls if name != "_cuda_memoryStats"])
                    """,
                    **variables,
                )
                self.assertEqual(out, "[] []\n")
        self.assertEqual(server.messages("sites"), [])
        self.assertEqual(len(server.messages("out_of_memory")), 4)

    def test_the_python_interface_overrules_the_variable(self):
        out = self.run_program("import sys, vram_exporter; vram_exporter.start(sites=False); print('vram_exporter._sites' in sys.modules)", VRAM_EXPORTER_SITES="1")
        self.assertEqual(out, "False\n")

    def test_a_failed_allocation_sends_its_sites_first(self):
        server = self.server()
        then = "torch.empty(1 << 40)"
        job = self.job(training(wait="sites.EVERY = 1000.0\n    " + WATCHED, then=then))
        self.assertTrue(server.wait(lambda s: s.values(job.pid)))
        self.assertEqual(server.messages("sites"), [])
        _, err = job.communicate("\n", timeout=support.LIMIT)
        self.assertEqual(job.returncode, 1)
        self.assertIn("OutOfMemoryError: CUDA out of memory.", err)
        self.shows_its_sites(server)
        messages = server.messages()
        kinds = [message["type"] for message in messages]
        looked = kinds.index("sites")
        self.assertEqual(kinds[looked - 1 : looked + 2], ["report", "sites", "out_of_memory"])
        # The exporter refuses a look at more memory than it knows to be reserved.
        self.assertGreaterEqual(messages[looked - 1]["reserved_bytes"], sum(messages[looked]["roles"].values()))
        failure = messages[looked + 1]
        self.assertRegex(failure["site"], r"^train\.py:\d+ <module>$")
        self.assertEqual(failure["frames"], ["_C.py:" + failure["frames"][0].split(":")[1], *failure["frames"][1:]])
        self.assertEqual(failure["frames"][-1], failure["site"])
        self.assertEqual(failure["largest_free_block_bytes"], 0)
        self.assertEqual(server.connections[0].invalid, [])

    def test_a_failed_allocation_names_the_file_of_its_snapshot(self):
        server = self.server()
        then = "for _ in range(2):\n        try: torch.empty(1 << 40)\n        except torch.OutOfMemoryError: pass\n    sites.FAILURES = 0.0"
        folder = os.path.join(self.folder, "snapshots")
        job = self.job(training(then=then), VRAM_EXPORTER_SNAPSHOTS=folder)
        self.shows_its_sites(server)
        self.go_on(job)
        self.finish(job)
        failures = server.messages("out_of_memory")
        path = os.path.join(folder, "%s-%d-1.pickle" % (os.uname().nodename, job.pid))
        self.assertEqual([failure.get("snapshot_path") for failure in failures], [path, None])
        with open(path, "rb") as file:
            snapshot = pickle.load(file)
        sizes = [block["requested_size"] for segment in snapshot["segments"] for block in segment["blocks"]]
        self.assertEqual(sum(sizes), sum(ROLES.values()))

    def test_without_sites_no_snapshot_is_written(self):
        server = self.server()
        folder = os.path.join(self.folder, "snapshots")
        text = """
            import sys, vram_exporter, torch
            vram_exporter.start(interval=0.02, snapshots=sys.argv[1])
            kept = torch.empty(1000)
            input()
            try: torch.empty(1 << 40)
            except torch.OutOfMemoryError: print("vram_exporter._memory_viz" in sys.modules)
        """
        job = self.program(text, folder, VRAM_EXPORTER_SNAPSHOTS=folder)
        self.assertTrue(server.wait(lambda s: s.values(job.pid)))
        self.go_on(job)
        self.assertEqual(self.finish(job), "False\n")
        self.assertEqual((len(server.messages("out_of_memory")), os.path.exists(folder)), (1, False))

    def test_the_python_interface_and_the_variable_name_the_folder(self):
        text = "import os, sys, vram_exporter; from vram_exporter import _client\nvram_exporter.start(**eval(sys.argv[1]))\nprint(os.path.relpath(_client._client._sites.files._folder))"
        for arguments, folder in (("dict(sites=True, snapshots='a')", "a"), ("dict(sites=True)", "b")):
            self.assertEqual(self.run_program(text, arguments, VRAM_EXPORTER_SNAPSHOTS="b"), folder + "\n")
        later = "import os, vram_exporter; from vram_exporter import _client\nvram_exporter.start(sites=True); vram_exporter.start(sites=True, snapshots='a')\nprint(os.path.relpath(_client._client._sites.files._folder))"
        self.assertEqual(self.run_program(later), "a\n")

    def test_a_failed_allocation_in_another_thread_has_the_line_of_that_thread(self):
        server = self.server()
        then = """
    import threading
    def work():
        try: torch.empty(1 << 40)
        except torch.OutOfMemoryError: pass
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
"""
        job = self.job(training(then=then))
        self.shows_its_sites(server)
        self.go_on(job)
        self.finish(job)
        (failure,) = server.messages("out_of_memory")
        self.assertRegex(failure["site"], r"^train\.py:\d+ work$")
        self.assertTrue(any(text.startswith("threading.py:") for text in failure["frames"]), failure["frames"])

    def test_a_loop_of_failures_sends_sites_once_a_second(self):
        server = self.server()
        then = "sites.FAILURES = 1000.0\n    for _ in range(10):\n        try: torch.empty(1 << 40)\n        except torch.OutOfMemoryError: pass"
        job = self.job(training(wait="sites.EVERY = 1000.0\n    " + WATCHED, then=then))
        self.assertTrue(server.wait(lambda s: s.values(job.pid)))
        self.go_on(job)
        self.finish(job)
        self.assertEqual((len(server.messages("sites")), len(server.messages("out_of_memory"))), (1, 10))

    def test_what_fails_in_a_look_replaces_no_exception(self):
        for error in ("RuntimeError('no')", "KeyboardInterrupt()", "SystemExit(7)"):
            with self.subTest(error=error):
                self.path += "s"
                server = self.server()
                then = "def fail(*_): raise %s\n    torch.cuda.memory._snapshot = fail\n    torch.empty(1 << 40)" % error
                job = self.job(training(wait="sites.EVERY = 1000.0\n    " + WATCHED, then=then))
                self.assertTrue(server.wait(lambda s: s.values(job.pid)))
                _, err = job.communicate("\n", timeout=support.LIMIT)
                self.assertEqual(job.returncode, 1)
                self.assertIn("OutOfMemoryError: CUDA out of memory.", err)
                self.assertTrue(server.wait(lambda s: s.messages("out_of_memory")))
                self.assertEqual(server.messages("sites"), [])

    def test_a_child_of_a_program_that_has_initialised_cuda_touches_nothing(self):
        server = self.server()
        then = """
    import os
    child = os.fork()
    if child == 0:
        assert not vram_exporter.running()
        torch._C._check = lambda name: os._exit(7)
        vram_exporter.start(sites=True); vram_exporter.stop()
        sys.exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert torch._C.history is not None, "the parent goes on"
"""
        job = self.job(training(then=then))
        self.shows_its_sites(server)
        self.go_on(job)
        self.finish(job)
        self.assertEqual({connection.pid for connection in server.connections}, {job.pid})

    def test_a_child_that_initialises_cuda_itself_has_its_own_sites(self):
        server = self.server()
        wait = "import os\n    child = os.fork()\n    sites.EVERY = 0.05\n    " + WATCHED
        job = self.job(training(wait=wait, then="os.waitpid(child, 0) if child else None"))
        self.assertTrue(server.wait(lambda s: len({c.pid for c in s.connections for _, m in list(c.messages) if m.get("roles") == ROLES}) == 2))
        job.stdin.write("\n\n")
        job.stdin.flush()
        job.stdin.close()
        job.stdin = None
        job.wait(support.LIMIT)
        self.assertEqual(job.returncode, 0)

    def test_spawned_and_forked_workers_have_their_own_sites(self):
        """Under `vram-run`, without a word about the client in the program, and although the parent has not initialised CUDA."""
        for method in ("spawn", "forkserver", "fork"):
            with self.subTest(method=method):
                self.path += "s"
                server = self.server()
                text = """
                    import multiprocessing, sys, torch
                    def work(number, connection):
                        import vram_exporter._sites as sites, vram_exporter._oom as oom, time
                        sites.EVERY = 0.05
                        while not oom.watching(): time.sleep(0.01)
                        kept = torch.empty(1000 * number)
                        connection.recv()
                        try: torch.empty(1 << 40)
                        except torch.OutOfMemoryError: pass
                    if __name__ == "__main__":
                        context = multiprocessing.get_context("%s")
                        pipes = [context.Pipe() for _ in range(2)]
                        children = [context.Process(target=work, args=(i + 1, pipes[i][1])) for i in range(2)]
                        for child in children: child.start()
                        sys.stdin.readline()
                        for mine, _ in pipes: mine.send(1)
                        for child in children: child.join()
                        print([child.exitcode for child in children])
                """ % method
                path = os.pathsep.join([_run.BOOTSTRAP, support.STANDIN])
                job = self.job(text, PYTHONPATH=path, VRAM_EXPORTER_ARM="1", VRAM_EXPORTER_SITES="1", VRAM_EXPORTER_INTERVAL="0.02")

                def held(s):
                    found = {}
                    for connection in list(s.connections):
                        for _, message in list(connection.messages):
                            if message.get("type") == "sites" and message["sites"]:
                                found[connection.pid] = message["sites"][0]
                    return found if len(found) == 2 else None

                found = server.wait(held)
                self.assertTrue(found)
                self.assertEqual({site["bytes"] for site in found.values()}, {1000, 2000})
                self.assertTrue(all(re.match(r"train\.py:\d+ work$", site["site"]) for site in found.values()), found)
                self.assertNotIn(job.pid, found)
                self.go_on(job)
                self.assertEqual(self.finish(job), "[0, 0]\n")
                failures = server.messages("out_of_memory")
                self.assertEqual(len(failures), 2)
                self.assertTrue(all(re.match(r"train\.py:\d+ work$", failure["site"]) for failure in failures), failures)

    def test_an_exporter_that_is_absent(self):
        job = self.job(training(then="print(sites.EVERY)"))
        self.go_on(job)
        self.assertEqual(self.finish(job), "0.05\n")

    def test_programs_with_threads(self):
        """Threads allocate and free while the client looks."""
        server = self.server()
        then = """
    import threading, time
    sites.SHARE = 1.0  # A look that waits for the other threads costs much.
    end, failures = time.monotonic() + 1, []
    def work():
        try:
            while time.monotonic() < end: kept = [torch.empty(100) for _ in range(20)]
        except BaseException as error: failures.append(error)
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    # The kernel lists a thread a little longer than Python.
    while len(os.listdir("/proc/self/task")) > 2 and time.monotonic() < end + 60: time.sleep(0.01)
    print(failures, len(os.listdir("/proc/self/task")))
"""
        job = self.job(training(start="import os, vram_exporter; vram_exporter.start(interval=0.02, sites=True)", then=then))
        self.shows_its_sites(server)
        seen = len(server.messages("sites"))
        self.go_on(job)
        self.assertEqual(self.finish(job), "[] 2\n", "there is no other thread")
        later = server.messages("sites")[seen:]
        self.assertGreater(len(later), 1)
        for message in later:
            total = sum(message["roles"].values())
            self.assertEqual(sum(site["bytes"] for site in message["sites"]) + message["other_bytes"] + message["unknown_bytes"], total)
            self.assertGreaterEqual(total, sum(ROLES.values()))

    def test_hostile_file_names(self):
        server = self.server()
        name = "a\n\x1b]0;x\x07\u202e" + "\U0001f600" * 20 + ".py"
        os.rename(self.write("train.py", training()), os.path.join(self.folder, name))
        job = self.program("", command=[sys.executable, os.path.join(self.folder, name)])
        message = server.wait(complete)[0]
        self.assertTrue(all(site["site"].startswith("a??]0;x??" + "\U0001f600" * 20 + ".py:") for site in message["sites"]))
        self.assertEqual(server.connections[0].invalid, [])
        self.go_on(job)
        self.finish(job)


if __name__ == "__main__":
    unittest.main()
