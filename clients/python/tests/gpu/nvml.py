"""The few NVML calls that the programs in this folder need, through ctypes and without any package."""

import ctypes
import os


class _Process(ctypes.Structure):
    _fields_ = [("pid", ctypes.c_uint), ("used", ctypes.c_ulonglong), ("gpu_instance", ctypes.c_uint), ("compute_instance", ctypes.c_uint)]


class _Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class Nvml:
    """An initialised NVML library. Raises OSError if the library is missing or cannot be initialised."""

    def __init__(self):
        self._library = ctypes.CDLL("libnvidia-ml.so.1")
        self._check(self._library.nvmlInit_v2())
        count = ctypes.c_uint()
        self._check(self._library.nvmlDeviceGetCount_v2(ctypes.byref(count)))
        self._devices = []
        for index in range(count.value):
            device = ctypes.c_void_p()
            self._check(self._library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(device)))
            self._devices.append(device)

    @staticmethod
    def _check(code):
        if code != 0:
            raise OSError("NVML returned %d" % code)

    def driver(self):
        """The version of the driver."""
        text = ctypes.create_string_buffer(96)
        self._check(self._library.nvmlSystemGetDriverVersion(text, ctypes.c_uint(96)))
        return text.value.decode()

    def uuids(self):
        """The UUID of each GPU, in NVML's order."""
        found = []
        for device in self._devices:
            text = ctypes.create_string_buffer(96)
            self._check(self._library.nvmlDeviceGetUUID(device, text, ctypes.c_uint(96)))
            found.append(text.value.decode())
        return found

    def used_by(self, pid=None, index=0):
        """The bytes that the driver reports for a process, or `None` if it does not list the process."""
        pid = os.getpid() if pid is None else pid
        count, rows = ctypes.c_uint(1024), (_Process * 1024)()
        self._check(self._library.nvmlDeviceGetComputeRunningProcesses_v3(self._devices[index], ctypes.byref(count), rows))
        found = [rows[i].used for i in range(count.value) if rows[i].pid == pid]
        return found[0] if found and found[0] != 2**64 - 1 else None

    def listed(self, index=0):
        """The number of processes that the driver lists on a GPU, and the bytes of each, by pid."""
        count, rows = ctypes.c_uint(1024), (_Process * 1024)()
        self._check(self._library.nvmlDeviceGetComputeRunningProcesses_v3(self._devices[index], ctypes.byref(count), rows))
        return {rows[i].pid: rows[i].used for i in range(count.value)}

    def used(self, index=0):
        """The bytes in use on a GPU."""
        memory = _Memory()
        self._check(self._library.nvmlDeviceGetMemoryInfo(self._devices[index], ctypes.byref(memory)))
        return memory.used


def open_or_none():
    """An initialised NVML library, or `None` where there is none."""
    try:
        return Nvml()
    except (OSError, AttributeError):
        return None
