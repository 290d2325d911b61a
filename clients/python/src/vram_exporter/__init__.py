"""Reports the figures of the PyTorch, JAX and TensorFlow allocators to vram-exporter, and measures the peak of a region of a program.

Nothing here imports a framework, initialises CUDA, raises an exception in the program or waits for the exporter.
"""

from __future__ import annotations

from ._client import running, start, stop
from ._measure import measure
from ._result import DeviceResult, Measurement
from ._version import __version__
from ._dry_run import dry_run

__all__ = ["DeviceResult", "Measurement", "__version__", "dry_run", "measure", "running", "start", "stop"]
