"""The stand-in's `torch.nn.parameter`."""

from .. import Tensor


class Parameter(Tensor):
    def __init__(self, size, device=0):
        super().__init__(size, device, requires_grad=True)
