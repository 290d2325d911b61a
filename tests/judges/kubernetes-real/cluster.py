"""An API server with its store, on the loopback interface, from the upstream binaries."""

import base64
import json
import shutil
import socket
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

BINARIES = ("etcd", "kube-apiserver", "kubectl")
PATIENCE = 180.0
ADMIN = "admin-of-this-test"


def binaries(folder):
    """The path of each binary that exists in the folder or its bin subfolder."""
    places = [Path(folder, "bin"), Path(folder)]
    found = {name: next((place / name for place in places if (place / name).is_file()), None) for name in BINARIES}
    return {name: path for name, path in found.items() if path}


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def until(what, ask, pause=0.05):
    begin = time.monotonic()
    while not (answer := ask()):
        if time.monotonic() - begin > PATIENCE:
            raise SystemExit(f"not within {PATIENCE:.0f} s: {what}")
        time.sleep(pause)
    return answer


class Cluster:
    """etcd and kube-apiserver. Both are stopped at the end of the `with` block."""

    def __init__(self, tools, folder):
        self.tools, self.folder = tools, Path(folder)
        self.port, self.store = free_port(), free_port()
        self.url = f"https://127.0.0.1:{self.port}"
        self.running = {}

    def __enter__(self):
        try:
            self.make_certificates()
            peer = f"http://127.0.0.1:{free_port()}"
            own = f"http://127.0.0.1:{self.store}"
            self.spawn(
                "etcd", "--data-dir=store", "--log-level=error", f"--listen-client-urls={own}",
                f"--advertise-client-urls={own}", f"--listen-peer-urls={peer}",
                f"--initial-advertise-peer-urls={peer}", f"--initial-cluster=default={peer}",
            )  # fmt: skip
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for name in list(self.running):
            self.end(name)

    def spawn(self, name, *arguments):
        log = open(self.folder / f"{name}.log", "ab")
        self.running[name] = subprocess.Popen(
            [self.tools[name], *arguments], cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )

    def end(self, name):
        process = self.running.pop(name)
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def make_certificates(self):
        def openssl(*arguments):
            subprocess.run(["openssl", *arguments], cwd=self.folder, check=True, capture_output=True)

        new = ["req", "-newkey", "rsa:2048", "-nodes"]
        openssl(*new, "-x509", "-days", "2", "-subj", "/CN=authority", "-keyout", "ca.key", "-out", "ca.crt")
        openssl(*new, "-subj", "/CN=server", "-keyout", "server.key", "-out", "server.csr")
        (self.folder / "names").write_text("subjectAltName=IP:127.0.0.1\n")
        openssl(
            "x509", "-req", "-days", "2", "-in", "server.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial",
            "-extfile", "names", "-out", "server.crt",
        )  # fmt: skip
        openssl("genrsa", "-out", "accounts.key", "2048")
        (self.folder / "tokens").write_text(f"{ADMIN},admin,1,system:masters\n")
        self.trust = ssl.create_default_context(cafile=str(self.folder / "ca.crt"))

    def start(self):
        """Starts the API server, waits until it is ready, and returns the time at which it became ready."""
        self.spawn(
            "kube-apiserver", f"--etcd-servers=http://127.0.0.1:{self.store}", "--bind-address=127.0.0.1",
            f"--secure-port={self.port}", "--endpoint-reconciler-type=none", "--authorization-mode=Node,RBAC",
            "--service-cluster-ip-range=10.96.0.0/24", "--token-auth-file=tokens", "--tls-cert-file=server.crt",
            "--tls-private-key-file=server.key", "--service-account-issuer=https://kubernetes.default.svc",
            "--service-account-key-file=accounts.key", "--service-account-signing-key-file=accounts.key",
        )  # fmt: skip
        until("the API server is ready", self.is_ready)
        return time.monotonic()

    def stop(self):
        self.end("kube-apiserver")

    def is_ready(self):
        ended = [name for name, process in self.running.items() if process.poll() is not None]
        if ended:
            raise SystemExit(f"{ended[0]} ended: {(self.folder / f'{ended[0]}.log').read_text()[-2000:]}")
        try:
            return self.ask("GET", "/readyz") == "ok"
        except OSError:
            return False

    def ask(self, method, path, body=None, kind="application/json"):
        """Sends a request to the API server as its administrator."""
        request = urllib.request.Request(self.url + path, method=method, data=json.dumps(body).encode() if body else None)
        request.add_header("Authorization", f"Bearer {ADMIN}")
        request.add_header("Content-Type", kind)
        with urllib.request.urlopen(request, timeout=10, context=self.trust) as answer:
            text = answer.read().decode()
        return json.loads(text) if text.startswith("{") else text

    def kubectl(self, *arguments, given=None):
        connect = [f"--server={self.url}", f"--token={ADMIN}", "--certificate-authority=ca.crt", "--kubeconfig=/dev/null"]
        done = subprocess.run(
            [self.tools["kubectl"], *connect, *arguments], cwd=self.folder, input=given, capture_output=True, text=True
        )
        if done.returncode != 0:
            raise SystemExit(f"kubectl {' '.join(arguments)}: {done.stderr}")
        return done.stdout

    def token(self, namespace, account):
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
        asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 7200}}
        return self.ask("POST", path, asked)["status"]["token"]

    def move_on(self):
        """Writes to the store without this API server, as other API servers do when they renew their leases."""
        for n in range(10):
            pair = {key: base64.b64encode(f"{key} {n}".encode()).decode() for key in ("key", "value")}
            request = urllib.request.Request(f"http://127.0.0.1:{self.store}/v3/kv/put", data=json.dumps(pair).encode())
            urllib.request.urlopen(request, timeout=10).close()

    def run_pod(self, namespace, name, container_id):
        """Creates a pod on node-1, and the status that its kubelet would report for its only container."""
        path = f"/api/v1/namespaces/{namespace}/pods"
        spec = {"nodeName": "node-1", "containers": [{"name": "main", "image": "none"}]}
        metadata = {"name": name, "namespace": namespace}
        self.ask("POST", path, {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
        container = {
            "name": "main", "image": "none", "imageID": "none", "ready": True, "restartCount": 0,
            "containerID": f"containerd://{container_id}", "state": {"running": {}},
        }  # fmt: skip
        status = {"status": {"phase": "Running", "containerStatuses": [container]}}
        self.ask("PATCH", f"{path}/{name}/status", status, "application/strategic-merge-patch+json")


def missing(tools):
    """The required programs that are missing."""
    return [name for name in BINARIES if name not in tools] + ([] if shutil.which("openssl") else ["openssl"])
