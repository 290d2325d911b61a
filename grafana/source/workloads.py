"""Workloads: owners of memory now and at peak, idle memory, growth, and right-sizing."""

from . import grid, panels as p, queries as q
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
        "Workloads that hold memory now: containers of pods, other containers, batch jobs, systemd units, users.",
        f"count(group by ({OWNER}) ({USED}))",
        size=(8, 3),
        empty="none",
    ),
    p.stat(
        "Held by them",
        "Memory of all workloads chosen, now.",
        f"sum({USED})",
        unit=p.BYTES,
        size=(8, 3),
        empty="none",
        decimals=1,
    ),
    p.stat(
        "Largest peak in range",
        "Highest use of one workload on one GPU in the range shown.",
        f"max({q.highest(PEAK_FAMILY, WORKLOAD, '$__range')})",
        unit=p.BYTES,
        size=(8, 3),
        empty="none",
        decimals=1,
    ),
    p.stat(
        "Held idle",
        "Memory of processes that have not worked for as long as `Idle after` says.",
        f"sum((gpu_process_memory_used_bytes{{{NAMESPACE}}} * (gpu_process_idle_seconds{{{NAMESPACE}}} >= bool $idle))"
        f" {q.owner('workload', WORKLOAD)})",
        unit=p.BYTES,
        thresholds=p.bad_from(1 << 30, "orange"),
        size=(8, 3),
        empty="none known",
        decimals=1,
    ),
    p.stat(
        "Allocated, unused",
        "Devices that the kubelet handed to containers which have no process on any GPU. "
        "Known where the exporter asks both the kubelet and the API server.",
        q.count_unused(NAMESPACE),
        thresholds=p.bad_from(1, "orange"),
        size=(8, 3),
        empty="not known",
    ),
    p.stat(
        "Beyond the series limit",
        'Workloads that the exporter\'s limit on series does not name; their memory is in workload="other".',
        f"sum(vram_exporter_workload_series_dropped{{{GPU}}})",
        thresholds=p.bad_from(1, "orange"),
        size=(8, 3),
        empty="not reported",
    ),
]

LARGEST = f"and on ({OWNER}) {q.largest(PEAK_FAMILY, WORKLOAD, OWNER)}"
ROWS = f"topk($top, max by ({KEY}) ({q.highest(PEAK_FAMILY, WORKLOAD, '$__range')}))"


def row(expression):
    """Of the workloads with the highest peaks on one device."""
    return f"max by ({KEY}) ({expression}) and on ({KEY}) {ROWS}"


def named(expression, label, instead):
    """`instead` where the label is absent, so that no bar is without a name."""
    return f'label_replace({expression}, "{label}", "{instead}", "{label}", "")'


HOLDERS = [
    p.series(
        "Memory now",
        "What the workloads with the highest peaks of the range hold, over all their GPUs on a node.",
        [p.ranged(f"sum by ({OWNER}) ({USED}) {LARGEST}", NAME)],
        stack=True,
        size=(12, 11),
        calcs=p.LAST_AND_MAX,
        empty="No workload holds memory.",
    ),
    p.series(
        "Memory at peak",
        "Window peak of each workload: the highest sum over its processes that the exporter sampled, added up over its "
        "GPUs on a node. It stays for a while after the workload ended.",
        [p.ranged(f"sum by ({OWNER}) ({q.highest(PEAK_FAMILY, WORKLOAD, q.STEP)}) {LARGEST}", NAME)],
        size=(12, 11),
        fill=0,
        calcs=p.LAST_AND_MAX,
        empty="No workload held memory.",
    ),
    p.table(
        "Who holds memory",
        "Workloads on each GPU or MIG device, those with the highest peaks of the range. One that ended shows no "
        "present use, and its peak for as long as the range goes back.",
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
            p.column("Value #A", "Now", p.BYTES, width=95),
            p.column("Value #B", "Window peak", p.BYTES, width=120),
            p.column("Value #C", "Peak in range", p.BYTES, width=130),
            p.column("Value #D", "Processes", width=95),
        ],
        empty="No workload held memory in this range.",
        sort="Peak in range",
    ),
    p.ranking(
        "By namespace",
        "Memory that the workloads of each namespace hold now.",
        named(f"topk($top, sum by (namespace) ({USED}))", "namespace", "outside of Kubernetes"),
        [p.column("namespace", "Namespace")],
        size=(8, 8),
        empty="No workload holds memory.",
    ),
    p.ranking(
        "By kind",
        "Memory now by what the workloads are: Kubernetes, other containers, batch jobs, systemd units or users.",
        named(f"sum by (kind) ({USED})", "kind", "beyond the limit"),
        [p.column("kind", "Kind")],
        size=(8, 8),
        empty="No workload holds memory.",
    ),
    p.ranking(
        "By user",
        "Memory now by the user that the processes run as. In containers this is often root.",
        named(
            f"topk($top, sum by (user) (gpu_process_memory_used_bytes{{{NAMESPACE}}} {q.owner('user', WORKLOAD)}))",
            "user",
            "unknown",
        ),
        [p.column("user", "User")],
        size=(8, 8),
        empty="No process, or the families with a pid are switched off (--process.series=false).",
    ),
]

PROCESS = f"{DEVICE_KEY}, pid, process, user, workload"
IDLE = f"gpu_process_idle_seconds{{{NAMESPACE}}} >= $idle"
WASTED = [
    p.table(
        "Held idle",
        "Processes that hold memory and have not worked on the GPU for as long as `Idle after` says. Under MIG the "
        "driver does not report when a process last worked.",
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
            p.column("Value #A", "Holds", p.BYTES, width=95),
            p.column("Value #B", "Idle for", p.SECONDS, width=95, decimals=1),
        ],
        size=(24, 7),
        empty="No workload is known to hold idle memory for so long. The driver does not report it under MIG.",
        sort="Holds",
    ),
    p.table(
        "Allocated, unused",
        "What the kubelet handed to containers that have no process on any GPU. GPUs that do not answer are left out.",
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
        empty="Nothing is known to be allocated in vain; the exporter must ask both the kubelet and the API server.",
    ),
]

GROWTH = f"deriv({USED_FAMILY}{{{WORKLOAD}}}[$__range])"
FASTEST = f"topk($top, max by ({KEY}) ({GROWTH}) > 0)"
FLOOR = f"sum by ({OWNER}) (min_over_time({USED_FAMILY}{{{WORKLOAD}}}[5m]))"
GROWING = [
    p.series(
        "Floor of the fastest growing",
        "Lowest use of the last 5 minutes. A floor that only rises is a leak; that of a training loop is even.",
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
        empty="No workload grew in this range.",
    ),
    p.table(
        "Growth",
        "Slope of the memory over the range shown, and how long the free memory of the device lasts at that. The first "
        "minutes of a job are no growth to worry about: choose a range that leaves them out.",
        [
            f"{FASTEST} * 3600",
            f"{q.device_free(GPU)} / on ({DEVICE_KEY}) group_right () {FASTEST}",
        ],
        [
            p.column("workload", "Workload"),
            p.column("instance", "Node", links=p.detail("gpu", "instance", "gpu")),
            p.column("gpu", "GPU", width=55),
            p.column("Value #A", "Each hour", p.BYTES, width=105),
            p.column("Value #B", "Full in", p.SECONDS, width=85, decimals=1),
        ],
        size=(12, 9),
        empty="No workload grew in this range.",
        sort="Each hour",
    ),
]

DASHBOARD = grid.dashboard(
    "workloads",
    "Owners of memory now and at peak, idle memory, growth, and right-sizing.",
    [grid.GPU, grid.NAMESPACE, grid.WORKLOAD, grid.TOP, grid.IDLE, grid.LOOKBACK],
    # Two of these are of no one GPU.
    grid.alerts(
        "GpuProcessMemoryLeak|GpuMemoryHeldIdle|GpuAllocatedUnused|GpuMemoryImbalance",
        WORKLOAD.replace('gpu=~"$gpu"', 'gpu=~"$gpu|"'),
        "warning",
        "info",
    ),
    [
        *OVERVIEW,
        grid.row("Who holds memory"),
        *HOLDERS,
        grid.row("Held in vain"),
        *WASTED,
        grid.row("Growth"),
        *GROWING,
        grid.row("Right-sizing"),
        *SIZES,
    ],
)
