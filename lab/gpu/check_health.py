"""Checks of the recovery action, the spare rows, the PCIe link, the addressing mode and the module id: they equal
NVML's and nvidia-smi's."""

import re
import subprocess
import time
import xml.etree.ElementTree as ElementTree
from ctypes import byref, c_int, c_uint

import nvml_abi as abi
from exporter import Exporter

RECOVERY_ACTION = 230
ACTIONS = (
    "none", "gpu_reset", "node_reboot", "drain_p2p", "drain_and_reset", "recover_imex_domain", "bus_reset", "system_reboot",
)  # fmt: skip
MODES = ("none", "hmm", "ats")
BANKS = ("max", "high", "partial", "low", "none")
LINKS = {
    "gpu_pcie_link_generation": ("CurrPcieLinkGeneration", "current_link_gen"),
    "gpu_pcie_link_generation_max": ("MaxPcieLinkGeneration", "max_link_gen"),
    "gpu_pcie_link_width": ("CurrPcieLinkWidth", "current_link_width"),
    "gpu_pcie_link_width_max": ("MaxPcieLinkWidth", "max_link_width"),
}
ROWS = {f"gpu_row_remap_banks {left}": left for left in BANKS}


def number(gpu, call):
    """An unsigned integer that a call returns; None if the library or the GPU does not have it, or if it is 0, which
    these calls return for what is not there."""
    function = getattr(gpu.lib, f"nvmlDeviceGet{call}", None)
    value = c_uint()
    if function is None or function(gpu.device, byref(value)) != 0:
        return None
    return value.value or None


def name_of(code, names):
    """The name of a code; an unknown code is absent."""
    return names[code] if code is not None and code < len(names) else None


def recovery_action(gpu):
    field = abi.FieldValue(fieldId=RECOVERY_ACTION)
    code = gpu.lib.nvmlDeviceGetFieldValues(gpu.device, c_int(1), byref(field))
    return name_of(field.number() if code == 0 and field.nvmlReturn == 0 else None, ACTIONS)


def addressing_mode(gpu):
    function = getattr(gpu.lib, "nvmlDeviceGetAddressingMode", None)
    mode = abi.AddressingMode(version=abi.struct_version(abi.AddressingMode, 1))
    given = function is not None and function(gpu.device, byref(mode)) == 0
    return name_of(mode.value if given else None, MODES)


def banks(gpu):
    function = getattr(gpu.lib, "nvmlDeviceGetRowRemapperHistogram", None)
    found = abi.RowRemapperHistogram()
    given = function is not None and function(gpu.device, byref(found)) == 0
    counts = [getattr(found, left) for left in BANKS]
    return dict(zip(ROWS, counts if given and any(counts) else [None] * len(BANKS)))


def of_nvml(gpu):
    links = {name: number(gpu, call) for name, (call, _) in LINKS.items()}
    identity = {"addressing_mode": addressing_mode(gpu), "module_id": number(gpu, "ModuleId")}
    return {"gpu_recovery_action": recovery_action(gpu), **banks(gpu), **links, **identity}


def of_exporter(scrape, index):
    required = [row["action"] for row, value in scrape.rows("gpu_recovery_action", gpu=index) if value == 1]
    info = scrape.rows("gpu_info", gpu=index)[0][0]
    rows = {name: scrape.value("gpu_row_remap_banks", gpu=index, available=left) for name, left in ROWS.items()}
    links = {name: scrape.value(name, gpu=index) for name in LINKS}
    shown = {"gpu_recovery_action": ", ".join(required) or None, **rows, **links}
    module = info.get("module_id")
    return {**shown, "addressing_mode": info.get("addressing_mode"), "module_id": module and int(module)}


def of_smi(index):
    """What `nvidia-smi -q -x` shows. A value that it does not show, or shows as N/A, is left out."""
    command = ["nvidia-smi", "-i", str(index), "-q", "-x"]
    text = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout
    tree = ElementTree.fromstring(text)
    first = {element.tag: (element.text or "").strip() for element in reversed(list(tree.iter()))}
    tags = {name: tag for name, (_, tag) in LINKS.items()} | {"module_id": "gpu_module_id"}
    tags |= {name: f"row_remapper_histogram_{left}" for name, left in ROWS.items()}
    numbers = {name: re.match(r"\d+", first.get(tag, "")) for name, tag in tags.items()}
    shown = {name: int(found[0]) for name, found in numbers.items() if found}
    mode = first.get("addressing_mode", "").lower()
    # Actions other than "None" are worded differently in nvidia-smi and in nvml.h.
    action = first.get("gpu_recovery_action", "").lower()
    return shown | ({"addressing_mode": mode} if mode in MODES else {}) | ({"gpu_recovery_action": action} if action == "none" else {})


def health(setup, results):
    """On every GPU, each value equals NVML's own, before and after the scrape, and nvidia-smi's."""
    gpus = setup.gpus()
    with Exporter(setup, "health", "--telemetry.interval=200ms", "--telemetry.slow-interval=500ms") as exporter:
        for index, gpu in enumerate(gpus):
            one_gpu(exporter, results, index, gpu)


def one_gpu(exporter, results, index, gpu):
    for _ in range(4):
        before = of_nvml(gpu)
        time.sleep(1)
        shown = of_exporter(exporter.scrape(), index)
        smi = of_smi(index)
        # The link of an idle GPU may change at any time.
        if of_nvml(gpu) == before:
            break
    for name, wanted in before.items():
        figure = f"exporter {shown[name]}, NVML {wanted}, nvidia-smi {smi.get(name, 'does not show it')}"
        equal = shown[name] == wanted and (name not in smi or smi[name] == (wanted or 0))
        results.check(f"GPU {index}: {name}", figure, "equal; absent where NVML has none", equal)
    given = sum(value is not None for value in before.values())
    results.check(f"GPU {index}: values that NVML has", f"{given} of {len(before)}", "at least 1", given > 0)
