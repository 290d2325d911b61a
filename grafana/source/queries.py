"""PromQL that several panels share. It uses only families from docs/metrics.md, so no recording rule is needed, except
that right-sizing reads recorded maxima for the time before the selected range.

Invariant: every selector takes the dashboard's variables as regular expressions. "All" is `.*`, which also matches
series without the label, so neither a cluster label nor Kubernetes is needed.
"""

# Selectors for a panel's series.
NODE = 'cluster=~"$cluster",instance=~"$instance"'
GPU = NODE + ',gpu=~"$gpu"'
WORKLOAD = GPU + ',namespace=~"$namespace",workload=~"$workload"'
NAMESPACE = GPU + ',namespace=~"$namespace"'

# Labels that identify a GPU or a device (a GPU or a MIG device), and all labels that are shown for a device.
GPU_KEY = "cluster, instance, gpu, uuid"
DEVICE_KEY = GPU_KEY + ", mig_uuid"
DEVICE = DEVICE_KEY + ", gpu_instance, profile"
POD_KEY = "cluster, instance, namespace, pod, container"
# At least the time between two points of a graph.
STEP = "$__rate_interval"
# Prefixes of the families for a GPU and for a MIG device.
WHOLE, PART = "gpu_memory", "gpu_mig_memory"


def newest(family, select, time=None):
    """The current value or, with a `time`, the last value in that range, even for a GPU that is no longer reported."""
    return f"last_over_time({family}{{{select}}}[{time}])" if time else f"{family}{{{select}}}"


def usable(select, time=None, prefix=WHOLE):
    """Allocatable memory: total minus reserved. Correct even if the driver does not report reserved memory."""
    return f"({newest(f'{prefix}_used_bytes', select, time)} + {newest(f'{prefix}_free_bytes', select, time)})"


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


def unattributed(select):
    return each_device(lambda prefix: f"{prefix}_unattributed_bytes{{{select}}}", select)


def device_free(select):
    """Free memory of each GPU and, under MIG, of each of its devices."""
    return (
        f"(max by ({DEVICE_KEY}) (gpu_memory_free_bytes{{{select}}})"
        f" or max by ({DEVICE_KEY}) (gpu_mig_memory_free_bytes{{{select}}}))"
    )


def device_usable(select, time=None):
    """Allocatable memory of each GPU and, under MIG, of each of its devices."""
    sizes = (f"max by ({DEVICE_KEY}) {usable(select, time, prefix)}" for prefix in (WHOLE, PART))
    return f"({' or '.join(sizes)})"


def looked_back(level, family, select):
    """The highest value within $lookback, for use inside `max by`. Values before the selected time range come from
    recorded one-hour maxima, two per hour, because a week of the family itself is 40,000 samples per series."""
    recorded = highest(f"{level}:{family}:max1h", select, "$lookback")
    return f'({highest(family, select, "$__range")} or label_replace({recorded}, "from", "recorded", "", ""))'


def owner(labels, select):
    """Appended to a process family: adds `labels` of gpu_process_info. It keeps one series for each process, because
    the series of a process that has ended stays for a while, and the pid may be in use again."""
    key = f"{DEVICE_KEY}, pid, process"
    return f"* on ({key}) group_left ({labels}) topk by ({key}) (1, gpu_process_info{{{select}}})"


def idle_holders(select):
    """Memory of processes that have been idle for $idle seconds. Both families have the same labels."""
    return f"(gpu_process_memory_used_bytes{{{select}}} and gpu_process_idle_seconds{{{select}}} >= $idle)"


def allocations(select):
    """The kubelet's allocations for which it is known whether they are used: the GPU answers, and the exporter follows
    the API server, without which it could not assign processes to pods."""
    return (
        f"(gpu_allocation_info{{{select}}} and on (cluster, instance, uuid) gpu_up == 1"
        " and on (cluster, instance) vram_exporter_kubernetes_api_up == 1)"
    )


def unused_allocations(select):
    """The known allocations (see `allocations`) whose container has no process on any GPU."""
    return f"({allocations(select)} unless on ({POD_KEY}) gpu_workload_processes)"


def count_unused(select):
    """0 if every allocation is used, absent if no allocation is known."""
    used = f"({allocations(select)} and on ({POD_KEY}) gpu_workload_processes)"
    return f"count({allocations(select)}) - (count({used}) or vector(0))"


def largest(family, select, by, time="$__range"):
    """The $top series with the largest values over the whole selected time range, for `and on` or `unless on`. With
    `@ end()` the selection is the same at every point of a graph."""
    return f"topk($top, sum by ({by}) (max_over_time({family}{{{select}}}[{time}] @ end())))"
