"""How many steps the program's optimisers have taken, as far as their public state tells: nothing is hooked.

Invariants: no code of the program runs, and nothing waits for a GPU: a count is read only if it is a Python number or a tensor on the CPU.
"""

from __future__ import annotations

import sys
from typing import Any, List, Optional

from ._objects import Remembered, named
from ._roles import _attributes, _with_subclasses

# The maximum number of counts of an optimiser that are read.
_COUNTS = 2000
# A count beyond this is none.
_MOST = 1 << 53


def steps(remembered: Remembered) -> Optional[int]:
    """The largest count of any optimiser; `None` if none is readable. Plain SGD has no count. `remembered` is that of the search before.
    Never raises."""
    try:
        torch = sys.modules.get("torch")
        unmodified = getattr(sys.modules.get("torch._C"), "DisableTorchFunctionSubclass", None)
        if torch is None or unmodified is None:
            return None
        with unmodified():
            return max(_counts(torch, remembered), default=None)
    except Exception:
        return None


def _counts(torch: Any, remembered: Remembered) -> List[int]:
    counts: List[int] = []
    optimizers, _ = remembered.find(list(_with_subclasses(named("torch.optim.optimizer", "Optimizer"))), [])
    for optimizer in optimizers:
        state: Any = _attributes(optimizer).get("state")
        if not issubclass(type(state), dict):
            continue
        for of_parameter in list(dict.values(state))[:_COUNTS]:
            count = _number(torch, dict.get(of_parameter, "step")) if issubclass(type(of_parameter), dict) else None
            if count is not None:
                counts.append(count)
    return counts


def _number(torch: Any, value: Any) -> Optional[int]:
    # A subclass of Tensor may run code of its own.
    if type(value) is torch.Tensor:
        if torch.Tensor.device.__get__(value).type != "cpu" or torch.Tensor.numel(value) != 1:
            return None
        value = torch.Tensor.item(value)
    if type(value) not in (int, float) or not 0 <= value <= _MOST:
        return None
    return int(value)
