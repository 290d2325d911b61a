"""A stand-in for PyTorch: see README.md in the parent folder."""

import os
import sys
import time

from . import version
from . import _C
from . import cuda

__version__ = os.environ.get("STANDIN_VERSION", "2.11.0+cu130")
OutOfMemoryError = _C.OutOfMemoryError


class Tensor:
    """Memory from the stand-in's allocator; it is freed together with the object. `requires_grad` and the like are only kept."""

    __slots__ = ("_block", "__dict__", "__weakref__", "is_cuda", "is_leaf", "requires_grad", "grad")

    def __init__(self, size, device=0, is_cuda=True, requires_grad=False, is_leaf=True):
        self._block = self.grad = None
        self.is_cuda, self.is_leaf, self.requires_grad = False, is_leaf, requires_grad
        if is_cuda:
            cuda._lazy_init()
            self._block = _C.allocator.allocate(device, size)
            self.is_cuda = True  # PyTorch makes no tensor for memory that it does not get.

    def data_ptr(self):
        return self._block[4]

    def numel(self):
        return self._block[1]

    def __del__(self):
        if self._block is not None:
            _C.allocator.free(self._block)


uint8 = "uint8"


def empty(size, device="cuda", dtype=uint8):
    """Allocates `size` bytes on `cuda` or `cuda:N`."""
    return Tensor(size, int(device.partition(":")[2] or 0))


def _wait_for_client():
    """The import of the real PyTorch takes seconds, during which the client notices it. The stand-in's import lasts until the client has
    noticed it."""
    deadline = time.monotonic() + 60
    while not (sys.modules.get("vram_exporter._oom") and sys.modules["vram_exporter._oom"].watching()) and time.monotonic() < deadline:
        time.sleep(0.01)


if os.environ.get("STANDIN_WAIT_FOR_CLIENT") == "1" and os.environ.get("VRAM_EXPORTER_ARM") == "1":
    _wait_for_client()

from . import autograd, nn, optim  # noqa: E402

__all__ = ["OutOfMemoryError", "Tensor", "_C", "autograd", "cuda", "empty", "nn", "optim", "uint8", "version"]
