"""The part of the GPU dashboard for state and health: identity, work, heat, power, clocks and errors."""

from . import panels as p, queries as q
from .queries import GPU, GPU_KEY

NAME = "{{instance}} · GPU {{gpu}}"


def each(expression):
    return f"max by ({GPU_KEY}) ({expression})"


THROTTLED = "hw_slowdown|hw_thermal_slowdown|sw_thermal_slowdown|hw_power_brake_slowdown|sw_power_cap"
THROTTLES = f'{GPU},reason=~"{THROTTLED}"'
HEALTH = [
    p.table(
        "Which GPUs these are",
        "Identity of each GPU chosen, and the driver of its node. Simulated GPUs say so.",
        [
            f"max by ({GPU_KEY}, name, architecture, pci_bus_id, mig_mode, simulated) (gpu_info{{{GPU}}})",
            f"max by ({GPU_KEY}, driver_version) (gpu_info{{{GPU}}}"
            f" * on (cluster, instance) group_left (driver_version) nvidia_driver_info{{{q.NODE}}})",
        ],
        [
            p.column("instance", "Node"),
            p.column("gpu", "GPU", width=55),
            p.column("name", "Model"),
            p.column("driver_version", "Driver"),
            p.column("mig_mode", "MIG", width=80),
            p.column("pci_bus_id", "PCI"),
            p.column("simulated", "Simulated", width=85),
            p.column("uuid", "UUID"),
        ],
        size=(24, 7),
        empty="No GPU is seen: is the driver loaded?",
    ),
    p.series(
        "Work",
        "Share of time in which a kernel ran, memory was read or written, video was encoded or decoded; the mean of "
        "the selected GPUs. The driver does not report it under MIG.",
        [
            p.ranged(f"avg(gpu_utilization_ratio{{{GPU}}})", "kernels"),
            p.ranged(f"avg(gpu_memory_bandwidth_utilization_ratio{{{GPU}}})", "memory bandwidth"),
            p.ranged(f"avg(gpu_encoder_utilization_ratio{{{GPU}}})", "encoder"),
            p.ranged(f"avg(gpu_decoder_utilization_ratio{{{GPU}}})", "decoder"),
        ],
        unit=p.RATIO,
        max=1,
        empty="The driver does not report it; under MIG it never does.",
    ),
    p.series(
        "Temperature",
        "Of the die and of the memory.",
        [
            p.ranged(each(f"gpu_temperature_celsius{{{GPU}}}"), f"{NAME} die"),
            p.ranged(each(f"gpu_memory_temperature_celsius{{{GPU}}}"), f"{NAME} memory"),
        ],
        unit="celsius",
        calcs=p.LAST_AND_MAX,
        empty="Not reported.",
    ),
    p.series(
        "Power",
        "Draw, and the limit in force.",
        [
            p.ranged(each(f"gpu_power_watts{{{GPU}}}"), NAME),
            p.ranged(f"max(gpu_power_limit_watts{{{GPU}}})", "highest limit"),
        ],
        unit="watt",
        calcs=p.LAST_AND_MAX,
        size=(8, 9),
        empty="Not reported.",
    ),
    p.series(
        "Clocks",
        "Lowest of the GPUs chosen. A clock that falls while work goes on is throttled: see beside.",
        [p.ranged(f"min by (clock) (gpu_clock_hertz{{{GPU}}})", "{{clock}}")],
        unit="hertz",
        size=(8, 9),
        empty="Not reported.",
    ),
    p.series(
        "BAR1 aperture",
        "Address space through which the host reaches the GPU's memory. It is no part of the memory above, and has an "
        "edge of its own.",
        [
            p.ranged(each(f"gpu_bar1_memory_used_bytes{{{GPU}}}"), NAME),
            p.ranged(f"min(gpu_bar1_memory_total_bytes{{{GPU}}})", "smallest size"),
        ],
        calcs=p.LAST_AND_MAX,
        size=(8, 9),
        empty="Not reported.",
    ),
    p.states(
        "Throttled",
        "Reasons that hold the clocks of any selected GPU down, even for a moment. Grey: not reported.",
        [p.ranged(f"max by (reason) ({q.highest('gpu_throttle_active', THROTTLES, q.STEP)})", "{{reason}}")],
        p.values(_0=("no", "green"), _1=("yes", "red")),
        empty="Not reported.",
    ),
    p.series(
        "Errors",
        "Xid, ECC errors and PCIe replays as they came, and the state of row remapping and retired pages. A line "
        "appears when its count rises.",
        [
            p.ranged(f"sum by (xid) (increase(gpu_xid_errors_total{{{GPU}}}[$__rate_interval])) > 0", "Xid {{xid}}"),
            p.ranged(f"sum by (type) (increase(gpu_ecc_errors_total{{{GPU}}}[$__rate_interval])) > 0", "ECC {{type}}"),
            p.ranged(f"sum(increase(gpu_pcie_replays_total{{{GPU}}}[$__rate_interval])) > 0", "PCIe replays"),
            p.ranged(f"sum by (cause) (gpu_remapped_rows{{{GPU}}}) > 0", "remapped rows, {{cause}}"),
            p.ranged(f"sum by (cause) (gpu_retired_pages{{{GPU}}}) > 0", "retired pages, {{cause}}"),
            p.ranged(f"sum(gpu_row_remap_pending{{{GPU}}}) > 0", "remapping waits for a reset"),
            p.ranged(f"sum(gpu_row_remap_failed{{{GPU}}}) > 0", "remapping failed"),
        ],
        unit=p.COUNT,
        size=(12, 7),
        style="points",
        empty="No error in this range.",
    ),
]
