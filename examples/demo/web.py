"""A few lines of HTTP: one kept-alive connection to one server, and answers that know our error shape."""

import http.client
import json
import ssl
from dataclasses import dataclass
from urllib.parse import urlsplit


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: dict

    @property
    def reason(self) -> str | None:
        """Why it was refused."""
        return self.body.get("error", {}).get("details", {}).get("reason")

    @property
    def short(self) -> str:
        """As printed: the status, and the reason if there is one."""
        return f"{self.status} {self.reason}" if self.reason else str(self.status)


class Server:
    def __init__(self, url: str, ca: str | None = None):
        self.url = url
        self.secure = ssl.create_default_context(cafile=ca) if ca else None
        self.connection: http.client.HTTPConnection | None = None

    def ask(self, method: str, path: str, headers: list[tuple[str, str]] = [], body: object = None) -> Answer:
        """Sends the headers exactly as they are spelled here, in this order."""
        try:
            return self._ask(method, path, headers, body)
        except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError):
            # A kept-alive connection that the other side has closed meanwhile: once more, on a new one.
            self.close()
            return self._ask(method, path, headers, body)

    def _ask(self, method: str, path: str, headers: list[tuple[str, str]], body: object) -> Answer:
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
        named = {name.lower(): value for name, value in response.getheaders()}
        return Answer(response.status, named, parsed)

    def close(self) -> None:
        if self.connection:
            self.connection.close()
            self.connection = None

    def _connect(self) -> http.client.HTTPConnection:
        parts = urlsplit(self.url)
        if self.secure:
            return http.client.HTTPSConnection(parts.hostname, parts.port, timeout=5, context=self.secure)
        return http.client.HTTPConnection(parts.hostname, parts.port, timeout=5)
