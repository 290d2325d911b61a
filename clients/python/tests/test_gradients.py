"""When gradients are read: never while a backward pass runs."""

import gc
import threading
import unittest

from vram_exporter import _gradients, _objects

from . import support


class Gradients(unittest.TestCase):
    def setUp(self):
        self.torch = support.standin(self)
        self.run = self.torch.autograd.graph._engine_run_backward

    def read(self):
        """What is read of two tensors."""
        found = []
        _objects.together((found, _gradients.of([1, 2], str)))
        return found

    def in_another_thread(self, function):
        """What `function` finds while another thread is in a backward pass that runs a hook of the program."""
        begun, ended = threading.Event(), threading.Event()

        def hook():
            begun.set()
            ended.wait(60)

        thread = threading.Thread(target=lambda: self.run(hook))
        thread.start()
        begun.wait(60)
        try:
            return function()
        finally:
            ended.set()
            thread.join()

    def test_without_a_backward_pass_they_are_read(self):
        self.assertEqual((_gradients.known(), _gradients.running(), self.read()), (True, False, ["1", "2"]))

    def test_a_backward_pass_of_this_or_another_thread_is_noticed(self):
        self.assertTrue(self.run(_gradients.running))
        self.assertTrue(self.in_another_thread(_gradients.running))
        self.assertFalse(_gradients.running())

    def test_while_a_thread_waits_for_a_backward_pass_nothing_is_read(self):
        ended = threading.Lock()
        ended.acquire()
        thread = threading.Thread(target=self.run, args=(ended.acquire,))
        thread.start()
        while not _gradients.running():
            pass
        try:
            self.assertEqual(self.read(), [])
        finally:
            ended.release()
            thread.join()
        self.assertEqual(self.read(), ["1", "2"])

    def test_a_compiler_is_noticed_in_any_thread(self):
        self.assertFalse(_gradients.compiling())
        for file, meant in (("/x/torch/_dynamo/convert_frame.py", True), ("/x/torch/_inductor/compile_fx.py", True), ("/x/torch/_dynamo/eval_frame.py", False)):
            namespace = {}
            exec(compile("def call(function):\n    return function()", file, "exec"), namespace)
            self.assertEqual(namespace["call"](_gradients.compiling), meant)
            self.assertEqual(namespace["call"](lambda: self.in_another_thread(_gradients.compiling)), meant)

    def test_the_frame_that_waits_for_the_only_backward_pass(self):
        self.assertIsNone(_gradients.waiting())
        ended = [threading.Lock(), threading.Lock()]
        threads = [threading.Thread(target=self.run, args=(lock.acquire,)) for lock in ended if lock.acquire()]
        threads[0].start()
        while _gradients.waiting() is None:
            pass
        frame = _gradients.waiting()
        self.assertEqual(frame.f_code.co_name, "_engine_run_backward")
        del frame
        threads[1].start()
        while _gradients.waiting() is not None:
            pass
        for lock, thread in zip(ended, threads):
            lock.release()
            thread.join()

    def test_what_the_callers_hold_ends_with_them(self):
        ended = []

        class Held:
            def __del__(this):
                ended.append(True)

        def caller(ask):
            held = Held()
            ask()
            return held is not None

        gc.disable()
        self.addCleanup(gc.enable)
        for ask in (_gradients.running, self.read, lambda: self.run(_gradients.running), lambda: self.run(self.read)):
            caller(ask)
            self.assertEqual(ended, [True])
            ended.clear()

    def test_a_pytorch_whose_function_is_not_known(self):
        del self.torch.autograd.graph._engine_run_backward
        self.assertFalse(_gradients.known())


if __name__ == "__main__":
    unittest.main()
