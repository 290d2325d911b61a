"""The stand-in's containers of modules."""

from .module import Module


class ModuleList(Module):
    def __init__(self, modules):
        super().__init__()
        for number, module in enumerate(modules):
            setattr(self, str(number), module)
