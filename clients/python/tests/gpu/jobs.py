"""The programs that verify_client.py observes: `jobs.py NAME`. A stepped job prints one JSON line for each step and continues after
reading a line from its standard input. The client is imported only by the jobs that measure."""

import json
import os
import statistics
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import nvml  # noqa: E402

MIB = 1 << 20
GIB = 1 << 30


def say(**values):
    print(json.dumps(values), flush=True)


def step(**values):
    say(pid=os.getpid(), **values)
    sys.stdin.readline()


def driver_bytes(index=0):
    opened = nvml.open_or_none()
    return None if opened is None else opened.used_by(index=index)


def torch_step(torch, name, device=0):
    torch.cuda.synchronize(device)
    stats = torch._C._cuda_memoryStats(device)
    step(
        name=name,
        allocated=stats["allocated_bytes"]["all"]["current"],
        reserved=stats["reserved_bytes"]["all"]["current"],
        inactive_split=stats["inactive_split_bytes"]["all"]["current"],
        driver=driver_bytes(),
        uuid="GPU-" + str(torch.cuda.get_device_properties(device).uuid),
        backend=torch.cuda.get_allocator_backend(),
    )


def ladder():
    import torch

    kept = [torch.empty(GIB, dtype=torch.uint8, device="cuda")]
    torch_step(torch, "1 GiB")
    kept += [torch.empty(size, dtype=torch.uint8, device="cuda") for size in (1000, 3 * MIB, 7 * MIB, 100 * MIB, 100 * MIB)]
    torch_step(torch, "five more")
    kept[:] = kept[1::2]
    torch_step(torch, "half freed")
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.reset_accumulated_memory_stats()
    torch_step(torch, "reset by the user")
    kept.clear()
    torch.cuda.empty_cache()
    torch_step(torch, "cache emptied")


def one(megabytes):
    import torch

    kept = torch.empty(int(megabytes) * MIB, dtype=torch.uint8, device="cuda")
    torch_step(torch, "%d MiB" % (kept.numel() // MIB))


def fork():
    """A parent process that uses CUDA and four forked workers, like those of a DataLoader."""
    import torch

    kept = torch.empty(GIB, dtype=torch.uint8, device="cuda")
    torch_step(torch, "before")
    from torch.utils.data import DataLoader

    loader = iter(DataLoader(range(4000), batch_size=4, num_workers=4, multiprocessing_context="fork"))
    pids = [worker.pid for worker in loader._workers]
    for _ in range(200):
        next(loader)
    more = torch.empty(GIB, dtype=torch.uint8, device="cuda")
    say(workers=pids)
    torch_step(torch, "with workers")
    del kept, more, loader


def rank():
    import torch

    local = int(os.environ["LOCAL_RANK"])
    device = local % torch.cuda.device_count()
    torch.cuda.set_device(device)
    kept = torch.empty((local + 1) * 256 * MIB, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    stats = torch._C._cuda_memoryStats(device)
    say(
        pid=os.getpid(),
        rank=local,
        uuid="GPU-" + str(torch.cuda.get_device_properties(device).uuid),
        allocated=stats["allocated_bytes"]["all"]["current"],
        reserved=stats["reserved_bytes"]["all"]["current"],
    )
    end = time.monotonic() + 30
    while not os.path.exists(os.environ["VERIFY_DONE"]) and time.monotonic() < end:
        time.sleep(0.1)
    del kept


def jax():
    import jax
    import jax.numpy as jnp

    def stats_step(name):
        stats = jax.local_devices()[0].memory_stats()
        # JAX initialises every GPU that is visible.
        step(name=name, stats=stats, driver=driver_bytes(), devices=len(jax.local_devices()))

    array = jnp.ones(GIB // 4, jnp.float32)
    array.block_until_ready()
    stats_step("1 GiB")
    other = (array * 2).block_until_ready()
    stats_step("2 GiB")
    del other
    stats_step("1 GiB freed")


def measure():
    import torch

    import vram_exporter

    vram_exporter.start()
    device = "cuda"

    def hold(mib):
        return torch.empty(mib * MIB, dtype=torch.uint8, device=device)

    result = {}
    base = hold(300)
    torch.cuda.reset_peak_memory_stats()
    with vram_exporter.measure("region") as region:
        first = hold(500)
        del first
        second = hold(100)
    result["region"] = {"measured": region.highest_allocated, "torch": torch.cuda.max_memory_allocated(), "exact": region.exact}
    result["region"]["measured_reserved"], result["region"]["torch_reserved"] = region.highest_reserved, torch.cuda.max_memory_reserved()
    del second
    torch.cuda.reset_peak_memory_stats()
    user_peak_before = torch.cuda.max_memory_allocated()
    with vram_exporter.measure("outer") as outer:
        with vram_exporter.measure("inner") as inner:
            first = hold(200)
            del first
        second = hold(700)
        del second
    after = torch.cuda.max_memory_allocated()
    result["nested"] = {
        "base": user_peak_before,
        "inner": inner.highest_allocated,
        "outer": outer.highest_allocated,
        "expected_inner": user_peak_before + 200 * MIB,
        "expected_outer": user_peak_before + 700 * MIB,
        "exact": [inner.exact, outer.exact],
        "users_peak": after,
    }
    with vram_exporter.measure("below the old peak") as below:
        first = hold(50)
        second = hold(50)
        del first, second
    result["below"] = {
        "measured": below.highest_allocated,
        "at_most": below.at_most_allocated,
        "exact": below.exact,
        "true": user_peak_before + 100 * MIB,
        "users_peak": torch.cuda.max_memory_allocated(),
    }
    with vram_exporter.measure("nothing") as nothing:
        pass
    result["nothing"] = {"measured": nothing.highest_allocated, "exact": nothing.exact}
    model = torch.nn.Sequential(*[torch.nn.Linear(2048, 2048) for _ in range(8)]).cuda()
    data = torch.randn(512, 2048, device=device)

    def train():
        model(data).sum().backward()
        model.zero_grad(set_to_none=True)

    torch.cuda.reset_peak_memory_stats()
    needed = vram_exporter.dry_run(train)
    result["dry_run"] = {"measured": needed.highest_allocated, "torch": torch.cuda.max_memory_allocated(), "exact": needed.exact, "table": str(needed)}
    times = []
    for _ in range(2000):
        begin = time.perf_counter_ns()
        with vram_exporter.measure("cost"):
            pass
        times.append(time.perf_counter_ns() - begin)
    times.sort()
    result["cost_us"] = {"p50": times[1000] / 1000, "p99": times[1980] / 1000}
    del base
    step(**result)


def out_of_memory(first="1"):
    """Ends with a real OutOfMemoryError and the program's own excepthook. With `first` other than "1", the very first allocation fails."""
    import torch

    kept = torch.empty(700 * MIB, dtype=torch.uint8, device="cuda") if first == "1" else None
    if first == "1":
        # The user's own observer: its arguments are the reference for the comparison.
        torch._C._cuda_attach_out_of_memory_observer(lambda *arguments: say(observer=list(arguments)))

    def hook(kind, value, trace):
        say(hook=kind.__name__, text=str(value))
        sys.__excepthook__(kind, value, trace)

    sys.excepthook = hook
    say(pid=os.getpid())
    torch.empty(1 << 40, dtype=torch.uint8, device="cuda")
    del kept


def caught():
    """Catches the error and continues, as a search for the largest batch size does."""
    import torch

    failures = 0
    for _ in range(5):
        try:
            torch.empty(1 << 40, dtype=torch.uint8, device="cuda")
        except torch.OutOfMemoryError:
            failures += 1
    kept = torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")
    step(failures=failures, num_ooms=torch._C._cuda_memoryStats(0)["num_ooms"])
    del kept


def step_time(blocks="22"):
    """Blocks of training steps: two without the client, one with it at 5 Hz and one at 100 Hz, each time in a new random order."""
    import random

    import torch

    import vram_exporter

    model = torch.nn.Sequential(*[layer for _ in range(12) for layer in (torch.nn.Linear(2048, 2048), torch.nn.GELU())]).cuda()
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4)
    data = torch.randn(512, 2048, device="cuda")

    def train():
        optimiser.zero_grad(set_to_none=True)
        model(data).square().mean().backward()
        optimiser.step()

    def block(kind):
        if kind is not None:
            vram_exporter.start(interval=kind)
        time.sleep(0.1)
        begin = time.perf_counter()
        for _ in range(120):
            train()
        torch.cuda.synchronize()
        seconds = (time.perf_counter() - begin) / 120
        if kind is not None:
            vram_exporter.stop()
        return seconds

    for _ in range(3):
        block(None)
    order = [("none", None), ("none again", None), ("5 Hz", 0.2), ("100 Hz", 0.01)]
    times = {name: [] for name, _ in order}
    chance = random.Random(1)
    deadline = time.monotonic() + 48
    for _ in range(int(blocks)):
        if time.monotonic() > deadline:
            break
        chance.shuffle(order)
        for name, kind in order:
            times[name].append(block(kind))
    result = {"blocks": len(times["none"]), "steps_per_block": 120, "step_ms": statistics.mean(times["none"]) * 1000}
    for name in ("none again", "5 Hz", "100 Hz"):
        differences = [(with_client / without - 1) * 100 for with_client, without in zip(times[name], times["none"])]
        resampled = sorted(statistics.mean(chance.choices(differences, k=len(differences))) for _ in range(4000))
        result[name] = {"mean_percent": statistics.mean(differences), "interval_95_percent": [resampled[100], resampled[3899]]}
    say(**result)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
