"""The stand-in's `torch.nn.modules`."""
