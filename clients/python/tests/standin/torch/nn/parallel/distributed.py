"""The stand-in's `torch.nn.parallel.distributed`."""

from ..modules.module import Module


class DistributedDataParallel(Module):
    def __init__(self, gradient_as_bucket_view=False):
        self.gradient_as_bucket_view = gradient_as_bucket_view
