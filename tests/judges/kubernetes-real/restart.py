#!/usr/bin/env python3
"""Measures how soon pods get their names back after an outage of a real API server. See README.md."""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from cluster import Cluster, binaries, missing, until

ROOT = Path(__file__).resolve().parents[3]
AWAY = 25.0
LIMIT = 4.0
ACCOUNT = "vram-exporter"
TEAM = "team"
# The path of a control group as the kubelet and containerd create it.
CGROUP = "0::/kubepods.slice/kubepods-pod1d5c7a0e_52f1_4b55_9f0e_6a2b8c3d4e{:02x}.slice/cri-containerd-{}.scope"


def container_id(n):
    return f"{n:064x}"


class Exporter:
    """The exporter on a simulated machine with a process for each container. It is stopped at the end of the `with` block."""

    def __init__(self, program, library, folder, containers):
        self.folder = Path(folder)
        processes = (
            f'[[process]]\npid = {100 + n}\nmemory = "1GiB"\ncgroup = "{CGROUP.format(n, container_id(n))}"\n'
            for n in range(containers)
        )
        (self.folder / "scenario.toml").write_text('[[gpu]]\nmodel = "H200"\n' + "".join(processes))
        self.environment = {
            "NVML_SIM_SCENARIO": str(self.folder / "scenario.toml"),
            "NVML_SIM_PROCFS": str(self.folder / "proc"),
            "VRAM_EXPORTER_PATH_PROCFS": str(self.folder / "proc"),
            "VRAM_EXPORTER_KUBERNETES_NODE_NAME": "node-1",
        }
        self.command = [str(program.resolve()), f"--nvml.library={library}", "--web.listen-address=127.0.0.1:0", "--log.level=debug"]

    def follow(self, cluster):
        flags = [f"--kubernetes.{name}={value}" for name, value in self.place(cluster).items()]
        log = open(self.folder / "exporter.log", "wb")
        self.process = subprocess.Popen(self.command + flags, env=self.environment, stdin=subprocess.DEVNULL, stderr=log)
        return self

    def place(self, cluster):
        token, certificates = self.folder / "token", cluster.folder / "ca.crt"
        token.write_text(cluster.token(ACCOUNT, ACCOUNT))
        return {"api-server": cluster.url, "token-file": token, "ca-file": certificates}

    def __enter__(self):
        self.address = until("the exporter listens", lambda: re.search(r"address=(127\.0\.0\.1:\d+)", self.log()))[1]
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(30)

    def log(self):
        if self.process.poll() is not None:
            raise SystemExit(f"the exporter ended: {(self.folder / 'exporter.log').read_text()}")
        return (self.folder / "exporter.log").read_text()

    def metrics(self):
        with urllib.request.urlopen(f"http://{self.address}/metrics", timeout=10) as answer:
            return answer.read().decode()

    def faults(self):
        pattern = r'vram_exporter_faults_by_reason_total\{source="kubernetes_api",reason="(\w+)"\} (\d+)'
        return {reason: int(count) for reason, count in re.findall(pattern, self.metrics())}

    def names(self, pod):
        return names(self.metrics(), pod)

    def in_cluster(self, cluster):
        """Runs `--once` as in a pod whose volume contains only token and ca.crt. It must show the name. False if it cannot be run."""
        if not shutil.which("unshare"):
            return False
        token, certificates = self.folder / "token", cluster.folder / "ca.crt"
        place = "/run/secrets/kubernetes.io/serviceaccount"
        made = f'mount -t tmpfs none /run && mkdir -p {place} && cp "$0" {place}/token && cp "$1" {place}/ca.crt'
        unshare = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-ec"]
        if subprocess.run([*unshare, made, token, certificates], capture_output=True).returncode != 0:
            return False
        environment = self.environment | {
            "KUBERNETES_SERVICE_HOST": "127.0.0.1",
            "KUBERNETES_SERVICE_PORT": str(cluster.port),
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
        }
        files = [token, certificates]
        command = [*unshare, f'{made}; shift 2; exec "$@"', files[0], files[1], "--", *self.command]
        command += ["--kubernetes.api-server=in-cluster", "--once"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
        if done.returncode != 0 or not names(done.stdout, "after-0"):
            raise SystemExit(f"in-cluster shows no name: {done.stderr}")
        return True


def names(metrics, pod):
    return f'workload="{TEAM}/{pod}/main"' in metrics


def prepare(cluster):
    """Applies the shipped manifests and creates a namespace for pods. No controller runs here to create accounts or pods."""
    manifests = cluster.kubectl("kustomize", str(ROOT / "deploy/kubernetes/base"))
    cluster.kubectl("apply", "--filename=-", given=manifests)
    cluster.kubectl("create", "namespace", TEAM)
    cluster.kubectl("create", "serviceaccount", "default", f"--namespace={TEAM}")


def round_of(cluster, exporter, n):
    """Stops the server and starts it again. Returns the seconds from its readiness until the new pod's name is shown."""
    pod, before, log = f"after-{n}", exporter.faults(), len(exporter.log())
    cluster.stop()
    begin = time.monotonic()
    cluster.move_on()
    until("the exporter notices", lambda: "vram_exporter_kubernetes_api_up 0" in exporter.metrics())
    noticed = time.monotonic() - begin
    time.sleep(max(0.0, AWAY - noticed))
    ready = cluster.start()
    cluster.run_pod(TEAM, pod, container_id(n))
    created = time.monotonic()
    until("its name", lambda: exporter.names(pod), pause=0.02)
    named = time.monotonic()
    logged = exporter.log()[log:]
    new = {reason: count - before.get(reason, 0) for reason, count in exporter.faults().items() if count > before.get(reason, 0)}
    print(
        f"round {n}: away {AWAY:.0f} s, noticed after {noticed:.1f} s; named {named - ready:.2f} s after readiness, "
        f"{named - created:.2f} s after the pod's creation; watches answered with 410: {logged.count('(410)')}; "
        f"faults: {new}",
        flush=True,
    )
    for line in (line for line in logged.splitlines() if "(403)" in line):
        print(f"  {line.strip()}")
    if new.get("no_permission"):
        raise SystemExit("a starting server counts as a lack of permission")
    return named - ready, logged.count("(410)")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", help="contains etcd, kube-apiserver and kubectl, or a folder bin with them")
    parser.add_argument("--exporter", type=Path, default=ROOT / "target/debug/vram-exporter")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    tools = binaries(arguments.folder)
    if lacking := missing(tools):
        print(f"SKIPPED: not there: {', '.join(lacking)}")
        return 0
    library = arguments.exporter.parent / "deps/libnvml_sim.so"
    with tempfile.TemporaryDirectory() as folder:
        server, machine = Path(folder, "server"), Path(folder, "machine")
        server.mkdir(), machine.mkdir()
        with Cluster(tools, server) as cluster:
            prepare(cluster)
            simulated = Exporter(arguments.exporter, library, machine, arguments.rounds + 1)
            with simulated.follow(cluster) as exporter:
                cluster.run_pod(TEAM, "after-0", container_id(0))
                until("the first name", lambda: exporter.names("after-0"))
                shown = exporter.in_cluster(cluster)
                print("in-cluster with token and ca.crt alone: named" if shown else "SKIPPED: in-cluster needs user namespaces")
                measured = [round_of(cluster, exporter, n) for n in range(1, arguments.rounds + 1)]
    slowest = max(seconds for seconds, _ in measured)
    print(f"slowest of {len(measured)}: {slowest:.2f} s; {sum(gone > 0 for _, gone in measured)} with a 410")
    return 0 if slowest <= LIMIT else f"a name took longer than {LIMIT} s"


if __name__ == "__main__":
    sys.exit(main())
