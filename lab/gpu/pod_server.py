"""A small API server on loopback that lists pods and keeps a watch open, as the exporter asks for them. It answers nothing else."""

import json
import threading
import time
import urllib.parse

from harness.serving import Handler, Serving

VERSION = "1"


class PodServer(Serving):
    """Serves the pods of one node."""

    def __init__(self, node, pods):
        self.node, self.pods, self.strange = node, pods, []
        self.watched, self.ending = threading.Event(), threading.Event()
        server = self

        class Answer(Handler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                path, _, query = self.path.partition("?")
                asked = dict(urllib.parse.parse_qsl(query))
                if path != "/api/v1/pods" or asked.get("fieldSelector") != f"spec.nodeName={server.node}":
                    server.strange.append(self.path)
                    self.answer(404, {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404})
                elif asked.get("watch") == "true":
                    self.watch(float(asked.get("timeoutSeconds", "60")))
                else:
                    items = [{**pod, "metadata": {**pod["metadata"], "resourceVersion": VERSION}} for pod in server.pods]
                    self.answer(200, {"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": VERSION}, "items": items})

            def answer(self, status, value):
                self.reply(status, json.dumps(value).encode(), {"Content-Type": "application/json"})

            def watch(self, seconds):
                """An answer without events that lasts as long as a real one."""
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                self.wfile.flush()
                server.watched.set()
                until = time.monotonic() + seconds
                while time.monotonic() < until and not server.ending.wait(0.2):
                    pass
                self.wfile.write(b"0\r\n\r\n")

        super().__init__(Answer)

    def __exit__(self, *_):
        self.ending.set()
        super().__exit__()


def pod(node, namespace, name, container_id=None, labels=None, annotations=None, phase="Running"):
    """A pod with the one container `main`; without `container_id` the container has not been started."""
    status = {"phase": phase}
    if container_id:
        status["containerStatuses"] = [{"name": "main", "containerID": f"containerd://{container_id}", "state": {"running": {}}}]
    metadata = {"namespace": namespace, "name": name, "labels": labels or {}, "annotations": annotations or {}}
    return {"metadata": metadata, "spec": {"nodeName": node, "containers": [{"name": "main", "image": "none"}]}, "status": status}
