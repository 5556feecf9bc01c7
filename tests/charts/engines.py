"""PostgreSQL, Redis and an OIDC issuer, for pods that use them."""

import base64
import json
import subprocess
import time
from pathlib import Path

from network import GATEWAY
from render import REPOSITORY

POSTGRESQL = REPOSITORY / ".tools/postgresql"
POSTGRESQL_PORT = 5432
REDIS_PORT = 6379
DATABASE_URL = f"postgres://postgres:unused@{GATEWAY}:{POSTGRESQL_PORT}/postgres?sslmode=disable"
REDIS_URL = f"redis://{GATEWAY}:{REDIS_PORT}/0"


class Engines:
    """A PostgreSQL and a Redis, which the pods reach at the address of this process."""

    def __init__(self, directory: Path):
        self.directory = directory
        self.processes: list[subprocess.Popen] = []

    def __enter__(self) -> "Engines":
        data = self.directory / "postgresql"
        initialize = ["initdb", "--pgdata", str(data), "--username", "postgres", "--auth", "trust", "--encoding", "UTF8"]
        subprocess.run(self._postgresql(*initialize), stdout=subprocess.DEVNULL, check=True)
        with open(data / "pg_hba.conf", "a") as file:
            file.write("host all all 10.88.0.0/24 trust\n")
        server = ["postgres", "-D", str(data), "-p", str(POSTGRESQL_PORT), "-c", f"listen_addresses={GATEWAY}"]
        self._start(self._postgresql(*server, "-c", "unix_socket_directories=", "-c", "max_connections=200"))
        redis = [str(REPOSITORY / ".tools/bin/redis-server"), "--bind", GATEWAY, "--port", str(REDIS_PORT)]
        self._start([*redis, "--protected-mode", "no", "--save", "", "--appendonly", "no"])
        for _ in range(300):
            ready = self._postgresql("pg_isready", "--host", GATEWAY, "--port", str(POSTGRESQL_PORT), "--quiet")
            if subprocess.run(ready, check=False).returncode == 0:
                return self
            time.sleep(0.1)
        raise TimeoutError((self.directory / "engines.log").read_text())

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.kill()
            process.wait()

    def _postgresql(self, program: str, *arguments: str) -> list[str]:
        """A program of PostgreSQL, which refuses to run as root."""
        sandbox = [str(REPOSITORY / ".tools/bin/bwrap"), "--unshare-user", "--uid", "65534", "--gid", "65534"]
        return [*sandbox, "--die-with-parent", "--dev-bind", "/", "/", str(POSTGRESQL / program), *arguments]

    def _start(self, command: list[str]) -> None:
        with open(self.directory / "engines.log", "ab") as log:
            self.processes.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log))


class Issuer:
    """An OIDC issuer of human users, whose keys are in a file."""

    url = "https://login.company.example"
    audience = "countersign"

    def __init__(self, directory: Path):
        self.key = directory / "issuer.pem"
        generate = ["openssl", "genpkey", "-quiet", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048"]
        subprocess.run([*generate, "-out", str(self.key)], check=True, stderr=subprocess.DEVNULL)

    def jwks(self) -> str:
        show = ["openssl", "rsa", "-in", str(self.key), "-noout", "-modulus"]
        modulus = subprocess.run(show, capture_output=True, text=True, check=True).stdout.strip().removeprefix("Modulus=")
        key = {"kty": "RSA", "alg": "RS256", "use": "sig", "kid": "key", "n": encode(bytes.fromhex(modulus)), "e": "AQAB"}
        return json.dumps({"keys": [key]})

    def token(self, subject: str) -> str:
        """A token of a human user, valid for an hour."""
        now = int(time.time())
        claims = {"iss": self.url, "sub": subject, "aud": self.audience, "iat": now, "exp": now + 3600}
        header = {"alg": "RS256", "typ": "JWT", "kid": "key"}
        signed = ".".join(encode(json.dumps(part).encode()) for part in (header, claims))
        sign = ["openssl", "dgst", "-sha256", "-sign", str(self.key)]
        signature = subprocess.run(sign, input=signed.encode(), capture_output=True, check=True).stdout
        return f"{signed}.{encode(signature)}"


def encode(content: bytes) -> str:
    """Base64url without padding (RFC 7515)."""
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()
