"""GPU: one GPU, or the sum of several: its memory, who holds it, pressure, churn, MIG devices and health."""

from . import grid, panels as p, queries as q
from .queries import DEVICE_KEY, GPU, GPU_KEY, peak_ratio, usable

NAME = "{{instance}} · GPU {{gpu}}"
MIG_NAME = "GPU {{gpu}} · {{profile}} #{{gpu_instance}}"


def each(expression):
    return f"max by ({GPU_KEY}) ({expression})"


OVERVIEW = [
    p.stat(
        "Answers",
        "The worst of the GPUs chosen. At `no` a GPU is lost, stalled or not read lately, and has no other series.",
        f"min(gpu_up{{{GPU}}})",
        thresholds=p.good_from(1),
        empty="no GPU",
        mappings=p.values(_0=("no", "red"), _1=("yes", "green")),
    ),
    p.stat(
        "Used",
        "Used memory as a share of what can be allocated (total less reserved).",
        f"sum(gpu_memory_used_bytes{{{GPU}}}) / sum({usable(GPU)})",
        unit=p.RATIO,
        thresholds=p.FILL,
        empty="not told",
        decimals=1,
    ),
    p.stat(
        "Window peak",
        "The fullest GPU chosen: highest use in the exporter's last peak window, as a share of what can be allocated.",
        f"max({peak_ratio(GPU)})",
        unit=p.RATIO,
        thresholds=p.FILL,
        empty="not told",
        decimals=1,
    ),
    p.stat(
        "Peak in range",
        "The fullest GPU chosen: the highest use in the range shown, as a share of what can be allocated.",
        f"max({q.highest('gpu_memory_window_peak_bytes', GPU, '$__range')} / {usable(GPU)})",
        unit=p.RATIO,
        thresholds=p.FILL,
        empty="not told",
        decimals=1,
    ),
    p.stat(
        "Free",
        "Memory that can be allocated now.",
        f"sum(gpu_memory_free_bytes{{{GPU}}})",
        unit=p.BYTES,
        empty="not told",
        decimals=1,
    ),
    p.stat(
        "No visible owner",
        "Used memory that no visible process holds. Absent while the memory of a process is not known.",
        f"sum(gpu_memory_unattributed_bytes{{{GPU}}})",
        unit=p.BYTES,
        thresholds=p.bad_from(1 << 30, "orange"),
        empty="not known",
        decimals=1,
    ),
    p.stat(
        "Busy",
        "Share of time in which a kernel ran, averaged over the GPUs chosen. MIG: the driver does not tell it.",
        f"avg(gpu_utilization_ratio{{{GPU}}})",
        unit=p.RATIO,
        empty="not told",
        decimals=0,
    ),
    p.stat(
        "Xid errors in range",
        "Critical errors that the driver reported in the range shown, of any code.",
        f"sum(increase(gpu_xid_errors_total{{{GPU}}}[$__range]))",
        thresholds=p.bad_from(0.5),
        empty="not told",
        decimals=0,
    ),
]

# Grey for what nobody holds.
REST = [
    p.by_name(name, color={"mode": "fixed", "fixedColor": color}, custom__fillOpacity=fill)
    for name, color, fill in (
        ("no visible process", "dark-red", 60),
        ("processes without a workload", "dark-orange", 50),
        ("free", "rgb(90, 95, 105)", 12),
        ("reserved", "rgb(60, 62, 68)", 60),
    )
]
PROCESS = f"{DEVICE_KEY}, pid, process"
MIG_USABLE = f"(gpu_mig_memory_used_bytes{{{GPU}}} + gpu_mig_memory_free_bytes{{{GPU}}})"
LARGEST = q.largest("gpu_workload_memory_used_bytes", GPU, "workload")
HELD = f"gpu_workload_memory_used_bytes{{{GPU}}}"
# From one reading, so that nothing of it is a change between two.
NO_WORKLOAD = f"sum(gpu_process_memory_used_bytes{{{GPU}}}) - (sum({HELD}) or vector(0)) > 1048576"
MEMORY = [
    p.series(
        "Peak against sampled value",
        "Used memory at each scrape, and the highest use that the exporter sampled in its window (it reads 100 times a "
        "second unless configured). Where the lines part, a graph of sampled values hides the peak.",
        [
            p.ranged(each(f"gpu_memory_used_bytes{{{GPU}}}"), f"{NAME} used"),
            p.ranged(each(f"gpu_memory_window_peak_bytes{{{GPU}}}"), f"{NAME} peak"),
        ],
        overrides=[
            p.by_query(
                "B",
                custom__fillOpacity=0,
                custom__lineWidth=2,
                custom__lineStyle={"fill": "dash", "dash": [6, 4]},
            )
        ],
        size=(12, 10),
        calcs=p.LAST_AND_MAX,
        empty="No GPU chosen tells its memory.",
    ),
    p.series(
        "As a share of what can be allocated",
        "Window peak over what can be allocated (total less reserved). Marked at 85 and 90 %.",
        [p.ranged(each(peak_ratio(GPU)), NAME)],
        unit=p.RATIO,
        thresholds=p.FILL,
        max=1,
        size=(12, 10),
        calcs=p.LAST_AND_MAX,
        empty="No GPU chosen tells its memory.",
    ),
    p.series(
        "Who holds it",
        "Workloads, what no visible process holds, free and reserved memory, stacked to the total of the GPUs chosen. "
        "The largest workloads of the range are named, the others are one. In the middle of a sudden change the parts "
        "can be of two readings, milliseconds apart.",
        [
            p.ranged(f"sum by (workload) ({HELD}) and on (workload) {LARGEST}", "{{workload}}"),
            p.ranged(f"sum({HELD} unless on (workload) {LARGEST})", "other workloads"),
            p.ranged(NO_WORKLOAD, "processes without a workload"),
            p.ranged(f"sum(gpu_memory_unattributed_bytes{{{GPU}}})", "no visible process"),
            p.ranged(f"sum(gpu_memory_free_bytes{{{GPU}}})", "free"),
            p.ranged(f"sum(gpu_memory_reserved_bytes{{{GPU}}})", "reserved"),
        ],
        stack=True,
        size=(24, 11),
        legend="right",
        overrides=REST,
        calcs=p.LAST_AND_MAX,
        empty="No GPU chosen tells its memory.",
    ),
    p.table(
        "Processes",
        "Processes on the GPUs chosen, and whose they are. Highest: since the process was first seen. Idle: since it "
        "last worked on the GPU; absent where the driver cannot tell, as under MIG.",
        [
            f"max by ({PROCESS}) (gpu_process_memory_used_bytes{{{GPU}}})",
            f"max by ({PROCESS}) (gpu_process_memory_peak_bytes{{{GPU}}} and gpu_process_memory_used_bytes{{{GPU}}})",
            f"max by ({PROCESS}) (gpu_process_idle_seconds{{{GPU}}})",
            f"max by ({PROCESS}) (gpu_process_sm_utilization_ratio{{{GPU}}})",
            f"time() - max by ({PROCESS}) (gpu_process_start_time_seconds{{{GPU}}})",
            f"max by ({PROCESS}, user, workload)"
            f" (gpu_process_memory_used_bytes{{{GPU}}} {q.owner('user, workload', GPU)})",
        ],
        [
            p.column("instance", "Node"),
            p.column("gpu", "GPU", width=55),
            p.column("pid", "Pid", width=80),
            p.column("process", "Process"),
            p.column("user", "User", width=90),
            p.column("workload", "Workload", links=p.detail("workloads", "instance", "workload")),
            p.column("Value #A", "Used", p.BYTES, width=85),
            p.column("Value #B", "Highest", p.BYTES, width=85),
            p.column("Value #C", "Idle", p.SECONDS, width=80, decimals=0),
            p.column("Value #D", "Busy", p.RATIO, width=60, decimals=0),
            p.column("Value #E", "Age", p.SECONDS, width=85, decimals=1),
        ],
        empty="No process holds memory here, or the families with a pid are switched off (--process.series=false).",
        sort="Used",
    ),
]

PRESSURE = [
    p.series(
        "Pressure",
        "Share of time in which the fullest GPU chosen had at least so much of its memory in use. It is weighted by "
        "real time in the exporter, so a peak between two scrapes counts.",
        [
            p.ranged(
                f"max by (ratio) (rate(gpu_memory_pressure_seconds_total{{{GPU}}}[$__rate_interval]))",
                "at or above {{ratio}}",
            )
        ],
        unit=p.RATIO,
        max=1,
        empty="No GPU chosen tells its memory.",
    ),
    p.series(
        "Churn",
        "Memory that was allocated and given back, for each second. Much of both at an even level is an allocator that "
        "does not keep its memory; more growth than shrinking is a leak or a start.",
        [
            p.ranged(f"sum(rate(gpu_memory_grown_bytes_total{{{GPU}}}[$__rate_interval]))", "allocated"),
            p.ranged(f"-sum(rate(gpu_memory_shrunk_bytes_total{{{GPU}}}[$__rate_interval]))", "given back"),
        ],
        unit=p.RATE,
        min=None,
        empty="No GPU chosen tells its memory.",
    ),
]

MIG = [
    p.ranking(
        "MIG devices: window peak",
        "Highest use of each MIG device in the last peak window, as a share of what can be allocated on it.",
        f"max by ({DEVICE_KEY}, gpu_instance, profile) (gpu_mig_memory_window_peak_bytes{{{GPU}}} / {MIG_USABLE})",
        [
            p.column("instance", "Node"),
            p.column("gpu", "GPU", width=55),
            p.column("profile", "Profile", width=90),
            p.column("gpu_instance", "Instance", width=80),
        ],
        unit=p.RATIO,
        thresholds=p.FILL,
        max=1,
        decimals=1,
        size=(12, 7),
        empty="No MIG device: MIG is off, or the GPU does not answer.",
    ),
    p.series(
        "MIG devices: used",
        "Used memory of each MIG device.",
        [p.ranged(f"sum by (instance, gpu, gpu_instance, profile) (gpu_mig_memory_used_bytes{{{GPU}}})", MIG_NAME)],
        calcs=p.LAST_AND_MAX,
        size=(12, 7),
        empty="No MIG device: MIG is off, or the GPU does not answer.",
    ),
]

THROTTLED = "hw_slowdown|hw_thermal_slowdown|sw_thermal_slowdown|hw_power_brake_slowdown|sw_power_cap"
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
        "the GPUs chosen. Under MIG the driver does not tell.",
        [
            p.ranged(f"avg(gpu_utilization_ratio{{{GPU}}})", "kernels"),
            p.ranged(f"avg(gpu_memory_bandwidth_utilization_ratio{{{GPU}}})", "memory bandwidth"),
            p.ranged(f"avg(gpu_encoder_utilization_ratio{{{GPU}}})", "encoder"),
            p.ranged(f"avg(gpu_decoder_utilization_ratio{{{GPU}}})", "decoder"),
        ],
        unit=p.RATIO,
        max=1,
        empty="The driver does not tell; under MIG it never does.",
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
        empty="Not told.",
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
        empty="Not told.",
    ),
    p.series(
        "Clocks",
        "Lowest of the GPUs chosen. A clock that falls while work goes on is throttled: see beside.",
        [p.ranged(f"min by (clock) (gpu_clock_hertz{{{GPU}}})", "{{clock}}")],
        unit="hertz",
        size=(8, 9),
        empty="Not told.",
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
        empty="Not told.",
    ),
    p.states(
        "Throttled",
        "Reasons that hold the clocks of any GPU chosen down.",
        [p.ranged(f'max by (reason) (gpu_throttle_active{{{GPU},reason=~"{THROTTLED}"}})', "{{reason}}")],
        p.values(_0=("no", "green"), _1=("yes", "red")),
        empty="Not told.",
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

DASHBOARD = grid.dashboard(
    "gpu",
    "One GPU, or the sum of several: its memory and true peaks, who holds it, pressure, churn and health.",
    [grid.GPU, grid.TOP],
    grid.alerts("Gpu.*", GPU, "critical", "warning", "info"),
    [
        *OVERVIEW,
        grid.row("Memory, and who holds it"),
        *MEMORY,
        grid.row("Pressure and churn"),
        *PRESSURE,
        grid.row("MIG devices"),
        *MIG,
        grid.row("State and health"),
        *HEALTH,
    ],
)
