"""Reads the allocators of TensorFlow's GPUs.

Invariants: TensorFlow is found in `sys.modules` and never imported; nothing is read before the program has initialised TensorFlow's
devices. TensorFlow reports the memory in use, but not the memory that it has taken from the driver.
"""

from __future__ import annotations

import sys
from typing import Any, List

from . import _uuid
from ._reading import Reading

NAME = "tensorflow"


class TensorFlow:
    """The reader of TensorFlow's allocators. Not safe to use from two threads at once."""

    framework = NAME
    blind = False

    def present(self) -> bool:
        return "tensorflow" in sys.modules

    def read(self) -> List[Reading]:
        """One reading for each logical GPU. May raise whatever TensorFlow raises."""
        self.blind = False
        context = getattr(sys.modules.get("tensorflow.python.eager.context"), "_context", None)
        if context is None or not getattr(context, "_initialized", False):
            return []
        config: Any = sys.modules["tensorflow"].config
        physical = config.get_visible_devices("GPU")
        # A physical GPU that is divided into several logical GPUs has only one UUID, so their figures could not be told apart.
        self.blind = len(config.list_logical_devices("GPU")) != len(physical)
        if self.blind:
            return []
        readings = []
        for logical, device in enumerate(physical):
            info = config.experimental.get_memory_info("GPU:%d" % logical)
            readings.append(
                Reading(
                    framework=NAME,
                    ordinal=logical,
                    # The name of a physical device ends with CUDA's ordinal: /physical_device:GPU:0.
                    device=_uuid.of_ordinal(int(device.name.rsplit(":", 1)[1])),
                    allocated=info["current"],
                    peak=info["peak"],
                    peaks=(info["peak"],),
                )
            )
        return readings
