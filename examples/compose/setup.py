"""Creates what the services of docker-compose.yaml need. It uses the Python standard library and the program `openssl` only.

    setup.py files     creates the certificate, passwords and keys, each in the volume of the service that uses it
    setup.py service   creates the service `echo` with a role, and the API key of the sidecar
    setup.py owner     prints `export` commands with which the command line acts as the owner of the service

Nothing that exists already is created again, so a restart changes no secret. To start anew, delete the volumes.
"""

import base64
import json
import os
import secrets
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

VOLUMES = Path("/volumes")
CONTROL_PLANE = "https://control-plane:8443"
READY = "http://control-plane:9090/readyz"
READY_SECONDS = 120
# The users of the images.
COUNTERSIGN, POSTGRES, REDIS = 65532, 999, 999
# The issuer of human users, as in control-plane.toml.
ISSUER = "https://issuer.invalid"
KEY_ID = "compose"
TOKEN_SECONDS = 8 * 3600
CERTIFICATE_DAYS = "397"


def create_files() -> None:
    """Creates all files. The CA certificate is created last: if it exists, all others do."""
    if (VOLUMES / "ca/ca.pem").exists():
        return
    postgres, redis = secrets.token_hex(24), secrets.token_hex(24)
    write("postgres/password", postgres, POSTGRES)
    write("redis/redis.conf", f'requirepass {redis}\nsave ""\nappendonly no\n', REDIS)
    write("redis/password", redis, REDIS)
    write("control-plane/database-url", f"postgres://countersign:{postgres}@postgres/countersign", COUNTERSIGN)
    write("control-plane/redis-url", f"redis://:{redis}@redis:6379/0", COUNTERSIGN)
    write("control-plane/master-key", secrets.token_hex(32), COUNTERSIGN)
    create_issuer()
    # The following step writes into these folders, without rights of root.
    for folder in ("owner", "sidecar", "socket"):
        change_owner(VOLUMES / folder, COUNTERSIGN)
    create_certificate()


def create_issuer() -> None:
    """Creates the key of the issuer of human users, and its JWK set."""
    key = openssl("genpkey", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048")
    modulus = openssl("rsa", "-noout", "-modulus", text=key).strip().split("=")[1]
    jwk = {"kty": "RSA", "kid": KEY_ID, "alg": "RS256", "use": "sig", "n": encode(bytes.fromhex(modulus)), "e": "AQAB"}
    write("control-plane/issuer-jwks.json", json.dumps({"keys": [jwk]}), COUNTERSIGN)
    write("owner/issuer.key", key, COUNTERSIGN)


def create_certificate() -> None:
    """Creates a CA and the certificate of the control plane. The key of the CA is not kept."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", CERTIFICATE_DAYS,
                "-subj", "/CN=Countersign compose CA", "-addext", "basicConstraints=critical,CA:TRUE,pathlen:0",
                "-addext", "keyUsage=critical,keyCertSign,cRLSign", "-keyout", f"{name}/ca.key", "-out", f"{name}/ca.pem")
        openssl("req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", "/CN=control-plane",
                "-keyout", f"{name}/private-key.pem", "-out", f"{name}/request.pem")
        (folder / "extensions").write_text(
            "subjectAltName=DNS:control-plane,DNS:localhost,IP:127.0.0.1\nbasicConstraints=CA:FALSE\nextendedKeyUsage=serverAuth\n"
        )
        openssl("x509", "-req", "-in", f"{name}/request.pem", "-CA", f"{name}/ca.pem", "-CAkey", f"{name}/ca.key",
                "-CAcreateserial", "-days", CERTIFICATE_DAYS, "-extfile", f"{name}/extensions", "-out", f"{name}/certificate.pem")
        for file in ("private-key.pem", "certificate.pem"):
            write(f"control-plane/{file}", (folder / file).read_text(), COUNTERSIGN)
        write("ca/ca.pem", (folder / "ca.pem").read_text(), COUNTERSIGN, mode=0o444)


def create_service() -> None:
    """Creates the service, its role and the API key of the sidecar. The API key is created last."""
    if (VOLUMES / "sidecar/keys").exists():
        return
    wait_until_ready()
    token = sign_token()
    service = call(token, "/services", {"name": "echo"})["serviceId"]
    call(token, f"/services/{service}/roles", {"name": "reader", "permissions": ["read"]})
    key = call(token, f"/services/{service}/keys", {"name": "sidecar", "scope": "sync"})["apiKey"]
    write("owner/service-id", service)
    write("sidecar/keys", key)


def print_exports() -> None:
    print(f"export COUNTERSIGN_SERVICE_ID={(VOLUMES / 'owner/service-id').read_text()}")
    print(f"export COUNTERSIGN_HUMAN_TOKEN={sign_token()}")


def wait_until_ready() -> None:
    deadline = time.monotonic() + READY_SECONDS
    while True:
        try:
            urllib.request.urlopen(READY, timeout=5).close()
            return
        except OSError as error:
            if time.monotonic() > deadline:
                sys.exit(f"the control plane is not ready after {READY_SECONDS} s: {error}")
            time.sleep(0.2)


def call(token: str, path: str, body: dict) -> dict:
    request = urllib.request.Request(CONTROL_PLANE + path, json.dumps(body).encode(), method="POST")
    request.add_header("Authorization", f"Bearer {token}")
    request.add_header("Content-Type", "application/json")
    context = ssl.create_default_context(cafile=str(VOLUMES / "ca/ca.pem"))
    try:
        with urllib.request.urlopen(request, timeout=30, context=context) as response:
            return json.load(response)
    except urllib.error.HTTPError as error:
        sys.exit(f"POST {path}: {error.code}: {error.read().decode()}")


def sign_token() -> str:
    """Returns the token of an administrator, as an OIDC issuer signs it."""
    now = int(time.time())
    claims = {"iss": ISSUER, "aud": "countersign", "sub": "owner", "admin": True, "iat": now, "exp": now + TOKEN_SECONDS}
    header = {"alg": "RS256", "kid": KEY_ID, "typ": "JWT"}
    signed = ".".join(encode(json.dumps(part).encode()) for part in (header, claims))
    command = ["openssl", "dgst", "-sha256", "-sign", str(VOLUMES / "owner/issuer.key")]
    signature = subprocess.run(command, input=signed.encode(), stdout=subprocess.PIPE, check=True).stdout
    return f"{signed}.{encode(signature)}"


def openssl(*arguments: str, text: str = "") -> str:
    """Runs openssl with `text` as standard input, and returns its standard output."""
    result = subprocess.run(["openssl", *arguments], input=text, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if result.returncode != 0:
        sys.exit(f"openssl {arguments[0]}: {result.stderr}")
    return result.stdout


def write(path: str, content: str, owner: int | None = None, mode: int = 0o400) -> None:
    """Writes a file in one step, so that an interrupted setup leaves no part of a file. The owner changes only as root."""
    file = VOLUMES / path
    temporary = file.with_suffix(".new")
    temporary.unlink(missing_ok=True)
    temporary.touch(mode=0o600)
    temporary.write_text(content)
    temporary.chmod(mode)
    if owner is not None:
        change_owner(temporary, owner)
    temporary.rename(file)


def change_owner(path: Path, owner: int) -> None:
    if os.geteuid() == 0:
        os.chown(path, owner, owner)


def encode(data: bytes) -> str:
    """Base64 for URLs, without padding."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


if __name__ == "__main__":
    {"files": create_files, "service": create_service, "owner": print_exports}[sys.argv[1]]()
