"""The stand-in's `torch.optim`."""

from .optimizer import Optimizer

__all__ = ["Optimizer"]
