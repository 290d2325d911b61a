"""Workloads: who holds what and wastes what, each workload from its start to its end, growth, and right-sizing."""

from . import activity, budgets, calls, grid, incidents, links, panels as p, queries as q, runs, tables as t
from .queries import AT, DEVICE_KEY, GROWING as GROW, HOLDER, NAMESPACE, OWNER, PEAK_BY, POD_KEY, RUN, USED_BY, WORKLOAD
from .sizing import LISTED as EMPTIEST, SIZES

USED = f"{USED_BY}{{{WORKLOAD}}}"
NAME = "{{instance}} · {{workload}}"
SMALL = (4, 3)
# An idle workload is one whose processes have all been idle for $idle seconds. The rule's series exists every four minutes.
OF_WORKLOAD = q.owner("workload", WORKLOAD)
IDLE_RULE = f"workload:gpu_process_idle_seconds:min{{{q.of_rules(RUN)}}} >= $idle"
OVERVIEW = [
    p.stat(
        "Workloads",
        "Number of workloads that hold memory now: containers of pods, other containers, batch jobs, systemd units, "
        "users.",
        f"count(group by ({OWNER}) ({USED}))",
        size=SMALL,
        decimals=0,
        empty="none now",
    ),
    p.stat(
        "Taken",
        "Memory that all selected workloads hold now.",
        q.total(USED, key=q.HOLDING),
        unit=p.BYTES,
        size=SMALL,
        empty="none now",
        decimals=1,
    ),
    budgets.OVERVIEW,
    p.stat(
        "Idle",
        "Memory of processes that have not worked on the GPU for at least the time in `Idle after`. Unknown under MIG.",
        f"{q.total(f'{q.idle_holders(NAMESPACE)} {OF_WORKLOAD}', key=q.RUNNING)}"
        f" or 0 * count(gpu_process_idle_seconds{{{NAMESPACE}}} {OF_WORKLOAD})",
        unit=p.BYTES,
        thresholds=p.bad_from(1 << 30, "orange"),
        size=SMALL,
        empty="unknown",
        decimals=1,
    ),
    p.stat(
        "Unused",
        "Devices that the kubelet allocated to containers without a process on any GPU, and those of claims without one. "
        "Known only if the exporter uses both the kubelet and the API server.",
        q.count_unused(NAMESPACE),
        thresholds=p.bad_from(1, "orange"),
        size=SMALL,
        decimals=0,
        empty="unknown",
    ),
    p.stat(
        "Held",
        "Memory times the time for which it was held, of all selected workloads, in the selected time range.",
        f"sum({q.gib_hours(q.total(USED, key=q.HOLDING))})",
        unit=p.GIB_HOURS,
        size=SMALL,
        decimals=0,
        interval="5m",
        empty="none",
    ),
]


def named(expression, label, instead):
    """Sets an absent label to `instead`, so that every row has a name."""
    return f'label_replace({expression}, "{label}", "{instead}", "{label}", "")'


def recorded(name, minutes):
    """GiB-hours of a recorded namespace series that is evaluated every `minutes` minutes."""
    series = f'namespace:{name}{{cluster=~"$cluster",namespace=~"$namespace"}}'
    selected = f"group by (namespace) ({q.highest(PEAK_BY, WORKLOAD, '$__range')})"
    return f"max by (namespace) (sum_over_time({series}[$__range])) * {minutes} / 60 / {q.GIB} and on (namespace) {selected}"


def in_namespace(expression):
    """Adds the label `title`. The label `namespace` stays as it is, because links use it."""
    copied = f'label_replace({expression}, "title", "$1", "namespace", "(.+)")'
    return f'label_replace({copied}, "title", "outside of Kubernetes", "namespace", "")'


NAMESPACES = [
    t.table(
        "By namespace",
        "Allocated: devices and shares that the kubelet allocated, and each claim on a device. GPUs: devices in use. Budget: "
        "sum of the lowest budgets of the workloads that have one, the containers of one claim with all of it each. Taken: "
        "memory held now. Needed: taken without the slack that allocators report, – if none reports. Top peak: highest use of "
        "one device by one workload in the time range. Idle: held by processes that have not worked for `Idle after`. All held,"
        " All idle: memory times time in the range, and that which was idle, of the whole namespace whichever nodes and "
        "workloads are selected; they need the recording rules, in which a workload is idle after an hour.",
        [
            in_namespace(q.total(USED, "namespace", q.HOLDING)),
            in_namespace(
                f"count by (namespace)"
                f" {q.each_allocation(*q.by_kind(lambda select: q.of_workload(q.pod_allocations(select)), NAMESPACE), 'namespace')}"
            ),
            in_namespace(f"count by (namespace) (group by ({q.UNIQUE}, namespace) (gpu_workload_processes{{{WORKLOAD}}}))"),
            in_namespace(
                f"{q.total(USED, 'namespace', q.HOLDING)} - on (namespace) {q.total(q.slack(WORKLOAD), 'namespace', q.HOLDING)}"
            ),
            in_namespace(f"max by (namespace) ({q.highest(PEAK_BY, WORKLOAD, '$__range')})"),
            in_namespace(q.total(f"{q.idle_holders(NAMESPACE)} {q.owner('namespace', WORKLOAD)}", "namespace", q.RUNNING)),
            in_namespace(recorded("gpu_workload_memory_used_bytes:sum", 1)),
            in_namespace(recorded("gpu_workload_memory_idle_bytes:sum", 4)),
            # The budgets without a namespace are those outside of Kubernetes.
            in_namespace(q.total(budgets.in_namespaces(), "namespace", q.HOLDING)),
        ],
        [
            t.column("title", "Namespace", links=links.detail("workloads", "namespace")),
            # Without a namespace the link has an empty value, which selects what is outside of Kubernetes.
            ("namespace", {**t.NOT_SHOWN, "noValue": ""}),
            t.column("Value #B", "Allocated", p.COUNT, width=85, decimals=0),
            t.column("Value #C", "GPUs", p.COUNT, width=60, decimals=0),
            t.column("Value #I", "Budget", p.BYTES, width=95, decimals=1),
            t.column("Value #A", "Taken", p.BYTES, width=95, decimals=1),
            t.column("Value #D", "Needed", p.BYTES, width=95, decimals=1),
            t.column("Value #E", "Top peak", p.BYTES, width=95, decimals=1),
            t.column("Value #F", "Idle", p.BYTES, width=95, decimals=1),
            t.column("Value #G", "All held", p.GIB_HOURS, width=105, decimals=0),
            t.column("Value #H", "All idle", p.GIB_HOURS, width=105, decimals=0),
        ],
        size=(24, 7),
        empty="No workload holds memory.",
        sort="Taken",
    ),
]
PLUGGED, CLAIMED = q.unused_allocations(NAMESPACE)
UNUSED_DEVICES = (
    f"max by ({POD_KEY}, gpu, uuid, resource) ({PLUGGED})"
    f" or max by (cluster, instance, namespace, pod, gpu, uuid, claim) ({CLAIMED})"
)
PROCESS_USED = q.processes("gpu_process_memory_used_bytes", NAMESPACE)
OF_USER = q.owner("user", WORKLOAD)
USED_BY_RUN = f"{USED_BY}{{{RUN}}}"
ROWS = q.top_holders(t.rows(9), RUN)
HOLDERS = [
    t.table(
        "By workload",
        "Workloads with the highest peaks of the time range, on each GPU or MIG device. Taken: now; – means that the workload "
        "has ended. Slack: what its allocators reserved and do not use, if they report it. Idle for: time since the workload "
        "last worked, from the recording rules. Held, Held idle: memory times time in the range.",
        [
            q.of_holders(ROWS, USED_BY_RUN),
            ROWS,
            q.of_holders(ROWS, q.slack(RUN)),
            q.of_holders(ROWS, q.idle_for(RUN)),
            q.of_holders(ROWS, q.gib_hours(USED_BY_RUN)),
            q.of_holders(ROWS, q.gib_hours(f"{USED_BY_RUN} and on ({DEVICE_KEY}, workload) {IDLE_RULE}")),
            q.named_device(ROWS, AT),
        ],
        [
            t.workload_column(),
            t.column("kind", "Kind", width=92),
            t.column("instance", "Node", width=90, links=links.detail("gpu", "instance")),
            *t.device_columns()[1:],
            t.column("Value #A", "Taken", p.BYTES, width=82, decimals=1),
            t.column("Value #B", "Peak", p.BYTES, width=82, decimals=1),
            t.column("Value #C", "Slack", p.BYTES, width=82, decimals=1),
            t.column("Value #D", "Idle for", p.SECONDS, width=82, decimals=1),
            t.column("Value #E", "Held", p.GIB_HOURS, width=95, decimals=0),
            t.column("Value #F", "Held idle", p.GIB_HOURS, width=95, decimals=0),
        ],
        size=(24, 9),
        interval="5m",
        empty="No workload held memory in the selected time range.",
        sort="Peak",
    ),
    t.table(
        "By user",
        "Memory by the user of the processes; in containers this is often root. Taken: now. Idle: held by processes that "
        "have not worked for `Idle after`. Processes: those that hold memory.",
        [
            named(q.total(f"{PROCESS_USED} {OF_USER}", "user", q.RUNNING), "user", "unknown"),
            named(q.total(f"{q.idle_holders(NAMESPACE)} {OF_USER}", "user", q.RUNNING), "user", "unknown"),
            named(f"count by (user) (group by ({q.RUNNING}, user) ({PROCESS_USED} {OF_USER}))", "user", "unknown"),
        ],
        [
            t.column("user", "User"),
            t.column("Value #A", "Taken", p.BYTES, width=100, decimals=1),
            t.column("Value #B", "Idle", p.BYTES, width=100, decimals=1),
            t.column("Value #C", "Processes", p.COUNT, width=90, decimals=0),
        ],
        size=(12, 8),
        empty="No process holds memory, or the series with a PID are disabled (--process.series=false).",
        sort="Taken",
    ),
    t.ranking(
        "By kind of workload",
        "Memory held now by kind of workload: Kubernetes, other containers, batch jobs, systemd units or users.",
        named(q.total(USED, "kind", f"{q.UNIQUE}, workload"), "kind", "beyond the limit"),
        [t.column("kind", "Kind")],
        size=(12, 8),
        empty="No workload holds memory.",
    ),
]

PROCESS = f"{DEVICE_KEY}, pid, process, user, workload"
IDLE = f"gpu_process_idle_seconds{{{NAMESPACE}}} >= $idle"
UNUSED = [
    t.table(
        "Processes with idle memory",
        "Processes that hold memory and have not worked on the GPU for at least the time in `Idle after`. Under MIG "
        "the driver does not report when a process last worked.",
        [
            f"max by ({PROCESS}) ({q.idle_holders(NAMESPACE)} {q.owner('user, workload', WORKLOAD)})",
            f"max by ({PROCESS}) (({IDLE}) {q.owner('user, workload', WORKLOAD)})",
        ],
        [
            t.workload_column(),
            t.column("user", "User", width=85),
            t.column("process", "Process"),
            t.column("instance", "Node", width=130, links=links.detail("gpu", "instance")),
            t.column("gpu", "GPU", width=50, links=links.detail("gpu", "instance", gpu="uuid")),
            t.column("Value #A", "Memory", p.BYTES, width=95, decimals=1),
            t.column("Value #B", "Idle for", p.SECONDS, width=95, decimals=1),
            t.hidden("uuid"),
        ],
        size=(24, 7),
        empty="No workload is known to have held idle memory for this long. The driver does not report it under MIG.",
        sort="Memory",
    ),
    t.table(
        "Unused allocations",
        "Devices that the kubelet allocated to containers without a process on any GPU. A device of a claim has a row for each "
        "pod, if none of the claim's containers has a process. GPUs that do not answer are left out.",
        [UNUSED_DEVICES],
        [
            t.column("namespace", "Namespace"),
            t.column("pod", "Pod"),
            t.column("container", "Container"),
            t.column("resource", "Resource"),
            t.column("claim", "Claim"),
            t.column("instance", "Node", width=130, links=links.detail("gpu", "instance")),
            t.column("gpu", "GPU", width=50, links=links.detail("gpu", "instance", gpu="uuid")),
            t.hidden("uuid"),
        ],
        size=(24, 7),
        empty="No unused allocation is known. This needs an exporter that uses both the kubelet and the API server.",
    ),
]

GROWTH = f"deriv({USED_BY}{{{WORKLOAD}}}[$__range])"
FASTEST_GROWING = f"topk({t.rows(8)}, max by ({HOLDER}) ({GROWTH}) > 0 and on ({HOLDER}) {USED})"
FASTEST = grid.hidden_list(
    "growing",
    f"topk(8, max by (workload) ({GROWTH}) > 0)",
    "workload",
    "The 8 selected workloads that grew the most in the time range.",
)
FLOOR = f"sum by ({OWNER}) (max by ({HOLDER}) (min_over_time({USED_BY}{{{GROW}}}[5m])))"
GROWING = [
    p.series(
        "Lowest use of the fastest-growing workloads",
        "Lowest use in the last 5 minutes. A value that only rises indicates a leak. The value of a training loop is "
        "constant.",
        [p.ranged(FLOOR, NAME)],
        size=(12, 8),
        fill=0,
        interval="1m",
        calcs=p.LAST_AND_MAX,
        empty="No workload grew in the selected time range.",
    ),
    t.table(
        "Growth rate",
        "Growth of the memory of the workloads that hold some now, over the selected time range. Growth in the first minutes of a "
        "job is normal: select a time range without them. When a device will be full is on the Fleet dashboard.",
        [f"{FASTEST_GROWING} * 3600", q.named_device(FASTEST_GROWING, q.NODE)],
        [
            t.workload_column(),
            *t.device_columns(90),
            t.column("Value #A", "Mean per hour", p.BYTES, width=136, decimals=1),
        ],
        size=(12, 8),
        empty="No workload that holds memory now grew in the selected time range.",
        sort="Mean per hour",
    ),
]

DASHBOARD = grid.dashboard(
    "workloads",
    "Who holds and wastes memory, each workload from its start to its end, growth, and right-sizing.",
    [grid.NAMESPACE, grid.WORKLOAD, grid.IDLE, grid.LOOKBACK, grid.PORT, runs.LISTED, runs.NODES, FASTEST, EMPTIEST],
    # Two of these alerts have no `gpu` label.
    grid.alerts(
        "GpuProcessMemoryLeak|GpuMemoryHeldIdle|GpuMemoryOverReserved|GpuAllocatedUnused|GpuMemoryImbalance"
        "|GpuWorkloadOverBudget|GpuBudgetNeverNeeded",
        WORKLOAD,
        "warning",
        "info",
    ),
    [
        *OVERVIEW,
        *NAMESPACES,
        *runs.RUNS,
        grid.row("Held over time, and the neighbours"),
        *runs.OVER_TIME,
        incidents.incidents(AT, (12, 8), "Incidents on these GPUs", f" and on (cluster, instance, uuid) {runs.THEIR_GPUS}"),
        grid.row(calls.TITLE_ON_WORKLOADS, calls.ON_WORKLOADS),
        grid.row("Who holds what"),
        *HOLDERS,
        grid.row("Budgets"),
        *budgets.ON_WORKLOADS,
        grid.row("Waste"),
        *UNUSED,
        grid.row("Memory growth"),
        *GROWING,
        grid.row("Right-sizing"),
        *SIZES,
        *budgets.TO_GIVE_BACK,
        grid.row(activity.TITLE, activity.ON_WORKLOADS),
    ],
    time="now-6h",
)
