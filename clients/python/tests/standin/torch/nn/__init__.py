"""The stand-in's `torch.nn`."""

from .modules.container import ModuleList
from .modules.module import Module
from .parameter import Parameter

__all__ = ["Module", "ModuleList", "Parameter"]
