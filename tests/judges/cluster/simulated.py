"""The exporter on a simulated machine, and a relay between it and the API server."""

import re
import shutil
import socket
import subprocess
import threading
from pathlib import Path

from harness import exporter

ACCOUNT = "vram-exporter"
TEAM = "team"
# The path of a control group as the kubelet and containerd create it.
CGROUP = "0::/kubepods.slice/kubepods-pod1d5c7a0e_52f1_4b55_9f0e_6a2b8c3d4e{:02x}.slice/cri-containerd-{}.scope"


def container_id(n):
    return f"{n:064x}"


def process(n, container, gpu=0, memory="1GiB"):
    """A process of the scenario: the n-th, in a container with the id."""
    cgroup = CGROUP.format(n, container)
    return f'[[process]]\npid = {100 + n}\ngpu = {gpu}\nmemory = "{memory}"\ncgroup = "{cgroup}"\n'


def one_gpu(containers):
    """A scenario with one GPU and a process for each container."""
    return '[[gpu]]\nmodel = "H200"\n' + "".join(process(n, container_id(n)) for n in range(containers))


def names(metrics, pod):
    return f'workload="{TEAM}/{pod}/main"' in metrics


class Relay:
    """Passes connections on to a port, and counts the bytes that come back. It can close all open connections."""

    def __init__(self, port):
        self.target = port
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.lock = threading.Lock()
        self.open, self.connections, self.received = set(), 0, 0

    def __enter__(self):
        threading.Thread(target=self.accept, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.listener.close()
        self.cut()

    def accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self.target))
            except OSError:
                client.close()
                continue
            with self.lock:
                self.connections += 1
                self.open |= {client, server}
            for source, sink, counted in ((client, server, False), (server, client, True)):
                threading.Thread(target=self.copy, args=(source, sink, counted), daemon=True).start()

    def copy(self, source, sink, counted):
        try:
            while data := source.recv(65536):
                if counted:
                    with self.lock:
                        self.received += len(data)
                sink.sendall(data)
        except OSError:
            pass
        for end in (source, sink):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        with self.lock:
            self.open -= {source, sink}

    def cut(self):
        with self.lock:
            ends = list(self.open)
        for end in ends:
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


class Exporter(exporter.Exporter):
    """The exporter on a machine with the scenario; `follow` says which cluster it reads."""

    def __init__(self, program, library, folder, scenario, *flags):
        self.folder = Path(folder)
        machine = exporter.Machine(folder, library, scenario, control=None)
        node = {"VRAM_EXPORTER_KUBERNETES_NODE_NAME": "node-1"}
        super().__init__(program.resolve(), *machine.flags, *flags, "--log.level=debug", environment=machine.environment | node)
        self.alone = list(self.command)

    def write_token(self, token):
        """Replaces the token's file in one step, as the kubelet does."""
        new = self.folder / "token.new"
        new.write_text(token)
        new.rename(self.folder / "token")

    def follow(self, cluster, token, port=None):
        """It reaches the API server with the token at the server's own port or at the given one."""
        self.write_token(token)
        self.command = [
            *self.alone,
            f"--kubernetes.api-server=https://127.0.0.1:{port or cluster.port}",
            f"--kubernetes.token-file={self.folder / 'token'}",
            f"--kubernetes.ca-file={cluster.folder / 'ca.crt'}",
        ]
        return self

    def metrics(self):
        return self.get("/metrics")

    def series(self, family):
        """The labels and the value of each series of the family."""
        return [(labels, value) for name, labels, value in self.scrape() if name == family]

    def is_up(self):
        return "\nvram_exporter_kubernetes_api_up 1\n" in self.metrics()

    def faults(self):
        pattern = r'vram_exporter_faults_by_reason_total\{source="kubernetes_api",reason="(\w+)"\} (\d+)'
        return {reason: int(count) for reason, count in re.findall(pattern, self.metrics())}

    def new_faults(self, before):
        return {reason: count - before.get(reason, 0) for reason, count in self.faults().items() if count > before.get(reason, 0)}

    def names(self, pod):
        return names(self.metrics(), pod)

    def once(self):
        """What a second exporter with the same settings prints."""
        command = [*self.command, "--once"]
        return subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=120, check=True).stdout

    def in_cluster(self, cluster, pod):
        """Runs `--once` as in a pod whose volume contains only token and ca.crt. It must show the pod's name. False if it cannot be run."""
        token, certificates = self.folder / "token", cluster.folder / "ca.crt"
        place = "/run/secrets/kubernetes.io/serviceaccount"
        made = f'mount -t tmpfs none /run && mkdir -p {place} && cp "$0" {place}/token && cp "$1" {place}/ca.crt'
        spaces = (["unshare", "--user", "--map-root-user", "--mount"], ["unshare", "--mount"])
        for unshare in spaces if shutil.which("unshare") else ():
            if subprocess.run([*unshare, "sh", "-ec", made, token, certificates], capture_output=True).returncode == 0:
                break
        else:
            return False
        environment = self.environment | {
            "KUBERNETES_SERVICE_HOST": "127.0.0.1",
            "KUBERNETES_SERVICE_PORT": str(cluster.port),
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
        }
        command = [*unshare, "sh", "-ec", f'{made}; shift 2; exec "$@"', token, certificates, "--", *self.alone]
        command += ["--kubernetes.api-server=in-cluster", "--once"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
        if done.returncode != 0 or not names(done.stdout, pod):
            raise SystemExit(f"in-cluster shows no name: {done.stderr}")
        return True
