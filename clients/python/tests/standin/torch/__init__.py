"""A stand-in for PyTorch: see README.md in the folder above."""

import sys

from . import version
from . import _C
from . import cuda

OutOfMemoryError = _C.OutOfMemoryError


class Tensor:
    """Memory of the stand-in's allocator; freed with the object."""

    def __init__(self, size, device):
        self._block = None
        self._block = _C.allocator.allocate(device, size)

    def __del__(self):
        if self._block is not None:
            _C.allocator.free(self._block)


def empty(size, device="cuda"):
    """Allocates `size` bytes on `cuda` or `cuda:N`."""
    cuda._lazy_init()
    return Tensor(size, int(device.partition(":")[2] or 0))


__all__ = ["OutOfMemoryError", "Tensor", "_C", "cuda", "empty", "sys", "version"]
