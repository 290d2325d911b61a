"""Right-sizing on the Workloads dashboard."""

from . import grid, links, panels as p, queries as q, tables as t
from .queries import DEVICE, DEVICE_KEY, HOLDER as KEY, NODE, PEAK_BY as PEAK_FAMILY, WORKLOAD

# For each size of MIG profile, its smallest share of GPU memory on any model, taken from its shares on the H200 and the A100.
EIGHTH, QUARTER, HALF = 0.11, 0.23, 0.49
# Selectors of the devices with the most unused memory, which the dashboard finds once.
EMPTIEST = NODE + ',uuid=~"$emptiest"'
THEIRS = WORKLOAD + ',uuid=~"$emptiest"'
SIZE = q.device_usable(EMPTIEST)


def needed(select):
    """The highest peak of each workload on each device within $lookback."""
    return f"max by ({KEY}) ({q.looked_back('device', PEAK_FAMILY, select)})"


def of_devices(expression, select=NODE):
    """`expression` takes the allocatable memory of each device and its highest peak within $lookback."""
    levels = {q.WHOLE: "gpu", q.PART: "mig"}

    def looked_back(prefix):
        return f"max by ({DEVICE}) ({q.looked_back(levels[prefix], f'{prefix}_window_peak_bytes', select)})"

    return q.each_device(
        lambda prefix: expression(f"max by ({DEVICE}) ({q.usable(select, prefix=prefix)})", looked_back(prefix)), select
    )


def never_used(select=NODE):
    """What was never used of each device, by all of its workloads together."""
    return of_devices(lambda size, peak: f"({size} - {peak})", select)


HEIGHT = 10
LISTED = grid.hidden_list(
    "emptiest",
    f"topk({t.rows(HEIGHT)}, max by (uuid) ({never_used()} and on ({DEVICE_KEY}) {needed(WORKLOAD)}))",
    "uuid",
    "The GPUs with the most memory that was never used within Lookback, of those that the selected workloads used.",
)
NEEDED = needed(WORKLOAD)
PEAK = needed(THEIRS)
SHARE = f"{PEAK} / on ({DEVICE_KEY}) group_left () {SIZE}"
# GPUs on which the recorder saw a failed allocation. The series stays until the exporter restarts.
FAILED = f'last_over_time(gpu_memory_last_incident_timestamp_seconds{{{EMPTIEST},kind="out_of_memory"}}[$lookback])'
DEVICE_SHARE = of_devices(lambda size, peak: f"({peak} / {size})")


SIZES = [
    t.table(
        "Right-sizing: workloads",
        "Never used: memory of the GPU or MIG device of each workload that remained free even at the highest use by all of its "
        "workloads within `Lookback`, in descending order; the list is that of the GPUs with the most. Peak: that of the workload. "
        "Beyond the selected time range this needs the recording rules. Allocatable: total minus reserved. Would suffice: "
        "the smallest MIG profile whose memory holds the peak, on GPUs that support MIG; leave some headroom. "
        "Profiles also differ in compute, and not every model has all of them. –: the GPU cannot be partitioned or is "
        "partitioned, or an allocation has failed on it, so that the peaks on it may be less than what was needed.",
        [
            f"max by ({DEVICE_KEY}) ({never_used(EMPTIEST)}) * on ({DEVICE_KEY}) group_right () ({PEAK} ^ 0)",
            PEAK,
            f"{SIZE} * on ({DEVICE_KEY}) group_right () ({PEAK} ^ 0)",
            SHARE,
            # GPUs that support MIG and are not partitioned, and on which no allocation has failed.
            f'({SHARE}) and on (cluster, instance, uuid, mig_uuid) gpu_info{{{EMPTIEST},mig_mode!=""}}'
            f" unless on (cluster, instance, uuid) {FAILED}",
            f"max by ({KEY}, name) ({PEAK} * on (cluster, instance, uuid) group_left (name)"
            f" group by (cluster, instance, uuid, name) (gpu_info{{{EMPTIEST}}}))",
            q.named_device(PEAK, EMPTIEST),
        ],
        [
            t.workload_column(),
            t.column("instance", "Node", width=90, links=links.detail("gpu", "instance")),
            *t.device_columns()[1:],
            t.column("name", "Model", width=195),
            t.column("Value #A", "Never used", p.BYTES, width=118, decimals=1),
            t.column("Value #B", "Peak", p.BYTES, width=72, decimals=0),
            t.column("Value #C", "Allocatable", p.BYTES, width=95, decimals=0),
            t.column("Value #D", "Peak %", p.RATIO, 75, p.FILL, decimals=0),
            t.hidden("uuid"),
            t.column(
                "Value #E",
                "Would suffice",
                width=115,
                mappings=p.bands(
                    (EIGHTH, "an eighth (1g)", "text"),
                    (QUARTER, "a quarter (2g)", "text"),
                    (HALF, "a half (3g, 4g)", "text"),
                    (None, "the whole GPU", "text"),
                ),
                custom__cellOptions={"type": "color-text"},
            ),
        ],
        size=(24, HEIGHT),
        empty="No workload held memory.",
        sort="Never used",
    ),
    t.ranking(
        "Right-sizing: devices by highest peak",
        "Number of GPUs, or of their MIG devices if there are any, by the highest total memory use of all their workloads "
        "within `Lookback`, in eighths of the device: 25 means more than 12.5 % and up to 25 %. Of all devices of the selected nodes, "
        "whichever workloads are selected.",
        f'count_values("percent", clamp_min(ceil(8 * {q.once(DEVICE_SHARE)}), 1) * 12.5)',
        [t.column("percent", "Peak up to (%)", "none", width=150)],
        unit=p.COUNT,
        order="Peak up to (%)",
        decimals=0,
        size=(12, 8),
        empty="No GPU reports its memory.",
    ),
    t.ranking(
        "Memory never used",
        "Memory of each GPU, or of its MIG devices if there are any, that remained free even at the highest peak "
        "within `Lookback`.",
        f"topk({t.rows(8)}, {never_used()})",
        [
            t.column("instance", "Node", links=links.detail("gpu", "instance")),
            t.column("gpu", "GPU", width=50, links=links.detail("gpu", "instance", gpu="uuid")),
            *t.MIG_COLUMNS,
            t.hidden("uuid"),
        ],
        empty="No GPU reports its memory.",
    ),
]
