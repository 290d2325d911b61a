"""The client with the real JAX and the real TensorFlow, on the CPU: it disturbs nothing, and the private names that it uses exist.

The frameworks may be in another environment: `VRAM_EXPORTER_FRAMEWORKS` is the path of that environment's Python.
"""

import os
import re
import subprocess
import sys
import textwrap
import unittest

from vram_exporter import _run

from . import support

PYTHON = os.environ.get("VRAM_EXPORTER_FRAMEWORKS") or sys.executable

LOG = re.compile(r"WARNING: All log messages before absl::|[IWE]\d{4} [0-9:.]+ +\d+ \S+\] |\d{4}-\d\d-\d\d .*: [IWE] |To enable the following instructions: ")

# What the programs below share. `settle` waits until the client's own thread has taken three readings, none of which failed.
COMMON = """
    import os, sys, threading, time

    def settle():
        from vram_exporter import _client
        allocators, readings = _client.allocators(), []
        take = allocators.take
        def counted(*words, **named):
            levels = take(*words, **named)
            readings.append((levels is not None, threading.get_ident(), set(allocators.failed)))
            return levels
        allocators.take = counted
        deadline = time.monotonic() + 60
        while len([thread for _, thread, _ in readings if thread != threading.get_ident()]) < 3 and time.monotonic() < deadline:
            time.sleep(0.01)
        del allocators.take
        assert len(readings) >= 3, "the client's thread reads nothing"
        assert {(done, *failed) for done, _, failed in readings} == {(True,)}, readings
        assert allocators.trackers == {}, "there is no GPU, but figures of one"

    def modules(*names):
        return {name for name in sys.modules if name.split(".")[0] in names}

    def disarmed():
        '''Ends the client; its thread must end, and no other thread of Python may have come from it.'''
        import vram_exporter
        from vram_exporter import _client
        thread = _client._client._thread._native
        assert os.path.exists("/proc/self/task/%d" % thread)
        vram_exporter.stop()
        assert not os.path.exists("/proc/self/task/%d" % thread), "the client's thread is left over"
        assert threading.enumerate() == [threading.main_thread()], threading.enumerate()
"""


class RealFramework(support.Case):
    """A framework in programs that do not start the client themselves. `vram-run` starts them."""

    framework = ""
    # TensorFlow counts the memory of the CPU only with oneDNN, which is off by default on older processors.
    settings = {"JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "1", "CUDA_VISIBLE_DEVICES": ""}

    def setUp(self):
        super().setUp()
        if not self.framework:
            self.skipTest("the framework is named by the subclasses")
        look = "import importlib.util, sys; sys.exit(importlib.util.find_spec(sys.argv[1]) is None)"
        if subprocess.run([PYTHON, "-c", look, self.framework]).returncode != 0:
            self.missing("%s for %s (VRAM_EXPORTER_FRAMEWORKS=PATH)" % (self.framework, PYTHON), tool=True)
        self.recorder = self.server()

    def start(self, text, armed=True):
        path = self.write("job.py", textwrap.dedent(COMMON) + textwrap.dedent(text))
        variables = dict(self.settings, PYTHONPATH="", VRAM_EXPORTER_SOCKET=self.path)
        if armed:
            variables = _run.environment(variables, interval=0.01)
        return self.program("", command=[PYTHON, path], **variables)

    def outcome(self, job):
        """Exit status, output, and error output without the log of TensorFlow's native code, which contains times and thread ids."""
        out, err = job.communicate(timeout=support.LIMIT)
        return job.returncode, out, "".join(line for line in err.splitlines(True) if not LOG.match(line))

    def armed(self, text):
        """The output of an armed program. It must succeed, print no error, and connect to nothing, because it uses no GPU."""
        code, out, err = self.outcome(self.start(text))
        self.assertEqual((code, err), (0, ""), "output: " + out)
        self.assertEqual(self.recorder.connections, [])
        return out

    def same(self, text):
        """Runs a program with and without the client. Its exit status, output and error output must be the same both times, and
        are returned."""
        outcomes = []
        for armed in (False, True):
            outcomes.append(self.outcome(self.start(text, armed)))
        self.assertEqual(outcomes[0], outcomes[1])
        self.assertEqual(self.recorder.connections, [])
        return outcomes[1]


class RealJax(RealFramework):
    framework = "jax"

    def test_a_program_is_unchanged(self):
        code, out, err = self.same(
            """
            import atexit
            import jax, jax.numpy as jnp
            assert ("vram_exporter" in sys.modules) == (os.environ.get("VRAM_EXPORTER_ARM") == "1")
            step = jax.jit(jax.value_and_grad(lambda w, x: jnp.mean(jnp.tanh(x @ w) ** 2)))
            w, x = jnp.full((32, 8), 0.1), jnp.arange(512.0).reshape(16, 32) / 512
            for _ in range(50):
                loss, gradient = step(w, x)
                w = w - 0.1 * gradient
            print(float(loss).hex(), jax.devices(), sorted(thread.name for thread in threading.enumerate()))
            atexit.register(lambda: print("at exit", float(jnp.sum(w)).hex()))
            sys.exit(3)
            """
        )
        self.assertEqual((code, err), (3, ""))
        self.assertRegex(out, r"\A0x1\.\w+p-\d+ \[CpuDevice\(id=0\)\] \['MainThread'\]\nat exit 0x1\.\w+p[+-]\d+\n\Z")

    def test_nothing_is_imported_and_nothing_is_initialised(self):
        self.armed(
            """
            assert sys.modules["vram_exporter"].running()
            from vram_exporter import _client
            assert _client.allocators().take() is not None
            assert modules("jax", "jaxlib", "numpy", "tensorflow", "torch") == set(), "the client has imported a framework"
            import jax
            from jax._src import xla_bridge
            imported = modules("jax", "jaxlib", "numpy")
            settle()
            assert modules("jax", "jaxlib", "numpy") == imported
            assert isinstance(xla_bridge._backends, dict), "this JAX has no such table"
            assert xla_bridge._backends == {} and not xla_bridge.backends_are_initialized(), "the client has initialised JAX"
            jax.config.update("jax_num_cpu_devices", 2)  # JAX refuses this once it is initialised.
            assert len(jax.devices()) == 2
            assert list(xla_bridge._backends) == ["cpu"]
            settle()
            assert list(xla_bridge._backends) == ["cpu"]
            disarmed()
            """
        )

    def test_real_devices_without_figures_give_no_reading(self):
        self.armed(
            """
            import types
            import jax
            from jax._src import xla_bridge
            from vram_exporter import _jax
            (device,) = jax.local_devices()
            assert device.memory_stats() is None, device.memory_stats()
            backend = xla_bridge._backends["cpu"]
            assert backend.platform == "cpu" and backend.local_devices() == [device]
            assert isinstance(device.local_hardware_id, int), "the reader needs this number"
            assert _jax.reading(device) is None
            assert _jax.Jax().read() == []
            # The same devices, entered in JAX's own table under a platform name that the client reads.
            xla_bridge._backends["cuda"] = types.SimpleNamespace(platform="cuda", local_devices=backend.local_devices)
            assert _jax.Jax().read() == []
            settle()
            del xla_bridge._backends["cuda"]
            """
        )

    def test_the_profile_tells_the_lines_of_the_program(self):
        self.armed(
            """
            import types
            import jax, jax.numpy as jnp
            from jax._src import xla_bridge
            import vram_exporter
            from vram_exporter import _jax_sites, _uuid
            def weights():
                made = []
                for index in range(3):
                    made.append(jnp.ones(1000) + index)
                return made
            kept = weights()
            kept.append(jax.jit(lambda x: x * 2)(kept[0]))
            # The processor, as a device of a GPU that has figures.
            backend, (device,) = xla_bridge._backends["cpu"], jax.local_devices()
            class Device:
                local_hardware_id = 0
                __str__ = lambda self: str(device)
                memory_stats = lambda self: {"bytes_in_use": 1 << 30}
            gpu = types.SimpleNamespace(platform="cuda", local_devices=lambda: [Device()], live_arrays=backend.live_arrays, heap_profile=backend.heap_profile)
            _uuid.of_ordinal = lambda ordinal: None
            vram_exporter.stop()
            xla_bridge._backends["cuda"] = gpu
            sites = _jax_sites.JaxSites()
            assert sites.tick(1) == [], "a look without a UUID"
            _uuid.of_ordinal = lambda ordinal: "GPU-1"
            sites._look_at = 0.0
            (look,) = sites.tick(1)
            (message,) = [message for message in look.messages if message["type"] == "sites"]
            del xla_bridge._backends["cuda"]
            found = {site["site"].split()[1]: site["bytes"] for site in message["sites"]}
            assert found == {"weights": 12000, "<module>": 4000}, message
            assert {site["site"].split(":")[0] for site in message["sites"]} == {"job.py"}, message
            assert message["roles"] == {"unknown": sum(array.nbytes for array in jax.live_arrays())}, message
            # JAX's public function returns the same, compressed.
            import gzip
            from vram_exporter import _pprof
            def read(profile):
                return sorted((sample.value, len(sample.frames)) for sample in _pprof.samples(profile, ("space", "bytes")))
            assert read(gzip.decompress(jax.profiler.device_memory_profile())) == read(backend.heap_profile())
            """
        )

    def test_a_measured_region_has_no_device(self):
        out = self.armed(
            """
            import jax.numpy as jnp
            import vram_exporter
            with vram_exporter.measure("ones") as m:
                jnp.ones(1000).block_until_ready()
            assert m.devices == [], m
            print(str(m).partition(",")[2])
            """
        )
        self.assertEqual(out, " no framework uses a GPU\n")

    def test_processes_of_multiprocessing_compute(self):
        for method in ("fork", "spawn"):
            with self.subTest(method=method):
                code, out, _ = self.same(
                    """
                    import multiprocessing, warnings
                    def work(number):
                        import jax.numpy as jnp
                        client = sys.modules.get("vram_exporter")
                        assert (client is not None and client.running()) == (os.environ.get("VRAM_EXPORTER_ARM") == "1")
                        return float(jnp.sum(jnp.full(4, number)))
                    if __name__ == "__main__":
                        warnings.simplefilter("ignore")  # JAX warns of every fork.
                        import jax
                        with multiprocessing.get_context("%s").Pool(2) as pool:
                            print(pool.map(work, range(6), chunksize=3))
                        print(work(6))
                    """
                    % method
                )
                self.assertEqual((code, out), (0, "[0.0, 4.0, 8.0, 12.0, 16.0, 20.0]\n24.0\n"))

    def test_an_exception_ends_the_program_as_without_the_client(self):
        code, out, err = self.same("import jax.numpy as jnp\nprint('begins', flush=True)\njnp.ones(2) @ jnp.ones(3)")
        self.assertEqual((code, out), (1, "begins\n"))
        self.assertIn("TypeError", err)


class RealTensorFlow(RealFramework):
    framework = "tensorflow"

    def test_a_program_is_unchanged(self):
        code, out, err = self.same(
            """
            import atexit
            import tensorflow as tf
            assert ("vram_exporter" in sys.modules) == (os.environ.get("VRAM_EXPORTER_ARM") == "1")
            w, x = tf.Variable(tf.fill((32, 8), 0.1)), tf.reshape(tf.range(512.0), (16, 32)) / 512
            @tf.function
            def step():
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean(tf.tanh(x @ w) ** 2)
                w.assign_sub(0.1 * tape.gradient(loss, w))
                return loss
            for _ in range(50):
                loss = step()
            print(float(loss).hex(), tf.config.list_logical_devices(), sorted(thread.name for thread in threading.enumerate()))
            atexit.register(lambda: print("at exit", float(tf.reduce_sum(w)).hex()))
            sys.exit(3)
            """
        )
        self.assertEqual((code, err), (3, ""))
        self.assertRegex(out, r"\A0x1\.\w+p-\d+ \[LogicalDevice\(name='/device:CPU:0', device_type='CPU'\)\] \['MainThread'\]\nat exit 0x1\.\w+p[+-]\d+\n\Z")

    def test_nothing_is_imported_and_nothing_is_initialised(self):
        self.armed(
            """
            assert sys.modules["vram_exporter"].running()
            from vram_exporter import _client, _tensorflow
            assert _client.allocators().take() is not None
            assert modules("jax", "numpy", "tensorflow", "torch", "keras") == set(), "the client has imported a framework"
            import tensorflow as tf
            context = sys.modules["tensorflow.python.eager.context"]
            before = context._context
            imported = modules("tensorflow", "numpy", "keras")
            settle()
            assert modules("tensorflow", "numpy", "keras") == imported
            assert context._context is before, "the client has made TensorFlow's context"
            assert before is None or before._initialized is False, "the client has initialised TensorFlow"
            tf.config.threading.set_inter_op_parallelism_threads(2)  # TensorFlow refuses this once it is initialised.
            tf.constant(1.0)
            assert context._context._initialized is True, "this TensorFlow has no such name"
            settle()
            # What the reader requests for each GPU. Without a GPU, there is nothing to read.
            assert tf.config.get_visible_devices("GPU") == [] == tf.config.list_logical_devices("GPU")
            assert _tensorflow.TensorFlow().read() == []
            disarmed()
            """
        )

    def test_the_figures_have_the_expected_form(self):
        self.armed(
            """
            import types
            import tensorflow as tf
            from vram_exporter import _tensorflow
            tf.constant(1.0)
            real = tf.config
            # The reader's calls for GPUs, to which TensorFlow returns its results for the CPU.
            config = types.SimpleNamespace(
                get_visible_devices=lambda kind: real.get_visible_devices(kind.replace("GPU", "CPU")),
                list_logical_devices=lambda kind: real.list_logical_devices(kind.replace("GPU", "CPU")),
                experimental=types.SimpleNamespace(get_memory_info=lambda name: real.experimental.get_memory_info(name.replace("GPU", "CPU"))),
            )
            sys.modules["tensorflow"] = types.SimpleNamespace(config=config)
            (reading,) = _tensorflow.TensorFlow().read()
            sys.modules["tensorflow"] = tf
            assert (reading.framework, reading.ordinal, reading.device) == ("tensorflow", 0, None), reading
            assert isinstance(reading.allocated, int) and isinstance(reading.peak, int), reading
            """
        )

    def test_processes_of_multiprocessing_compute(self):
        code, out, _ = self.same(
            """
            import multiprocessing
            def work(number):
                import tensorflow as tf
                client = sys.modules.get("vram_exporter")
                assert (client is not None and client.running()) == (os.environ.get("VRAM_EXPORTER_ARM") == "1")
                return float(tf.reduce_sum(tf.fill(4, float(number))))
            if __name__ == "__main__":
                with multiprocessing.get_context("fork").Pool(2) as pool:
                    print(pool.map(work, range(6), chunksize=3))
                print(work(6))
            """
        )
        self.assertEqual((code, out), (0, "[0.0, 4.0, 8.0, 12.0, 16.0, 20.0]\n24.0\n"))


if __name__ == "__main__":
    unittest.main()
