"""The readers on the recorded answers of PyTorch and JAX, and on stand-ins for what a recording does not contain."""

import functools
import json
import os
import sys
import types
import unittest
from unittest import mock

from vram_exporter import _jax, _tensorflow, _torch, _uuid
from vram_exporter._levels import Tracker

from . import support

with open(os.path.join(support.TESTS, "recorded", "frameworks.json")) as _file:
    RECORDED = json.load(_file)


def moments(case):
    """The moments of a recorded case whose figures could be read."""
    return [row for row in RECORDED["cases"].get(case, {}).get("moments", []) if row["stats"] and "exception" not in row["stats"]]


def needs(case):
    """The test runs only if the case was recorded."""

    def decorate(test):
        @functools.wraps(test)
        def run(self):
            if not moments(case):
                support.skip(self, "no recording of " + case)
            test(self)

        return run

    return decorate


def modules(**found):
    """`sys.modules` with these modules; a name contains `__` in place of a dot."""
    return mock.patch.dict(sys.modules, {name.replace("__", "."): module for name, module in found.items()})


class FakeTorch:
    """The modules that the reader looks for. They return the recorded answers one after the other."""

    def __init__(self, case):
        self.answers = [row["stats"] for row in moments(case)]
        backend = RECORDED["cases"][case]["backend"]
        self.core = types.SimpleNamespace(_cuda_getDeviceCount=lambda: 1, _cuda_memoryStats=lambda _device: self.answers[0])
        properties = types.SimpleNamespace(uuid="5b7b3b8a-0000-0000-0000-000000000000")
        self.cuda = types.SimpleNamespace(is_initialized=lambda: True, get_allocator_backend=lambda: backend, get_device_properties=lambda _device: properties)

    def readings(self):
        reader, tracker, found = _torch.Torch(), Tracker(), []
        version = types.SimpleNamespace(cuda="13.0")
        with modules(torch=self, torch__cuda=self.cuda, torch___C=self.core, torch__version=version):
            while self.answers:
                (reading,) = reader.read()
                tracker.update(reading)
                found.append((reading, tracker.peak, tracker.retries, tracker.out_of_memory))
                self.answers.pop(0)
        return found


class Torch(unittest.TestCase):
    @needs("torch_native")
    def test_native_figures_are_those_of_pytorch(self):
        for row, (reading, _, _, _) in zip(moments("torch_native"), FakeTorch("torch_native").readings()):
            stats = row["stats"]
            self.assertEqual(reading.allocated, stats["allocated_bytes"]["all"]["current"])
            self.assertEqual(reading.reserved, stats["reserved_bytes"]["all"]["current"])
            self.assertLessEqual(reading.allocated, reading.reserved)
            if isinstance(row["driver_process_bytes"], int):
                self.assertLessEqual(reading.reserved, row["driver_process_bytes"])

    @needs("torch_native")
    def test_an_unused_device_is_not_in_use(self):
        readings = FakeTorch("torch_native").readings()
        self.assertFalse(readings[0][0].in_use)
        self.assertIsNone(readings[0][0].device)
        self.assertTrue(readings[1][0].in_use)
        self.assertEqual(readings[1][0].device, "GPU-5b7b3b8a-0000-0000-0000-000000000000")

    @needs("torch_native")
    def test_resets_by_the_user_lower_nothing(self):
        readings = FakeTorch("torch_native").readings()
        frameworks_own = [reading.peak for reading, _, _, _ in readings]
        self.assertNotEqual(frameworks_own, sorted(frameworks_own), "the recording contains no reset")
        for index in (1, 2, 3):
            values = [row[index] for row in readings]
            self.assertEqual(values, sorted(values))

    @needs("torch_native")
    def test_native_splits_are_counted(self):
        splits = [reading.inactive_split for reading, _, _, _ in FakeTorch("torch_native").readings()]
        self.assertTrue(any(splits), splits)

    @needs("torch_expandable")
    def test_expandable_segments_have_no_splits(self):
        readings = FakeTorch("torch_expandable").readings()
        self.assertEqual({reading.inactive_split for reading, _, _, _ in readings}, {None})
        self.assertTrue(any(reading.reserved for reading, _, _, _ in readings))

    @needs("torch_native")
    def test_expandable_segments_of_the_environment_hide_splits(self):
        for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
            with mock.patch.dict(os.environ, {name: "max_split_size_mb:64, expandable_segments: True"}):
                readings = FakeTorch("torch_native").readings()
            self.assertEqual({reading.inactive_split for reading, _, _, _ in readings}, {None})

    @needs("torch_async")
    def test_figures_that_cudamallocasync_leaves_at_zero_are_absent(self):
        readings = FakeTorch("torch_async").readings()
        self.assertTrue(any(reading.allocated for reading, _, _, _ in readings))
        for reading, _, retries, failures in readings:
            self.assertEqual((reading.inactive_split, reading.taken, reading.retries, retries, failures), (None,) * 5)

    def test_figures_of_different_moments_are_read_again(self):
        torn = {key: {"all": {"current": value}} for key, value in (("allocated_bytes", 9), ("reserved_bytes", 5))}
        good = {key: {"all": {"current": value}} for key, value in (("allocated_bytes", 4), ("reserved_bytes", 5))}
        core = types.SimpleNamespace(_cuda_memoryStats=mock.Mock(side_effect=[torn, good]))
        self.assertIs(_torch._stats(core, 0), good)
        core._cuda_memoryStats = mock.Mock(return_value=torn)
        self.assertRaises(ValueError, _torch._stats, core, 0)

    def test_nothing_is_read_from_a_build_for_amd(self):
        cuda = mock.Mock(**{"is_initialized.return_value": True})
        for hip in (None, "6.0"):
            with modules(torch=cuda, torch__cuda=cuda, torch__version=types.SimpleNamespace(cuda=None, hip=hip)):
                reader = _torch.Torch()
                self.assertEqual((reader.read(), reader.blind), ([], hip is not None))

    def test_a_half_imported_torch_is_left_alone(self):
        with modules(torch=types.ModuleType("torch")):
            self.assertEqual(_torch.Torch().read(), [])

    def test_a_uuid_that_may_be_of_a_mig_device_is_absent(self):
        with mock.patch.dict(os.environ, {"CUDA_VISIBLE_DEVICES": "MIG-1"}):
            self.assertEqual({reading.device for reading, _, _, _ in FakeTorch("torch_native").readings()}, {None})


class FakeJaxDevice:
    def __init__(self, stats, ordinal=0):
        self.local_hardware_id, self._stats = ordinal, stats

    def memory_stats(self):
        return self._stats


def jax_readings(stats, platform="cuda"):
    backend = types.SimpleNamespace(platform=platform, local_devices=lambda: [FakeJaxDevice(stats)])
    bridge = types.SimpleNamespace(_backends={"cuda": backend})
    with modules(jax=types.ModuleType("jax"), jax___src__xla_bridge=bridge), mock.patch.object(_uuid, "of_ordinal", return_value=support.DEVICE):
        reader = _jax.Jax()
        readings = reader.read()
        assert reader.blind == (platform == "cuda" and readings == []), "a GPU without figures is known to be one"
        return readings


class Jax(unittest.TestCase):
    @needs("jax_preallocated")
    def test_a_preallocated_pool_is_reserved_and_not_allocated(self):
        for row in moments("jax_preallocated"):
            (reading,) = jax_readings(row["stats"])
            self.assertEqual((reading.allocated, reading.reserved), (row["stats"]["bytes_in_use"], row["stats"]["pool_bytes"]))
            self.assertGreater(reading.reserved, 4 * reading.allocated)
            self.assertEqual((reading.peak, reading.limit), (row["stats"]["peak_bytes_in_use"], row["stats"]["bytes_limit"]))

    @needs("jax_on_demand")
    def test_without_preallocation_the_pool_is_what_was_needed(self):
        for row in moments("jax_on_demand"):
            (reading,) = jax_readings(row["stats"])
            self.assertLessEqual(reading.allocated, reading.reserved)

    def test_a_device_without_figures_gives_no_reading(self):
        self.assertEqual(jax_readings(None), [])
        self.assertEqual(jax_readings({}), [])

    def test_a_device_without_a_pool_has_no_reserved_memory(self):
        (reading,) = jax_readings({"bytes_in_use": 5})
        self.assertEqual((reading.allocated, reading.reserved, reading.peak, reading.limit), (5, None, None, None))

    def test_the_cpu_gives_no_reading(self):
        self.assertEqual(jax_readings({"bytes_in_use": 5}, platform="cpu"), [])

    def test_a_jax_without_the_private_table_gives_no_reading(self):
        with modules(jax=types.ModuleType("jax"), jax___src__xla_bridge=types.ModuleType("xla_bridge")):
            reader = _jax.Jax()
            self.assertEqual((reader.read(), reader.blind), ([], True))

    def test_jax_without_a_backend_is_not_initialised(self):
        bridge = types.SimpleNamespace(_backends={})
        jax = mock.Mock()
        with modules(jax=jax, jax___src__xla_bridge=bridge):
            self.assertEqual(_jax.Jax().read(), [])
        self.assertEqual(jax.mock_calls, [])


class FakeTensorFlow:
    def __init__(self, initialised, logical=1):
        self.context = types.SimpleNamespace(_context=types.SimpleNamespace(_initialized=initialised))
        self.config = mock.Mock()
        self.config.get_visible_devices.return_value = [types.SimpleNamespace(name="/physical_device:GPU:1")]
        self.config.list_logical_devices.return_value = [None] * logical
        self.config.experimental.get_memory_info.return_value = {"current": 7, "peak": 9}

    def read(self):
        with modules(tensorflow=self, tensorflow__python__eager__context=self.context):
            with mock.patch.object(_uuid, "of_ordinal", side_effect=lambda ordinal: "GPU-%d" % ordinal):
                reader = _tensorflow.TensorFlow()
                readings = reader.read()
                assert reader.blind == (self.config.list_logical_devices.return_value != [None] and self.config.mock_calls != [])
                return readings


class TensorFlow(unittest.TestCase):
    def test_what_is_in_use_is_read_and_nothing_else(self):
        (reading,) = FakeTensorFlow(True).read()
        self.assertEqual((reading.allocated, reading.peak, reading.reserved, reading.device), (7, 9, None, "GPU-1"))

    def test_an_uninitialised_tensorflow_is_left_alone(self):
        fake = FakeTensorFlow(False)
        self.assertEqual(fake.read(), [])
        self.assertEqual(fake.config.mock_calls, [])

    def test_a_gpu_divided_into_logical_ones_gives_no_reading(self):
        self.assertEqual(FakeTensorFlow(True, logical=2).read(), [])


if __name__ == "__main__":
    unittest.main()
