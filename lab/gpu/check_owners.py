"""Checks of the owners of memory: processes in separate control groups, and invisible processes."""

import subprocess
import sys
import time

from cgroups import Cgroup
from check_memory import settle
from children import Crowd
from exporter import Exporter

MIB = 1 << 20
SPIKE_MIB = 2048
POD = "1d5c7a0e-52f1-4b55-9f0e-6a2b8c3d4e5f"
CONTAINER = "3b1f0c9d8e7a6b5c4d3e2f1a0b9c8d7e6f5a4b3c2d1e0f9a8b7c6d5e4f3a2b1c"
KUBEPODS = f"kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{POD.replace('-', '_')}.slice/cri-containerd-{CONTAINER}.scope"
SLURM = "system.slice/slurmstepd.scope/job_4711/step_0/user/task_0"


def workload(scrape, family, name):
    return scrape.value(f"gpu_workload_{family}", gpu=0, workload=name)


def owners(setup, results):
    """One process in a pod's group and two in a Slurm job's group: two workloads, their sums, and the peaks of the sums."""
    gpu = setup.gpu()
    with Cgroup(KUBEPODS) as pod, Cgroup(SLURM) as job, Crowd(3, "spikes") as children:
        first, *pair = children
        pod.take(first.pid)
        for child in pair:
            job.take(child.pid)
        with Exporter(setup, "owners") as exporter:
            settle(gpu)
            time.sleep(1.5)  # the process lane reads at least once a second
            held = {child.pid: gpu.process_memory(child.pid) for child in children}
            identities(exporter.scrape(), results, first.pid, [child.pid for child in pair])
            names = {f"container:{CONTAINER[:12]}": [first], "slurm:4711": pair}
            for child in children:  # one after the other: the peak of the sum includes one spike; the sum of the peaks would include two
                child.send(mib=SPIKE_MIB, hold_ms=100)
                child.hear()
                time.sleep(0.3)
            time.sleep(1.5)
            scrape = exporter.scrape()
            for name, members in names.items():
                want = sum(held[child.pid] for child in members)
                used, peak = workload(scrape, "memory_used_bytes", name), workload(scrape, "memory_peak_bytes", name)
                count = workload(scrape, "processes", name)
                results.check(f"{name}: memory and processes", f"{used} bytes, {count} processes", f"{want} bytes, {len(members)}", (used, count) == (want, len(members)))
                apart = float("inf") if peak is None else (peak - want - SPIKE_MIB * MIB) / MIB
                results.check(f"{name}: peak of the sum", f"{apart:+.2f} MiB from the truth", "0.00", apart == 0)
            others = [labels["workload"] for labels, _ in scrape.rows("gpu_workload_processes", gpu=0) if labels["workload"] not in names]
            results.check("no other workload", ", ".join(others) or "none", "none", not others)
    results.check("invisible", f"{scrape.value('vram_exporter_processes_invisible', gpu=0):.0f}", "0", scrape.value("vram_exporter_processes_invisible", gpu=0) == 0)


def identities(scrape, results, pod_pid, job_pids):
    shown = {int(labels["pid"]): labels for labels, _ in scrape.rows("gpu_process_info", gpu=0)}
    pod = shown.get(pod_pid, {})
    found = (pod.get("pod_uid"), pod.get("container_id"), pod.get("kind"))
    results.check("kubepods-shaped group", f"pod_uid {found[0]}, kind {found[2]}", f"pod_uid {POD}", found == (POD, CONTAINER, "container"))
    jobs = {(shown.get(pid, {}).get("slurm_job"), shown.get(pid, {}).get("slurm_step"), shown.get(pid, {}).get("kind")) for pid in job_pids}
    results.check("Slurm-shaped group", ", ".join(f"job {job}, step {step}" for job, step, _ in jobs), "job 4711, step 0", jobs == {("4711", "0", "slurm")})


INSIDE = ["unshare", "--pid", "--fork", "--mount-proc"]


def namespaces(setup, results):
    """In a separate pid namespace the exporter reports that it cannot see processes, and shows no name for any of them."""
    gpu = setup.gpu()
    with Crowd(1, "context", "--mib", 300) as (child,):
        settle(gpu)
        command = [*INSIDE, setup.exporter, "--once", f"--nvml.library={setup.library}"]
        text = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
        rows = [line for line in text.stdout.splitlines() if line.startswith(("gpu_process_memory_used", "gpu_process_info", "gpu_workload_memory_used", "gpu_memory_unattributed"))]
        print("\n".join(rows), file=sys.stderr)
        named = [row for row in rows if 'process="' in row or "gpu_workload" in row]
        results.check("a process in another pid namespace has no owner", f"{len(named)} series with a name", "0", not named)
        reported = "vram_exporter_host_pid_namespace 0" in text.stdout and "--pid=host" in text.stderr
        results.check("the exporter reports its separate pid namespace", "in a metric and in the log" if reported else "no", "in a metric and in the log", reported)
        results.note("what the driver lists there", "; ".join(row[:120] for row in rows) or "nothing")
        with Exporter(setup, "namespaces") as exporter:
            time.sleep(1.5)
            scrape = exporter.scrape()
            inside = subprocess.Popen([*INSIDE, sys.executable, child.process.args[1], "context", "--mib", "200"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            try:
                inside.stdout.readline()
                time.sleep(1.5)
                scrape = exporter.scrape()
            finally:
                inside.stdin.close()
                inside.wait(10)
                inside.stdout.close()
        shown = scrape.rows("gpu_process_memory_used_bytes", gpu=0)
        names = sorted(labels.get("process", "none") for labels, _ in shown)
        results.check("from the host's namespace both are seen by name", ", ".join(names), "cuda_child.py twice", names == ["cuda_child.py"] * 2)
