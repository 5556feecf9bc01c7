"""The upstream service behind Envoy. It has no authentication code, and returns the request headers as JSON.

    upstream.py HOST PORT    runs the service by itself, as docker-compose.yaml does
"""

import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Echo(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # With Nagle's algorithm, each response would wait 40 ms for a TCP acknowledgement.
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        # The headers are a list of pairs, because a dictionary would lose repeated headers.
        body = json.dumps({"path": self.path, "headers": self.headers.items()}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        try:
            self.end_headers()
            self.wfile.write(body)
        except OSError:
            # Envoy ends a request when its decision ends, also before the response.
            self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        """Writes nothing, because Envoy writes an access log."""


def start() -> int:
    """Starts the server in a thread and returns its port."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Echo)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server.server_port


if __name__ == "__main__":
    ThreadingHTTPServer((sys.argv[1], int(sys.argv[2])), Echo).serve_forever()
