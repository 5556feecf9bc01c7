"""The service behind Envoy. It has no authentication code: it answers with the headers that it sees."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Echo(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Or each answer waits 40 ms for an acknowledgement, and the times that are measured are those.
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        # Pairs, not an object: a header that comes twice must be seen twice.
        body = json.dumps({"path": self.path, "headers": self.headers.items()}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Envoy writes the access log."""


def start() -> int:
    """Serves until this process ends; returns the port."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Echo)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server.server_port
