"""Right-sizing on the Workloads dashboard."""

from . import panels as p, queries as q
from .queries import DEVICE, DEVICE_KEY, HOLDER as KEY, NODE, PEAK_BY as PEAK_FAMILY, WORKLOAD

# For each size of MIG profile, its smallest share of GPU memory on any model, taken from its shares on the H200 and the A100.
EIGHTH, QUARTER, HALF = 0.11, 0.23, 0.49
SIZE = q.device_usable(NODE)
NEEDED = f"max by ({KEY}) ({q.looked_back('device', PEAK_FAMILY, WORKLOAD)})"
# The workloads with the most unused memory first.
UNNEEDED = f"topk({p.rows(10)}, {SIZE} - on ({DEVICE_KEY}) group_right () {NEEDED})"
SHARE = f"1 - {UNNEEDED} / on ({DEVICE_KEY}) group_left () {SIZE}"


def looked_back(prefix, level):
    return f"max by ({DEVICE}) ({q.looked_back(level, f'{prefix}_window_peak_bytes', NODE)})"


def of_devices(expression):
    """`expression` takes the allocatable memory of each device and its highest peak within $lookback."""
    levels = {q.WHOLE: "gpu", q.PART: "mig"}
    return q.each_device(
        lambda prefix: expression(
            f"max by ({DEVICE}) ({q.usable(NODE, prefix=prefix)})", looked_back(prefix, levels[prefix])
        ),
        NODE,
    )


DEVICE_SHARE = of_devices(lambda size, peak: f"({peak} / {size})")


SIZES = [
    p.table(
        "Right-sizing: workloads",
        "Memory of the GPU or MIG device of each workload that remained free even at the workload's highest peak "
        "within `Lookback`, in descending order. Beyond the selected time range this needs the recording rules. "
        "Of: allocatable memory. Would suffice: "
        "the smallest MIG profile whose memory holds the peak, on GPUs that support MIG; leave some headroom. "
        "Profiles also differ in compute, and not every model has all of them.",
        [
            UNNEEDED,
            f"{SIZE} - on ({DEVICE_KEY}) group_right () {UNNEEDED}",
            f"{SIZE} * on ({DEVICE_KEY}) group_right () ({UNNEEDED} ^ 0)",
            SHARE,
            # GPUs that support MIG and are not partitioned.
            f'({SHARE}) and on (cluster, instance, uuid, mig_uuid) gpu_info{{{NODE},mig_mode!=""}}',
            f"max by ({KEY}, name) ({UNNEEDED} * on (cluster, instance, uuid) group_left (name) gpu_info{{{NODE}}})",
            q.named_device(UNNEEDED, NODE),
        ],
        [
            p.workload_column(),
            p.column("instance", "Node", width=90, links=p.detail("gpu", "instance")),
            *p.device_columns()[1:],
            p.column("name", "Model", width=185),
            p.column("Value #A", "Never used", p.BYTES, width=118, decimals=1),
            p.column("Value #B", "Peak", p.BYTES, width=72, decimals=0),
            p.column("Value #C", "Of", p.BYTES, width=72, decimals=0),
            p.column("Value #D", "Peak %", p.RATIO, 88, p.FILL, gauge=True, decimals=0),
            p.hidden("uuid"),
            p.column(
                "Value #E",
                "Would suffice",
                width=115,
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
    p.ranking(
        "Right-sizing: devices by highest peak",
        "Number of GPUs, or of their MIG devices if there are any, by the highest total memory use of all their workloads "
        "within `Lookback`, in eighths of the device: 25 means more than 12.5 % and up to 25 %.",
        f'count_values("percent", clamp_min(ceil(8 * {DEVICE_SHARE}), 1) * 12.5)',
        [p.column("percent", "Peak up to (%)")],
        unit=p.COUNT,
        decimals=0,
        size=(12, 8),
        empty="No GPU reports its memory.",
    ),
    p.ranking(
        "Memory never used",
        "Memory of each GPU, or of its MIG devices if there are any, that remained free even at the highest peak "
        "within `Lookback`.",
        f"topk({p.rows(8)}, {of_devices(lambda size, peak: f'({size} - {peak})')})",
        [
            p.column("instance", "Node", links=p.detail("gpu", "instance")),
            p.column("gpu", "GPU", width=50, links=p.detail("gpu", "instance", gpu="uuid")),
            *p.MIG_COLUMNS,
            p.hidden("uuid"),
        ],
        empty="No GPU reports its memory.",
    ),
]
