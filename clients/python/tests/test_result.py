"""The table, the scalars, the callbacks and the package."""

import os
import re
import sys
import types
import unittest
from unittest import mock

from vram_exporter import DeviceResult, Measurement, _reading
from vram_exporter._allocators import Allocators

from . import support

MIB = 1 << 20


def device(ordinal=0, highest=150, exact=True, reserved=True):
    kept = (100 * MIB, 200 * MIB, 200 * MIB, True) if reserved else (None, None, None, False)
    return DeviceResult("pytorch", ordinal, None, 100 * MIB, 120 * MIB, highest * MIB, None, exact, *kept)


class Result(unittest.TestCase):
    def result(self, *devices):
        made = Measurement("step")
        made.seconds, made.devices = 0.25, list(devices)
        return made

    def test_the_table_marks_what_is_not_exact(self):
        self.assertEqual(
            str(self.result(device(exact=False))),
            "step: 0.2500 s\n"
            "MiB        allocated before  after  highest  reserved before  after  highest\n"
            "pytorch:0             100.0  120.0  >=150.0            100.0  200.0    200.0",
        )

    def test_the_table_shows_what_is_unknown(self):
        self.assertIn("-      -  ", str(self.result(device(reserved=False))))

    def test_without_a_device_every_amount_is_absent(self):
        empty = self.result()
        self.assertEqual(str(empty), "step: 0.2500 s, no framework uses a GPU")
        for name in ("main", "allocated_before", "allocated_after", "highest_allocated", "at_most_allocated", "reserved_before", "reserved_after", "highest_reserved"):
            self.assertIsNone(getattr(empty, name))
        self.assertFalse(empty.exact or empty.reserved_exact)

    def test_what_could_not_be_read_is_said(self):
        made = self.result()
        made.problem = "jax could not be read"
        self.assertEqual(str(made), "step: 0.2500 s, not measured: jax could not be read")
        made = self.result(device())
        made.problem = "jax could not be read"
        self.assertEqual(str(made).splitlines()[-1], "not measured: jax could not be read")

    def test_the_amounts_are_those_of_the_device_with_most(self):
        result = self.result(device(0, 130), device(1, 170))
        self.assertEqual((result.main.name, result.highest_allocated), ("pytorch:1", 170 * MIB))

    def test_log_writes_scalars(self):
        writer = mock.Mock()
        self.result(device()).log(writer, 7)
        calls = [mock.call("vram/step/seconds", 0.25, 7), mock.call("vram/step/highest_allocated_bytes", 150 * MIB, 7), mock.call("vram/step/highest_reserved_bytes", 200 * MIB, 7)]
        self.assertEqual(writer.add_scalar.mock_calls, calls)

    def test_scalars_of_several_devices_have_different_names(self):
        names = list(self.result(device(0), device(1, reserved=False)).scalars())
        self.assertEqual(names, ["vram/step/seconds", "vram/step/pytorch:0/highest_allocated_bytes", "vram/step/pytorch:0/highest_reserved_bytes", "vram/step/pytorch:1/highest_allocated_bytes"])


class Reader:
    """A framework whose level the test sets."""

    framework = "pytorch"
    blind = False

    def __init__(self):
        self.level = self.peak = 10 * MIB

    def present(self):
        return True

    def set(self, level):
        self.level, self.peak = level * MIB, max(self.peak, level * MIB)

    def read(self):
        return [_reading.Reading("pytorch", 0, self.level, peak=self.peak, peaks=(self.peak,))]


class Callbacks(unittest.TestCase):
    """The callbacks with stand-ins for their frameworks' base classes."""

    def setUp(self):
        self.reader = Reader()
        allocators = Allocators([self.reader])
        patch = mock.patch("vram_exporter._client.allocators", return_value=allocators)
        patch.start()
        self.addCleanup(patch.stop)
        for name in ("vram_exporter.lightning", "vram_exporter.transformers"):
            sys.modules.pop(name, None)
            self.addCleanup(sys.modules.pop, name, None)

    def test_the_callback_for_hugging_face(self):
        with mock.patch.dict(sys.modules, {"transformers": types.SimpleNamespace(TrainerCallback=object)}):
            from vram_exporter.transformers import VramCallback
        callback, state, logs = VramCallback(), types.SimpleNamespace(log_history=[{"loss": 1.0}]), {"loss": 1.0}
        for level in (30, 50, 20):
            callback.on_step_begin(None, state, None)
            self.reader.set(level)
            callback.on_step_end(None, state, None)
        callback.on_log(None, state, None, logs=logs)
        self.assertEqual(logs["vram/train_step/highest_allocated_bytes"], 50 * MIB)
        self.assertEqual(state.log_history[-1]["vram/train_step/highest_allocated_bytes"], 50 * MIB)
        callback.on_log(None, state, None, logs={})
        callback.on_train_end(None, state, None)

    def test_the_callback_for_lightning(self):
        pytorch = types.SimpleNamespace(Callback=object)
        with mock.patch.dict(sys.modules, {"lightning": types.SimpleNamespace(pytorch=pytorch), "lightning.pytorch": pytorch}):
            from vram_exporter.lightning import VramCallback
        callback, logger = VramCallback(every=2), mock.Mock()
        trainer = types.SimpleNamespace(loggers=[logger], global_step=9)
        for batch, level in enumerate((30, 60, 40)):
            callback.on_train_batch_start(trainer, None, None, batch)
            self.reader.set(level)
            callback.on_train_batch_end(trainer, None, None, None, batch)
        self.assertEqual([call.kwargs["step"] for call in logger.log_metrics.mock_calls], [9, 9])
        self.assertEqual(logger.log_metrics.mock_calls[0].args[0]["vram/train_batch/highest_allocated_bytes"], 30 * MIB)
        callback.on_train_batch_start(trainer, None, None, 3)
        callback.on_exception(trainer, None, ValueError())
        self.assertIsNone(callback._region)

    def test_the_callback_works_with_the_installed_transformers(self):
        if not support.installed("transformers"):
            support.skip(self, "missing: transformers")
        import transformers

        from vram_exporter.transformers import VramCallback

        self.assertTrue(issubclass(VramCallback, transformers.TrainerCallback))
        hooks = [name for name in vars(VramCallback) if name.startswith("on_")]
        self.assertTrue(hooks and all(hasattr(transformers.TrainerCallback, name) for name in hooks))

    def test_each_callback_has_fewer_than_60_lines(self):
        for name in ("lightning", "transformers"):
            with open(os.path.join(support.SOURCE, "vram_exporter", name + ".py")) as file:
                self.assertLess(len(file.readlines()), 60)


class Package(unittest.TestCase):
    def test_no_source_file_imports_a_framework(self):
        allowed = {"lightning.py", "transformers.py"}
        folder = os.path.join(support.SOURCE, "vram_exporter")
        for name in sorted(os.listdir(folder)):
            if name.endswith(".py") and name not in allowed:
                with open(os.path.join(folder, name)) as file:
                    found = re.findall(r"^\s*(?:import|from)\s+(torch|jax|tensorflow|numpy|lightning|transformers)\b", file.read(), re.M)
                self.assertEqual(found, [], name)


if __name__ == "__main__":
    unittest.main()
