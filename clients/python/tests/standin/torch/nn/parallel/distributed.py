"""The stand-in's `torch.nn.parallel.distributed`."""

from ..modules.module import Module


class DistributedDataParallel(Module):
    def __init__(self, module=None, gradient_as_bucket_view=False):
        super().__init__()
        self.module = module
        self.gradient_as_bucket_view = gradient_as_bucket_view
