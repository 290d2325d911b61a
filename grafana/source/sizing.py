"""Right-sizing on the Workloads dashboard."""

from . import panels as p, queries as q
from .queries import DEVICE, DEVICE_KEY, GPU, WORKLOAD

PEAK_FAMILY = "gpu_workload_memory_window_peak_bytes"
KEY = f"{DEVICE_KEY}, workload, kind"
# For each size of MIG profile, its smallest share of GPU memory on any model, taken from its shares on the H200 and the A100.
EIGHTH, QUARTER, HALF = 0.11, 0.23, 0.49
SIZE = q.device_usable(GPU, "$__range")
NEEDED = f"max by ({KEY}) ({q.looked_back('device', PEAK_FAMILY, WORKLOAD)})"
# The workloads with the most unused memory first.
UNNEEDED = f"topk($top, {SIZE} - on ({DEVICE_KEY}) group_right () {NEEDED})"
SHARE = f"1 - {UNNEEDED} / on ({DEVICE_KEY}) group_left () {SIZE}"


def looked_back(prefix, level):
    return f"max by ({DEVICE}) ({q.looked_back(level, f'{prefix}_window_peak_bytes', GPU)})"


def of_devices(expression):
    """`expression` takes the allocatable memory of each device and its highest peak within $lookback."""
    levels = {q.WHOLE: "gpu", q.PART: "mig"}
    return q.each_device(
        lambda prefix: expression(
            f"max by ({DEVICE}) ({q.usable(GPU, '$__range', prefix)})", looked_back(prefix, levels[prefix])
        ),
        GPU,
    )


DEVICE_SHARE = of_devices(lambda size, peak: f"({peak} / {size})")


def between(low, high):
    upper = f" * ({DEVICE_SHARE} <= bool {high})" if high else ""
    return f"sum(({DEVICE_SHARE} > bool {low}){upper})"


SIZES = [
    p.table(
        "Right-sizing: workloads",
        "Memory of the GPU or MIG device of each workload that remained free even at the workload's highest peak "
        "within `Lookback`, in descending order. Beyond the selected time range this needs the recording rules. "
        "Usable: allocatable memory. Peak share: highest peak as a share of allocatable memory. Sufficient profile: "
        "the smallest MIG profile whose memory holds the peak, on GPUs that support MIG; leave some headroom. "
        "Profiles also differ in compute, and not every model has all of them.",
        [
            UNNEEDED,
            f"{SIZE} - on ({DEVICE_KEY}) group_right () {UNNEEDED}",
            f"{SIZE} * on ({DEVICE_KEY}) group_right () ({UNNEEDED} ^ 0)",
            SHARE,
            # GPUs that support MIG and are not partitioned.
            f'({SHARE}) and on (cluster, instance, uuid, mig_uuid) gpu_info{{{GPU},mig_mode!=""}}',
            f"max by ({KEY}, name) ({UNNEEDED} * on (cluster, instance, uuid) group_left (name) gpu_info{{{GPU}}})",
            f"max by ({KEY}, profile) ({UNNEEDED} * on (cluster, instance, uuid, mig_uuid) group_left (profile)"
            f" gpu_mig_memory_total_bytes{{{GPU}}})",
        ],
        [
            p.column("workload", "Workload"),
            p.column("instance", "Node", links=p.detail("gpu", "instance", "gpu")),
            p.column("gpu", "GPU", width=55),
            p.column("name", "Model"),
            p.column("profile", "MIG profile", width=100),
            p.column("Value #A", "Never used", p.BYTES, width=120),
            p.column("Value #B", "Highest peak", p.BYTES, width=120),
            p.column("Value #C", "Usable", p.BYTES, width=95),
            p.column("Value #D", "Peak share", p.RATIO, 130, p.FILL, gauge=True, decimals=1),
            p.column(
                "Value #E",
                "Sufficient profile",
                width=150,
                mappings=p.bands(
                    (EIGHTH, "an eighth (1g)", "blue"),
                    (QUARTER, "a quarter (2g)", "blue"),
                    (HALF, "a half (3g, 4g)", "green"),
                    (None, "the whole GPU", "text"),
                ),
                custom__cellOptions={"type": "color-text"},
            ),
        ],
        size=(24, 10),
        empty="No workload held memory.",
        sort="Never used",
    ),
    p.bars(
        "Right-sizing: devices by highest peak",
        "Number of GPUs, or of their MIG devices if there are any, grouped by the highest total memory use of all "
        "their workloads within `Lookback`.",
        [
            p.instant(between(-1, EIGHTH), "up to an eighth"),
            p.instant(between(EIGHTH, QUARTER), "up to a quarter"),
            p.instant(between(QUARTER, HALF), "up to a half"),
            p.instant(between(HALF, p.CRITICAL), "up to 90 %"),
            p.instant(between(p.CRITICAL, None), "above 90 %"),
        ],
        unit=p.COUNT,
        decimals=0,
        size=(12, 8),
        empty="No GPU reports its memory.",
    ),
    p.ranking(
        "Memory never used",
        "Memory of each GPU, or of its MIG devices if there are any, that remained free even at the highest peak "
        "within `Lookback`.",
        f"topk($top, {of_devices(lambda size, peak: f'({size} - {peak})')})",
        [
            p.column("instance", "Node", links=p.detail("gpu", "instance", "gpu")),
            p.column("gpu", "GPU", width=60),
            *p.MIG_COLUMNS,
        ],
        empty="No GPU reports its memory.",
    ),
]
