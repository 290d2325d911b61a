"""The stand-in's `torch.nn.modules.module`."""


class Module:
    def _call_impl(self, *args):
        return self.forward(*args)

    __call__ = _call_impl
