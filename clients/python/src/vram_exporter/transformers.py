"""A callback for Hugging Face's Trainer: `Trainer(..., callbacks=[VramCallback()])`. Importing this module imports transformers."""

from __future__ import annotations

from typing import Any, Dict, Optional

from transformers import TrainerCallback

from ._measure import measure


class VramCallback(TrainerCallback):  # type: ignore[misc,unused-ignore]
    """Measures each optimiser step, with all its gradient accumulation, and adds the highest allocated and reserved memory since the
    previous log entry to what the Trainer logs."""

    def __init__(self) -> None:
        self.last: Any = None
        self._region: Optional[Any] = None
        self._highest: Dict[str, float] = {}

    def on_step_begin(self, args: Any, state: Any, control: Any, **_more: Any) -> None:
        self._close()
        self._region = measure("train_step")
        self.last = self._region.__enter__()

    def on_step_end(self, args: Any, state: Any, control: Any, **_more: Any) -> None:
        self._close()

    def on_train_end(self, args: Any, state: Any, control: Any, **_more: Any) -> None:
        self._close()

    def on_log(self, args: Any, state: Any, control: Any, logs: Optional[Dict[str, Any]] = None, **_more: Any) -> None:
        if state.log_history:
            state.log_history[-1].update(self._highest)
        if logs is not None:
            logs.update(self._highest)
        self._highest = {}

    def _close(self) -> None:
        region, self._region = self._region, None
        if region is None:
            return
        region.__exit__()
        for name, value in self.last.scalars().items():
            self._highest[name] = max(value, self._highest.get(name, 0.0))
