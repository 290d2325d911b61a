"""The stand-in's `torch.nn`."""

from .modules.module import Module
from .parameter import Parameter

__all__ = ["Module", "Parameter"]
