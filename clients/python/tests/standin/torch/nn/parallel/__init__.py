"""The stand-in's `torch.nn.parallel`."""
