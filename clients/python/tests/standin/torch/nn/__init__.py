"""The stand-in's `torch.nn`."""

from .modules.module import Module, ModuleList
from .parameter import Parameter

__all__ = ["Module", "ModuleList", "Parameter"]
