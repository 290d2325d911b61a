"""Energy on the GPU dashboard: of each GPU, and what is apportioned to its workloads."""

from . import panels as p, queries as q, tables as t
# Energy is known of the physical GPU only.
from .queries import BOARD, GPU_KEY

KWH = "kwatth"


def of_gpu(family):
    return f"max by ({GPU_KEY}) (increase({family}{{{BOARD}}}[$__range]))"


def kwh(joules):
    return f"{joules} / 3.6e6"


ON_GPU = [
    t.table(
        "Energy of each GPU",
        "Energy in the selected time range, integrated from the power. Idle: the part of the time in which no kernel ran, an estimate, "
        "with telemetry.workload-energy. Not measured: time without readings of the power, which adds no energy.",
        [
            kwh(of_gpu("gpu_energy_joules_total")),
            kwh(of_gpu("gpu_idle_energy_joules_total")),
            of_gpu("gpu_energy_unmeasured_seconds_total"),
        ],
        [
            t.column("instance", "Node"),
            t.column("gpu", "GPU", width=50),
            t.column("Value #A", "Energy", KWH, width=110, decimals=3),
            t.column("Value #B", "Idle", KWH, width=110, decimals=3),
            t.column("Value #C", "Not measured", p.SECONDS, width=120, decimals=0),
        ],
        size=(12, 8),
        empty="The driver does not report the power.",
        sort="Energy",
    ),
    t.table(
        "Energy by workload",
        "Energy of the selected GPUs in the selected time range, apportioned by SM time: an estimate. other: kernels of which the driver "
        "does not tell whose they are. What a workload used before its first scrape is in no row.",
        [kwh(q.total(f"increase(gpu_workload_energy_joules_total{{{BOARD}}}[$__range])", "workload, kind, namespace"))],
        [
            t.column("workload", "Workload", **t.WRAPPED),
            t.column("kind", "Kind", width=92),
            t.column("namespace", "Namespace"),
            t.column("Value", "Energy", KWH, width=110, decimals=3),
        ],
        size=(12, 8),
        empty="Not apportioned: this needs telemetry.workload-energy, and GPUs without MIG devices.",
        sort="Energy",
    ),
]
