"""The check of the listener for dcgm-exporter's families: each value equals nvidia-smi's, in dcgm-exporter's unit."""

import os
import re
import subprocess
import time

from exporter import Exporter, Server
from harness import free_port

# The family, what nvidia-smi calls it, and by how much the two may differ, because they are read one after the other.
VALUES = [
    ("DCGM_FI_DEV_SM_CLOCK", "clocks.sm", 0),
    ("DCGM_FI_DEV_MEM_CLOCK", "clocks.mem", 0),
    ("DCGM_FI_DEV_GPU_TEMP", "temperature.gpu", 1),
    # It moves by 2 degrees between two readings of an idle H200.
    ("DCGM_FI_DEV_MEMORY_TEMP", "temperature.memory", 3),
    ("DCGM_FI_DEV_POWER_USAGE", "power.draw.average", 3),
    ("DCGM_FI_DEV_GPU_UTIL", "utilization.gpu", 0),
    ("DCGM_FI_DEV_MEM_COPY_UTIL", "utilization.memory", 0),
    # Both tools round their values; the exporter rounds down, as DCGM does.
    ("DCGM_FI_DEV_FB_USED", "memory.used", 1),
    ("DCGM_FI_DEV_FB_FREE", "memory.free", 1),
    ("DCGM_FI_DEV_FB_RESERVED", "memory.reserved", 1),
    ("DCGM_FI_DEV_FB_TOTAL", "memory.total", 1),
    ("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", "ecc.errors.corrected.volatile.total", 0),
    ("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "ecc.errors.uncorrected.volatile.total", 0),
    ("DCGM_FI_DEV_PCIE_LINK_GEN", "pcie.link.gen.current", 0),
    ("DCGM_FI_DEV_PCIE_LINK_WIDTH", "pcie.link.width.current", 0),
    ("DCGM_FI_DEV_ENFORCED_POWER_LIMIT", "enforced.power.limit", 0.5),
    ("DCGM_FI_DEV_POWER_MGMT_LIMIT", "power.limit", 0.5),
    ("DCGM_FI_DEV_POWER_MGMT_LIMIT_DEF", "power.default_limit", 0.5),
    ("DCGM_FI_DEV_POWER_MGMT_LIMIT_MIN", "power.min_limit", 0.5),
    ("DCGM_FI_DEV_POWER_MGMT_LIMIT_MAX", "power.max_limit", 0.5),
    ("DCGM_FI_DEV_POWER_USAGE_INSTANT", "power.draw.instant", 3),
    ("DCGM_FI_DEV_MAX_SM_CLOCK", "clocks.max.sm", 0),
    ("DCGM_FI_DEV_MAX_MEM_CLOCK", "clocks.max.mem", 0),
    ("DCGM_FI_DEV_FAN_SPEED", "fan.speed", 3),
    ("DCGM_FI_DEV_ECC_SBE_AGG_TOTAL", "ecc.errors.corrected.aggregate.total", 0),
    ("DCGM_FI_DEV_ECC_DBE_AGG_TOTAL", "ecc.errors.uncorrected.aggregate.total", 0),
]
LABELS = {"UUID": "uuid", "pci_bus_id": "pci.bus_id", "modelName": "name", "DCGM_FI_DRIVER_VERSION": "driver_version",
    "DCGM_FI_DEV_SERIAL": "serial"}  # fmt: skip
# Shown beside what `nvidia-smi -q` says, which has other words for them.
SHOWN = ("DCGM_FI_DEV_SLOWDOWN_TEMP", "DCGM_FI_DEV_RETIRED_PENDING", "DCGM_FI_DEV_GET_GPU_RECOVERY_ACTION", "DCGM_FI_DEV_COUNT",
    "DCGM_FI_DEV_NVML_INDEX", "DCGM_FI_DEV_CUDA_COMPUTE_CAPABILITY", "DCGM_FI_DEV_MINOR_NUMBER", "DCGM_FI_CUDA_DRIVER_VERSION",
    "DCGM_FI_DEV_FABRIC_MANAGER_STATUS", "DCGM_FI_DEV_FABRIC_HEALTH_MASK", "DCGM_FI_DEV_FABRIC_HEALTH_SUMMARY",
    "DCGM_FI_DEV_C2C_LINK_COUNT", "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL", "DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL",
    "DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", "DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL")  # fmt: skip
SMI_LINES = r"(Product Brand|Minor Number|CUDA Version|Attached GPUs|GPU .*(?:Slowdown|Recovery)|Pending|State|Status|CliqueId|Summary|Incorrect.*|Bandwidth|Route.*|Access.*)\s*:"
PROFILED = ("DCGM_FI_PROF_GR_ENGINE_ACTIVE", "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "DCGM_FI_PROF_DRAM_ACTIVE")


def of_smi():
    """What nvidia-smi shows for GPU 0, by the name of the query."""
    names = [name for _, name, _ in VALUES] + list(LABELS.values())
    command = ["nvidia-smi", "-i", "0", f"--query-gpu={','.join(names)}", "--format=csv,noheader,nounits"]
    text = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout
    return dict(zip(names, (word.strip() for word in text.strip().split(","))))


def number(text):
    """None for what nvidia-smi does not show."""
    try:
        return float(text)
    except ValueError:
        return None


def differing(scrape, smi):
    """The values that differ by more than they may."""
    for family, name, allowed in VALUES:
        shown, wanted = scrape.value(family, gpu=0), number(smi[name])
        equal = shown is None if wanted is None else shown is not None and abs(shown - wanted) <= allowed
        yield family, shown, wanted, equal


def dcgm(setup, results):
    """Values and labels of GPU 0, and the profiling shares of an idle GPU, where it has them."""
    port = free_port()
    listed = os.path.join(setup.out, "dcgm.csv")
    with open(listed, "w") as file:
        file.writelines(f"{family}, gauge, Text\n" for family in [*(row[0] for row in VALUES), *SHOWN, *PROFILED])
        file.write("DCGM_FI_DRIVER_VERSION, label, Text\nDCGM_FI_DEV_SERIAL, label, Text\nDCGM_FI_DEV_BRAND, label, Text\n")
    flags = [f"--dcgm.listen-address=127.0.0.1:{port}", f"--dcgm.collectors-file={listed}", "--telemetry.interval=200ms"]
    with Exporter(setup, "dcgm", *flags, "--telemetry.slow-interval=500ms"):
        listener = Server((), port)
        # The clocks and the load of the exporter's start settle.
        time.sleep(4)
        for _ in range(5):
            time.sleep(1)
            before, scrape, after = of_smi(), listener.scrape(), of_smi()
            found = list(differing(scrape, before))
            # A reading that changes between two reads proves nothing.
            if all(equal for *_, equal in found) or before == after:
                break
    for family, shown, wanted, equal in found:
        results.check(f"dcgm: {family}", f"exporter {shown}, nvidia-smi {wanted}", "equal to within the reading", equal)
    labels = scrape.rows("DCGM_FI_DEV_GPU_TEMP", gpu=0)[0][0]
    for label, name in LABELS.items():
        # nvidia-smi has words for what a GPU does not have.
        shown, wanted = labels.get(label), before[name] if before[name] not in ("[N/A]", "0") else None
        results.check(f"dcgm: {label}", f"exporter {shown}, nvidia-smi {wanted}", "equal", shown == wanted)
    text = subprocess.run(["nvidia-smi", "-i", "0", "-q"], capture_output=True, text=True, check=True, timeout=20).stdout
    results.note("dcgm: other fields", str({"brand": labels.get("DCGM_FI_DEV_BRAND"), **{name: scrape.value(name, gpu=0) for name in SHOWN}}))
    results.note("dcgm: nvidia-smi", "; ".join(" ".join(line.split()) for line in text.splitlines() if re.search(SMI_LINES, line)))
    shares = {family: scrape.value(family, gpu=0) for family in PROFILED}
    fits = all(share is None or 0 <= share <= 0.02 for share in shares.values())
    results.check("dcgm: profiling shares of an idle GPU", str(shares), "0 to 0.02, or absent", fits)
