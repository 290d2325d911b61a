"""Workloads: current and peak memory by owner, idle memory, growth, and right-sizing."""

from . import activity, budgets, grid, panels as p, queries as q
from .queries import DEVICE_KEY, GPU, NAMESPACE, POD_KEY, WORKLOAD
from .sizing import KEY, PEAK_FAMILY, SIZES

USED_FAMILY = "gpu_workload_memory_used_bytes"
USED = f"{USED_FAMILY}{{{WORKLOAD}}}"
PEAK = f"{PEAK_FAMILY}{{{WORKLOAD}}}"
OWNER = "cluster, instance, workload"
NAME = "{{instance}} · {{workload}}"

OVERVIEW = [
    p.stat(
        "Workloads",
        "Number of workloads that hold memory now: containers of pods, other containers, batch jobs, systemd units, "
        "users.",
        f"count(group by ({OWNER}) ({USED}))",
        size=(8, 3),
        empty="none",
    ),
    p.stat(
        "Memory held",
        "Memory that all selected workloads hold now.",
        f"sum({USED})",
        unit=p.BYTES,
        size=(8, 3),
        empty="none",
        decimals=1,
    ),
    p.stat(
        "Largest peak in range",
        "Highest use of one workload on one GPU in the selected time range.",
        f"max({q.highest(PEAK_FAMILY, WORKLOAD, '$__range')})",
        unit=p.BYTES,
        size=(8, 3),
        empty="none",
        decimals=1,
    ),
    p.stat(
        "Idle memory",
        "Memory of processes that have not worked on the GPU for at least the time in `Idle after`.",
        f"sum((gpu_process_memory_used_bytes{{{NAMESPACE}}} * (gpu_process_idle_seconds{{{NAMESPACE}}} >= bool $idle))"
        f" {q.owner('workload', WORKLOAD)})",
        unit=p.BYTES,
        thresholds=p.bad_from(1 << 30, "orange"),
        size=(8, 3),
        empty="none known",
        decimals=1,
    ),
    p.stat(
        "Allocated but unused",
        "Devices that the kubelet allocated to containers without a process on any GPU. "
        "Known only if the exporter uses both the kubelet and the API server.",
        q.count_unused(NAMESPACE),
        thresholds=p.bad_from(1, "orange"),
        size=(8, 3),
        empty="unknown",
    ),
    p.stat(
        "Workloads over the series limit",
        'Workloads that the exporter leaves out because of its series limit. Their memory is in workload="other".',
        f"sum(vram_exporter_workload_series_dropped{{{GPU}}})",
        thresholds=p.bad_from(1, "orange"),
        size=(8, 3),
        empty="not reported",
    ),
]

LARGEST = f"and on ({OWNER}) {q.largest(PEAK_FAMILY, WORKLOAD, OWNER)}"
ROWS = f"topk($top, max by ({KEY}) ({q.highest(PEAK_FAMILY, WORKLOAD, '$__range')}))"


def row(expression):
    """`expression` for the workloads with the highest peaks on one device."""
    return f"max by ({KEY}) ({expression}) and on ({KEY}) {ROWS}"


def named(expression, label, instead):
    """Sets an absent label to `instead`, so that every bar has a name."""
    return f'label_replace({expression}, "{label}", "{instead}", "{label}", "")'


def allocator(kind):
    return f"sum by (cluster, instance, gpu, workload) (gpu_workload_allocator_{kind}_bytes{{{WORKLOAD}}})"


HOLDERS = [
    p.series(
        "Current memory",
        "Memory held by the workloads with the highest peaks in the time range, summed over their GPUs on a node.",
        [p.ranged(f"sum by ({OWNER}) ({USED}) {LARGEST}", NAME)],
        stack=True,
        size=(12, 11),
        calcs=p.LAST_AND_MAX,
        empty="No workload holds memory.",
    ),
    p.series(
        "Peak memory",
        "Window peak of each workload: the highest sum over its processes that the exporter sampled, summed over its "
        "GPUs on a node. It stays for a while after the workload has ended.",
        [p.ranged(f"sum by ({OWNER}) ({q.highest(PEAK_FAMILY, WORKLOAD, q.STEP)}) {LARGEST}", NAME)],
        size=(12, 11),
        fill=0,
        calcs=p.LAST_AND_MAX,
        empty="No workload held memory.",
    ),
    p.table(
        "Memory by workload",
        "Workloads with the highest peaks of the time range, for each GPU or MIG device. A workload that has ended "
        "has no current use; its peak is shown while the time range includes it.",
        [
            row(USED),
            row(PEAK),
            ROWS,
            row(f"gpu_workload_processes{{{WORKLOAD}}}"),
        ],
        [
            p.column("workload", "Workload"),
            p.column("kind", "Kind", width=105),
            p.column("instance", "Node", links=p.detail("gpu", "instance", "gpu")),
            p.column("gpu", "GPU", width=60),
            p.column("mig_uuid", "MIG device"),
            p.column("Value #A", "Current", p.BYTES, width=95),
            p.column("Value #B", "Window peak", p.BYTES, width=120),
            p.column("Value #C", "Peak in range", p.BYTES, width=130),
            p.column("Value #D", "Processes", width=95),
        ],
        empty="No workload held memory in the selected time range.",
        sort="Peak in range",
    ),
    p.table(
        "Needed by workload",
        "What the allocators of each workload reserved, what they use of it, and the difference, which could be given "
        "back. Only processes that report about their allocators are counted (docs/needed.md).",
        [allocator("reserved"), allocator("allocated"), f"{allocator('reserved')} - {allocator('allocated')}"],
        [
            p.column("workload", "Workload"),
            p.column("instance", "Node"),
            p.column("gpu", "GPU", width=60),
            p.column("Value #A", "Reserved", p.BYTES, width=110),
            p.column("Value #B", "Allocated", p.BYTES, width=110),
            p.column("Value #C", "Slack", p.BYTES, width=110),
        ],
        empty="No process reports about its allocator.",
        sort="Slack",
    ),
    p.ranking(
        "Memory by namespace",
        "Memory that the workloads of each namespace hold now.",
        named(f"topk($top, sum by (namespace) ({USED}))", "namespace", "outside of Kubernetes"),
        [p.column("namespace", "Namespace")],
        size=(8, 8),
        empty="No workload holds memory.",
    ),
    p.ranking(
        "Memory by workload kind",
        "Current memory by kind of workload: Kubernetes, other containers, batch jobs, systemd units or users.",
        named(f"sum by (kind) ({USED})", "kind", "beyond the limit"),
        [p.column("kind", "Kind")],
        size=(8, 8),
        empty="No workload holds memory.",
    ),
    p.ranking(
        "Memory by user",
        "Current memory by the user of the processes. In containers this is often root.",
        named(
            f"topk($top, sum by (user) (gpu_process_memory_used_bytes{{{NAMESPACE}}} {q.owner('user', WORKLOAD)}))",
            "user",
            "unknown",
        ),
        [p.column("user", "User")],
        size=(8, 8),
        empty="No process holds memory, or the series with a PID are disabled (--process.series=false).",
    ),
]

PROCESS = f"{DEVICE_KEY}, pid, process, user, workload"
IDLE = f"gpu_process_idle_seconds{{{NAMESPACE}}} >= $idle"
UNUSED = [
    p.table(
        "Processes with idle memory",
        "Processes that hold memory and have not worked on the GPU for at least the time in `Idle after`. Under MIG "
        "the driver does not report when a process last worked.",
        [
            f"max by ({PROCESS}) ({q.idle_holders(NAMESPACE)} {q.owner('user, workload', WORKLOAD)})",
            f"max by ({PROCESS}) (({IDLE}) {q.owner('user, workload', WORKLOAD)})",
        ],
        [
            p.column("workload", "Workload"),
            p.column("user", "User", width=90),
            p.column("process", "Process"),
            p.column("instance", "Node", links=p.detail("gpu", "instance", "gpu")),
            p.column("gpu", "GPU", width=55),
            p.column("Value #A", "Memory", p.BYTES, width=95),
            p.column("Value #B", "Idle for", p.SECONDS, width=95, decimals=1),
        ],
        size=(24, 7),
        empty="No workload is known to have held idle memory for this long. The driver does not report it under MIG.",
        sort="Memory",
    ),
    p.table(
        "Unused allocations",
        "Devices that the kubelet allocated to containers without a process on any GPU. GPUs that do not answer are "
        "left out.",
        [f"max by ({POD_KEY}, gpu, resource) ({q.unused_allocations(NAMESPACE)})"],
        [
            p.column("namespace", "Namespace"),
            p.column("pod", "Pod"),
            p.column("container", "Container"),
            p.column("resource", "Resource"),
            p.column("instance", "Node"),
            p.column("gpu", "GPU", width=55),
        ],
        size=(24, 7),
        empty="No unused allocation is known. This needs an exporter that uses both the kubelet and the API server.",
    ),
]

GROWTH = f"deriv({USED_FAMILY}{{{WORKLOAD}}}[$__range])"
FASTEST = f"topk($top, max by ({KEY}) ({GROWTH}) > 0)"
FLOOR = f"sum by ({OWNER}) (min_over_time({USED_FAMILY}{{{WORKLOAD}}}[5m]))"
GROWING = [
    p.series(
        "Lowest use of the fastest-growing workloads",
        "Lowest use in the last 5 minutes. A value that only rises indicates a leak. The value of a training loop is "
        "constant.",
        [
            p.ranged(
                f"{FLOOR} and on ({OWNER}) topk($top, sum by ({OWNER}) "
                f"(deriv({USED_FAMILY}{{{WORKLOAD}}}[$__range] @ end())) > 0)",
                NAME,
            )
        ],
        size=(12, 9),
        fill=0,
        calcs=p.LAST_AND_MAX,
        empty="No workload grew in the selected time range.",
    ),
    p.table(
        "Growth rate",
        "Growth of the memory over the selected time range, and the time until the device is full at this rate. "
        "Growth in the first minutes of a job is normal: select a time range without them.",
        [
            f"{FASTEST} * 3600",
            f"{q.device_free(GPU)} / on ({DEVICE_KEY}) group_right () {FASTEST}",
        ],
        [
            p.column("workload", "Workload"),
            p.column("instance", "Node", links=p.detail("gpu", "instance", "gpu")),
            p.column("gpu", "GPU", width=55),
            p.column("Value #A", "Per hour", p.BYTES, width=105),
            p.column("Value #B", "Full in", p.SECONDS, width=85, decimals=1),
        ],
        size=(12, 9),
        empty="No workload grew in the selected time range.",
        sort="Per hour",
    ),
]

DASHBOARD = grid.dashboard(
    "workloads",
    "Current and peak memory by owner, idle memory, growth, and right-sizing.",
    [grid.GPU, grid.NAMESPACE, grid.WORKLOAD, grid.TOP, grid.IDLE, grid.LOOKBACK],
    # Three of these alerts have no `gpu` label.
    grid.alerts(
        "GpuProcessMemoryLeak|GpuMemoryHeldIdle|GpuMemoryOverReserved|GpuAllocatedUnused|GpuMemoryImbalance"
        "|GpuWorkloadOverBudget|GpuBudgetNeverNeeded",
        WORKLOAD.replace('gpu=~"$gpu"', 'gpu=~"$gpu|"'),
        "warning",
        "info",
    ),
    [
        *OVERVIEW,
        grid.row("Memory use"),
        *HOLDERS,
        grid.row("Budgets"),
        *budgets.ON_WORKLOADS,
        grid.row(activity.TITLE),
        *activity.ON_WORKLOADS,
        grid.row("Held without use"),
        *UNUSED,
        grid.row("Memory growth"),
        *GROWING,
        grid.row("Right-sizing"),
        *SIZES,
        *budgets.TO_GIVE_BACK,
    ],
)
