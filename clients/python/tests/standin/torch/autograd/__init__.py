"""The stand-in's `torch.autograd`."""

from . import graph

__all__ = ["graph"]
