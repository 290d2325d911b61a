"""A callback for PyTorch Lightning: `Trainer(callbacks=[VramCallback()])`. Importing this module imports Lightning."""

from __future__ import annotations

from typing import Any, Optional

from ._measure import measure

try:
    from lightning.pytorch import Callback
except ImportError:
    from pytorch_lightning import Callback


class VramCallback(Callback):  # type: ignore[misc,unused-ignore]
    """Measures each batch, and logs the highest allocated and reserved memory with the trainer's loggers.

    `every` is the number of batches between two log entries. A batch is what the trainer calls one, regardless of gradient accumulation.
    """

    def __init__(self, every: int = 50) -> None:
        self.every = max(1, every)
        self.last: Any = None
        self._region: Optional[Any] = None

    def on_train_batch_start(self, trainer: Any, pl_module: Any, *_arguments: Any) -> None:
        self._begin("train_batch")

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self._end(trainer, batch_idx)

    def on_validation_batch_start(self, trainer: Any, pl_module: Any, *_arguments: Any) -> None:
        self._begin("validation_batch")

    def on_validation_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, *_more: Any) -> None:
        self._end(trainer, batch_idx)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self._close()

    def _begin(self, name: str) -> None:
        self._close()
        self._region = measure(name)
        self.last = self._region.__enter__()

    def _close(self) -> None:
        region, self._region = self._region, None
        if region is not None:
            region.__exit__()

    def _end(self, trainer: Any, batch_idx: int) -> None:
        self._close()
        if batch_idx % self.every == 0 and self.last is not None:
            for logger in trainer.loggers:
                logger.log_metrics(self.last.scalars(), step=trainer.global_step)
