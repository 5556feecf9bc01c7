"""A small HTTP client that reuses one connection to a server."""

import http.client
import json
import ssl
from dataclasses import dataclass
from urllib.parse import urlsplit


@dataclass
class Response:
    status: int
    headers: dict[str, str]
    body: dict

    @property
    def reason(self) -> str | None:
        """Returns `details.reason` of an error body."""
        return self.body.get("error", {}).get("details", {}).get("reason")

    @property
    def status_and_reason(self) -> str:
        """Returns the status and, for an error body with a reason, the reason."""
        return f"{self.status} {self.reason}" if self.reason else str(self.status)


class Server:
    def __init__(self, url: str, ca: str | None = None):
        self.url = url
        self.tls = ssl.create_default_context(cafile=ca) if ca else None
        self.connection: http.client.HTTPConnection | None = None

    def request(self, method: str, path: str, headers: list[tuple[str, str]] = [], body: object = None) -> Response:
        """Sends a request with exactly these header names, in this order."""
        try:
            return self._request(method, path, headers, body)
        except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError):
            # The server has closed the idle connection. Retry on a new connection.
            self.close()
            return self._request(method, path, headers, body)

    def _request(self, method: str, path: str, headers: list[tuple[str, str]], body: object) -> Response:
        connection = self.connection = self.connection or self._connect()
        payload = b"" if body is None else json.dumps(body).encode()
        connection.putrequest(method, path)
        for name, value in headers:
            connection.putheader(name, value)
        if payload:
            connection.putheader("Content-Type", "application/json")
        connection.putheader("Content-Length", str(len(payload)))
        connection.endheaders(payload)
        response = connection.getresponse()
        text = response.read()
        try:
            parsed = json.loads(text)
        except ValueError:
            parsed = {"text": text.decode(errors="replace")}
        response_headers = {name.lower(): value for name, value in response.getheaders()}
        return Response(response.status, response_headers, parsed)

    def close(self) -> None:
        if self.connection:
            self.connection.close()
            self.connection = None

    def _connect(self) -> http.client.HTTPConnection:
        parts = urlsplit(self.url)
        if self.tls:
            return http.client.HTTPSConnection(parts.hostname, parts.port, timeout=5, context=self.tls)
        return http.client.HTTPConnection(parts.hostname, parts.port, timeout=5)
