"""Unevenly used GPUs of a node or of a workload, on the Fleet dashboard."""

from . import links, panels as p, queries as q, tables as t
from .queries import GPU_KEY, NODE, usable

BY_NODE = "cluster, instance"
BY_OWNER = q.OWNER
WORKLOAD_COLUMNS = [
    t.workload_column(),
    t.column("instance", "Node", width=85, links=links.detail("gpu", "instance")),
]

# Whole GPUs only: MIG devices of different sizes are not an imbalance.
GPU_USED = f"max by ({GPU_KEY}) (gpu_memory_used_bytes{{{NODE}}} / {usable(NODE)})"
HELD = f"sum by ({BY_OWNER}, gpu) (max by ({q.HOLDER}) ({q.USED_BY}{{{NODE}}}))"
ON_FLEET = [
    t.ranking(
        "Imbalance within nodes",
        "Difference between the highest and the lowest memory use of the GPUs of a node. A large difference means "
        "that jobs could be packed better, or that one job reaches the limit while other GPUs of the node are empty.",
        f"topk({t.rows(7)}, max by ({BY_NODE}) ({GPU_USED}) - min by ({BY_NODE}) ({GPU_USED})"
        f" and on ({BY_NODE}) count by ({BY_NODE}) ({GPU_USED}) > 1)",
        [t.column("instance", "Node", links=links.detail("gpu", "instance"))],
        unit=p.RATIO,
        max=1,
        decimals=0,
        thresholds=p.bad_from(0.5, "orange"),
        size=(12, 7),
        empty="No node with several GPUs.",
    ),
    t.ranking(
        "Imbalance within workloads",
        "For each workload on several GPUs of a node: difference between its memory on the GPU where it holds the "
        "most and on the GPU where it holds the least.",
        f"topk({t.rows(7)}, max by ({BY_OWNER}) ({HELD}) - min by ({BY_OWNER}) ({HELD})"
        f" and on ({BY_OWNER}) count by ({BY_OWNER}) ({HELD}) > 1)",
        WORKLOAD_COLUMNS,
        size=(12, 7),
        empty="No workload runs on several GPUs.",
    ),
]
