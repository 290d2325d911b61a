"""State and health on the GPU dashboard: identity, utilization, temperature, power, clocks and errors."""

from . import panels as p, queries as q, tables as t
# The physical GPU, even if one of its MIG devices is selected.
from .queries import BOARD as GPU, GPU_KEY

NAME = "#{{gpu}} · {{instance}}"


def each(expression):
    return f"max by ({GPU_KEY}) ({expression})"


THROTTLED = "hw_slowdown|hw_thermal_slowdown|sw_thermal_slowdown|hw_power_brake_slowdown|sw_power_cap"
THROTTLES = f'{GPU},reason=~"{THROTTLED}"'
# How many of its spare rows a memory bank has left, and the widths of the columns.
SPARES = {"max": 90, "high": 93, "partial": 112, "low": 90, "none": 95}
RECOVERY = t.table(
    "Recovery, spare rows and PCIe link",
    "Action: what the driver requires to recover the GPU. Gen., lanes: those of the PCIe link now, and the highest "
    "that the GPU and the machine allow; an idle GPU may lower the generation to save power. Rows: number of memory banks "
    "by the share of their spare rows that is left; a bank with none cannot be repaired. –: not reported by the driver or "
    "the GPU.",
    [
        f"max by ({GPU_KEY}, action) (gpu_recovery_action{{{GPU}}} == 1)",
        *(
            each(f"gpu_pcie_link_{name}{{{GPU}}}")
            for name in ("generation", "generation_max", "width", "width_max")
        ),
        *(each(f'gpu_row_remap_banks{{{GPU},available="{left}"}}') for left in SPARES),
    ],
    [
        t.column("instance", "Node"),
        t.column("gpu", "GPU", width=50),
        t.column("action", "Action"),
        t.column("Value #B", "Gen.", p.COUNT, width=52, decimals=0),
        t.column("Value #C", "Max gen.", p.COUNT, width=88, decimals=0),
        t.column("Value #D", "Lanes", p.COUNT, width=62, decimals=0),
        t.column("Value #E", "Max lanes", p.COUNT, width=92, decimals=0),
        *(
            t.column(f"Value #{letter}", f"Rows: {left}", width=width)
            for letter, (left, width) in zip("FGHIJ", SPARES.items())
        ),
    ],
    size=(24, 10),
    empty="Not reported by the driver or the GPU.",
)
LIMITS = {
    "gpu_max": ("GPU max.", 90),
    "slowdown": ("Slowdown", 95),
    "shutdown": ("Shutdown", 95),
    "memory_max": ("Memory max.", 115),
}
FENCES = t.table(
    "Limits of power and temperature",
    "Power limit in force, the one with which the GPU boots, and the range in which it can be set. GPU max.: temperature at which the "
    "driver may lower the clocks below the base clock. Slowdown, shutdown: temperatures at which the hardware acts. Memory max.: "
    "temperature of the memory at which the driver slows the GPU down. –: not reported by the driver or the GPU.",
    [
        *(each(f"gpu_power_limit{name}_watts{{{GPU}}}") for name in ("", "_default", "_min", "_max")),
        *(each(f'gpu_temperature_threshold_celsius{{{GPU},threshold="{name}"}}') for name in LIMITS),
    ],
    [
        t.column("instance", "Node"),
        t.column("gpu", "GPU", width=50),
        t.column("Value #A", "Power limit", "watt", width=105),
        t.column("Value #B", "Default", "watt", width=85),
        t.column("Value #C", "Lowest", "watt", width=85),
        t.column("Value #D", "Highest", "watt", width=85),
        *(
            t.column(f"Value #{letter}", title, "celsius", width=width)
            for letter, (title, width) in zip("EFGH", LIMITS.values())
        ),
    ],
    size=(24, 10),
    empty="Not reported by the driver or the GPU.",
)
HEALTH = [
    t.table(
        "Identity",
        "Identity of each selected GPU, and the driver of its node. The column Simulated marks simulated GPUs.",
        [
            f"max by ({GPU_KEY}, name, architecture, pci_bus_id, mig_mode, simulated) (gpu_info{{{GPU}}})",
            f"max by ({GPU_KEY}, driver_version) (gpu_info{{{GPU}}}"
            f" * on (cluster, instance) group_left (driver_version)"
            f" group by (cluster, instance, driver_version) (nvidia_driver_info{{{q.NODE}}}))",
        ],
        [
            t.column("instance", "Node", width=110),
            t.column("gpu", "GPU", width=50),
            t.column("name", "Model", width=195),
            t.column("driver_version", "Driver", width=100),
            t.column("mig_mode", "MIG", width=75),
            t.column("pci_bus_id", "PCI", width=125),
            t.column("simulated", "Simulated", width=85),
            t.column("uuid", "UUID"),
        ],
        size=(24, 10),
        empty="No GPU is visible. Check whether the driver is loaded and the exporter is scraped.",
    ),
    RECOVERY,
    FENCES,
    p.series(
        "Utilization",
        "Share of time in which a kernel ran, memory was read or written, or video was encoded or decoded, averaged "
        "over the selected GPUs. The driver does not report it under MIG.",
        [
            p.ranged(f"avg({q.once(f'gpu_utilization_ratio{{{GPU}}}')})", "kernels"),
            p.ranged(f"avg({q.once(f'gpu_memory_bandwidth_utilization_ratio{{{GPU}}}')})", "memory bandwidth"),
            p.ranged(f"avg({q.once(f'gpu_encoder_utilization_ratio{{{GPU}}}')})", "encoder"),
            p.ranged(f"avg({q.once(f'gpu_decoder_utilization_ratio{{{GPU}}}')})", "decoder"),
        ],
        unit=p.RATIO,
        max=1,
        empty="Not reported. The driver never reports utilization under MIG.",
    ),
    p.series(
        "Temperature",
        "Temperature of the GPU die and, dashed, of the memory.",
        [
            p.ranged(each(f"gpu_temperature_celsius{{{GPU}}}"), f"{NAME} die"),
            p.ranged(each(f"gpu_memory_temperature_celsius{{{GPU}}}"), f"{NAME} memory"),
        ],
        unit="celsius",
        fill=0,
        overrides=[*p.BY_INDEX, p.by_query("B", custom__lineStyle=p.DASHES)],
        calcs=p.LAST_AND_MAX,
        empty="Not reported.",
    ),
    p.series(
        "Power",
        "Power draw of each GPU, and the highest enforced limit.",
        [
            p.ranged(each(f"gpu_power_watts{{{GPU}}}"), NAME),
            p.ranged(f"max(gpu_power_limit_watts{{{GPU}}})", "highest limit"),
        ],
        fill=0,
        overrides=[*p.BY_INDEX, p.colored("highest limit", p.GREY, custom__lineStyle=p.DASHES)],
        unit="watt",
        calcs=p.LAST_AND_MAX,
        size=(8, 9),
        empty="Not reported.",
    ),
    p.series(
        "Clocks",
        "Lowest clock of the selected GPUs; an idle GPU lowers its clocks. A clock that falls under load is throttled: see the "
        "panel Throttling.",
        [p.ranged(f"min by (clock) (gpu_clock_hertz{{{GPU}}})", "lowest {{clock}}")],
        unit="hertz",
        size=(8, 9),
        empty="Not reported.",
    ),
    p.series(
        "Time with limited clocks",
        "Highest share of time in which a reason limited the clocks of a selected GPU, as the driver counts. Power: at the "
        "power limit, which is normal under load. Reasons can limit the clocks at the same time. NVML does not say "
        "whether thermal includes slowdowns by the hardware: see the panel Throttling.",
        [
            p.ranged(
                f"max by (reason) (rate(gpu_clock_limited_seconds_total{{{GPU}}}[{q.STEP}]))",
                "{{reason}}",
            )
        ],
        unit=p.RATIO,
        fill=0,
        calcs=p.LAST_AND_MAX,
        size=(8, 9),
        empty="Not reported.",
    ),
    p.series(
        "BAR1 aperture",
        "Address space through which the host accesses the memory of the GPU. It is not part of GPU memory, and has "
        "its own limit.",
        [
            p.ranged(each(f"gpu_bar1_memory_used_bytes{{{GPU}}}"), NAME),
            p.ranged(f"min(gpu_bar1_memory_total_bytes{{{GPU}}})", "smallest size"),
        ],
        calcs=p.LAST_AND_MAX,
        size=(8, 7),
        empty="Not reported.",
    ),
    p.states(
        "Throttling",
        "Reasons that reduced the clocks of at least one selected GPU at one reading or more. What happened between two "
        "readings is not shown. Grey: not reported.",
        [p.ranged(f"max by (reason) ({q.highest('gpu_throttle_active', THROTTLES, q.STEP)})", "{{reason}}")],
        p.values(_0=("no", "rgb(115, 160, 125)"), _1=("yes", "red")),
        size=(8, 7),
        empty="Not reported.",
    ),
    p.series(
        "Errors",
        "New Xid errors, ECC errors and PCIe replays, and the state of row remapping and retired pages. Only values "
        "above 0 are shown.",
        [
            p.ranged(q.total(q.xids(GPU, q.STEP), "xid"), "Xid {{xid}}"),
            p.ranged(f"{q.total(f'increase(gpu_ecc_errors_total{{{GPU}}}[$__rate_interval])', 'type')} > 0", "ECC {{type}}"),
            p.ranged(f"{q.total(f'increase(gpu_pcie_replays_total{{{GPU}}}[$__rate_interval])')} > 0", "PCIe replays"),
            p.ranged(f"{q.total(f'gpu_remapped_rows{{{GPU}}}', 'cause')} > 0", "remapped rows, {{cause}}"),
            p.ranged(f"{q.total(f'gpu_retired_pages{{{GPU}}}', 'cause')} > 0", "retired pages, {{cause}}"),
            p.ranged(f"{q.total(f'gpu_row_remap_pending{{{GPU}}}')} > 0", "row remapping waits for a reset"),
            p.ranged(f"{q.total(f'gpu_row_remap_failed{{{GPU}}}')} > 0", "row remapping failed"),
        ],
        unit=p.COUNT,
        size=(8, 7),
        style="points",
        empty="No error was reported in the selected time range.",
    ),
]
