"""What fires, what to do about it, and what the incident recorder saw: used by the Fleet, GPU and Workloads dashboards.

Invariant: ACTIONS has an entry for each shipped alert; the check of the dashboards compares them with the rules.
"""

from . import links, panels as p, queries as q, tables as t

# By the rank of the severity, for the order.
SEVERITY = {"_3": ("critical", "red"), "_2": ("warning", "orange"), "_1": ("info", "blue")}
RANKS = {"critical": 3, "warning": 2, "info": 1}
# What to do first; docs/runbook.md has a section for each alert.
ACTIONS = {
    "GpuMemoryHigh": "See Holders: shrink what grew last",
    "GpuMemoryCritical": "See Holders: move one, or add a GPU",
    "GpuMemoryReserved": "Let the holder report what it needs",
    "GpuMemoryPeakNearLimit": "See Holders: give the peak room",
    "GpuMemoryExhaustionPredicted": "See Holders: stop what grows",
    "GpuMemoryUnattributed": "Look for dead processes, reset it",
    "GpuSharedMemoryLow": "End or move a program, CPU or GPU",
    "GpuMemoryIncident": "See Incidents, the exporter's page",
    "GpuProcessMemoryLeak": "Restart it before the GPU is full",
    "GpuOutOfMemory": "See Incidents: who held the memory",
    "AllocatorRetries": "Lower the batch size, move work away",
    "AllocatorFragmented": "Use expandable segments, or restart",
    "GpuMemoryOverReserved": "Lower what it takes at startup",
    "GpuMemoryHeldIdle": "Ask the owner to end or release it",
    "GpuAllocatedUnused": "Ask if the pod or the job is needed",
    "GpuMemoryImbalance": "Check how it spreads over its GPUs",
    "GpuUtilizationLow": "Check its input, or share the GPU",
    "GpuUtilizationSaturated": "Move one away if latency matters",
    "GpuBusyButWaiting": "Find out what the GPU waits for",
    "GpuWorkloadOverBudget": "Ask the owner: raise it, or hold less",
    "GpuMemoryOverpromised": "Lower a budget, or move a workload",
    "GpuBudgetNeverNeeded": "Ask the owner to lower the budget",
    "GpuLost": "Drain the node, reset the GPU",
    "GpuMissing": "Check its bus and its power",
    "GpuXidError": "Look up the code, drain the node",
    "GpuXidApplicationError": "Tell the owner of the program",
    "GpuEccUncorrectable": "Distrust results; drain, reset",
    "GpuRowRemapPending": "Reset the GPU at a convenient time",
    "GpuRowRemapFailed": "Replace the GPU",
    "GpuRecoveryActionRequired": "Do what the driver requires",
    "GpuThermalThrottle": "Check fans, filters and the room",
    "GpuLinkDegraded": "Restart the machine, reseat the GPU",
    "GpuNvlinkDown": "Reset the GPUs, check the bridge",
    "GpuNvlinkRecovering": "Find the link before it fails",
    "VramExporterDown": "Check machine and service",
    "VramExporterAbsent": "Check the scrape configuration",
    "VramExporterStale": "Look for a driver call that hangs",
    "VramExporterNvmlDown": "Load the driver",
    "VramExporterKubernetesApiDown": "Check the role and the network",
    "VramExporterPodResourcesDown": "Check the kubelet's socket",
    "VramExporterProbesDown": "See its log, correct it, restart it",
    "VramExporterMissedTicks": "Look at the GPU or the exporter's CPU",
    "VramExporterProcessesInvisible": "Give it the host's pid namespace",
    "VramExporterPeakWindowTooShort": "Scrape more often",
}
LABELS = f"rank, alertname, todo, {q.DEVICE_KEY}, device, about, mig"


def about(expression):
    """Adds the label `about`: the workload, pod or process of an alert, or the class of the Xid error, as far as it has one."""
    expression = f'label_join({expression}, "place", "/", "namespace", "pod")'
    for label, shown in (("class", "Xid: $1"), ("process", "$1"), ("place", "$1"), ("workload", "$1")):
        text = "([^/]*/.+)" if label == "place" else "(.+)"
        expression = f'label_replace({expression}, "about", "{shown}", "{label}", "{text}")'
    return q.linked(expression)


def count(names, select, severity):
    """How many rows `firing` shows with this severity (a regular expression)."""
    chosen = f'{q.of_rules(select)},alertname=~"{names}",alertstate="firing",severity=~"{severity}"'
    return f"count(group by (alertname, {q.DEVICE_KEY}, workload, pod, process) (ALERTS{{{chosen}}}))"


def firing(names, select, size, title="Firing alerts", linked=True, owners=True, more=None):
    """The alerts with these names, the most severe first, and what to do about each. `more`: names and a selector of further alerts."""
    selectors = [f'{q.of_rules(chosen)},alertname=~"{alerts}"' for alerts, chosen in ((names, select), *([more] if more else []))]
    fires = " or ".join(f'ALERTS{{{chosen},alertstate="firing"}}' for chosen in selectors)
    since = " or ".join(f"ALERTS_FOR_STATE{{{chosen}}}" for chosen in selectors)
    # A ruler that does not write ALERTS_FOR_STATE still lists its alerts.
    active = f"1000 * (({since}) and ignoring (alertstate) ({fires})) or ignoring (alertstate) 0 * ({fires})"
    for severity, rank in RANKS.items():
        active = f'label_replace({active}, "rank", "{rank}", "severity", "{severity}")'
    copied = f'label_replace({active}, "todo", "$1", "alertname", "(.*)")'
    columns = [
        t.words("rank", "Severity", SEVERITY, width=96),
        t.column("alertname", "Alert", width=210),
        *(t.device_columns(85) if linked else [t.column("instance", "Node", width=110)]),
        *([t.column("about", "About", **t.WRAPPED)] if owners else []),
        t.column("Value #A", "Since", p.TIME, width=105, mappings=p.values(_0=("–", "text"))),
        t.words("todo", "What to do", {name: (text, "text") for name, text in ACTIONS.items()}, 265 if owners else None),
    ]
    return t.table(
        title,
        "Alerts of the shipped rules that fire at the end of the selected time range. About: the workload, pod, process or "
        "class of the Xid error. Since: when the condition became true. What to do: the first step, with the panels of the GPU "
        "dashboard; docs/runbook.md has a section for each alert.",
        [f"max by ({LABELS}) ({about(copied)})"],
        columns,
        size=size,
        empty="No alert fires, or the shipped rules are not loaded.",
        sort="Severity",
    )


KINDS = {
    "out_of_memory": ("out of memory", "red"),
    "ended_at_peak": ("a process ended at its peak", "red"),
    "gpu_lost": ("GPU lost", "red"),
    "memory_xid": ("memory error (Xid)", "red"),
    "near_limit": ("nearly full", "orange"),
    "on_demand": ("requested by a client", "blue"),
}
KEY = "cluster, instance, gpu, uuid, mig_uuid, kind"


def page_of_exporter():
    """A link to the exporter's own page, for a node whose label is its host name, with the exporter's usual port."""
    url = 'http://${__data.fields["instance"]}${port}/'
    return links.to("Open the exporter's page, which shows who held the memory", url, new_tab=True)


def incidents(select, size, title="Incidents", only=""):
    """The last incident of each kind on each GPU within the selected time range; `only`: appended to the series."""
    last = f"(max_over_time(gpu_memory_last_incident_timestamp_seconds{{{select}}}[$__range]){only})"
    recent = f"{last} > time() - $__range_s"
    wide = size[0] > 12
    return t.table(
        title,
        "Moments in the selected time range of which the exporter keeps a copy: the last one of each kind on "
        "each GPU. The link in Details opens the exporter's own page, which shows which processes held "
        "the memory, which grew and which ended; it needs a Node that is a host name. The link on the time opens the GPU "
        "at that moment.",
        [f'label_replace(1000 * max by ({KEY}) ({recent}), "record", "open record ↗", "", "")', *t.around(f"max by ({KEY}) ({recent})")],
        [
            t.words("kind", "Incident", KINDS, width=None if wide else 167),
            t.column("instance", "Node", width=None if wide else 83, links=links.detail("gpu", "instance")),
            t.column("gpu", "GPU", width=50, links=links.detail("gpu", "instance", gpu="uuid")),
            t.column("Value #A", "Last", p.TIME, width=105, links=t.at_that_time("Value #B", "Value #C", "instance", gpu="uuid")),
            t.column("record", "Details", width=105, links=page_of_exporter()),
            t.hidden("Value #B"),
            t.hidden("Value #C"),
            t.hidden("uuid"),
        ],
        size=size,
        empty="No incident in the selected time range, or the exporter's recorder is off.",
        sort="Last",
    )
