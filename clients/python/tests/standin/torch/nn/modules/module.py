"""The stand-in's `torch.nn.modules.module`."""


class Module:
    """Keeps children, parameters and buffers where PyTorch keeps them."""

    def __init__(self):
        self.__dict__.update(_modules={}, _parameters={}, _buffers={})

    def __setattr__(self, name, value):
        from ..parameter import Parameter

        if isinstance(value, (Module, Parameter)):
            self.__dict__["_modules" if isinstance(value, Module) else "_parameters"][name] = value
        else:
            object.__setattr__(self, name, value)

    def __getattr__(self, name):
        for place in ("_modules", "_parameters", "_buffers"):
            if name in self.__dict__.get(place, {}):
                return self.__dict__[place][name]
        raise AttributeError(name)

    def register_buffer(self, name, tensor):
        self.__dict__["_buffers"][name] = tensor

    def _call_impl(self, *args):
        return self.forward(*args)

    __call__ = _call_impl
