"""What the threads of a program do, and when gradients are read: never while a backward pass runs."""

import gc
import threading
import unittest

from vram_exporter import _gradients, _threads

from . import support


class Gradients(unittest.TestCase):
    def setUp(self):
        self.torch = support.standin(self)
        self.run = self.torch.autograd.graph._engine_run_backward

    def read(self, patience=60.0):
        """What is read of two tensors."""
        return _gradients.of([1, 2], str, patience)

    def in_another_thread(self, function, run=None):
        """What `function` finds while another thread is in a backward pass that runs a hook of the program."""
        begun, ended = threading.Event(), threading.Event()

        def hook():
            begun.set()
            ended.wait(60)

        thread = threading.Thread(target=lambda: (run or self.run)(hook))
        thread.start()
        begun.wait(60)
        try:
            return function()
        finally:
            ended.set()
            thread.join()

    def test_without_a_backward_pass_they_are_read(self):
        self.assertEqual((_threads.in_backward(), self.read()), (False, ["1", "2"]))

    def test_the_main_thread_reads_them(self):
        readers, found = [], []

        def read(number):
            readers.append(threading.current_thread())
            return number

        thread = threading.Thread(target=lambda: found.append(_gradients.of([1, 2], read, 60.0)))
        thread.start()
        while thread.is_alive():
            pass  # The main thread takes steps.
        self.assertEqual((found, readers), ([[1, 2]], [threading.main_thread()] * 2))

    def test_a_main_thread_that_takes_no_step_is_not_waited_for_any_longer(self):
        found = []
        thread = threading.Thread(target=lambda: found.append(_gradients.of([1, 2], self.fail, 0.01)))
        thread.start()
        # Waiting for the other thread without a limit, in C, with a lock that it does not hold back.
        ended = threading.Lock()
        ended.acquire()
        threading.Thread(target=lambda: (thread.join(), ended.release())).start()
        ended.acquire()
        self.assertEqual(found, [None])

    def test_an_exception_of_a_tensor_is_none_of_the_program(self):
        found = []
        thread = threading.Thread(target=lambda: found.append(_gradients.of([1], lambda _: 1 / 0, 0.05)))
        thread.start()
        while thread.is_alive():
            pass
        self.assertEqual(found, [None])

    def test_if_another_thread_trains_nothing_is_read(self):
        for file in ("/x/torch/nn/modules/module.py", "/x/torch/optim/sgd.py", "/x/torch/autograd/graph.py"):
            namespace = {}
            exec(compile("def call(function):\n    return function()", file, "exec"), namespace)
            self.assertIsNone(self.in_another_thread(self.read, lambda hook: namespace["call"](hook)))

    def test_a_backward_pass_of_this_or_another_thread_is_noticed(self):
        self.assertTrue(self.run(_threads.in_backward))
        self.assertTrue(self.in_another_thread(_threads.in_backward))
        self.assertFalse(_threads.in_backward())

    def test_while_a_thread_waits_for_a_backward_pass_nothing_is_read(self):
        ended = threading.Lock()
        ended.acquire()
        thread = threading.Thread(target=self.run, args=(ended.acquire,))
        thread.start()
        while not _threads.in_backward():
            pass
        try:
            self.assertIsNone(self.read())
        finally:
            ended.release()
            thread.join()
        self.assertEqual(self.read(), ["1", "2"])

    def test_a_compiler_is_noticed_in_any_thread(self):
        self.assertFalse(_threads.compiling())
        for file, meant in (("/x/torch/_dynamo/convert_frame.py", True), ("/x/torch/_inductor/compile_fx.py", True), ("/x/torch/_dynamo/eval_frame.py", False)):
            namespace = {}
            exec(compile("def call(function):\n    return function()", file, "exec"), namespace)
            self.assertEqual(namespace["call"](_threads.compiling), meant)
            self.assertEqual(namespace["call"](lambda: self.in_another_thread(_threads.compiling)), meant)

    def test_the_frame_that_waits_for_the_only_backward_pass(self):
        self.assertIsNone(_threads.waiting())
        ended = [threading.Lock(), threading.Lock()]
        threads = [threading.Thread(target=self.run, args=(lock.acquire,)) for lock in ended if lock.acquire()]
        threads[0].start()
        while _threads.waiting() is None:
            pass
        frame = _threads.waiting()
        self.assertEqual(frame.f_code.co_name, "_engine_run_backward")
        del frame
        threads[1].start()
        while _threads.waiting() is not None:
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
        for ask in (_threads.in_backward, self.read, lambda: self.run(_threads.in_backward), lambda: self.run(self.read)):
            caller(ask)
            self.assertEqual(ended, [True])
            ended.clear()

    def test_a_pytorch_whose_function_is_not_known(self):
        del self.torch.autograd.graph._engine_run_backward
        self.assertIsNone(self.read())


if __name__ == "__main__":
    unittest.main()
