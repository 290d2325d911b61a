"""The line of the program that allocated a block, from PyTorch's frames, whatever they contain."""

import os
import sys
import unittest
from unittest import mock

from vram_exporter import _frames

from . import support


def frame(filename, line=12, name="step"):
    return {"filename": filename, "line": line, "name": name}


PACKAGES = "/opt/venv/lib/python3.11/site-packages"
LINEAR = frame(PACKAGES + "/torch/nn/modules/linear.py", 116, "forward")
CALL = frame(PACKAGES + "/torch/nn/modules/module.py", 1747, "_call_impl")
TRAIN = frame("/home/me/train.py")
MAIN = frame("/home/me/train.py", 99, "<module>")


def origin(*frames):
    return _frames.Frames().origin(list(frames))


class Site(unittest.TestCase):
    def test_it_is_the_innermost_frame_outside_of_framework_code(self):
        self.assertEqual(origin(LINEAR, CALL, TRAIN, MAIN).site, "train.py:12 step")

    def test_framework_code_is_recognised_by_its_place(self):
        places = (
            PACKAGES + "/transformers/trainer.py",
            "/usr/lib/python3/dist-packages/torch/functional.py",
            os.path.join(os.path.dirname(os.__file__), "runpy.py"),
            "<frozen runpy>",
            "<eval_with_key>.7",
            "/tmp/torchinductor_me/ab/cabc.py",
            _frames.__file__,
        )
        for place in places:
            with self.subTest(place=place):
                self.assertEqual(origin(frame(place), TRAIN).site, "train.py:12 step")

    def test_pytorch_in_another_place_is_framework_code(self):
        torch = support.standin(self)
        self.assertEqual(origin(frame(torch.__file__), TRAIN).site, "train.py:12 step")

    def test_jax_in_another_place_is_framework_code(self):
        jax = support.standin_jax(self)
        self.assertEqual(origin(frame(os.path.join(os.path.dirname(jax.__file__), "numpy", "lax.py")), TRAIN).site, "train.py:12 step")

    def test_a_notebook_and_a_program_on_the_command_line_are_the_programs_own(self):
        for place, text in (("/tmp/ipykernel_7/123.py", "123.py:12 step"), ("<string>", "<string>:12 step"), ("/usr/bin/my-job", "my-job:12 step")):
            self.assertEqual(origin(LINEAR, frame(place)).site, text)

    def test_without_a_frame_of_the_program_it_is_the_innermost(self):
        self.assertEqual(origin(LINEAR, CALL).site, "linear.py:116 forward")

    def test_frames_of_c_code_are_left_out(self):
        self.assertEqual(origin(frame("??", 0, "torch::unwind"), frame("/src/Linear.cpp", 9, "at::linear"), TRAIN).site, "train.py:12 step")
        self.assertIsNone(origin(frame("??", 0, "clone")))

    def test_no_frames(self):
        for frames in (None, [], ()):
            self.assertIsNone(_frames.Frames().origin(frames))

    def test_hostile_frames(self):
        cases = [
            (frame("/a/\n\x1b[31m\u202egpj.py", 1, "f\x00\ud800\u2028"), "??[31m?gpj.py:1 f???"),
            (frame("/a/" + "x" * 300 + ".py", 1, "g"), "x" * 64 + ":1 g"),
            (frame("/a/b.py", 1, "y" * 1000), ("b.py:1 " + "y" * 1000)[:128]),
            (frame("/a/\U0001f600.py", 1 << 80, "h"), "\U0001f600.py:%d h" % (1 << 80)),
        ]
        for given, text in cases:
            self.assertEqual(origin(given).site, text)
            self.assertLessEqual(len(origin(given).site), 128)
        for given in (frame(7), frame("/a/b.py", "7"), frame("/a/b.py", 7, None), {}, None, 7, frame("")):
            self.assertIsNone(origin(given))

    def test_very_deep_frames_are_read_to_a_limit(self):
        self.assertEqual(origin(*[LINEAR] * 5000, TRAIN).site, "linear.py:116 forward")


class Forward(unittest.TestCase):
    def test_a_module_called_by_the_program(self):
        self.assertTrue(origin(LINEAR, CALL, TRAIN, MAIN).forward)

    def test_a_function_of_pytorch_without_a_module(self):
        self.assertTrue(origin(frame(PACKAGES + "/torch/nn/functional.py", 3, "cross_entropy"), TRAIN, MAIN).forward)

    def test_no_module(self):
        self.assertFalse(origin(TRAIN, MAIN).forward)
        self.assertFalse(origin(frame("/home/me/module.py", 1, "_call_impl"), MAIN).forward)

    def test_where_autograd_may_record_nothing(self):
        for file, name in (
            ("/torch/utils/_contextlib.py", "decorate_context"),
            ("/torch/autograd/grad_mode.py", "decorate_context"),
            ("/torch/optim/adam.py", "step"),
            ("/torch/autograd/graph.py", "_engine_run_backward"),
            ("/torch/autograd/__init__.py", "backward"),
        ):
            with self.subTest(file=file):
                self.assertFalse(origin(LINEAR, CALL, frame(PACKAGES + file, 7, name), TRAIN).forward)

    def test_what_lies_too_deep_to_be_read_may_be_anything(self):
        self.assertTrue(origin(*[CALL] * 256).forward)
        self.assertFalse(origin(*[CALL] * 257).forward)


class Asking(unittest.TestCase):
    """The stack of an allocation that fails, as CPython has it."""

    def test_the_stack_and_its_innermost_line_outside_of_framework_code(self):
        found = []
        namespace = {}
        exec(compile("def inner(call):\n    return call()", PACKAGES + "/torch/functional.py", "exec"), namespace)

        def step():
            namespace["inner"](lambda: found.append(_frames.asking(sys._getframe(1))))

        step()
        self.assertRegex(found[0]["site"], r"^test_frames\.py:\d+ step$")
        self.assertEqual(found[0]["frames"][:2], ["functional.py:2 inner", found[0]["site"]])

    def test_its_length_is_bounded(self):
        def deeper(left):
            return deeper(left - 1) if left else _frames.asking(sys._getframe(0))

        found = deeper(400)
        self.assertEqual(len(found["frames"]), 16)
        self.assertTrue(all(text.endswith(" deeper") for text in found["frames"]))

    def test_a_thread_without_frames(self):
        self.assertEqual(_frames.asking(None), {})

    def test_a_frame_without_a_line_is_left_out(self):
        code = mock.Mock(co_filename="/a/b.py", co_name="f")
        outer = mock.Mock(f_code=mock.Mock(co_filename="/a/c.py", co_name="g\x1b"), f_lineno=3, f_back=None)
        self.assertEqual(_frames.asking(mock.Mock(f_code=code, f_lineno=None, f_back=outer)), {"site": "c.py:3 g?", "frames": ["c.py:3 g?"]})


if __name__ == "__main__":
    unittest.main()
