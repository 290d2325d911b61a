"""The expressions with which programs query dcgm-exporter's families in Prometheus. They are facts about these programs, except for the
window, which is short because the test is. For each: its name, the expression, and the machines for which it must return data. {window} is
replaced.

Sources: dashboard 12239 of grafana.com as dcgm-exporter's repository has it; OpenCost's package prom (allocation, device and saturation
queries, as of 2026); Kruize's performance profiles and metadata profiles for accelerators.
"""

IDLE, BUSY, MIG, SHARING = "idle", "busy", "mig", "sharing"
ALL = {IDLE, BUSY, MIG, SHARING}
# NVML reports no utilization for a GPU in MIG mode.
WHOLE = {IDLE, BUSY, SHARING}
# Machines on which a container has a device.
PODS = {MIG, SHARING}

DASHBOARD = [
    ("temperature", 'DCGM_FI_DEV_GPU_TEMP{instance=~"$instance", gpu=~"$gpu"}', ALL),
    ("average temperature", 'avg(DCGM_FI_DEV_GPU_TEMP{instance=~"$instance", gpu=~"$gpu"})', ALL),
    ("power", 'DCGM_FI_DEV_POWER_USAGE{instance=~"$instance", gpu=~"$gpu"}', ALL),
    ("total power", 'sum(DCGM_FI_DEV_POWER_USAGE{instance=~"$instance", gpu=~"$gpu"})', ALL),
    ("clocks", 'DCGM_FI_DEV_SM_CLOCK{instance=~"$instance", gpu=~"$gpu"} * 1000000', ALL),
    ("utilization", 'DCGM_FI_DEV_GPU_UTIL{instance=~"$instance", gpu=~"$gpu"}', WHOLE),
    ("used memory", 'DCGM_FI_DEV_FB_USED{instance=~"$instance", gpu=~"$gpu"}', ALL),
    ("tensor activity", 'DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{instance=~"$instance", gpu=~"$gpu"}', ALL),
]

AUTOSCALING = [
    ("utilization by pod", 'avg by (namespace, pod) (DCGM_FI_DEV_GPU_UTIL{instance="$instance", pod!=""})', {SHARING}),
    ("memory by pod", 'sum by (namespace, pod) (DCGM_FI_DEV_FB_USED{instance="$instance", pod!=""})', PODS),
    ("tensor activity by pod", 'avg by (namespace, pod) (DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{instance="$instance", pod!=""})', PODS),
    ("memory of a deployment", 'avg(DCGM_FI_DEV_FB_USED{instance="$instance", pod=~"serve-.*"})', {SHARING}),
]

_DEVICE = "device, modelName, UUID, GPU_I_PROFILE, GPU_I_ID, cluster_id"
_CONTAINER = f"container, pod, namespace, {_DEVICE}, uid"
_HELD = 'container!="", instance="$instance"'


def _over_time(kind, family, labels, selector):
    return f"{kind}({kind}_over_time({family}{{{selector}}}[{{window}}])) by ({labels})"


OPENCOST = [
    ("usage, average", _over_time("avg", "DCGM_FI_PROF_GR_ENGINE_ACTIVE", "container, pod, namespace, uid, cluster_id", _HELD), PODS),
    ("usage, highest", _over_time("max", "DCGM_FI_PROF_GR_ENGINE_ACTIVE", "container, pod, namespace, uid, cluster_id", _HELD), PODS),
    ("model and UUID", _over_time("avg", "DCGM_FI_DEV_DEC_UTIL", "container, pod, namespace, device, modelName, UUID, uid, cluster_id", _HELD), {SHARING}),
    ("power of the device", _over_time("avg", "DCGM_FI_DEV_POWER_USAGE", _DEVICE, 'instance="$instance"'), ALL),
    ("temperature of the device", _over_time("avg", "DCGM_FI_DEV_GPU_TEMP", _DEVICE, 'instance="$instance"'), ALL),
    ("usage of the device, average", _over_time("avg", "DCGM_FI_PROF_GR_ENGINE_ACTIVE", _DEVICE, 'instance="$instance"'), ALL),
    ("usage of the device, highest", _over_time("max", "DCGM_FI_PROF_GR_ENGINE_ACTIVE", _DEVICE, 'instance="$instance"'), ALL),
    ("memory of the device, average", _over_time("avg", "DCGM_FI_DEV_FB_USED", _DEVICE, 'instance="$instance"'), ALL),
    ("memory of the device, highest", _over_time("max", "DCGM_FI_DEV_FB_USED", _DEVICE, 'instance="$instance"'), ALL),
    *(
        (
            f"memory ratio, {kind}",
            _over_time(kind, "DCGM_FI_DEV_FB_USED", _CONTAINER, _HELD)
            + " / ("
            + _over_time("avg", "DCGM_FI_DEV_FB_USED", _CONTAINER, _HELD)
            + " + "
            + _over_time("avg", "DCGM_FI_DEV_FB_FREE", _CONTAINER, _HELD)
            + ")",
            PODS,
        )
        for kind in ("avg", "max")
    ),
    (
        "memory pressure",
        f"avg(avg_over_time(((DCGM_FI_DEV_FB_USED{{{_HELD}}} / (DCGM_FI_DEV_FB_USED{{{_HELD}}} + DCGM_FI_DEV_FB_FREE{{{_HELD}}}))"
        f" >= bool 0.9)[{{window}}:2s])) by ({_CONTAINER})",
        PODS,
    ),
    ("Xid errors", f"sum(changes(DCGM_FI_DEV_XID_ERRORS{{{_HELD}}}[{{window}}])) by ({_CONTAINER})", {SHARING}),
    (
        "share of throttled samples",
        f"avg(avg_over_time(((floor(DCGM_FI_DEV_CLOCK_THROTTLE_REASONS{{{_HELD}}} / 4)) % 2)[{{window}}:2s])) by ({_CONTAINER})",
        PODS,
    ),
    *(
        (f"{what}, {kind}", _over_time(kind, family, _CONTAINER, _HELD), PODS)
        for what, family, kinds in (
            ("DRAM", "DCGM_FI_PROF_DRAM_ACTIVE", ("avg", "max")),
            ("SM", "DCGM_FI_PROF_SM_ACTIVE", ("avg",)),
            ("occupancy", "DCGM_FI_PROF_SM_OCCUPANCY", ("avg",)),
        )
        for kind in kinds
    ),
    *(
        (f"{family}", f"avg(rate({family}{{{_HELD}}}[{{window}}])) by ({_CONTAINER})", PODS)
        for family in ("DCGM_FI_PROF_PCIE_TX_BYTES", "DCGM_FI_PROF_PCIE_RX_BYTES")
    ),
]

_NAMED = 'exported_namespace!="", exported_container!="", exported_pod!="", instance="$instance"'
_RENAMED = "modelName, exported_container, exported_namespace, exported_pod, Hostname"
_PROFILES = [("DCGM_FI_DEV_GPU_UTIL", _RENAMED, {SHARING}), ("DCGM_FI_DEV_MEM_COPY_UTIL", _RENAMED, {SHARING})]
_PROFILES += [("DCGM_FI_DEV_FB_USED", f"GPU_I_PROFILE, {_RENAMED}", PODS)]

KRUIZE = [
    (f"metadata, {family}, {kind}", _over_time(kind, family, labels, _NAMED), machines)
    for family, labels, machines in _PROFILES
    for kind in ("min", "max", "avg")
]
KRUIZE += [
    (
        f"container, {family}, {kind}",
        f"{kind} by (Hostname, device, modelName, UUID, exported_container, exported_namespace)"
        f' ({kind}_over_time({family}{{exported_namespace="team", exported_container=~"main|vllm", instance="$instance"}}[{{window}}]))',
        {SHARING},
    )
    for family in ("DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_MEM_COPY_UTIL")
    for kind in ("avg", "min", "max")
]
KRUIZE += [
    (
        f"memory by UUID, {kind}",
        f"{kind} by (Hostname, device, GPU_I_PROFILE, modelName, UUID)"
        f' ({kind}_over_time(DCGM_FI_DEV_FB_USED{{UUID=~"GPU-.*", instance="$instance"}}[{{window}}]))',
        ALL,
    )
    for kind in ("avg", "max", "min")
]

# The program, its expressions, and the job whose labels it expects.
PROGRAMS = [
    ("dashboard 12239", DASHBOARD, "honored"),
    ("HPA and KEDA", AUTOSCALING, "honored"),
    ("OpenCost", OPENCOST, "honored"),
    ("Kruize", KRUIZE, "renamed"),
]
