"""The part of the Workloads dashboard for right-sizing and waste."""

from . import panels as p, queries as q
from .queries import DEVICE, DEVICE_KEY, GPU, WORKLOAD

PEAK_FAMILY = "gpu_workload_memory_window_peak_bytes"
KEY = f"{DEVICE_KEY}, workload, kind"
# Shares of a GPU's memory that MIG profiles have on every model, the smallest of each kind (the H200's and the A100's).
EIGHTH, QUARTER, HALF = 0.11, 0.23, 0.49
SIZE = q.device_usable(GPU, "$__range")
NEEDED = f"max by ({KEY}) ({q.looked_back('device', PEAK_FAMILY, WORKLOAD)})"
# Most is wasted at the top.
UNNEEDED = f"topk($top, {SIZE} - on ({DEVICE_KEY}) group_right () {NEEDED})"
SHARE = f"1 - {UNNEEDED} / on ({DEVICE_KEY}) group_left () {SIZE}"


def looked_back(prefix, level):
    return f"max by ({DEVICE}) ({q.looked_back(level, f'{prefix}_window_peak_bytes', GPU)})"


def of_devices(expression):
    """`expression` makes one of what each device could hold, and of its highest peak as far as $lookback."""
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
        "What even the highest peak of each workload left free of the GPU or MIG device on which it runs, the most first, "
        "as far back as `Look back` says; beyond the range shown this needs the recording rules. Would do: the smallest "
        "MIG profile whose memory holds the peak, on GPUs that have MIG; leave some room above. Profiles differ in compute "
        "too, and not each model has all of them.",
        [
            UNNEEDED,
            f"{SIZE} - on ({DEVICE_KEY}) group_right () {UNNEEDED}",
            f"{SIZE} * on ({DEVICE_KEY}) group_right () ({UNNEEDED} ^ 0)",
            SHARE,
            # Of a kind that can be divided, and is not.
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
            p.column("Value #A", "Unneeded", p.BYTES, width=120),
            p.column("Value #B", "Highest peak", p.BYTES, width=120),
            p.column("Value #C", "Usable", p.BYTES, width=95),
            p.column("Value #D", "Share", p.RATIO, 130, p.FILL, gauge=True, decimals=1),
            p.column(
                "Value #E",
                "Would do",
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
        sort="Unneeded",
    ),
    p.bars(
        "Right-sizing: devices by highest peak",
        "Number of GPUs, or MIG devices where there are some, by the highest use of their memory, all workloads together, "
        "as far as `Look back` says.",
        [
            p.instant(between(-1, EIGHTH), "up to an eighth"),
            p.instant(between(EIGHTH, QUARTER), "up to a quarter"),
            p.instant(between(QUARTER, HALF), "up to a half"),
            p.instant(between(HALF, p.EDGE), "up to 90 %"),
            p.instant(between(p.EDGE, None), "above 90 %"),
        ],
        unit=p.COUNT,
        decimals=0,
        size=(12, 8),
        empty="No GPU reports its memory.",
    ),
    p.ranking(
        "Never needed",
        "Memory that the highest peak of each GPU, or MIG device where there are some, left free, as far as `Look back` "
        "says.",
        f"topk($top, {of_devices(lambda size, peak: f'({size} - {peak})')})",
        [
            p.column("instance", "Node", links=p.detail("gpu", "instance", "gpu")),
            p.column("gpu", "GPU", width=60),
            *p.MIG_COLUMNS,
        ],
        empty="No GPU reports its memory.",
    ),
]
