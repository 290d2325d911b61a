"""What peers.sh compares: the simulator's own numbers, read through its C functions, and a peer's exposition."""

import ctypes
import json
import re
import sys

MIB = 1 << 20


class Memory(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint)] + [(name, ctypes.c_ulonglong) for name in ("total", "reserved", "free", "used")]


class Process(ctypes.Structure):
    _fields_ = [
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    ]


def scenario(path, pids):
    """The scenario with one entry for each real pid in place of `pid` and `count`."""
    head, *entries = re.split(r"(?m)^\[\[process\]\]\n", open(path, encoding="utf-8").read())
    print(head)
    pids = list(pids)
    for entry in entries:
        count = int(re.search(r"(?m)^count = (\d+)$", entry).group(1))
        entry = re.sub(r"(?m)^(pid|count) = \d+\n", "", entry)
        for _ in range(count):
            print(f"[[process]]\npid = {pids.pop()}\n{entry}")
    assert not pids, "more pids than processes"


def call(library, name, *arguments):
    code = getattr(library, name)(*arguments)
    assert code == 0, f"{name} answered {code}"


def expect(path):
    library = ctypes.CDLL(path)
    call(library, "nvmlInit_v2")
    device = ctypes.c_void_p()
    call(library, "nvmlDeviceGetHandleByIndex_v2", 0, ctypes.byref(device))
    memory = Memory(version=ctypes.sizeof(Memory) | 2 << 24)
    call(library, "nvmlDeviceGetMemoryInfo_v2", device, ctypes.byref(memory))
    count = ctypes.c_uint(64)
    rows = (Process * 64)()
    call(library, "nvmlDeviceGetComputeRunningProcesses_v3", device, ctypes.byref(count), rows)
    processes = {str(row.pid): row.used for row in rows[: count.value]}
    assert len(processes) == 16, processes
    print(json.dumps({"total": memory.total, "used": memory.used, "reserved": memory.reserved, "processes": processes}))


def series(path, family):
    """(labels, value) of every series of a family."""
    for line in open(path, encoding="utf-8"):
        found = re.match(re.escape(family) + r"\{(.*)\} (\S+)$", line)
        if found:
            yield dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', found.group(1))), float(found.group(2))


def agree(peer, expected, exposition):
    expected = json.load(open(expected, encoding="utf-8"))
    if peer == "nvitop":
        names, unit = ("gpu_memory_total_MiB", "gpu_memory_used_MiB", "process_gpu_memory_MiB"), MIB
    else:
        prefix = "all_smi_"
        names = (f"{prefix}gpu_memory_total_bytes", f"{prefix}gpu_memory_used_bytes", f"{prefix}process_memory_used_bytes")
        unit = 1
    total, used, of_process = ([(labels, value * unit) for labels, value in series(exposition, name)] for name in names)
    assert len(total) == len(used) == 1, f"{len(total)} totals and {len(used)} used"
    assert abs(total[0][1] - expected["total"]) < MIB, f"total {total[0][1]}, not {expected['total']}"
    # The first version of the memory call counts reserved memory as used; a peer may use either version.
    either = (expected["used"], expected["used"] + expected["reserved"])
    assert any(abs(used[0][1] - value) < MIB for value in either), f"used {used[0][1]}, not {either}"
    shown = {labels["pid"]: value for labels, value in of_process}
    for pid, memory in expected["processes"].items():
        assert pid in shown, f"no process {pid}"
        assert abs(shown[pid] - memory) < MIB, f"process {pid}: {shown[pid]}, not {memory}"
    print(f"ok: {peer} shows total, used and {len(expected['processes'])} processes as simulated")


def main():
    command, *arguments = sys.argv[1:]
    if command == "scenario":
        scenario(arguments[0], arguments[1:])
    elif command == "expect":
        expect(*arguments)
    elif command == "agree":
        agree(*arguments)
    else:
        sys.exit(f"no command {command}")


if __name__ == "__main__":
    main()
