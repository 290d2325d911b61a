"""What probes on the driver's memory calls see, on the Workloads and Exporter dashboards.

Invariant: without `memory.probes` no query here has data, and each panel says so.
"""

from . import links, panels as p, queries as q, tables as t
from .queries import HOLDER, NODE, OWNER, STEP, WORKLOAD

HEIGHT = 8
TITLE_ON_WORKLOADS = "Refused requests, and time in memory calls"
TITLE_ON_EXPORTER = "Probes"


def requests(outcome):
    """The requests with this outcome in the time range, of each workload on each device."""
    return f"max by ({HOLDER}) {q.rise(f'gpu_workload_memory_{outcome}_requests_total{{{WORKLOAD}}}', '$__range')}"


def seconds(function, time):
    """The time in memory calls of each workload on a node, on all of its devices."""
    return f"sum by ({OWNER}) (max by ({OWNER}, kind) ({function}(gpu_workload_memory_call_seconds_total{{{WORKLOAD}}}{time})))"


ON_WORKLOADS = [
    t.table(
        "Refused and retried requests",
        "Requests for memory that the driver refused in the selected time range, of each workload on a GPU or MIG device. Refused: it "
        "did not grant them when they were repeated either. Retried: it granted them when they were repeated, for example after "
        "PyTorch gave back its cache, and the program went on. GPU: – if the process is on several GPUs and it is not known which of "
        "them it asked. Needs memory.probes (docs/probes.md).",
        [requests("refused"), requests("retried")],
        [
            t.workload_column(),
            t.column("instance", "Node", width=90),
            t.column("gpu", "GPU", width=50, links=links.detail("gpu", "instance", gpu="uuid", mig="mig_uuid")),
            t.hidden("uuid"),
            t.hidden("mig_uuid"),
            t.column("Value #A", "Refused", p.COUNT, width=75, decimals=0),
            t.column("Value #B", "Retried", p.COUNT, width=75, decimals=0),
        ],
        size=(12, HEIGHT),
        empty="The driver refused no request in the selected time range, or no probes see the requests (memory.probes).",
        sort="Refused",
    ),
    p.series(
        "Time in memory calls",
        "Time in the calls that ask the driver for memory or give it back, as a share of a second: of all threads of a workload "
        "together, which can be more than 100 %, and of the 8 workloads with the most of it. A call can wait for the work on the "
        "GPU. Needs memory.probes=all (docs/probes.md).",
        [
            p.ranged(
                f"{seconds('rate', f'[{STEP}]')} and on ({OWNER}) topk(8, {seconds('increase', '[$__range] @ end()')})",
                "{{instance}} · {{workload}}",
            )
        ],
        unit=p.RATIO,
        size=(12, HEIGHT),
        fill=0,
        interval="1m",
        calcs=p.LAST_AND_MAX,
        empty="No workload made a memory call in the selected time range, or no probes see every call (memory.probes=all).",
    ),
]

BY_NODE = "cluster, instance"
UP = f"max by ({BY_NODE}, reason) (vram_exporter_probes_up{{{NODE}}})"
LOST = f"vram_exporter_probe_events_lost_total{{{NODE}}}"
ON_EXPORTER = [
    t.table(
        "Probes on memory calls",
        "Exporters whose configuration asks for probes. Up: whether the driver's memory calls are seen as memory.probes asks; if "
        "not, Reason is that of the fault, and the exporter's log says what is missing. Lost: memory calls in the selected time "
        "range that the probes did not see. An exporter with memory.probes=none has no row.",
        [UP, f"{q.total(f'increase({LOST}[$__range])', BY_NODE, 'reason')} and on ({BY_NODE}) {UP}"],
        [
            t.column("instance", "Node", links=links.detail("fleet", "instance")),
            t.words("Value #A", "Up", {"_0": ("no", "red"), "_1": ("yes", "green")}, width=60),
            t.column("reason", "Reason"),
            t.column("Value #B", "Lost", p.COUNT, width=85, decimals=0),
        ],
        size=(12, HEIGHT),
        empty="No exporter of the selected nodes has probes (memory.probes).",
        sort="Up",
        ascending=True,
    ),
    p.series(
        "Lost memory calls",
        "Memory calls per minute that the probes did not see, by reason. ring_full: there were more than the exporter could read in "
        "time. no_entry, no_return: only one end of the call was seen, for example because the process ended in it. unlisted: a "
        "refused request of a process that the driver did not list within some seconds.",
        [p.ranged(f"{q.total(f'rate({LOST}[{STEP}])', 'reason', BY_NODE)} * 60 > 0", "{{reason}}")],
        unit="suffix:per min",
        size=(12, HEIGHT),
        calcs=p.LAST_AND_MAX,
        empty="No memory call was lost in the selected time range, or no probes see the calls (memory.probes).",
    ),
]
