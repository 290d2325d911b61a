"""PromQL that several panels share. It uses only families from docs/metrics.md, so no recording rule is needed, with two
exceptions: right-sizing reads recorded maxima for the time before the selected range, and the sums over time of namespaces and of
idle memory are those of recorded series.

Invariants: every selector takes the dashboard's variables as regular expressions. "All" is `.*`, which also matches series
without the label, so neither a cluster label nor Kubernetes is needed. A sum or a count is over one series of each device, so that it
stays the same if two jobs scrape the same exporters, if they call a node by two names, or if the server has the series of two replicas.
"""

# Selectors for a panel's series. BOARD is the physical GPU; GPU is the GPU or, if one is chosen, its MIG device.
NODE = 'cluster=~"$cluster",job=~"$job",instance=~"$instance"'
BOARD = NODE + ',uuid=~"$gpu"'
GPU = BOARD + ',mig_uuid=~"$mig"'
WORKLOAD = NODE + ',namespace=~"$namespace",workload=~"$workload"'
# Of the selected workloads, those with the highest peaks, those that grew the most, and the nodes of the former. The dashboard finds
# them once, so that queries over time read only them.
RUN = WORKLOAD + ',workload=~"$run"'
GROWING = WORKLOAD + ',workload=~"$growing"'
AT = NODE + ',instance=~"$at"'
NAMESPACE = NODE + ',namespace=~"$namespace"'


def of_rules(select):
    """The selector for recorded series and alerts: they have no job, except for the alerts about the scrapes of a job."""
    return select.replace('job=~"$job"', 'job=~"$job|"')


# Labels that identify a GPU or a device (a GPU or a MIG device), and all labels that are shown for a device.
GPU_KEY = "cluster, instance, gpu, uuid"
DEVICE_KEY = GPU_KEY + ", mig_uuid"
DEVICE = DEVICE_KEY + ", gpu_instance, profile"
POD_KEY = "cluster, instance, namespace, pod, container"
# A workload on one device, and a workload on one node.
HOLDER = f"{DEVICE_KEY}, workload, kind"
OWNER = "cluster, instance, workload"
# What a sum or a count is over: a device, and a workload or a process on it, whatever its node is called.
UNIQUE = "cluster, uuid, mig_uuid"
HOLDING = f"{UNIQUE}, workload, kind"
RUNNING = f"{UNIQUE}, pid, process"
ALLOCATION = f"{UNIQUE}, namespace, pod, container, resource, replica"
# Of a claim (dynamic resource allocation), a device counts once, whichever containers may use it.
CLAIMED = f"{UNIQUE}, claim_namespace, claim"
# At least the time between two points of a graph.
STEP = "$__rate_interval"
# Prefixes of the families for a GPU and for a MIG device.
WHOLE, PART = "gpu_memory", "gpu_mig_memory"
USED_BY, PEAK_BY = "gpu_workload_memory_used_bytes", "gpu_workload_memory_window_peak_bytes"
GIB = 1 << 30


def total(expression, by="", key=UNIQUE):
    """The sum by the labels `by`, over one series for each device and label."""
    inner = f"max by ({key}{', ' if by else ''}{by}) ({expression})"
    return f"sum by ({by}) ({inner})" if by else f"sum({inner})"


def once(expression):
    """One series for each device."""
    return f"max by ({UNIQUE}) ({expression})"


def newest(family, select, time=None):
    """The current value or, with a `time`, the last value in that range, even for a GPU that is no longer reported."""
    return f"last_over_time({family}{{{select}}}[{time}])" if time else f"{family}{{{select}}}"


def free(select, time=None, prefix=WHOLE):
    """What can be allocated now. A GPU that shares the memory of the machine has what the machine can still give."""
    own = newest(f"{prefix}_free_bytes", select, time)
    return f"({own} or {newest(f'{prefix}_available_bytes', select, time)})" if prefix == WHOLE else own


def usable(select, time=None, prefix=WHOLE):
    """Allocatable memory: total minus reserved. Correct even if the driver does not report reserved memory. Of the memory that a
    GPU shares with the CPU: what the processes on the GPU hold or can still allocate."""
    return f"({newest(f'{prefix}_used_bytes', select, time)} + {free(select, time, prefix)})"


def rise(counter, time):
    """The rise in `time` of a counter whose series begins with its first event, which increase() does not see."""
    return f"(last_over_time({counter}[{time}]) unless {counter} offset {time} or increase({counter}[{time}]))"


def xids(select, time):
    """The errors of each Xid code in `time`."""
    return f"({rise(f'gpu_xid_errors_total{{{select}}}', time)} > 0)"


def highest(family, select, time):
    return f"max_over_time({family}{{{select}}}[{time}])"


def peak(select, time=None, prefix=WHOLE):
    """The highest use in the exporter's current window, or in `time`. A graph uses STEP, because otherwise it would
    not show the window peaks between two of its points."""
    family = f"{prefix}_window_peak_bytes"
    return highest(family, select, time) if time else f"{family}{{{select}}}"


def cut(select):
    """GPUs that are partitioned into MIG devices, as in the alerts."""
    return f"present_over_time(gpu_mig_memory_total_bytes{{{select}}}[10m])"


def whole(expression, select):
    """The GPUs of `expression` that are not partitioned into MIG devices."""
    return f"{expression} unless on (cluster, instance, uuid) {cut(select)}"


def each_device(expression, select):
    """Each GPU or, if it is partitioned, its MIG devices instead, as in the alerts. `expression` takes the prefix of
    the families."""
    return f"(max by ({DEVICE}) ({whole(expression(WHOLE), select)}) or max by ({DEVICE}) ({expression(PART)}))"


def used_ratio(select):
    """Use of each device as a share of its allocatable memory."""
    return each_device(lambda prefix: f"({prefix}_used_bytes{{{select}}} / {usable(select, prefix=prefix)})", select)


def peak_ratio(select, time=None):
    """The highest use of each device (see `peak`) as a share of its allocatable memory."""
    return each_device(lambda prefix: f"({peak(select, time, prefix)} / {usable(select, time, prefix)})", select)


def never_needed(select, time):
    """How much memory of each device remained free at its highest use in `time`."""
    return each_device(lambda prefix: f"({usable(select, time, prefix)} - {peak(select, time, prefix)})", select)


def needed(select):
    """Needed memory of each GPU, where at least one of them has a process that reports about its allocator. All memory of the others
    counts as needed."""
    reported = f"gpu_memory_needed_bytes{{{select}}}"
    return f"max by ({GPU_KEY}) ({reported} or gpu_memory_used_bytes{{{select}}}) and on () count({reported})"


def unattributed(select):
    return each_device(lambda prefix: f"{prefix}_unattributed_bytes{{{select}}}", select)


def device_usable(select, time=None):
    """Allocatable memory of each GPU and, under MIG, of each of its devices."""
    sizes = (f"max by ({DEVICE_KEY}) {usable(select, time, prefix)}" for prefix in (WHOLE, PART))
    return f"({' or '.join(sizes)})"


def looked_back(level, family, select):
    """The highest value within $lookback, for use inside `max by`. Values before the selected time range come from
    recorded one-hour maxima, two per hour, because a week of the family itself is 40,000 samples per series."""
    recorded = highest(f"{level}:{family}:max1h", of_rules(select), "$lookback")
    return f'({highest(family, select, "$__range")} or label_replace({recorded}, "from", "recorded", "", ""))'


def owner(labels, select, time=None):
    """Appended to a process family: adds `labels` of gpu_process_info. It keeps one series for each process, because
    the series of a process that has ended stays for a while, and the pid may be in use again."""
    key = f"{DEVICE_KEY}, pid, process"
    return f"* on ({key}) group_left ({labels}) topk by ({key}) (1, {newest('gpu_process_info', select, time)})"


def processes(family, select, time=None):
    """One series for each process."""
    return f"max by ({DEVICE_KEY}, pid, process) ({newest(family, select, time)})"


def idle_holders(select):
    """Memory of processes that have been idle for $idle seconds. Both families have the same labels."""
    return (
        f"max by ({DEVICE_KEY}, pid, process)"
        f" (gpu_process_memory_used_bytes{{{select}}} and gpu_process_idle_seconds{{{select}}} >= $idle)"
    )


def slack(select):
    """What the allocators of each workload reserved and do not use, of the processes that report it."""
    names = (f"gpu_workload_allocator_{kind}_bytes{{{select}}}" for kind in ("reserved", "allocated"))
    return " - ".join(names)


def pod_allocations(select):
    """The kubelet's allocations, without those of Slurm's jobs."""
    return f'gpu_allocation_info{{{select},pod!=""}}'


def allocations(select):
    """The kubelet's allocations for which it is known whether they are used: the GPU answers, and the exporter follows
    the API server, without which it could not assign processes to pods."""
    return (
        f"({pod_allocations(select)} and on (cluster, instance, uuid) gpu_up{{{NODE}}} == 1"
        f" and on (cluster, instance) vram_exporter_kubernetes_api_up{{{NODE}}} == 1)"
    )


def by_kind(of, select):
    """What `of` gives for the selector, for the devices of device plugins and for those of claims."""
    return [of(f'{select},claim{kind}""') for kind in ("=", "!=")]


def each_allocation(plugged, claimed, by=""):
    """One series for each allocation, with the labels `by`."""
    return f"(group by ({ALLOCATION}) ({plugged}) or group by ({CLAIMED}{', ' if by else ''}{by}) ({claimed}))"


def unused_allocations(select):
    """The known allocations (see `allocations`) whose container has no process on any GPU, and those of claims of which no container
    has one."""
    plugged, claimed = by_kind(lambda select: of_workload(allocations(select)), select)
    processes = f"on ({POD_KEY}) gpu_workload_processes{{{NODE}}}"
    used = f'on (cluster, instance, claim_namespace, claim) (gpu_allocation_info{{{NODE},claim!=""}} and {processes})'
    return f"({plugged} unless {processes})", f"({claimed} unless {used})"


def count_unused(select):
    """0 if every allocation to a selected workload is used, absent if no allocation is known."""
    return f"count({each_allocation(*unused_allocations(select))}) or 0 * count({of_workload(allocations(select))})"


def largest(family, select, by, number, time="$__range"):
    """The `number` series with the largest values over the whole selected time range, for `and on` or `unless on`. With
    `@ end()` the selection is the same at every point of a graph."""
    return f"topk({number}, {total(f'max_over_time({family}{{{select}}}[{time}] @ end())', by, f'{DEVICE_KEY}, kind')})"


def top_holders(number, select):
    """The `number` workloads with the highest peaks in the selected time range, each on its device."""
    return f"topk({number}, max by ({HOLDER}) ({highest(PEAK_BY, select, '$__range')}))"


def of_holders(holders, expression):
    """`expression` for these workloads."""
    return f"max by ({HOLDER}) ({expression}) and on ({HOLDER}) {holders}"


def idle_for(select):
    """The time since a process of each workload last worked, of the recording rules, whose series exists every four minutes."""
    return f"last_over_time(workload:gpu_process_idle_seconds:min{{{of_rules(select)}}}[5m])"


def linked(expression):
    """Adds two labels. `device` names the GPU or MIG device: "2", or "0 · 1g.10gb #4". `mig` is for links: the MIG device, or
    "All", which Grafana takes for all values of a variable."""
    copied = f'label_replace({expression}, "mig", "$1", "mig_uuid", "(.*)")'
    every = f'label_replace({copied}, "mig", "All", "mig", "")'
    joined = f'label_join({every}, "device", " ", "gpu", "profile", "gpu_instance")'
    part = f'label_replace({joined}, "device", "$1 · $2 #$3", "device", "([^ ]+) ([^ ]+) ([^ ]+)")'
    return f'label_replace({part}, "device", "$1", "device", "([^ ]*) +")'


MIG_NAMES = "group by (cluster, instance, uuid, mig_uuid, gpu_instance, profile) (last_over_time(gpu_mig_memory_total_bytes"


def named_device(expression, select, key=HOLDER):
    """`expression`, with one series for each `key`, with the labels of `linked`."""
    part = (
        f"{expression} * on (cluster, instance, uuid, mig_uuid) group_left (gpu_instance, profile)"
        f" {MIG_NAMES}{{{select}}}[$__range]))"
    )
    return linked(f"(group by ({key}, gpu_instance, profile) ({part}) or group by ({key}) ({expression} unless on (mig_uuid)"
                  f" group by (mig_uuid) (last_over_time(gpu_mig_memory_total_bytes{{{select}}}[$__range]))))")


def of_workload(allocations):
    """The allocations to the selected workloads: their series have no workload, but a workload of a pod has its names."""
    named = f'label_join({allocations}, "workload", "/", "namespace", "pod", "container")'
    marked = f'label_replace({named}, "chosen", "yes", "workload", "$workload")'
    return f'({marked} and on (chosen) label_replace(vector(1), "chosen", "yes", "", ""))'


def gib_hours(expression):
    """The bytes of `expression`, summed over the selected time range, in GiB-hours. With the offset, a range whose ends are multiples of
    the step does not contain both of them, which would be a step too many."""
    return f"sum_over_time(({expression})[$__range:$__interval] offset 1ms) * $__interval_ms / 3600000 / {GIB}"
