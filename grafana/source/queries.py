"""PromQL that several panels share. Only families of docs/metrics.md are named, so no recording rule is needed; but
right-sizing reads recorded maxima for what lies before the range shown.

Invariant: every selector takes the dashboard's variables as regular expressions. "All" is `.*`, which matches a series
without the label too: no cluster label and no Kubernetes are needed.
"""

# Which series a panel means.
NODE = 'cluster=~"$cluster",instance=~"$instance"'
GPU = NODE + ',gpu=~"$gpu"'
WORKLOAD = GPU + ',namespace=~"$namespace",workload=~"$workload"'
NAMESPACE = GPU + ',namespace=~"$namespace"'

# What a GPU and what a device (a GPU or a part of it under MIG) is known by, and what else a device is shown with.
GPU_KEY = "cluster, instance, gpu, uuid"
DEVICE_KEY = GPU_KEY + ", mig_uuid"
DEVICE = DEVICE_KEY + ", gpu_instance, profile"
POD_KEY = "cluster, instance, namespace, pod, container"
# Time that is never shorter than from a point of a graph to the next.
STEP = "$__rate_interval"
# Families of a GPU and of a MIG device begin so.
WHOLE, PART = "gpu_memory", "gpu_mig_memory"


def newest(family, select, time=None):
    """Now, or where a `time` is given the last value in it: also of a GPU that is gone."""
    return f"last_over_time({family}{{{select}}}[{time}])" if time else f"{family}{{{select}}}"


def usable(select, time=None, prefix=WHOLE):
    """Allocatable memory: total less reserved, correct also where the driver does not report reserved memory."""
    return f"({newest(f'{prefix}_used_bytes', select, time)} + {newest(f'{prefix}_free_bytes', select, time)})"


def highest(family, select, time):
    return f"max_over_time({family}{{{select}}}[{time}])"


def peak(select, time=None, prefix=WHOLE):
    """The highest use in the exporter's present window, or in `time`. A graph asks for STEP, or window peaks that lie
    between two of its points would not be drawn."""
    family = f"{prefix}_window_peak_bytes"
    return highest(family, select, time) if time else f"{family}{{{select}}}"


def cut(select):
    """GPUs that are cut into MIG devices, as the alerts know them."""
    return f"present_over_time(gpu_mig_memory_total_bytes{{{select}}}[10m])"


def whole(expression, select):
    """Of `expression`, the GPUs that are not cut into MIG devices."""
    return f"{expression} unless on (cluster, instance, uuid) {cut(select)}"


def each_device(expression, select):
    """Each GPU and, where it is cut into MIG devices, these instead of it: what the alerts judge. `expression` makes one
    of a prefix."""
    return f"(max by ({DEVICE}) ({whole(expression(WHOLE), select)}) or max by ({DEVICE}) ({expression(PART)}))"


def used_ratio(select):
    """Use of each device as a share of what can be allocated on it."""
    return each_device(lambda prefix: f"({prefix}_used_bytes{{{select}}} / {usable(select, prefix=prefix)})", select)


def peak_ratio(select, time=None):
    """The highest use of each device, see `peak`, as a share of what can be allocated on it."""
    return each_device(lambda prefix: f"({peak(select, time, prefix)} / {usable(select, time, prefix)})", select)


def never_needed(select, time):
    """What the highest use of each device in `time` left free."""
    return each_device(lambda prefix: f"({usable(select, time, prefix)} - {peak(select, time, prefix)})", select)


def unattributed(select):
    return each_device(lambda prefix: f"{prefix}_unattributed_bytes{{{select}}}", select)


def device_free(select):
    """Free memory of each GPU and, under MIG, of each device of it."""
    return (
        f"(max by ({DEVICE_KEY}) (gpu_memory_free_bytes{{{select}}})"
        f" or max by ({DEVICE_KEY}) (gpu_mig_memory_free_bytes{{{select}}}))"
    )


def device_usable(select, time=None):
    """What can be allocated on each GPU and, under MIG, on each device of it."""
    sizes = (f"max by ({DEVICE_KEY}) {usable(select, time, prefix)}" for prefix in (WHOLE, PART))
    return f"({' or '.join(sizes)})"


def looked_back(level, family, select):
    """The highest value as far back as $lookback, without keys: to be put into `max by`. What lies before the range
    shown comes from recorded maxima of an hour, two an hour: a week of the family itself is 40,000 samples a series."""
    recorded = highest(f"{level}:{family}:max1h", select, "$lookback")
    return f'({highest(family, select, "$__range")} or label_replace({recorded}, "from", "recorded", "", ""))'


def owner(labels, select):
    """To be written behind a process family: adds `labels` of gpu_process_info. One series for each process is kept,
    for a process that ended stays for a while, and its pid may be in use again."""
    key = f"{DEVICE_KEY}, pid, process"
    return f"* on ({key}) group_left ({labels}) topk by ({key}) (1, gpu_process_info{{{select}}})"


def idle_holders(select):
    """Memory of processes that have not worked for $idle seconds. Both families have the same labels."""
    return f"(gpu_process_memory_used_bytes{{{select}}} and gpu_process_idle_seconds{{{select}}} >= $idle)"


def allocations(select):
    """What the kubelet allocated, as far as its use is known: the GPU answers, and the API server is
    followed, without which no process is known to be a pod's."""
    return (
        f"(gpu_allocation_info{{{select}}} and on (cluster, instance, uuid) gpu_up == 1"
        " and on (cluster, instance) vram_exporter_kubernetes_api_up == 1)"
    )


def unused_allocations(select):
    """Of these, what containers hold that have no process on any GPU."""
    return f"({allocations(select)} unless on ({POD_KEY}) gpu_workload_processes)"


def count_unused(select):
    """0 where everything is used, absent where nothing is known."""
    used = f"({allocations(select)} and on ({POD_KEY}) gpu_workload_processes)"
    return f"count({allocations(select)}) - (count({used}) or vector(0))"


def largest(family, select, by, time="$__range"):
    """The $top largest over the whole range shown, for `and on` or `unless on`: `@ end()` makes the choice the same at
    every point of a graph."""
    return f"topk($top, sum by ({by}) (max_over_time({family}{{{select}}}[{time}] @ end())))"
