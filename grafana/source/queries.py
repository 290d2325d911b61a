"""PromQL that several panels share. Only families of docs/metrics.md are named, so no recording rule is needed.

Invariant: every selector takes the dashboard's variables as regular expressions. "All" is `.*`, which matches a series
without the label too: no cluster label and no Kubernetes are needed.
"""

# Which series a panel means.
NODE = 'cluster=~"$cluster",instance=~"$instance"'
GPU = NODE + ',gpu=~"$gpu"'
WORKLOAD = GPU + ',namespace=~"$namespace",workload=~"$workload"'
NAMESPACE = GPU + ',namespace=~"$namespace"'

# What a GPU and what a device (a GPU or a part of it under MIG) is known by.
GPU_KEY = "cluster, instance, gpu, uuid"
DEVICE_KEY = GPU_KEY + ", mig_uuid"
POD_KEY = "cluster, instance, namespace, pod, container"


def usable(select):
    """What can be allocated: total less reserved, right also where the driver does not tell what is reserved."""
    return f"(gpu_memory_used_bytes{{{select}}} + gpu_memory_free_bytes{{{select}}})"


def used_ratio(select):
    return f"(gpu_memory_used_bytes{{{select}}} / {usable(select)})"


def peak_ratio(select):
    """The highest use of the last window, as a share of what can be allocated."""
    return f"(gpu_memory_window_peak_bytes{{{select}}} / {usable(select)})"


def highest(family, select, time):
    return f"max_over_time({family}{{{select}}}[{time}])"


def device_free(select):
    """Free memory of each GPU and, under MIG, of each device of it."""
    return (
        f"(max by ({DEVICE_KEY}) (gpu_memory_free_bytes{{{select}}})"
        f" or max by ({DEVICE_KEY}) (gpu_mig_memory_free_bytes{{{select}}}))"
    )


def device_usable(select):
    """What can be allocated on each GPU and, under MIG, on each device of it."""
    mig = f"(gpu_mig_memory_used_bytes{{{select}}} + gpu_mig_memory_free_bytes{{{select}}})"
    return f"(max by ({DEVICE_KEY}) {usable(select)} or max by ({DEVICE_KEY}) {mig})"


def owner(labels, select):
    """To be written behind a process family: adds `labels` of gpu_process_info. One series for each process is kept,
    for a process that ended stays for a while, and its pid may be in use again."""
    key = f"{DEVICE_KEY}, pid, process"
    return f"* on ({key}) group_left ({labels}) topk by ({key}) (1, gpu_process_info{{{select}}})"


def idle_holders(select):
    """Memory of processes that have not worked for $idle seconds. Both families have the same labels."""
    return f"(gpu_process_memory_used_bytes{{{select}}} and gpu_process_idle_seconds{{{select}}} >= $idle)"


def allocations(select):
    """What the kubelet handed out, as far as it can be told whether it is used: the GPU answers, and the API server is
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
