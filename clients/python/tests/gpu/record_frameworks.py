#!/usr/bin/env python3
"""Records what PyTorch and JAX return on a real GPU, for the stand-in modules of the tests.

    python3 clients/python/tests/gpu/record_frameworks.py --out clients/python/tests/recorded/frameworks.json

Each case runs in a process of its own, because an allocator reads its settings when it starts. All cases run at the same time. A case
that fails is recorded with its error. Nothing that identifies the machine is written: hexadecimal digits of UUIDs become `x`.
"""

import argparse
import ctypes
import datetime
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
import traceback

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import nvml  # noqa: E402

MIB = 1 << 20
GIB = 1 << 30


def masked(text):
    """The form of a UUID, without its value."""
    prefix, text = (text[:4], text[4:]) if str(text)[:4] in ("GPU-", "MIG-") else ("", str(text))
    return prefix + re.sub("[0-9a-f]", "x", text)


def attempt(function, *arguments):
    """The value of a call, or its exception as a dictionary."""
    try:
        return function(*arguments)
    except BaseException as error:
        return {"exception": type(error).__name__, "text": str(error)[:2000]}


def percentiles(function, count=2000):
    times = []
    for _ in range(count):
        begin = time.perf_counter_ns()
        function()
        times.append(time.perf_counter_ns() - begin)
    times.sort()
    return {"count": count, "p50_us": times[count // 2] / 1000, "p99_us": times[count * 99 // 100] / 1000}


def cuda_uuids(count):
    """For each ordinal: what the UUID calls of the loaded driver library return."""
    library = ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
    rows = []
    for ordinal in range(count):
        device, board, instance = ctypes.c_int(), (ctypes.c_ubyte * 16)(), (ctypes.c_ubyte * 16)()
        codes = [
            library.cuDeviceGet(ctypes.byref(device), ordinal),
            library.cuDeviceGetUuid(ctypes.byref(board), device),
            library.cuDeviceGetUuid_v2(ctypes.byref(instance), device),
        ]
        rows.append({"codes": codes, "equal": bytes(board) == bytes(instance), "hex": bytes(instance).hex()})
    return rows


class Moments:
    """Successive answers of one allocator, each with the amount of memory that the driver reports for the process at that time."""

    def __init__(self, read):
        self.read, self.nvml, self.rows = read, nvml.open_or_none(), []

    def take(self, name):
        driver = None if self.nvml is None else attempt(self.nvml.used_by)
        self.rows.append({"moment": name, "driver_process_bytes": driver, "stats": attempt(self.read)})


def torch_moments(torch):
    """The same sequence for each backend: allocations of known sizes, frees, resets."""
    moments = Moments(lambda: torch._C._cuda_memoryStats(0))
    torch.cuda.init()
    moments.take("initialised")
    tensors = [torch.empty(GIB, dtype=torch.uint8, device="cuda")]
    torch.cuda.synchronize()
    moments.take("1 GiB")
    tensors += [torch.empty(size, dtype=torch.uint8, device="cuda") for size in (1000, 100_000, 3 * MIB, 7 * MIB, 30 * MIB, 100 * MIB)]
    moments.take("six more tensors")
    del tensors[1::2]
    torch.cuda.synchronize()
    moments.take("every second one freed")
    attempt(lambda: torch.cuda.reset_peak_memory_stats())
    moments.take("peaks reset by the user")
    attempt(lambda: torch.cuda.reset_accumulated_memory_stats())
    moments.take("totals reset by the user")
    more = torch.empty(200 * MIB, dtype=torch.uint8, device="cuda")
    moments.take("200 MiB more")
    del more, tensors
    moments.take("all freed")
    torch.cuda.empty_cache()
    moments.take("cache emptied")
    return moments.rows


def out_of_memory(torch, requested=1 << 40):
    """A failed allocation: the observer's arguments, what can be read inside the observer, the exception's text, the counters."""
    seen = []

    def observer(*arguments):
        stats = attempt(torch._C._cuda_memoryStats, 0)
        seen.append({"arguments": list(arguments), "num_ooms": stats.get("num_ooms"), "text": stats.get("text")})

    attached = attempt(lambda: torch._C._cuda_attach_out_of_memory_observer(observer))
    keep = torch.empty(512 * MIB, dtype=torch.uint8, device="cuda")
    failure = attempt(lambda: torch.empty(requested, dtype=torch.uint8, device="cuda") and None)
    stats = attempt(torch._C._cuda_memoryStats, 0)
    del keep
    counters = {key: stats.get(key) for key in ("num_ooms", "num_alloc_retries", "num_oom_rejections")}
    return {"attached": attached, "observer": seen, "failure": failure, "counters": counters, "requested": requested}


def device(torch):
    """What PyTorch, the CUDA driver and NVML report as the identity of the first device."""
    properties = torch.cuda.get_device_properties(0)
    count = torch.cuda.device_count()
    uuids = attempt(lambda: nvml.Nvml().uuids())
    cuda = attempt(cuda_uuids, count)
    mine = str(getattr(properties, "uuid", None))
    return {
        "name": properties.name,
        "total_memory": properties.total_memory,
        "mem_get_info": list(torch.cuda.mem_get_info(0)),
        "uuid_type": str(type(getattr(properties, "uuid", None))),
        "uuid_form": masked(mine),
        "nvml_uuid_form": masked(uuids[0]) if isinstance(uuids, list) else uuids,
        "equals_nvml": isinstance(uuids, list) and "GPU-" + mine in uuids,
        "cuda_equals_nvml": isinstance(uuids, list) and isinstance(cuda, list) and all("GPU-" + dashed(row["hex"]) in uuids for row in cuda),
        "cuda": [{"codes": row["codes"], "equal": row["equal"]} for row in cuda] if isinstance(cuda, list) else cuda,
        "count": count,
    }


def case_torch_native():
    import torch

    answer = {"before": {"is_initialized": torch.cuda.is_initialized(), "memory_stats": attempt(lambda: torch.cuda.memory_stats())}}
    names = ["_cuda_memoryStats", "_cuda_attach_out_of_memory_observer", "_cuda_isInBadFork", "_cuda_isHistoryEnabled", "_cuda_getDeviceCount", "_cuda_getMemoryFraction"]
    answer["private_names"] = {"torch._C." + name: hasattr(torch._C, name) for name in names}
    answer["private_names"]["torch.cuda._lazy_call"] = hasattr(torch.cuda, "_lazy_call")
    queued = []
    attempt(lambda function: torch.cuda._lazy_call(function), lambda: queued.append({"is_initialized": torch.cuda.is_initialized(), "thread": threading.current_thread().name}))
    answer["moments"] = torch_moments(torch)
    answer["lazy_call"] = queued
    answer["backend"] = attempt(lambda: torch.cuda.get_allocator_backend())
    answer["out_of_memory"] = out_of_memory(torch)
    answer["device"] = attempt(device, torch)
    answer["cost"] = attempt(lambda: {"nested": percentiles(lambda: torch._C._cuda_memoryStats(0)), "flat": percentiles(lambda: torch.cuda.memory_stats(0), 300)})
    return answer


def dashed(digits):
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def case_torch_expandable():
    import torch

    return {"moments": torch_moments(torch), "backend": attempt(lambda: torch.cuda.get_allocator_backend()), "out_of_memory": out_of_memory(torch)}


def case_torch_async():
    import torch

    answer = {"moments": torch_moments(torch), "backend": attempt(lambda: torch.cuda.get_allocator_backend())}
    answer["out_of_memory"] = attempt(out_of_memory, torch)
    answer["cost"] = percentiles(lambda: torch._C._cuda_memoryStats(0), 500)
    return answer


def case_torch_fraction():
    """A limit set by the program: an allocation that succeeds after the cache has been returned, and one that fails."""
    import torch

    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(2.5 * GIB / total)
    moments = Moments(lambda: torch._C._cuda_memoryStats(0))
    first = torch.empty(GIB, dtype=torch.uint8, device="cuda")
    del first
    moments.take("1 GiB cached")
    keep = torch.empty(2 * GIB, dtype=torch.uint8, device="cuda")
    moments.take("2 GiB after a retry")
    failure = out_of_memory(torch, 3 * GIB) if keep is not None else None
    fraction = attempt(torch._C._cuda_getMemoryFraction, 0)
    return {"total_memory": total, "fraction": fraction, "moments": moments.rows, "out_of_memory": failure}


def case_torch_snapshot():
    """The history of allocations: whether it can be enabled, and what a dump inside the observer costs."""
    import torch

    answer = {"enabled_before": attempt(torch._C._cuda_isHistoryEnabled)}
    torch.cuda.memory._record_memory_history(max_entries=10000)
    answer["enabled_after"] = attempt(torch._C._cuda_isHistoryEnabled)
    dumps = []

    def observer(*_arguments):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "snapshot.pickle")
            begin = time.perf_counter()
            error = attempt(torch.cuda.memory._dump_snapshot, path)
            dumps.append({"error": error, "seconds": time.perf_counter() - begin, "bytes": os.path.getsize(path) if os.path.exists(path) else None})

    torch._C._cuda_attach_out_of_memory_observer(observer)
    answer["failure"] = attempt(lambda: torch.empty(1 << 40, dtype=torch.uint8, device="cuda") and None)
    answer["dumps"] = dumps
    return answer


def case_torch_fork():
    """What PyTorch returns in a forked child of a process that has initialised CUDA."""
    import torch

    torch.zeros(1, device="cuda")
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        answer = {
            "is_initialized": attempt(torch.cuda.is_initialized),
            "is_in_bad_fork": attempt(torch._C._cuda_isInBadFork),
            "memory_stats": attempt(torch.cuda.memory_stats),
        }
        os.write(writer, json.dumps(answer).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        answer = json.loads(pipe.read())
    os.waitpid(child, 0)
    return answer


def case_torch_two_devices():
    """The UUIDs with the devices in another order; needs two GPUs."""
    import torch

    uuids = nvml.Nvml().uuids()
    if len(uuids) < 2:
        return {"skipped": "one GPU"}
    torch.cuda.init()
    seen = ["GPU-" + str(torch.cuda.get_device_properties(ordinal).uuid) for ordinal in range(2)]
    keep = torch.zeros(1, device="cuda:0")
    unused = torch._C._cuda_memoryStats(1)
    drivers = [len(nvml.Nvml().listed(index)) for index in range(2)]
    del keep
    return {"reversed": seen == [uuids[1], uuids[0]], "cuda_equals_torch": ["GPU-" + dashed(row["hex"]) for row in cuda_uuids(2)] == seen, "unused": unused, "listed": drivers}


def jax_case():
    import jax
    from jax._src import xla_bridge

    answer = {"version": jax.__version__, "before": {"backends": sorted(getattr(xla_bridge, "_backends", {"missing": None}))}}
    import jax.numpy as jnp

    first = jnp.zeros(1)
    first.block_until_ready()
    answer["after"] = {name: {"platform": getattr(client, "platform", None), "platform_version": getattr(client, "platform_version", None)} for name, client in xla_bridge._backends.items()}
    device = jax.local_devices()[0]
    answer["device"] = {
        name: str(getattr(device, name, None)) for name in ("id", "platform", "device_kind", "local_hardware_id", "process_index")
    }
    answer["attributes"] = sorted(name for name in dir(device) if not name.startswith("__"))
    uuids, cuda = attempt(lambda: nvml.Nvml().uuids()), attempt(cuda_uuids, 1)
    answer["cuda_equals_nvml"] = isinstance(uuids, list) and isinstance(cuda, list) and "GPU-" + dashed(cuda[0]["hex"]) in uuids
    moments = Moments(device.memory_stats)
    moments.take("initialised")
    array = jnp.ones(GIB // 4, jnp.float32)
    array.block_until_ready()
    moments.take("1 GiB")
    other = (array * 2).block_until_ready()
    moments.take("2 GiB")
    del other
    moments.take("1 GiB freed")
    answer["failure"] = attempt(lambda: jnp.ones(1 << 38, jnp.float32).block_until_ready() and None)
    moments.take("after a failed allocation")
    answer["moments"] = moments.rows
    answer["cost"] = attempt(percentiles, device.memory_stats, 500)
    return answer


CASES = {
    "torch_native": (case_torch_native, {}),
    "torch_expandable": (case_torch_expandable, {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}),
    "torch_async": (case_torch_async, {"PYTORCH_ALLOC_CONF": "backend:cudaMallocAsync"}),
    "torch_fraction": (case_torch_fraction, {}),
    "torch_snapshot": (case_torch_snapshot, {}),
    "torch_fork": (case_torch_fork, {}),
    "torch_two_devices": (case_torch_two_devices, {"CUDA_VISIBLE_DEVICES": "1,0"}),
    "jax_preallocated": (jax_case, {}),
    "jax_on_demand": (jax_case, {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}),
    "jax_async": (jax_case, {"XLA_PYTHON_CLIENT_ALLOCATOR": "cuda_async"}),
    "jax_platform": (jax_case, {"XLA_PYTHON_CLIENT_ALLOCATOR": "platform"}),
}


def run_case(name, folder, seconds, answers):
    path = os.path.join(folder, name + ".json")
    environment = dict(os.environ, **CASES[name][1])
    begin = time.monotonic()
    with open(os.path.join(folder, name + ".err"), "wb") as errors:
        process = subprocess.Popen([sys.executable, os.path.abspath(__file__), "--case", name, "--out", path], env=environment, stderr=errors, stdout=errors)
        try:
            code = process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            code = "ended after %d s" % seconds
    try:
        with open(path) as file:
            answer = json.load(file)
    except (OSError, ValueError):
        with open(os.path.join(folder, name + ".err"), errors="replace") as file:
            answer = {"error": "no result", "exit": code, "output": file.read()[-2000:]}
    answer["seconds"] = round(time.monotonic() - begin, 1)
    answers[name] = answer


def versions():
    from importlib.metadata import PackageNotFoundError, version

    found = {"python": sys.version.split()[0]}
    for name in ("torch", "jax", "jaxlib", "tensorflow"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            pass
    opened = nvml.open_or_none()
    found["driver"] = None if opened is None else opened.driver()
    found["date"] = datetime.date.today().isoformat()
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True)
    parser.add_argument("--only", help="cases, separated by commas")
    parser.add_argument("--seconds", type=float, default=50.0, help="the limit of one case (default: 50)")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        try:
            answer = CASES[options.case][0]()
        except BaseException:
            answer = {"error": traceback.format_exc()[-3000:]}
        with open(options.out, "w") as file:
            json.dump(answer, file, default=str)
        os._exit(0)  # The answer is already written, and frameworks may hang on exit.
    names = options.only.split(",") if options.only else list(CASES)
    answers = {}
    with tempfile.TemporaryDirectory() as folder:
        threads = [threading.Thread(target=run_case, args=(name, folder, options.seconds, answers)) for name in names]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    result = {"recorded": True, "versions": versions(), "cases": {name: answers[name] for name in names}}
    os.makedirs(os.path.dirname(os.path.abspath(options.out)), exist_ok=True)
    with open(options.out, "w") as file:
        json.dump(result, file, indent=1, sort_keys=True)
        file.write("\n")
    for name in names:
        print("%-20s %5.1f s  %s" % (name, answers[name]["seconds"], "FAILED: " + answers[name]["error"].strip()[-300:] if "error" in answers[name] else "ok"))


if __name__ == "__main__":
    main()
