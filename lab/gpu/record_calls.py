"""The worker of record.py: the list of NVML calls, and the parts of a recording whose
structure differs from that of a call. It is run by record.py, not by hand."""

import ctypes
import json
import os
import sys
import time
from ctypes import byref, c_int, c_uint, c_ulonglong, c_void_p
from pathlib import Path

import nvml_abi as abi
from call_recorder import CHEAP, DEAR, ROOM, Out, Recorder, Rows, Text, listed, percentiles


def start(recorder):
    """The calls before nvmlInit, the cold init, and the device handle."""
    lib = recorder.lib
    recorder.call("nvmlDeviceGetCount_v2/before-init", Out(c_uint), repeat=0)
    begun = time.perf_counter_ns()
    code = lib.nvmlInit_v2()
    cold_us = (time.perf_counter_ns() - begun) / 1000
    recorder.say(name="cold-init", section="cold_init_us", value=round(cold_us, 1))
    abi.Gpu.check("nvmlInit_v2", code)
    device = c_void_p()
    abi.Gpu.check("nvmlDeviceGetHandleByIndex_v2", lib.nvmlDeviceGetHandleByIndex_v2(c_uint(0), byref(device)))
    name = ctypes.create_string_buffer(96)
    driver = ctypes.create_string_buffer(96)
    recorder.quiet("nvmlDeviceGetName", device, name, c_uint(96))
    recorder.quiet("nvmlSystemGetDriverVersion", driver, c_uint(96))
    recorder.say(name="facts", facts={"gpu": name.value.decode(), "driver": driver.value.decode()})
    return device


def library_calls(r, device):
    lib = r.lib
    uuid = ctypes.create_string_buffer(96)
    r.quiet("nvmlDeviceGetUUID", device, uuid, c_uint(96))
    pci = abi.PciInfo()
    r.quiet("nvmlDeviceGetPciInfo_v3", device, byref(pci))

    def error_strings():
        lib.nvmlErrorString.restype = ctypes.c_char_p
        return {abi.return_name(code): (lib.nvmlErrorString(c_int(code)) or b"").decode() for code in abi.RETURN_NAMES}

    r.section("error_strings", error_strings)

    def overhead():
        samples = []
        for _ in range(CHEAP):
            begun = time.perf_counter_ns()
            lib.nvmlErrorString(c_int(0))
            samples.append(time.perf_counter_ns() - begun)
        return percentiles(samples)

    r.section("call_overhead_us", overhead)
    r.call("nvmlInit_v2", repeat=DEAR)
    r.call("nvmlInitWithFlags", c_uint(0), repeat=DEAR)
    r.call("nvmlInit", repeat=DEAR)
    # NVML counts initialisations and shutdowns, so each of the shutdowns recorded next needs its own init.
    for _ in range(DEAR + 1):
        r.quiet("nvmlInit_v2")
    r.call("nvmlShutdown", repeat=DEAR)
    r.call("nvmlSystemGetDriverVersion", Text())
    r.call("nvmlSystemGetNVMLVersion", Text())
    r.call("nvmlSystemGetCudaDriverVersion", Out(c_int))
    r.call("nvmlSystemGetCudaDriverVersion_v2", Out(c_int))
    r.call("nvmlSystemGetProcessName", c_uint(os.getpid()), Text(256, secret="<process name>"))
    r.call("nvmlSystemGetProcessName/absent", c_uint(0x7FFFFFF0), Text(256))
    for child in list(r.children)[:1]:
        r.call("nvmlSystemGetProcessName/child", c_uint(child), Text(256, secret="<process name>"))
    r.call("nvmlDeviceGetCount", Out(c_uint))
    r.call("nvmlDeviceGetCount_v2", Out(c_uint))
    r.call("nvmlDeviceGetHandleByIndex", c_uint(0), Out(c_void_p))
    r.call("nvmlDeviceGetHandleByIndex_v2", c_uint(0), Out(c_void_p))
    r.call("nvmlDeviceGetHandleByIndex_v2/index-99", c_uint(99), Out(c_void_p))
    r.call("nvmlDeviceGetHandleByUUID", uuid, Out(c_void_p))
    r.call("nvmlDeviceGetHandleByUUID/absent", b"GPU-00000000-0000-0000-0000-000000000000", Out(c_void_p))
    r.call("nvmlDeviceGetHandleByPciBusId_v2", pci.busId, Out(c_void_p))
    r.call("nvmlDeviceGetHandleByPciBusId_v2/absent", b"FFFFFFFF:7F:00.0", Out(c_void_p))


# The calls that write one number about a device, each with the type of the number: those that the simulator answers, and those
# that it leaves out.
NUMBERS = json.loads(Path(__file__).with_name("numbers.json").read_text()) | dict.fromkeys(
    (
        "nvmlDeviceGetMultiGpuBoard", "nvmlDeviceGetVirtualizationMode", "nvmlDeviceGetHostVgpuMode",
        "nvmlDeviceGetPowerSource", "nvmlDeviceGetPcieSpeed", "nvmlDeviceGetPcieLinkMaxSpeed",
    ),
    "c_uint",
)  # fmt: skip


def number_calls(r, device):
    for name, kind in NUMBERS.items():
        dear = any(word in name for word in ("Pcie", "Energy", "Mig", "Instance"))
        r.call(name, device, Out(getattr(ctypes, kind)), repeat=DEAR if dear else CHEAP)


def identity_calls(r, device):
    d = device
    r.call("nvmlDeviceGetIndex", d, Out(c_uint))
    r.call("nvmlDeviceGetName", d, Text())
    r.call("nvmlDeviceGetName/short-buffer", d, Text(4))
    r.call("nvmlDeviceGetUUID", d, Text(secret="<uuid>"))
    r.call("nvmlDeviceGetSerial", d, Text(secret="<serial>"))
    r.call("nvmlDeviceGetBoardPartNumber", d, Text(secret="<board part number>"))
    r.call("nvmlDeviceGetBoardId", d, Out(c_uint))
    r.call("nvmlDeviceGetVbiosVersion", d, Text())
    r.call("nvmlDeviceGetInforomImageVersion", d, Text())
    r.call("nvmlDeviceGetPciInfo", d, Out(abi.PciInfo))
    r.call("nvmlDeviceGetPciInfo_v2", d, Out(abi.PciInfo))
    r.call("nvmlDeviceGetPciInfo_v3", d, Out(abi.PciInfo))
    r.call("nvmlDeviceGetPciInfoExt", d, Out(abi.PciInfoExt, version=abi.struct_version(abi.PciInfoExt, 1)))
    r.call("nvmlDeviceGetCudaComputeCapability", d, Out(c_int), Out(c_int))
    r.call("nvmlDeviceGetAttributes_v2", d, Out(abi.DeviceAttributes))
    r.call("nvmlDeviceGetActiveVgpus", d, Out(c_uint), c_void_p())
    r.call("nvmlDeviceGetGpuOperationMode", d, Out(c_uint), Out(c_uint))
    r.call("nvmlDeviceGetDriverModel", d, Out(c_uint), Out(c_uint))
    r.call("nvmlDeviceGetDriverModel_v2", d, Out(c_uint), Out(c_uint))
    r.call("nvmlDeviceGetGspFirmwareVersion", d, Text(bare=True))
    r.call("nvmlDeviceGetGspFirmwareMode", d, Out(c_uint), Out(c_uint))
    mode = Out(abi.AddressingMode, version=abi.struct_version(abi.AddressingMode, 1))
    r.call("nvmlDeviceGetAddressingMode", d, mode)


def memory_calls(r, device):
    d = device
    r.call("nvmlDeviceGetMemoryInfo", d, Out(abi.Memory))
    r.call("nvmlDeviceGetMemoryInfo_v2", d, Out(abi.MemoryV2, version=abi.struct_version(abi.MemoryV2, 2)))
    r.call("nvmlDeviceGetMemoryInfo_v2/version-1", d, Out(abi.MemoryV2, version=abi.struct_version(abi.MemoryV2, 1)))
    r.call("nvmlDeviceGetMemoryInfo_v2/version-0", d, Out(abi.MemoryV2))
    r.call("nvmlDeviceGetMemoryInfo_v2/null", d, c_void_p())
    r.call("nvmlDeviceGetMemoryInfo/null", d, c_void_p())
    r.call("nvmlDeviceGetBAR1MemoryInfo", d, Out(abi.Bar1Memory))
    r.call("nvmlDeviceGetConfComputeMemSizeInfo", d, Out(abi.ConfComputeMemSizeInfo))
    for suffix, cgroup in (("", b"/sys/fs/cgroup"), ("/absent", b"/sys/fs/cgroup/no-such-cgroup")):
        r.call(f"nvmlDeviceGetMemoryLimits_v1{suffix}", d, Out(abi.MemoryLimits, nameSpace=cgroup), repeat=DEAR)


def process_calls(r, device):
    d = device
    for kind in ("Compute", "Graphics", "MPSCompute"):
        stem = f"nvmlDeviceGet{kind}RunningProcesses"
        r.call(stem, d, Rows(abi.ProcessInfoV1), repeat=50)
        r.call(f"{stem}_v2", d, Rows(abi.ProcessInfo), repeat=50)
        r.call(f"{stem}_v3", d, Rows(abi.ProcessInfo), repeat=CHEAP)
        r.call(f"{stem}_v3/count-only", d, Rows(abi.ProcessInfo, 0), repeat=50)
        r.call(f"{stem}_v3/room-1", d, Rows(abi.ProcessInfo, 1), repeat=50)

    def details():
        found = {}
        function = getattr(r.lib, "nvmlDeviceGetRunningProcessDetailList", None)
        if function is None:
            return "SYMBOL_NOT_FOUND"
        for mode, name in enumerate(("compute", "graphics", "mps")):
            rows = (abi.ProcessDetail * ROOM)()
            version = abi.struct_version(abi.ProcessDetailList, 1)
            plist = abi.ProcessDetailList(version, mode, ROOM, rows)
            code = function(d, byref(plist))
            found[name] = {"code": abi.return_name(code)}
            if code == 0:
                found[name]["rows"] = r.veiled(listed(rows, plist.numProcArrayEntries))
        return found

    r.section("process_detail_list", details)
    r.call("nvmlDeviceGetAccountingPids", d, Rows(c_uint, 4096), repeat=50)
    r.call("nvmlDeviceGetAccountingPids/count-only", d, Rows(c_uint, 0), repeat=50)
    pid = next(iter(r.children), os.getpid())
    r.call("nvmlDeviceGetAccountingStats", d, c_uint(pid), Out(abi.AccountingStats), repeat=50)


def process_utilization(r, device):
    """The cost of requesting all samples, then five rounds, a second apart, each of which requests the samples
    since the newest timestamp of the previous round."""
    function = r.lib.nvmlDeviceGetProcessUtilization
    costs = []
    for _ in range(DEAR):
        rows = (abi.ProcessUtilizationSample * ROOM)()
        count = c_uint(ROOM)
        begun = time.perf_counter_ns()
        function(device, rows, byref(count), c_ulonglong(0))
        costs.append(time.perf_counter_ns() - begun)
    last_seen = 0
    rounds = []
    for number in range(5):
        needed = c_uint(0)
        asked = function(device, None, byref(needed), c_ulonglong(last_seen))
        rows = (abi.ProcessUtilizationSample * ROOM)()
        count = c_uint(ROOM)
        begun = time.perf_counter_ns()
        code = function(device, rows, byref(count), c_ulonglong(last_seen))
        took = time.perf_counter_ns() - begun
        now_us = time.time_ns() // 1000
        samples = [row for row in rows[: count.value] if row.pid] if code == 0 else []
        stamps = [row.timeStamp for row in samples]
        newest = max(stamps, default=0)
        rounds.append(
            {
                "last_seen": "0" if not last_seen else "newest of the round before",
                "count_only": abi.return_name(asked),
                "count_only_needed": needed.value,
                "code": abi.return_name(code),
                "count": count.value,
                "samples_with_pid": len(samples),
                "pids": len({row.pid for row in samples}),
                "not_newer_than_last_seen": sum(stamp <= last_seen for stamp in stamps),
                "newest_age_ms": round((now_us - newest) / 1000, 1) if newest else None,
                "oldest_age_ms": round((now_us - min(stamps)) / 1000, 1) if stamps else None,
                "sm_util": [row.smUtil for row in samples[:32]],
                "mem_util": [row.memUtil for row in samples[:32]],
                "first_rows": [
                    {"pid": r.owner(row.pid), "age_ms": round((now_us - row.timeStamp) / 1000, 1), "smUtil": row.smUtil}
                    for row in samples[:4]
                ],
                "call_us": round(took / 1000, 1),
            }
        )
        last_seen = newest or last_seen
        if number < 4:
            time.sleep(1)
    return {"latency_us": percentiles(costs), "rounds": rounds}


def telemetry_calls(r, device):
    d = device
    r.call("nvmlDeviceGetUtilizationRates", d, Out(abi.Utilization))
    r.call("nvmlDeviceGetProcessUtilization", d, c_void_p(), Out(c_uint), c_ulonglong(0), repeat=DEAR)
    for name in ("Encoder", "Decoder", "Jpg", "Ofa"):
        r.call(f"nvmlDeviceGet{name}Utilization", d, Out(c_uint), Out(c_uint), repeat=50)
    r.call("nvmlDeviceGetTemperature", d, c_uint(0), Out(c_uint))
    version = abi.struct_version(abi.TemperatureV1, 1)
    r.call("nvmlDeviceGetTemperatureV", d, Out(abi.TemperatureV1, version=version))
    for number, name in enumerate(("shutdown", "slowdown", "memory-max", "gpu-max")):
        suffix = "" if number == 0 else f"/{name}"
        r.call(f"nvmlDeviceGetTemperatureThreshold{suffix}", d, c_uint(number), Out(c_uint))
    r.call("nvmlDeviceGetPowerManagementLimitConstraints", d, Out(c_uint), Out(c_uint))
    r.call("nvmlDeviceGetFanSpeed_v2", d, c_uint(0), Out(c_uint))
    for number, name in enumerate(("graphics", "sm", "memory", "video")):
        suffix = "" if number == 0 else f"/{name}"
        r.call(f"nvmlDeviceGetClockInfo{suffix}", d, c_uint(number), Out(c_uint))
        r.call(f"nvmlDeviceGetMaxClockInfo{suffix}", d, c_uint(number), Out(c_uint))
        r.call(f"nvmlDeviceGetClock{suffix}", d, c_uint(number), c_uint(0), Out(c_uint))
    r.call("nvmlDeviceGetApplicationsClock", d, c_uint(0), Out(c_uint))
    r.call("nvmlDeviceGetMaxCustomerBoostClock", d, c_uint(0), Out(c_uint))
    r.call("nvmlDeviceGetFieldValues", d, c_int(1), Out(abi.FieldValue, fieldId=FIELDS["memory_temperature"]))
    r.call("nvmlDeviceGetViolationStatus", d, c_uint(0), Out(abi.ViolationTime), repeat=DEAR)


def link_and_error_calls(r, device):
    d = device
    r.call("nvmlDeviceGetPcieThroughput", d, c_uint(0), Out(c_uint), repeat=DEAR)
    r.call("nvmlDeviceGetPcieThroughput/receive", d, c_uint(1), Out(c_uint), repeat=DEAR)
    r.call("nvmlDeviceGetNvLinkState", d, c_uint(0), Out(c_uint), repeat=DEAR)
    r.call("nvmlDeviceGetNvLinkErrorCounter", d, c_uint(0), c_uint(0), Out(c_ulonglong), repeat=DEAR)
    r.call("nvmlDeviceGetGpuFabricInfoV", d, Out(abi.FabricInfo, version=abi.struct_version(abi.FabricInfo, 3)), repeat=DEAR)
    r.call("nvmlDeviceGetEccMode", d, Out(c_uint), Out(c_uint))
    r.call("nvmlDeviceGetDefaultEccMode", d, Out(c_uint))
    for error, word in enumerate(("corrected", "uncorrected")):
        for counter, span in enumerate(("volatile", "aggregate")):
            suffix = "" if (error, counter) == (0, 0) else f"/{word}-{span}"
            r.call(f"nvmlDeviceGetTotalEccErrors{suffix}", d, c_uint(error), c_uint(counter), Out(c_ulonglong))
            r.call(f"nvmlDeviceGetDetailedEccErrors{suffix}", d, c_uint(error), c_uint(counter), Out(abi.EccErrorCounts), repeat=DEAR)
    for number, place in enumerate(("l1", "l2", "device-memory", "register-file", "texture", "shared", "cbu", "sram")):
        suffix = "" if place == "device-memory" else f"/{place}"
        r.call(f"nvmlDeviceGetMemoryErrorCounter{suffix}", d, c_uint(1), c_uint(0), c_uint(number), Out(c_ulonglong), repeat=DEAR)
    r.call("nvmlDeviceGetRemappedRows", d, Out(c_uint), Out(c_uint), Out(c_uint), Out(c_uint))
    r.call("nvmlDeviceGetRowRemapperHistogram", d, Out(abi.RowRemapperHistogram), repeat=DEAR)
    r.call("nvmlDeviceGetRetiredPages", d, c_uint(0), Rows(c_ulonglong, 256), repeat=50)
    r.call("nvmlDeviceGetRetiredPages_v2", d, c_uint(0), Out(c_uint, value=256), Out(c_ulonglong * 256), Out(c_ulonglong * 256), repeat=50)


FIELDS = {
    "ecc_current": 1, "ecc_sbe_volatile_total": 3, "ecc_dbe_volatile_total": 4, "ecc_sbe_aggregate_total": 5,
    "ecc_dbe_aggregate_total": 6, "retired_sbe": 29, "retired_dbe": 30, "retired_pending": 31,
    "limited_by_power": 74, "limited_by_heat": 75, "limited_by_sync_boost": 76, "limited_by_board": 77,
    "limited_by_low_utilization": 78, "limited_by_reliability": 79, "memory_temperature": 82, "total_energy_consumption": 83, "pcie_replay_counter": 94,
    "pcie_replay_rollover_counter": 95, "remapped_correctable": 142, "remapped_uncorrectable": 143,
    "nvlink_replay_total": 52, "nvlink_recovery_total": 59, "nvlink_link_count": 91, "c2c_link_count": 170,
    "remapped_pending": 144, "remapped_failure": 145, "power_average": 185, "power_instant": 186,
    "power_current_limit": 190, "temperature_shutdown_tlimit": 193, "temperature_slowdown_tlimit": 194,
    "temperature_memory_max_tlimit": 195, "temperature_gpu_max_tlimit": 196, "recovery_action": 230, "no_such_field": 65000,
}  # fmt: skip
DEAR_FIELDS = ("total_energy_consumption", "pcie_replay_counter", "pcie_replay_rollover_counter")


def field_values(r, device):
    """Each field alone, and the four fields of a telemetry reading in one call."""
    function = r.lib.nvmlDeviceGetFieldValues
    found = {}
    for name, number in FIELDS.items():
        value = abi.FieldValue(fieldId=number)
        code = function(device, c_int(1), byref(value))
        repeat = DEAR if name in DEAR_FIELDS else 100
        samples = []
        for _ in range(repeat):
            begun = time.perf_counter_ns()
            function(device, c_int(1), byref(value))
            samples.append(time.perf_counter_ns() - begun)
        found[name] = {
            "field": number,
            "code": abi.return_name(code),
            "field_code": abi.return_name(value.nvmlReturn),
            "value_type": value.valueType,
            "value": value.number() if value.nvmlReturn == 0 else None,
            "latency_us": percentiles(samples),
        }
    return found


def mig_calls(r, device):
    d = device
    r.call("nvmlDeviceGetMigMode", d, Out(c_uint), Out(c_uint), repeat=50)
    r.call("nvmlDeviceGetMigDeviceHandleByIndex", d, c_uint(0), Out(c_void_p), repeat=50)
    r.call("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", d, Out(c_void_p), repeat=50)
    r.call("nvmlDeviceGetGpuInstanceProfileInfo", d, c_uint(0), Out(abi.GpuInstanceProfileInfo), repeat=DEAR)
    version = abi.struct_version(abi.GpuInstanceProfileInfoV2, 2)
    r.call("nvmlDeviceGetGpuInstanceProfileInfoV", d, c_uint(0), Out(abi.GpuInstanceProfileInfoV2, version=version), repeat=DEAR)


def profiling_calls(r, device):
    """The profiling counters: support, a sample, and the comparison of two samples that are 0.2 s apart."""
    r.call("nvmlGpmQueryDeviceSupport", device, Out(abi.GpmSupport, version=1))
    samples = [c_void_p(), c_void_p()]
    if any(r.quiet("nvmlGpmSampleAlloc", byref(sample)) != 0 for sample in samples):
        return
    r.quiet("nvmlGpmSampleGet", device, samples[0])
    time.sleep(0.2)
    r.call("nvmlGpmSampleGet", device, samples[1])
    request = abi.GpmMetricsGet(version=1, numMetrics=1, sample1=samples[0], sample2=samples[1])
    request.metrics[0].metricId = 1
    r.call("nvmlGpmMetricsGet", byref(request), repeat=DEAR)
    for sample in samples:
        r.quiet("nvmlGpmSampleFree", sample)


def event_calls(r, device):
    """Xid and ECC events: registration, and the cost of polling without waiting."""
    r.call("nvmlEventSetCreate", Out(c_void_p), repeat=0)
    events = c_void_p()
    if r.quiet("nvmlEventSetCreate", byref(events)) != 0:
        return
    xid = c_ulonglong(0x8)
    r.call("nvmlDeviceRegisterEvents", device, xid, events, repeat=0)
    r.call("nvmlDeviceRegisterEvents/all-bits", device, c_ulonglong(0xFFFFFFFFFFFFFFFF), events, repeat=0)
    r.call("nvmlEventSetWait", events, Out(abi.EventData), c_uint(0))
    r.call("nvmlEventSetWait_v2", events, Out(abi.EventData), c_uint(0))
    r.call("nvmlEventSetWait_v2/10ms", events, Out(abi.EventData), c_uint(10), repeat=DEAR)
    r.call("nvmlEventSetFree", events, repeat=0)


def main():
    recorder = Recorder(json.loads(sys.argv[1]))
    device = start(recorder)
    for part in (library_calls, number_calls, identity_calls, memory_calls, process_calls, telemetry_calls, link_and_error_calls, mig_calls, profiling_calls, event_calls):
        part(recorder, device)
    recorder.section("process_utilization", lambda: process_utilization(recorder, device))
    recorder.section("field_values", lambda: field_values(recorder, device))
    abi.Gpu.check("nvmlShutdown", recorder.lib.nvmlShutdown())


if __name__ == "__main__":
    main()
