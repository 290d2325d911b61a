"""The part of NVML's C ABI that these scripts need: structs, return codes, the library.

It uses plain ctypes, so that exactly the specified symbol and version is called, regardless of the
installed Python bindings. Layouts follow nvml.h of NVML 13.
"""

import ctypes
import os
from ctypes import POINTER, Structure, byref, c_char, c_char_p, c_double, c_int, c_longlong, c_uint, c_ulonglong, c_void_p

NOT_AVAILABLE = 0xFFFFFFFFFFFFFFFF

RETURN_NAMES = {
    0: "SUCCESS",
    1: "UNINITIALIZED",
    2: "INVALID_ARGUMENT",
    3: "NOT_SUPPORTED",
    4: "NO_PERMISSION",
    5: "ALREADY_INITIALIZED",
    6: "NOT_FOUND",
    7: "INSUFFICIENT_SIZE",
    8: "INSUFFICIENT_POWER",
    9: "DRIVER_NOT_LOADED",
    10: "TIMEOUT",
    11: "IRQ_ISSUE",
    12: "LIBRARY_NOT_FOUND",
    13: "FUNCTION_NOT_FOUND",
    14: "CORRUPTED_INFOROM",
    15: "GPU_IS_LOST",
    16: "RESET_REQUIRED",
    17: "OPERATING_SYSTEM",
    18: "LIB_RM_VERSION_MISMATCH",
    19: "IN_USE",
    20: "MEMORY",
    21: "NO_DATA",
    22: "VGPU_ECC_NOT_SUPPORTED",
    23: "INSUFFICIENT_RESOURCES",
    24: "FREQ_NOT_SUPPORTED",
    25: "ARGUMENT_VERSION_MISMATCH",
    26: "DEPRECATED",
    27: "NOT_READY",
    28: "GPU_NOT_FOUND",
    29: "INVALID_STATE",
    30: "RESET_TYPE_NOT_SUPPORTED",
    999: "UNKNOWN",
}


def return_name(code):
    """The name of a return code without its NVML_ERROR_ prefix; `CODE_<n>` if the code is unknown."""
    return RETURN_NAMES.get(code, f"CODE_{code}")


def struct_version(struct, version):
    """The value that NVML_STRUCT_VERSION computes: the size, with the version in the top byte."""
    return ctypes.sizeof(struct) | version << 24


def fields(struct):
    """A struct as a dict: numbers as they are, char arrays as text."""
    shown = {}
    for name, *_ in struct._fields_:
        value = getattr(struct, name)
        if isinstance(value, bytes):
            value = value.decode("utf-8", "replace")
        elif isinstance(value, ctypes.Array):
            value = list(value)
        shown[name] = value
    return shown


class Memory(Structure):
    _fields_ = [("total", c_ulonglong), ("free", c_ulonglong), ("used", c_ulonglong)]


class MemoryV2(Structure):
    _fields_ = [
        ("version", c_uint),
        ("total", c_ulonglong),
        ("reserved", c_ulonglong),
        ("free", c_ulonglong),
        ("used", c_ulonglong),
    ]


class Bar1Memory(Structure):
    _fields_ = [("total", c_ulonglong), ("free", c_ulonglong), ("used", c_ulonglong)]


class ProcessInfoV1(Structure):
    _fields_ = [("pid", c_uint), ("usedGpuMemory", c_ulonglong)]


class ProcessInfo(Structure):
    """The layout of the _v2 and _v3 lists."""

    _fields_ = [
        ("pid", c_uint),
        ("usedGpuMemory", c_ulonglong),
        ("gpuInstanceId", c_uint),
        ("computeInstanceId", c_uint),
    ]


class ProcessDetail(Structure):
    _fields_ = ProcessInfo._fields_ + [("usedGpuCcProtectedMemory", c_ulonglong)]


class ProcessDetailList(Structure):
    _fields_ = [
        ("version", c_uint),
        ("mode", c_uint),
        ("numProcArrayEntries", c_uint),
        ("procArray", POINTER(ProcessDetail)),
    ]


class ProcessUtilizationSample(Structure):
    _fields_ = [
        ("pid", c_uint),
        ("timeStamp", c_ulonglong),
        ("smUtil", c_uint),
        ("memUtil", c_uint),
        ("encUtil", c_uint),
        ("decUtil", c_uint),
    ]


class AccountingStats(Structure):
    _fields_ = [
        ("gpuUtilization", c_uint),
        ("memoryUtilization", c_uint),
        ("maxMemoryUsage", c_ulonglong),
        ("time", c_ulonglong),
        ("startTime", c_ulonglong),
        ("isRunning", c_uint),
        ("reserved", c_uint * 5),
    ]


class Utilization(Structure):
    _fields_ = [("gpu", c_uint), ("memory", c_uint)]


class PciInfo(Structure):
    _fields_ = [
        ("busIdLegacy", c_char * 16),
        ("domain", c_uint),
        ("bus", c_uint),
        ("device", c_uint),
        ("pciDeviceId", c_uint),
        ("pciSubSystemId", c_uint),
        ("busId", c_char * 32),
    ]


class PciInfoExt(Structure):
    _fields_ = [
        ("version", c_uint),
        ("domain", c_uint),
        ("bus", c_uint),
        ("device", c_uint),
        ("pciDeviceId", c_uint),
        ("pciSubSystemId", c_uint),
        ("baseClass", c_uint),
        ("subClass", c_uint),
        ("busId", c_char * 32),
    ]


class EccErrorCounts(Structure):
    _fields_ = [(name, c_ulonglong) for name in ("l1Cache", "l2Cache", "deviceMemory", "registerFile")]


class RowRemapperHistogram(Structure):
    _fields_ = [(name, c_uint) for name in ("max", "high", "partial", "low", "none")]


class TemperatureV1(Structure):
    _fields_ = [("version", c_uint), ("sensorType", c_uint), ("temperature", c_int)]


class FieldUnion(ctypes.Union):
    _fields_ = [
        ("dVal", ctypes.c_double),
        ("siVal", c_int),
        ("uiVal", c_uint),
        ("ulVal", ctypes.c_ulong),
        ("ullVal", c_ulonglong),
        ("sllVal", c_longlong),
        ("usVal", ctypes.c_ushort),
    ]


class FieldValue(Structure):
    _fields_ = [
        ("fieldId", c_uint),
        ("scopeId", c_uint),
        ("timestamp", c_longlong),
        ("latencyUsec", c_longlong),
        ("valueType", c_uint),
        ("nvmlReturn", c_uint),
        ("value", FieldUnion),
    ]

    MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")

    def number(self):
        """The union member that `valueType` selects; None for a type that nvml.h does not list."""
        if self.valueType >= len(self.MEMBERS):
            return None
        return getattr(self.value, self.MEMBERS[self.valueType])


class EventData(Structure):
    _fields_ = [
        ("device", c_void_p),
        ("eventType", c_ulonglong),
        ("eventData", c_ulonglong),
        ("gpuInstanceId", c_uint),
        ("computeInstanceId", c_uint),
    ]


class DeviceAttributes(Structure):
    _fields_ = [
        (name, c_uint)
        for name in (
            "multiprocessorCount",
            "sharedCopyEngineCount",
            "sharedDecoderCount",
            "sharedEncoderCount",
            "sharedJpegCount",
            "sharedOfaCount",
            "gpuInstanceSliceCount",
            "computeInstanceSliceCount",
        )
    ] + [("memorySizeMB", c_ulonglong)]


class GpuInstanceProfileInfo(Structure):
    _fields_ = [
        (name, c_uint)
        for name in (
            "id",
            "isP2pSupported",
            "sliceCount",
            "instanceCount",
            "multiprocessorCount",
            "copyEngineCount",
            "decoderCount",
            "encoderCount",
            "jpegCount",
            "ofaCount",
        )
    ] + [("memorySizeMB", c_ulonglong)]


class GpuInstanceProfileInfoV2(Structure):
    _fields_ = [("version", c_uint)] + GpuInstanceProfileInfo._fields_ + [("name", c_char * 96)]


class ConfComputeMemSizeInfo(Structure):
    _fields_ = [("protectedMemSizeKib", c_ulonglong), ("unprotectedMemSizeKib", c_ulonglong)]


class MemoryLimits(Structure):
    """nvmlGetMemoryLimits_v1_t, since NVML 13.5."""

    _fields_ = [
        ("nameSpace", ctypes.c_char_p),
        ("softLimit", c_ulonglong),
        ("hardLimit", c_ulonglong),
        ("currentUsed", c_ulonglong),
    ]


class ViolationTime(Structure):
    _fields_ = [("referenceTime", c_ulonglong), ("violationTime", c_ulonglong)]


class FabricInfo(Structure):
    """nvmlGpuFabricInfo_v3_t."""

    _fields_ = [
        ("version", c_uint),
        ("clusterUuid", ctypes.c_ubyte * 16),
        ("status", c_uint),
        ("cliqueId", c_uint),
        ("state", ctypes.c_ubyte),
        ("healthMask", c_uint),
        ("healthSummary", ctypes.c_ubyte),
    ]


class AddressingMode(Structure):
    _fields_ = [("version", c_uint), ("value", c_uint)]


LIBRARY_PLACES = (
    "libnvidia-ml.so.1",
    "/usr/local/nvidia/lib64/libnvidia-ml.so.1",
    "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1",
    "/usr/lib64/libnvidia-ml.so.1",
)


class GpmSupport(Structure):
    _fields_ = [("version", c_uint), ("isSupportedDevice", c_uint)]


class GpmMetricInfo(Structure):
    _fields_ = [("shortName", c_char_p), ("longName", c_char_p), ("unit", c_char_p)]


class GpmMetric(Structure):
    _fields_ = [("metricId", c_uint), ("nvmlReturn", c_uint), ("value", c_double), ("metricInfo", GpmMetricInfo)]


class GpmMetricsGet(Structure):
    # The array's length differs between versions of nvml.h; this one is longer than all of them.
    _fields_ = [("version", c_uint), ("numMetrics", c_uint), ("sample1", c_void_p), ("sample2", c_void_p), ("metrics", GpmMetric * 512)]


def open_library(path=None):
    """Load NVML and return (CDLL, place). If `path` is given, only this path is tried, otherwise the usual places."""
    tried = []
    for place in [path] if path else LIBRARY_PLACES:
        try:
            return ctypes.CDLL(place), place
        except OSError as error:
            tried.append(str(error))
    raise OSError("NVML does not load: " + "; ".join(tried))


def library_file(path=None):
    """The path of the file that `open_library` loads, as the kernel reports it. It is for a program that
    does not itself search for the library."""
    open_library(path)
    with open("/proc/self/maps") as maps:
        for line in maps:
            name = line.split(maxsplit=5)[-1].strip()
            if path and os.path.realpath(path) == name or "libnvidia-ml.so" in os.path.basename(name):
                return name
    raise OSError("NVML is loaded, but /proc/self/maps does not show its file")


class NvmlError(Exception):
    pass


class Gpu:
    """Memory and processes of one GPU by index: the reference for the exporter."""

    def __init__(self, index=0, path=None):
        self.lib, _ = open_library(path)
        self.check("nvmlInit_v2", self.lib.nvmlInit_v2())
        self.device = c_void_p()
        self.check("nvmlDeviceGetHandleByIndex_v2", self.lib.nvmlDeviceGetHandleByIndex_v2(c_uint(index), byref(self.device)))

    @staticmethod
    def check(call, code):
        if code != 0:
            raise NvmlError(f"{call}: {return_name(code)}")

    def text(self, call, device=True):
        """A string that `call` returns, for the device or for the system."""
        buffer = ctypes.create_string_buffer(96)
        args = [self.device] if device else []
        self.check(call, getattr(self.lib, call)(*args, buffer, c_uint(96)))
        return buffer.value.decode()

    def memory(self):
        """total, reserved, free and used in bytes, from the v2 call."""
        memory = MemoryV2(version=struct_version(MemoryV2, 2))
        self.check("nvmlDeviceGetMemoryInfo_v2", self.lib.nvmlDeviceGetMemoryInfo_v2(self.device, byref(memory)))
        return {key: value for key, value in fields(memory).items() if key != "version"}

    @classmethod
    def all(cls, path=None):
        """Every GPU of the machine, by index."""
        first = cls(0, path)
        count = c_uint()
        cls.check("nvmlDeviceGetCount_v2", first.lib.nvmlDeviceGetCount_v2(byref(count)))
        return [first] + [cls(index, path) for index in range(1, count.value)]

    def processes(self, kind="Compute"):
        """The list of this kind (Compute, Graphics, MPSCompute) as a dict of bytes by pid; None for unknown memory."""
        room = 1024
        rows = (ProcessInfo * room)()
        count = c_uint(room)
        call = f"nvmlDeviceGet{kind}RunningProcesses_v3"
        self.check(call, getattr(self.lib, call)(self.device, byref(count), rows))
        return {
            row.pid: None if row.usedGpuMemory == NOT_AVAILABLE else row.usedGpuMemory for row in rows[: count.value]
        }

    def process_memory(self, pid):
        """Bytes of one process. Raises NvmlError if NVML does not list the process, or does not report its memory."""
        used = self.processes().get(pid)
        if used is None:
            raise NvmlError(f"NVML shows no memory of process {pid}; is this another PID namespace?")
        return used

    def number(self, call, *args):
        """An unsigned integer that a call returns for the device."""
        value = c_uint()
        self.check(call, getattr(self.lib, call)(self.device, *args, byref(value)))
        return value.value

    def profiling_sample(self):
        """A new sample of the profiling counters. It is kept until the process ends."""
        sample = c_void_p()
        self.check("nvmlGpmSampleAlloc", self.lib.nvmlGpmSampleAlloc(byref(sample)))
        self.check("nvmlGpmSampleGet", self.lib.nvmlGpmSampleGet(self.device, sample))
        return sample

    def profiling(self, earlier, later, ids):
        """The metrics between two samples by id, as NVML reports them; None for a metric that is not filled."""
        request = GpmMetricsGet(version=1, numMetrics=len(ids), sample1=earlier, sample2=later)
        for entry, number in zip(request.metrics, ids):
            entry.metricId = number
        self.check("nvmlGpmMetricsGet", self.lib.nvmlGpmMetricsGet(byref(request)))
        entries = request.metrics[: len(ids)]
        return {entry.metricId: entry.value if entry.nvmlReturn == 0 else None for entry in entries}
