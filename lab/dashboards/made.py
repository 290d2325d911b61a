"""Made machines and alerts for the dashboards. None of it is measured. made_fleet.py serves them with more machines.

Invariant: the numbers depend only on the code and on the time before the end, so every run makes the same data.
"""

import dashboards
import history
from nodes import DAY, GIB, H100, HOUR, JOB, MINUTE, Node, between, growing, steady

# The groups of rules whose series the dashboards read.
RECORDED = ("vram-exporter.gpu", "vram-exporter.sizing", "vram-exporter.workload", "vram-exporter.idle")


# Seconds before the end at which a GPU of node-e is lost.
LOST = 50 * MINUTE


def pod(namespace, name, container="main"):
    return {"namespace": namespace, "pod": name, "container": container}


def kubernetes(namespace, name, container="main"):
    return f"{namespace}/{name}/{container}", pod(namespace, name, container)


def node_a():
    """Eight H200 in Kubernetes: a full GPU, a job that ended for lack of memory, a notebook, and a leak."""
    node = Node("node-a")
    for number in range(8):
        # nvidia-smi would show GPUs 4 and 5 as busy. GPU 4 waits for its data.
        node.gpu(number, profiled={3: (0, 0, 0), 4: (0.11, 0.02, 0.05), 5: (0.93, 0.58, 0.64)}.get(number, (0.63, 0.36, 0.45)))
    for number in (0, 1):
        name, where = kubernetes("training", "llama-13b-0", "trainer")
        node.workload(name, number, steady(66, 94, f"llama{number}"), needed=0.86, user="mira", limit=110, **where)
    name, where = kubernetes("serving", "mistral-small-6c9d7b8f5d-x2x7q", "vllm")
    node.workload(name, 2, steady(104, 105, "vllm"), peak=1.01, needed=0.98, user="llm", limit=100, started=19 * HOUR, **where)
    name, where = kubernetes("training", "evaluate-28811")
    ended = between(growing(1, 40, 80 * MINUTE), 75 * MINUTE, 40 * MINUTE)
    node.workload(name, 2, ended, user="mira", needed=0.93, started=75 * MINUTE, **where)
    node.workload("slurm:48220", 2, growing(8, 26, 60 * MINUTE), kind="slurm", user="ada", limit=30, started=19 * HOUR)
    name, where = kubernetes("team-b", "notebook-7", "jupyter")
    node.workload(name, 3, lambda before: 31 * GIB, user="jonas", idle=14 * HOUR, needed=0.04, limit=60, started=14 * HOUR, **where)
    name, where = kubernetes("vision", "defects-0", "trainer")
    waiting = between(lambda before: 112 * GIB, 5 * HOUR)
    node.workload(name, 4, waiting, peak=1.0, needed=0.9, user="tom", started=5 * HOUR, **where)
    name, where = kubernetes("training", "qwen-sft-pretraining-worker-0", "trainer")
    node.workload(name, 5, steady(104, 112, "qwen"), needed=0.88, user="lena", limit=130, **where)
    node.workload("unit:embedder.service", 6, growing(20, 96, 5 * HOUR), kind="systemd", user="embedder")
    node.allocated({"gpu": "7", "uuid": "GPU-node-a-7"}, pod("team-b", "notebook-9", "jupyter"))
    node.incident(2, "out_of_memory", 40 * MINUTE)
    node.incident(2, "near_limit", 12 * MINUTE)
    return node


def node_b():
    """Four H100 in Kubernetes, two of them divided into MIG devices, one of which a job filled before it ended."""
    node = Node("node-b")
    node.gpu(0, H100, mig=[("1g.10gb", 10)] * 7)
    node.gpu(1, H100, mig=[("3g.40gb", 40), ("2g.20gb", 20), ("1g.10gb", 10)])
    node.gpu(2, H100)
    node.gpu(3, H100)
    for index in range(6):
        name, where = kubernetes(f"tenant-{index}", f"app-{index}")
        used = steady(7.4, 7.6, name) if index == 3 else steady(0.5 + index / 2, 1.2 + index, name)
        node.workload(name, (0, index), used, peak=1.02, limit=9 if index == 3 else 6, **where)
    name, where = kubernetes("training", "rank-experiment-4", "trainer")
    node.workload(name, (1, 0), steady(20, 30, name), user="nora", **where)
    name, where = kubernetes("serving", "reranker-5d9", "server")
    node.workload(name, (1, 1), steady(5, 6, name), **where)
    name, where = kubernetes("training", "finetune-7", "trainer")
    filled = between(lambda before: int((1 + 7.6 * (110 * MINUTE - before) / HOUR) * GIB), 110 * MINUTE, 50 * MINUTE)
    node.workload(name, (1, 2), filled, peak=1.0, user="nora", started=110 * MINUTE, **where)
    node.incident(1, "out_of_memory", 50 * MINUTE)
    name, where = kubernetes("vision", "segment-1", "trainer")
    node.workload(name, 2, steady(50, 58, name), user="tom", needed=0.7, limit=90, **where)
    return node


def node_e():
    """Four H100: one is lost, one reports errors."""
    node = Node("node-e")
    for number in range(4):
        node.gpu(number, H100, lost=LOST if number == 1 else None)
    board = node.boards[0][0]
    node.add("gpu_xid_class_errors_total", lambda before: 3 if before < 30 * MINUTE else 0, **{"class": "memory"}, **board)
    node.add("gpu_xid_errors_total", between(lambda before: 3, 30 * MINUTE), xid="94", **board)
    node.add("gpu_ecc_errors_total", lambda before: 1 if before < 30 * MINUTE else 0, type="uncorrected", **board)
    node.add("gpu_row_remap_pending", 1, **board)
    node.workload("user:otto", 1, between(steady(30, 40, "otto"), 8 * DAY, LOST), kind="user", user="otto")
    for family, reason in (("vram_exporter_faults_total", {}), ("vram_exporter_faults_by_reason_total", {"reason": "gpu_is_lost"})):
        node.add(family, lambda before: 0 if before > LOST else int((LOST - before) / 600) + 1, source="nvml", **reason)
    name, where = kubernetes("training", "ablation-3", "trainer")
    node.workload(name, 2, steady(44, 52, name), user="mira", **where)
    return node


def silent():
    node = Node("node-f")
    heard = [entry for entry in node.series if entry[0] != "up"]
    node.series = [
        (family, labels, between(value if callable(value) else lambda before, v=value: v, 8 * DAY, 50 * MINUTE), relative)
        for family, labels, value, relative in heard
    ]
    node.add("up", lambda before: 1 if before >= 50 * MINUTE else 0)
    return node


def on_gpu(node, number):
    return {"instance": node, "gpu": str(number), "uuid": f"GPU-{node}-{number}"}


def of_pod(namespace, name, container):
    return {"workload": f"{namespace}/{name}/{container}", "kind": "kubernetes", **pod(namespace, name, container)}


# (alert, severity, minutes since it fires, labels): what the shipped rules would say about these machines.
FIRING = [
    ("GpuMemoryCritical", "critical", 12, on_gpu("node-a", 2)),
    ("GpuMemoryPeakNearLimit", "warning", 9, on_gpu("node-a", 2)),
    ("GpuOutOfMemory", "warning", 39, on_gpu("node-a", 2)),
    ("GpuWorkloadOverBudget", "warning", 50, {**on_gpu("node-a", 2), **of_pod("serving", "mistral-small-6c9d7b8f5d-x2x7q", "vllm")}),
    ("GpuProcessMemoryLeak", "warning", 150, {**on_gpu("node-a", 6), "workload": "unit:embedder.service", "process": "embedder"}),
    ("GpuMemoryHeldIdle", "info", 700, {**on_gpu("node-a", 3), **of_pod("team-b", "notebook-7", "jupyter")}),
    ("GpuAllocatedUnused", "info", 200, {"instance": "node-a", **pod("team-b", "notebook-9", "jupyter")}),
    (
        "GpuMemoryHigh",
        "warning",
        33,
        {**on_gpu("node-b", 0), "mig_uuid": "MIG-node-b-0-3", "gpu_instance": "4", "profile": "1g.10gb"},
    ),
    ("GpuMemoryOverpromised", "warning", 260, on_gpu("node-b", 2)),
    ("GpuXidError", "critical", 6, {**on_gpu("node-e", 0), "class": "memory"}),
    ("GpuRowRemapPending", "warning", 25, on_gpu("node-e", 0)),
    ("GpuLost", "critical", 48, on_gpu("node-e", 1)),
    ("VramExporterDown", "warning", 45, {"instance": "node-f"}),
]


def pending():
    """How many seconds the condition of each shipped alert must hold before the alert fires."""
    units = {"s": 1, "m": MINUTE, "h": HOUR, "d": DAY}
    for rule in dashboards.alert_rules():
        waits = rule.get("for", "0s")
        yield rule["alert"], int(waits[:-1]) * units[waits[-1]]


def alerts():
    waits = dict(pending())
    for name, severity, minutes, labels in FIRING:
        # The alerts about the scrapes of a job are the only ones with a job.
        job = {"job": JOB} if name == "VramExporterDown" else {}
        full = {"alertname": name, "severity": severity, "alertstate": "firing", **job, **labels}
        yield "ALERTS", full, between(lambda before: 1, minutes * MINUTE), False
        since = {key: value for key, value in full.items() if key != "alertstate"}
        began = minutes * MINUTE + waits[name]
        yield "ALERTS_FOR_STATE", since, between(lambda before, b=began: -b, minutes * MINUTE), True


def backfill(folder, series, end, span, step):
    """Stores these series; a relative value is a time before the end, negative."""
    every = ((family, labels, ago(value) if relative else value) for family, labels, value, relative in series)
    history.backfill(folder, every, end, span, step, 4 * HOUR)


def ago(value):
    def result(before):
        number = value(before)
        return None if number is None else history.Ago(-number)

    return result
