"""A small API server on loopback that lists pods and keeps a watch open, as the exporter asks for them. It answers nothing else."""

import http.server
import json
import threading
import time
import urllib.parse

VERSION = "1"


class PodServer:
    """Serves the pods of one node. Use it as a context manager."""

    def __init__(self, node, pods):
        self.node, self.pods, self.strange = node, pods, []
        self.watched, self.ending = threading.Event(), threading.Event()
        server = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                path, _, query = self.path.partition("?")
                asked = dict(urllib.parse.parse_qsl(query))
                if path != "/api/v1/pods" or asked.get("fieldSelector") != f"spec.nodeName={server.node}":
                    server.strange.append(self.path)
                    self.reply(404, {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404})
                elif asked.get("watch") == "true":
                    self.watch(float(asked.get("timeoutSeconds", "60")))
                else:
                    items = [{**pod, "metadata": {**pod["metadata"], "resourceVersion": VERSION}} for pod in server.pods]
                    self.reply(200, {"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": VERSION}, "items": items})

            def reply(self, status, value):
                body = json.dumps(value).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

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

            def log_message(self, *_):
                pass

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"

    def __enter__(self):
        threading.Thread(target=self.http.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.ending.set()
        self.http.shutdown()
        self.http.server_close()


def pod(node, namespace, name, container_id=None, labels=None, annotations=None, phase="Running"):
    """A pod with the one container `main`; without `container_id` the container has not been started."""
    status = {"phase": phase}
    if container_id:
        status["containerStatuses"] = [{"name": "main", "containerID": f"containerd://{container_id}", "state": {"running": {}}}]
    metadata = {"namespace": namespace, "name": name, "labels": labels or {}, "annotations": annotations or {}}
    return {"metadata": metadata, "spec": {"nodeName": node, "containers": [{"name": "main", "image": "none"}]}, "status": status}
