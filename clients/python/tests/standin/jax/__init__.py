"""The parts of JAX that the client reads. Importing it initialises a GPU, unlike with the real JAX."""

from ._src import xla_bridge

xla_bridge._backends["cuda"] = xla_bridge.Client()


def ones(size, **where):
    """An array of that number of bytes."""
    return xla_bridge.Array(size, **where)
