"""A node with all of Kubernetes: etcd, the API server, controller manager, scheduler, kubelet and containerd, in namespaces of their own.

Invariant: nothing is left. The namespaces of processes, mounts and the network end with the process that `apart` starts, and everything that the
programs write is on file systems in memory that only these namespaces have. The cgroups, which have no such end, are below one of
this test's own, which `apart` removes.
"""

import hashlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
from pathlib import Path

from claims import IMAGE, NODE, RESOURCE
from harness import undone_on_failure
from server import ADMIN, BINARIES, Cluster, until

PROGRAMS = (
    *BINARIES, "kube-controller-manager", "kube-scheduler", "kubelet", "dra-driver", "device-plugin", "pause", "pod-resources",
)  # fmt: skip
# What the machine must have.
SYSTEM = ("containerd", "ctr", "runc", "ip", "mount", "unshare")
ADDRESS = "10.88.0.1"
# In the namespaces these folders are in memory.
FOLDER = Path("/var/lib/judge")
KUBELET = Path("/var/lib/kubelet")
SOCKET = KUBELET / "pod-resources/kubelet.sock"
KUBELET_TOKEN = "kubelet-of-this-test"
KUBELET_CONFIGURATION = {
    "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration", "address": ADDRESS, "readOnlyPort": 0,
    "authentication": {"anonymous": {"enabled": False}, "webhook": {"enabled": False}}, "authorization": {"mode": "AlwaysAllow"},
    "cgroupDriver": "cgroupfs", "failCgroupV1": False, "failSwapOn": False, "resolvConf": "",
    "evictionHard": {"memory.available": "100Mi"}, "localStorageCapacityIsolation": False, "makeIPTablesUtilChains": False,
}  # fmt: skip
CONTAINERD = """\
version = 2
root = "{folder}/containerd/root"
state = "{folder}/containerd/state"
[grpc]
  address = "{folder}/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{image}"
  disable_apparmor = true
  restrict_oom_score_adj = true
  enable_cdi = true
  cdi_spec_dirs = ["{folder}/cdi"]
  [plugins."io.containerd.grpc.v1.cri".cni]
    conf_dir = "{folder}/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
"""
# The pods have the node's network, so the plugin is never started; the kubelet is not ready without one.
NETWORK = {"cniVersion": "1.0.0", "name": "none", "plugins": [{"type": "loopback"}]}
SPACES = ("--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--propagation=private")
# The kubelet sets these, and there is only one of each on the machine: it gets files with these values in their places.
SETTINGS = {
    "vm/overcommit_memory": 1, "vm/panic_on_oom": 0, "kernel/panic": 10, "kernel/panic_on_oops": 1, "kernel/keys/root_maxkeys": 1000000,
    "kernel/keys/root_maxbytes": 25000000,
}  # fmt: skip
PREPARE = f"""
mount -t tmpfs -o mode=755 none /var/lib
mount -t tmpfs -o mode=755 none /run
mkdir {KUBELET} {FOLDER} /run/settings
set_apart() {{
    [ -e "/proc/sys/$1" ] || return 0
    echo "$2" >"/run/settings/${{1##*/}}"
    mount --bind "/run/settings/${{1##*/}}" "/proc/sys/$1"
}}
{"".join(f"set_apart {name} {value}{chr(10)}" for name, value in SETTINGS.items())}
ip link set lo up
ip addr add {ADDRESS}/32 dev lo
"""


class Impossible(Exception):
    """This machine does not permit it."""


def missing():
    """What the machine lacks."""
    return [name for name in SYSTEM if not shutil.which(name)]


def apart(*command):
    """Runs a command in namespaces of its own, with the path of its cgroup as the last argument. Returns its status."""
    if os.geteuid() != 0:
        raise Impossible("root, for namespaces, mounts and cgroups")
    trial = subprocess.run(["unshare", *SPACES, "sh", "-ec", PREPARE], capture_output=True, text=True)
    if trial.returncode != 0:
        raise Impossible(f"the right to create namespaces: {trial.stderr.strip()}")
    # So that a signal ends the test as an exception does.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    name = f"vram-exporter-judge-{os.getpid()}"
    made = []
    try:
        try:
            for hierarchy in hierarchies():
                (hierarchy / name).mkdir()
                made.append(hierarchy / name)
        except OSError as error:
            raise Impossible(f"the right to create cgroups: {error}") from None
        command = [sys.executable, *map(str, command), name]
        return subprocess.run(["unshare", *SPACES, "sh", "-ec", PREPARE + 'exec "$@"', "sh", *command]).returncode
    finally:
        for cgroup in made:
            remove(cgroup)


def hierarchies():
    """Where the hierarchies of cgroups are mounted."""
    mounts = (line.split() for line in Path("/proc/mounts").read_text().splitlines())
    return [Path(place) for _, place, kind, *_ in mounts if kind in ("cgroup", "cgroup2")]


def remove(cgroup):
    """Removes a cgroup and all below it. Its processes have been killed, and end in a moment."""
    for folder, _, _ in os.walk(cgroup, topdown=False):
        until(f"{folder} can be removed", lambda folder=folder: gone(folder))


def gone(folder):
    try:
        os.rmdir(folder)
    except FileNotFoundError:
        pass
    return True


def image(program):
    """An image, in the form of `docker save`, that contains only this program."""
    def archive(**files):
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as tar:
            for name, content in files.items():
                entry = tarfile.TarInfo(name)
                entry.size, entry.mode = len(content), 0o755
                tar.addfile(entry, io.BytesIO(content))
        return buffer.getvalue()

    layer = archive(pause=program.read_bytes())
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine, os.uname().machine)
    digest = hashlib.sha256(layer).hexdigest()
    config = json.dumps({
        "architecture": machine, "os": "linux", "config": {"Entrypoint": ["/pause"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
    }).encode()  # fmt: skip
    manifest = json.dumps([{"Config": "config.json", "RepoTags": [IMAGE], "Layers": ["layer.tar"]}]).encode()
    return archive(**{"config.json": config, "layer.tar": layer, "manifest.json": manifest})


class Node(Cluster):
    """All of Kubernetes on one node, which is ready in the `with` block. It must run in the namespaces that `apart` has made."""

    def __init__(self, tools, folder, cgroup):
        super().__init__(tools, folder, f"--advertise-address={ADDRESS}", "--enable-admission-plugins=NodeRestriction")
        self.cgroup = cgroup
        self.tools |= {name: shutil.which(name) for name in SYSTEM}

    @undone_on_failure
    def __enter__(self):
        super().__enter__()
        access = f"--kubeconfig={self.folder / 'config'}"
        alone = [access, "--leader-elect=false", "--secure-port=0"]
        self.spawn("kube-controller-manager", *alone, "--service-account-private-key-file=accounts.key", "--root-ca-file=ca.crt")
        self.spawn("kube-scheduler", *alone)
        self.start_containerd()
        self.start_kubelet()
        until("the node is ready", self.is_node_ready)
        until("the default account exists", lambda: self.exists("/api/v1/namespaces/default/serviceaccounts/default"))

    def __exit__(self, *_):
        for process in self.running.values():
            process.kill()
        super().__exit__()

    def make_access(self):
        super().make_access()
        self.add_user(KUBELET_TOKEN, f"system:node:{NODE}", "system:nodes", "kubelet.config")

    def start_containerd(self):
        folder, socket = self.folder, self.folder / "containerd.sock"
        for name in ("cni", "cdi"):
            (folder / name).mkdir()
        (folder / "cni/none.conflist").write_text(json.dumps(NETWORK))
        (folder / "containerd.toml").write_text(CONTAINERD.format(folder=folder, image=IMAGE))
        (folder / "image.tar").write_bytes(image(self.tools["pause"]))
        self.spawn("containerd", f"--config={folder / 'containerd.toml'}")
        load = [self.tools["ctr"], f"--address={socket}", "--namespace=k8s.io", "images", "import", folder / "image.tar"]
        until("containerd has the image", lambda: self.must_run() and subprocess.run(load, capture_output=True).returncode == 0)

    def start_kubelet(self):
        """Starts the kubelet, or starts it again."""
        configuration = KUBELET_CONFIGURATION | {
            "cgroupRoot": f"/{self.cgroup}", "containerRuntimeEndpoint": f"unix://{self.folder / 'containerd.sock'}",
            "podLogsDir": str(self.folder / "logs"),
        }  # fmt: skip
        (self.folder / "kubelet.json").write_text(json.dumps(configuration))
        self.spawn(
            "kubelet", f"--config={self.folder / 'kubelet.json'}", f"--kubeconfig={self.folder / 'kubelet.config'}",
            f"--hostname-override={NODE}", f"--node-ip={ADDRESS}", f"--root-dir={KUBELET}",
        )  # fmt: skip

    def must_run(self):
        ended = [name for name, process in self.running.items() if process.poll() is not None]
        if ended:
            raise SystemExit(f"{ended[0]} ended: {self.log(ended[0])}")
        return True

    def log(self, name):
        return (self.folder / f"{name}.log").read_text()[-2000:]

    def exists(self, path):
        return self.code("GET", path, ADMIN) == 200

    def is_node_ready(self):
        self.must_run()
        if not self.exists(f"/api/v1/nodes/{NODE}"):
            return False
        node = self.ask("GET", f"/api/v1/nodes/{NODE}")
        conditions = {condition["type"]: condition["status"] for condition in node["status"].get("conditions", [])}
        return conditions.get("Ready") == "True" and not node["spec"].get("taints")

    def start_driver(self, pools):
        """Starts the DRA driver, which publishes these pools."""
        self.write_pools(pools)
        self.spawn(
            "dra-driver", f"--kubeconfig={self.folder / 'config'}", f"--node={NODE}", f"--resources={self.folder / 'pools.json'}",
            f"--kubelet={KUBELET}", f"--cdi={self.folder / 'cdi'}",
        )  # fmt: skip

    def publish(self, pools):
        """The driver publishes other pools."""
        self.write_pools(pools)
        self.running["dra-driver"].send_signal(signal.SIGHUP)

    def write_pools(self, pools):
        (self.folder / "pools.json").write_text(json.dumps(pools))

    def start_plugin(self, *devices):
        """Starts the device plugin with these devices. Waits until the node offers them: a pod for which it does not is not admitted."""
        self.spawn("device-plugin", *devices)
        until("the node offers the plugin's devices", lambda: self.must_run() and self.offered() == len(devices))

    def stop_plugin(self):
        self.end("device-plugin")
        until("the node offers no devices", lambda: not self.offered())

    def offered(self):
        """How many devices of the plugin the node offers."""
        return int(self.ask("GET", f"/api/v1/nodes/{NODE}")["status"]["allocatable"].get(RESOURCE, 0))

    def pod_resources(self):
        """What the kubelet answers; None while it does not."""
        done = subprocess.run([self.tools["pod-resources"], "read", SOCKET], capture_output=True, text=True)
        return json.loads(done.stdout) if done.returncode == 0 else None
