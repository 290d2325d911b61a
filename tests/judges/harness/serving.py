"""An HTTP server in the judge's own process, on loopback."""

import http.server
import threading


class Handler(http.server.BaseHTTPRequestHandler):
    """Sends each answer in one piece, and logs nothing."""

    def content(self):
        """The body of the request."""
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def reply(self, status, content=b"", headers=None):
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_):
        pass


class Serving(http.server.ThreadingHTTPServer):
    """Serves in the `with` block."""

    daemon_threads = True

    def __init__(self, handler):
        super().__init__(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self.server_port}"

    def __enter__(self):
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.shutdown()
        self.server_close()
