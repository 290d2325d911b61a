#!/usr/bin/env python3
"""Records a memory profile of JAX on a GPU, for the tests of its reader.

    python3 clients/python/tests/gpu/record_jax_profile.py --out clients/python/tests/recorded/jax_profile.json

The profile contains the paths of JAX's files on the machine.
"""

import argparse
import base64
import datetime
import json
import platform
import sys

import jax
import jax.numpy as jnp


def weights(count):
    made = []
    for index in range(count):
        made.append(jnp.ones((512, 512)) + index)
    return made


def forward(parameters, batch):
    results = []
    for weight in parameters:
        results.append(jnp.tanh(batch @ weight))
    return results


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", required=True)
    options = parser.parse_args()
    parameters = weights(8)
    batch = jax.device_put(jnp.zeros((1024, 512)))
    results = forward(parameters, batch)
    compiled = jax.jit(lambda values: [value * 2 for value in values])(results[:2])
    jax.block_until_ready(compiled)
    (backend,) = [backend for backend in sys.modules["jax._src.xla_bridge"]._backends.values() if backend.platform in ("cuda", "gpu")]
    profile = backend.heap_profile()
    stats = jax.local_devices()[0].memory_stats()
    by_function = {"weights": parameters, "forward": results, "main": [batch, *compiled]}
    recorded = {
        "date": str(datetime.date.today()),
        "jax": jax.__version__,
        "python": platform.python_version(),
        "device": str(jax.local_devices()[0]),
        "bytes_in_use": stats["bytes_in_use"],
        "pool_bytes": stats["pool_bytes"],
        "bytes_by_function": {name: sum(array.nbytes for array in arrays) for name, arrays in by_function.items()},
        "profile": base64.b64encode(profile).decode(),
    }
    with open(options.out, "w") as file:
        json.dump(recorded, file, indent=1)
        file.write("\n")


if __name__ == "__main__":
    main()
