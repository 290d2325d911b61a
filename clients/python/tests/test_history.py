"""PyTorch's snapshots: what they must not import."""

import sys
import threading
import types
import unittest
from unittest import mock

from vram_exporter import _history

from . import support


class Snapshots(unittest.TestCase):
    """PyTorch's module imports a part of itself when it is first asked for the attribute, and a snapshot asks."""

    def setUp(self):
        self.torch = support.standin(self)
        self.imported, self.asked = [], []

        def missing(name):
            self.imported.append(name)
            raise AttributeError(name)

        patched = mock.patch.dict(self.torch.__dict__, {"__getattr__": missing})
        patched.start()
        self.addCleanup(patched.stop)

    def snapshot(self, act):
        """A snapshot in which PyTorch does what `act` does."""

        def taken():
            self.asked.append(act())
            return {"segments": []}

        with mock.patch.object(self.torch.cuda.memory, "_snapshot", taken):
            return _history.snapshot()

    def generated_code(self):
        """What PyTorch's snapshot asks for."""
        return hasattr(self.torch, "_inductor") and hasattr(self.torch._inductor, "codecache")

    def test_it_imports_nothing(self):
        self.assertEqual(self.snapshot(self.generated_code), {"segments": []})
        self.assertEqual((self.asked, self.imported), ([False], []))
        self.assertNotIn("_inductor", self.torch.__dict__)

    def test_what_the_program_has_imported_is_asked(self):
        compiler = types.ModuleType("torch._inductor")
        compiler.codecache = object()
        with mock.patch.dict(self.torch.__dict__, {"_inductor": compiler}):
            self.snapshot(self.generated_code)
            self.assertIs(self.torch._inductor, compiler)
        self.assertEqual(self.asked, [True])

    def test_another_thread_gets_what_pytorch_has(self):
        compiler = types.ModuleType("torch._inductor")
        compiler.codecache = object()
        seen = []

        def other():
            thread = threading.Thread(target=lambda: seen.append(self.torch._inductor.codecache))
            thread.start()
            thread.join()

        with mock.patch.dict(sys.modules, {"torch._inductor": compiler}):
            self.snapshot(other)
        self.assertEqual(seen, [compiler.codecache])

    def test_what_the_program_imports_in_the_meantime_remains(self):
        compiler = types.ModuleType("torch._inductor")
        self.snapshot(lambda: setattr(self.torch, "_inductor", compiler))
        self.assertIs(self.torch._inductor, compiler)
        del self.torch._inductor

    def test_a_snapshot_that_fails_leaves_nothing_behind(self):
        with self.assertRaises(ZeroDivisionError):
            self.snapshot(lambda: 1 / 0)
        self.assertNotIn("_inductor", self.torch.__dict__)


if __name__ == "__main__":
    unittest.main()
