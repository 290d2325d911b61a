"""One CUDA process for check_calls.py. It sends a JSON line when it is ready, and works as the lines on its stdin say.

Modes: `driver` allocates and frees with the driver's own calls, on one device or more, without a framework. `random` makes PyTorch
allocations of random sizes. `jax` does the same with JAX. `steps` times training steps of three sizes, a generation loop and single calls.
"""

import argparse
import gc
import json
import os
import random
import sys
import time

from cuda_child import MIB, Cuda, say


SHORT = ("training, 1024 wide", "generation")


def orders():
    return (json.loads(line) for line in sys.stdin)


def driver(options):
    """{"mib", "device"}: allocates, holds for 50 µs and frees; with "keep", it keeps. Answers with the driver's result."""
    cuda = Cuda(0)
    for ordinal in range(1, options.devices):
        cuda.use(ordinal)
    say(ready=True)
    kept = []
    for order in orders():
        if options.devices > 1:
            cuda.use(order.get("device", 0))
        try:
            address = cuda.allocate(order["mib"] * MIB)
        except RuntimeError as error:
            say(result=str(error))
            continue
        until = time.perf_counter_ns() + 50_000
        while time.perf_counter_ns() < until:
            pass
        if order.get("keep"):
            kept.append(address)
        else:
            cuda.free(address)
        say(result="ok")


def random_tensors(options):
    """{"count", "seconds"}: makes that number of allocations of 1 to 512 MiB, and frees half of them at once. {"ask_mib"}: asks for that size."""
    import torch

    torch.empty(1 << 20, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    say(ready=True)
    for order in orders():
        if "ask_mib" in order:
            try:
                torch.empty(order["ask_mib"] * MIB, dtype=torch.uint8, device="cuda")
                say(result="ok")
            except torch.OutOfMemoryError:
                say(result="OutOfMemoryError")
            continue
        torch.cuda.reset_peak_memory_stats()
        held, rng = [], random.Random(7)
        for _ in range(order["count"]):
            held.append(torch.empty(rng.randrange(1, 512) * MIB, dtype=torch.uint8, device="cuda"))
            if rng.random() < 0.5 or len(held) > 16:
                held.pop(rng.randrange(len(held)))
                torch.cuda.empty_cache()
            time.sleep(order["seconds"] / order["count"])
        say(peak=torch.cuda.max_memory_reserved())
        held.clear()
        torch.cuda.empty_cache()


def jax_arrays(options):
    import jax
    import jax.numpy as jnp

    jnp.ones((1024, 1024)).block_until_ready()
    say(ready=True)
    for order in orders():
        if "ask_mib" in order:
            try:
                jnp.ones((order["ask_mib"], MIB), dtype=jnp.uint8).block_until_ready()
                say(result="ok")
            except Exception as error:
                say(result=type(error).__name__)
            continue
        held, rng = [], random.Random(7)
        for _ in range(order["count"]):
            held.append(jnp.ones((rng.randrange(1, 256), MIB), dtype=jnp.uint8).block_until_ready())
            if rng.random() < 0.5 or len(held) > 8:
                held.pop(rng.randrange(len(held)))
            time.sleep(order["seconds"] / order["count"])
        stats = jax.devices()[0].memory_stats() or {}
        say(peak=stats.get("peak_bytes_in_use"))
        del held
        gc.collect()


def steps(options):
    """{"seconds"}: the first quartile of the milliseconds of each kind of work, measured in turn for so long, and of the microseconds of
    single calls. {"seconds", "only"}: of these kinds of work only."""
    if options.cores:
        os.sched_setaffinity(0, options.cores)
    import torch
    from torch import nn

    cuda = Cuda(0)
    # A collection in the middle of a step would be measured with it.
    gc.disable()

    def training(width, depth, batch):
        layers = [layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.GELU())]
        model = nn.Sequential(*layers).cuda()
        optimizer = torch.optim.AdamW(model.parameters())
        data = torch.randn(batch, width, device="cuda")

        def step():
            optimizer.zero_grad(set_to_none=True)
            model(data).square().mean().backward()
            optimizer.step()

        return step

    weight = torch.randn(2048, 2048, device="cuda")

    def generation():
        cache = torch.randn(64, 2048, device="cuda")
        for _ in range(32):
            token = torch.tanh(cache.mean(0, keepdim=True) @ weight)
            cache = torch.cat((cache, token))

    work = {
        "training, 1024 wide": training(1024, 4, 512),
        "training, 4096 wide": training(4096, 4, 2048),
        "training, 8192 wide": training(8192, 2, 2048),
        "generation": generation,
    }
    for step in work.values():
        for _ in range(20):
            step()
    torch.cuda.synchronize()
    say(ready=True)
    for order in orders():
        only = order.get("only")
        took = {name: [] for name in only or [*work, "cuMemFree_v2(0)", "a pair of 64 KiB"]}
        end = time.monotonic() + order["seconds"]
        while time.monotonic() < end:
            for name, step in work.items():
                if name not in took:
                    continue
                # Short steps are measured more often: their times are spread more.
                for _ in range(10 if name in SHORT else 1):
                    begun = time.perf_counter_ns()
                    for _ in range(5):
                        step()
                    torch.cuda.synchronize()
                    took[name].append((time.perf_counter_ns() - begun) / 5e6)
            if not only:
                calls(cuda, took)
        if not only:
            gc.collect()
        say(**{name: sorted(values)[len(values) // 4] for name, values in took.items()})


def calls(cuda, took):
    from ctypes import c_size_t, c_uint64

    nothing, free = c_uint64(0), cuda.lib.cuMemFree_v2
    for _ in range(200):
        begun = time.perf_counter_ns()
        free(nothing)
        took["cuMemFree_v2(0)"].append((time.perf_counter_ns() - begun) / 1e3)
    for _ in range(20):
        begun = time.perf_counter_ns()
        cuda.free(cuda.allocate(c_size_t(64 << 10).value))
        took["a pair of 64 KiB"].append((time.perf_counter_ns() - begun) / 1e3)


MODES = {"driver": driver, "random": random_tensors, "jax": jax_arrays, "steps": steps}

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("mode", choices=MODES)
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--cores", type=int, nargs="*", help="the processors that `steps` runs on")
    options = parser.parse_args()
    MODES[options.mode](options)
