"""Is the full GPU a busy one: the row with this title on the GPU and Workloads dashboards, and two columns of a fleet table.

Invariant: the activity of a GPU or MIG device is attributed to a workload only if no other workload was on it during the whole
interval. A GPU without profiling counters has no series here, never 0.
"""

from . import panels as p, queries as q, tables as t
from .gpu_health import NAME, each
from .queries import DEVICE, GPU, NODE, STEP, WORKLOAD

MIG_NAME = NAME + " · {{profile}} #{{gpu_instance}}"
TITLE = "Is the full GPU a busy one?"
# For each counter of active seconds: the end of its name, and the selector of one of its series.
SM, TENSOR, BANDWIDTH = (
    ("engine_active_seconds_total", ',engine="sm"'),
    ("pipe_active_seconds_total", ',pipe="tensor"'),
    ("memory_bandwidth_active_seconds_total", ""),
)
UNMEASURED = "Not measured for this selection: it needs Hopper or later, a driver that supports it, and profiling.enabled."
ALONE_ONLY = "No workload has a GPU with profiling counters to itself."
# Excludes MIG devices that share a GPU instance with others, because the counters are those of the GPU instance.
UNSHARED = ',profile!~"[0-9]+c[.].*"'


def active(counter, select, time=STEP, prefix="gpu", more=""):
    """The mean activity in `time`, 0 to 1, of each GPU, or with the prefix gpu_mig of each MIG device."""
    name, series = counter
    return f"rate({prefix}_{name}{{{select}{series}{more}}}[{time}])"


def each_device(counter, select, time=STEP):
    """The activity of each GPU or, if it is partitioned, of each of its MIG devices."""
    whole, part = (active(counter, select, time, prefix) for prefix in ("gpu", "gpu_mig"))
    return f"(max by ({DEVICE}) ({q.whole(whole, select)}) or max by ({DEVICE}) ({part}))"


def alone(select, time=STEP):
    """1 for each workload that had its GPU or MIG device to itself throughout `time`, as in the recording rules."""
    workload = f'present_over_time(gpu_workload_memory_used_bytes{{{select},workload!="other"}}[{time}])'
    owners = f"present_over_time(gpu_workload_processes{{{NODE}}}[{time}])"
    key = "cluster, instance, uuid, mig_uuid"
    unseen = f"max_over_time(vram_exporter_processes_invisible{{{NODE}}}[{time}]) > 0"
    return (
        f"(max by ({q.DEVICE_KEY}, workload) ({workload}) and on ({key}) count by ({key}) (group by ({key}, workload) ({owners})) == 1"
        f" unless on (cluster, instance, uuid) ({unseen}))"
    )


def own(counter, select, time=STEP):
    """The activity of each workload that has its GPU or MIG device to itself. A workload on a MIG device has the counters
    of the MIG device, any other workload those of the GPU."""
    gpu, mig = "cluster, instance, uuid", "cluster, instance, uuid, mig_uuid"
    whole = f"max by ({gpu}) ({active(counter, NODE, time)})"
    part = f"max by ({mig}) ({active(counter, NODE, time, 'gpu_mig', UNSHARED)})"
    some, others = (alone(select + only, time) for only in (',mig_uuid=""', ',mig_uuid!=""'))
    return f"({whole} * on ({gpu}) group_right () {some} or {part} * on ({mig}) group_right () {others})"


def lines(counter):
    """A line for each GPU or, if it is partitioned, for each of its MIG devices."""
    return [
        p.ranged(each(q.whole(active(counter, GPU), GPU)), NAME),
        p.ranged(f"max by ({DEVICE}) ({active(counter, GPU, prefix='gpu_mig')})", MIG_NAME),
    ]


def share(title, description, counter):
    return p.series(
        title,
        description,
        lines(counter),
        unit=p.RATIO,
        max=1,
        fill=0,
        size=(8, 9),
        overrides=p.BY_INDEX,
        calcs=p.LAST_AND_MAX,
        empty=UNMEASURED,
    )


def traffic(title, description, links):
    queries = [
        p.ranged(q.total(f"rate(gpu_{link}_{way}_bytes_total{{{GPU}}}[{STEP}])"), f"{name}{way}")
        for link, name in links
        for way in ("received", "transmitted")
    ]
    return p.series(title, description, queries, unit=p.RATE, empty="Not measured by the driver or the GPU, or for a MIG device.")


COLORS = [
    p.by_name(name, color={"mode": "fixed", "fixedColor": color}, custom__fillOpacity=fill, **more)
    for name, color, fill, more in (
        ("memory used", "blue", 15, {}),
        ("memory needed", "light-blue", 0, {"custom__lineStyle": {"fill": "dash", "dash": [6, 4]}}),
        ("utilization", "rgb(150, 150, 150)", 0, {}),
        ("SMs", "green", 0, {}),
        ("tensor cores", "purple", 0, {}),
        ("memory bandwidth", "orange", 0, {}),
    )
]
# If a MIG device is selected, there are no series of whole GPUs.
KINDS = (q.WHOLE, q.PART)
ON_GPU = [
    p.series(
        "Memory and activity",
        "Memory used and needed as a share of the allocatable memory; needed memory is only known if a process reports "
        "about its allocator (docs/allocators.md), and contains all memory of the others. Utilization: share of time in which any kernel "
        "ran, as in nvidia-smi. SMs, tensor cores, memory bandwidth: how much of them was active. All are means over the selected "
        "GPUs, or the selected MIG device, that report the value. High utilization with little activity: the GPU is mostly waiting.",
        [
            p.ranged(" or ".join(f"{q.total(f'{kind}_used_bytes{{{GPU}}}')} / {q.total(q.usable(GPU, prefix=kind))}" for kind in KINDS), "memory used"),
            p.ranged(f"{q.total(q.needed(GPU))} / {q.total(q.usable(GPU))}", "memory needed"),
            p.ranged(f"avg({q.once(f'gpu_utilization_ratio{{{GPU}}}')})", "utilization"),
            *(
                p.ranged(f"avg({q.once(q.whole(active(counter, GPU), GPU))}) or avg({q.once(active(counter, GPU, prefix='gpu_mig'))})", name)
                for name, counter in (("SMs", SM), ("tensor cores", TENSOR), ("memory bandwidth", BANDWIDTH))
            ),
        ],
        unit=p.RATIO,
        max=1,
        size=(24, 10),
        legend="right",
        calcs=p.LAST_AND_MAX,
        overrides=COLORS,
        empty="No selected GPU reports its memory.",
    ),
    share(
        "SM activity",
        "Share of the SMs that were active, averaged over time: for each GPU, or for its MIG devices if there are any. "
        "No line: not measured on this GPU.",
        SM,
    ),
    share(
        "Memory bandwidth",
        "Share of the peak memory bandwidth that was used, averaged over time: for each GPU, or for its MIG devices if "
        "there are any. Near 1, the memory bandwidth limits the work. No line: not measured on this GPU.",
        BANDWIDTH,
    ),
    share(
        "Tensor core activity",
        "Activity of the tensor cores as a share of their peak: for each GPU, or for its MIG devices if there are any. "
        "No line: not measured on this GPU.",
        TENSOR,
    ),
]
OWN = "max by (cluster, instance, gpu, uuid, mig_uuid, workload)"
ON_GPU += [
    t.table(
        "Workloads that have a GPU to themselves",
        "Activity of the GPU or MIG device on which the workload is the only one, over the last minute or longer. The "
        "activity of a device that several workloads share is attributed to none of them, and is left out. Busy: share "
        "of time in which any kernel ran; not reported under MIG.",
        [
            f"{OWN} (gpu_workload_memory_used_bytes{{{GPU}}} and on (cluster, instance, uuid, mig_uuid, workload)"
            f" {own(SM, GPU)})",
            f"{OWN} (max by (cluster, instance, uuid) (avg_over_time(gpu_utilization_ratio{{{GPU}}}[{STEP}])) * on (cluster, instance, uuid) group_right ()"
            f" {own(SM, GPU)} ^ 0)",
            *(own(counter, GPU) for counter in (SM, TENSOR, BANDWIDTH)),
        ],
        [
            t.workload_column(),
            t.column("instance", "Node", width=85),
            t.column("gpu", "GPU", width=50),
            t.column("mig_uuid", "MIG device"),
            t.column("Value #A", "Memory", p.BYTES, width=95),
            *(
                t.column(f"Value #{letter}", title, p.RATIO, 135, decimals=0)
                for letter, title in (("B", "Busy"), ("C", "SMs"), ("D", "Tensor cores"), ("E", "Bandwidth"))
            ),
        ],
        size=(24, 7),
        empty=ALONE_ONLY,
        sort="Memory",
    ),
    traffic(
        "PCIe traffic",
        "Data between the host and the selected GPUs, in bytes per second as counted by the GPUs. Received: from the host "
        "to the GPU.",
        [("pcie", "")],
    ),
    traffic(
        "NVLink and C2C traffic",
        "Data over the NVLinks of the selected GPUs to other GPUs and switches, and over the C2C link to the CPU of a "
        "superchip, in bytes per second as counted by the GPUs.",
        [("nvlink", "NVLink "), ("c2c", "C2C ")],
    ),
]


def workload_share(title, description, counter):
    return p.series(
        title,
        description + " Only for workloads that have a GPU or MIG device to themselves; the mean if there are several.",
        [
            p.ranged(
                f"avg by (cluster, instance, workload) ({own(counter, WORKLOAD)})",
                "{{instance}} · {{workload}}",
            )
        ],
        unit=p.RATIO,
        max=1,
        size=(8, 9),
        fill=0,
        calcs=p.LAST_AND_MAX,
        empty=ALONE_ONLY,
    )


ON_WORKLOADS = [
    workload_share("SM activity", "Share of the GPU's SMs that were active, averaged over time.", SM),
    workload_share("Memory bandwidth", "Share of the peak memory bandwidth used, averaged over time.", BANDWIDTH),
    workload_share("Tensor core activity", "Activity of the tensor cores as a share of their peak.", TENSOR),
]
