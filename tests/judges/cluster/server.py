"""An API server with its store, on the loopback interface, from the upstream binaries."""

import base64
import http.client
import json
import os
import shutil
import ssl
import subprocess
import time
from pathlib import Path

import harness
from harness import end, free_port, get, request, undone_on_failure

BINARIES = ("etcd", "kube-apiserver", "kubectl")
PATIENCE = 180.0
ADMIN = "admin-of-this-test"
AUDIT = """\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
  - level: Metadata
"""


class Refused(OSError):
    """An answer with a status other than success."""

    def __init__(self, code, text):
        super().__init__(f"{code}: {text}")
        self.code, self.text = code, text


def binaries(folder, names=BINARIES):
    """The path of each binary that exists in the folder or its bin subfolder."""
    places = [Path(folder, "bin").resolve(), Path(folder).resolve()]
    found = {name: next((place / name for place in places if (place / name).is_file()), None) for name in names}
    return {name: path for name, path in found.items() if path}


def missing(tools, names=BINARIES):
    """The required programs that are missing."""
    return [name for name in names if name not in tools] + ([] if shutil.which("openssl") else ["openssl"])


def until(what, ask, pause=0.05):
    return harness.until(what, ask, PATIENCE, pause)


class Cluster:
    """etcd and kube-apiserver. Both are stopped at the end of the `with` block. `flags` are further ones of the API server."""

    def __init__(self, tools, folder, *flags):
        self.tools, self.folder, self.flags = tools, Path(folder), flags
        self.port, self.store = free_port(), free_port()
        self.url = f"https://127.0.0.1:{self.port}"
        self.running = {}

    @undone_on_failure
    def __enter__(self):
        self.make_certificates()
        self.make_access()
        peer = f"http://127.0.0.1:{free_port()}"
        own = f"http://127.0.0.1:{self.store}"
        self.spawn(
            "etcd", "--data-dir=store", "--log-level=error", f"--listen-client-urls={own}",
            f"--advertise-client-urls={own}", f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}", f"--initial-cluster=default={peer}",
        )  # fmt: skip
        self.start()

    def __exit__(self, *_):
        for name in list(self.running):
            self.end(name)

    def spawn(self, name, *arguments):
        with open(self.folder / f"{name}.log", "ab") as log:
            self.running[name] = subprocess.Popen(
                [self.tools[name], *arguments], cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def end(self, name):
        end(self.running.pop(name), 30)

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
        self.trust = ssl.create_default_context(cafile=str(self.folder / "ca.crt"))

    def make_access(self):
        """The administrator's token, the same as a configuration for kubectl and helm, and the audit log's policy."""
        (self.folder / "audit.yaml").write_text(AUDIT)
        (self.folder / "tokens").touch()
        self.add_user(ADMIN, "admin", "system:masters", "config")

    def add_user(self, token, name, group, file):
        """A user with a token that never ends, and the file with which kubectl and the like reach the API server as this user. The API server
        reads the tokens when it starts."""
        with open(self.folder / "tokens", "a") as tokens:
            tokens.write(f"{token},{name},{name},{group}\n")
        one = {"name": "test", "context": {"cluster": "test", "user": "test"}}
        server = {"server": self.url, "certificate-authority": str(self.folder / "ca.crt")}
        text = {
            "apiVersion": "v1", "kind": "Config", "current-context": "test", "contexts": [one],
            "clusters": [{"name": "test", "cluster": server}], "users": [{"name": "test", "user": {"token": token}}],
        }  # fmt: skip
        (self.folder / file).write_text(json.dumps(text))

    def start(self):
        """Starts the API server, waits until it is ready, and returns the time at which it became ready."""
        self.spawn(
            "kube-apiserver", f"--etcd-servers=http://127.0.0.1:{self.store}", "--bind-address=127.0.0.1",
            f"--secure-port={self.port}", "--endpoint-reconciler-type=none", "--authorization-mode=Node,RBAC",
            "--service-cluster-ip-range=10.96.0.0/24", "--token-auth-file=tokens", "--tls-cert-file=server.crt",
            "--tls-private-key-file=server.key", "--service-account-issuer=https://kubernetes.default.svc",
            "--service-account-key-file=accounts.key", "--service-account-signing-key-file=accounts.key",
            "--audit-policy-file=audit.yaml", "--audit-log-path=audit.log", "--audit-log-mode=blocking",
            *self.flags,
        )  # fmt: skip
        until("the API server is ready", self.is_ready)
        return time.monotonic()

    def stop(self):
        self.end("kube-apiserver")

    def crash(self):
        """Kills the API server. Otherwise it waits until open watches end, which can take a minute."""
        self.running["kube-apiserver"].kill()
        self.end("kube-apiserver")

    def is_ready(self):
        ended = [name for name, process in self.running.items() if process.poll() is not None]
        if ended:
            raise SystemExit(f"{ended[0]} ended: {(self.folder / f'{ended[0]}.log').read_text()[-2000:]}")
        try:
            return self.ask("GET", "/readyz") == "ok"
        except (OSError, http.client.HTTPException):
            return False

    def send(self, method, path, body=None, kind="application/json", token=ADMIN):
        """Sends a request to the API server, as its administrator by default. Returns the body and the warnings."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {token}", "Content-Type": kind}
        status, headers, content = request(self.url + path, method, data, headers, context=self.trust)
        text, warnings = content.decode(), headers.get_all("Warning") or []
        if status >= 400:
            raise Refused(status, text)
        # A warning has the form: 299 - "text", with escaped quotation marks.
        texts = [warning.split('"', 1)[1].rsplit('"', 1)[0].replace('\\"', '"') for warning in warnings]
        return (json.loads(text) if text.startswith("{") else text), texts

    def ask(self, *arguments, **named):
        return self.send(*arguments, **named)[0]

    def code(self, method, path, token, body=None):
        """The status of the answer to a request."""
        try:
            self.send(method, path, body, token=token)
        except Refused as refused:
            return refused.code
        return 200

    def connection(self):
        """A connection for many requests."""
        return http.client.HTTPSConnection("127.0.0.1", self.port, timeout=60, context=self.trust)

    def run(self, *command, given=None):
        """Runs a program that reads the configuration for kubectl."""
        done = subprocess.run(
            [str(word) for word in command], input=given, capture_output=True, text=True,
            env={"PATH": os.environ["PATH"], "HOME": str(self.folder), "KUBECONFIG": str(self.folder / "config")},
        )  # fmt: skip
        if done.returncode != 0:
            raise SystemExit(f"{' '.join(map(str, command))}: {done.stderr}")
        return done.stdout

    def kubectl(self, *arguments, given=None):
        return self.run(self.tools["kubectl"], *arguments, given=given)

    def token(self, namespace, account, pod=None):
        """A token of a service account, bound to a pod if one is given."""
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
        spec = {"expirationSeconds": 7200}
        if pod:
            metadata = pod["metadata"]
            spec["boundObjectRef"] = {"kind": "Pod", "apiVersion": "v1", "name": metadata["name"], "uid": metadata["uid"]}
        asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        return self.ask("POST", path, asked)["status"]["token"]

    def sign(self, token, **changes):
        """The token with changed claims, signed with the key of the API server."""
        header, claims, _ = token.split(".")
        read = json.loads(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4)))

        def encoded(data):
            return base64.urlsafe_b64encode(data).rstrip(b"=").decode()

        signed = f"{header}.{encoded(json.dumps(read | changes).encode())}"
        command = ["openssl", "dgst", "-sha256", "-sign", self.folder / "accounts.key"]
        done = subprocess.run(command, input=signed.encode(), capture_output=True, check=True)
        return f"{signed}.{encoded(done.stdout)}"

    def store_request(self, path, body):
        return json.loads(get(f"http://127.0.0.1:{self.store}/v3/kv/{path}", method="POST", body=json.dumps(body).encode()))

    def move_on(self):
        """Writes to the store without this API server, as other API servers do when they renew their leases."""
        for n in range(10):
            pair = {key: base64.b64encode(f"{key} {n}".encode()).decode() for key in ("key", "value")}
            revision = self.store_request("put", pair)["header"]["revision"]
        return revision

    def compact(self, revision):
        """Deletes the history of the store before the revision."""
        self.store_request("compaction", {"revision": revision, "physical": True})

    def audit(self, agent):
        """The requests of the clients whose name begins with `agent`, from the audit log."""
        with open(self.folder / "audit.log") as lines:
            # The last line may not be complete yet.
            found = (json.loads(line) for line in lines if line.endswith("}\n"))
            return [event for event in found if event.get("userAgent", "").startswith(agent)]

    def create_namespace(self, name, labels=None, **levels):
        labels = (labels or {}) | {f"pod-security.kubernetes.io/{mode}": level for mode, level in levels.items()}
        metadata = {"name": name, "labels": labels}
        self.ask("POST", "/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})

    def create_account(self, namespace, name):
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts"
        metadata = {"name": name, "namespace": namespace}
        self.ask("POST", path, {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata})

    def run_pod(self, namespace, name, container_id):
        """Creates a pod on node-1, and the status that its kubelet would report for its only container."""
        path = f"/api/v1/namespaces/{namespace}/pods"
        self.ask("POST", path, pod(namespace, name, "node-1"))
        container = {
            "name": "main", "image": "none", "imageID": "none", "ready": True, "restartCount": 0,
            "containerID": f"containerd://{container_id}", "state": {"running": {}},
        }  # fmt: skip
        status = {"status": {"phase": "Running", "containerStatuses": [container]}}
        self.ask("PATCH", f"{path}/{name}/status", status, "application/strategic-merge-patch+json")

    def run_many(self, namespace, count, node):
        """Creates pods on a node over one connection."""
        link = self.connection()
        headers = {"Authorization": f"Bearer {ADMIN}", "Content-Type": "application/json"}
        for n in range(count):
            body = json.dumps(pod(namespace, f"other-{n}", node))
            link.request("POST", f"/api/v1/namespaces/{namespace}/pods", body, headers)
            answer = link.getresponse()
            text = answer.read()
            if answer.status != 201:
                raise SystemExit(f"pod {n}: {answer.status}: {text}")
        link.close()


def pod(namespace, name, node):
    spec = {"nodeName": node, "containers": [{"name": "main", "image": "none"}]}
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
