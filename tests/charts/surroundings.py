"""What a company has besides the charts: a CA, DNS records, PostgreSQL, Redis, an OIDC issuer, a load balancer and cert-manager.

PostgreSQL, Redis and the issuer are pods with the real programs and with certificates of the CA. For the load balancer and cert-manager,
a thread of this process gives Services an address and signs certificates.
"""

import base64
import contextlib
import re
import socket
import subprocess
import threading
import time
from pathlib import Path

from api_server import ApiServer, wait_for
from images import load_programs
from render import REPOSITORY, ChartError
from shell import Shell
from workloads import container, pod_spec, service

NAMESPACE = "company"
PASSWORD = "PASSWORD"
CERTIFICATES = "/apis/cert-manager.io/v1/certificates"
NODE = (REPOSITORY / ".tools/bin/node").resolve()
REDIS = REPOSITORY / ".tools/bin/redis-server"
POSTGRESQL = (REPOSITORY / ".tools/postgresql").resolve()

START_POSTGRESQL = f"""
PATH={POSTGRESQL}
initdb --pgdata=/data/db --username=countersign --pwfile=/password/password --encoding=UTF8 --no-locale --auth=scram-sha-256
echo 'CREATE DATABASE countersign' | postgres --single -D /data/db postgres
echo 'hostssl all all all scram-sha-256' >>/data/db/pg_hba.conf
exec postgres -D /data/db -c listen_addresses='*' -c unix_socket_directories=/tmp -c ssl=on \\
    -c ssl_cert_file=/tls/tls.crt -c ssl_key_file=/tls/tls.key"""

# An issuer whose every user is an administrator of Countersign.
ISSUER = """
const { generateKeyPairSync, sign } = require("crypto"), { readFileSync } = require("fs")
const { privateKey, publicKey } = generateKeyPairSync("rsa", { modulusLength: 2048 })
const issuer = "https://login.example.com", text = it => Buffer.from(JSON.stringify(it)).toString("base64url")
const answers = {
  "/.well-known/openid-configuration": () => JSON.stringify({ issuer, jwks_uri: issuer + "/keys" }),
  "/keys": () => JSON.stringify({ keys: [{ ...publicKey.export({ format: "jwk" }), kid: "1", alg: "RS256", use: "sig" }] }),
  "/token": () => {
    const now = Math.floor(Date.now() / 1000)
    const claims = { iss: issuer, aud: "countersign", sub: "operator", groups: ["countersign-admin"], iat: now, exp: now + 3600 }
    const signed = text({ alg: "RS256", kid: "1" }) + "." + text(claims)
    return signed + "." + sign("sha256", signed, privateKey).toString("base64url")
  },
}
const files = { cert: readFileSync("/tls/tls.crt"), key: readFileSync("/tls/tls.key") }
require("https").createServer(files, (request, response) => response.end(answers[request.url]())).listen(8443)
"""


class Surroundings:
    """The services of a company. Its CA and its certificates are files in the folder of the shell."""

    def __init__(self, api: ApiServer, shell: Shell, hosts: Path):
        self.api, self.shell, self.hosts = api, shell, hosts
        self.records: dict[str, str] = {}
        self.authority = shell.folder / "company-ca.pem"
        self.openssl("-keyout", str(self.authority.with_suffix(".key")), "-out", str(self.authority), "-subj", "/CN=Company CA")
        threading.Thread(target=self.serve, daemon=True).start()

    def openssl(self, *arguments: str) -> None:
        command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "30", *arguments]
        subprocess.run(command, check=True, capture_output=True)

    def sign(self, certificate: Path, key: Path, names: list[str]) -> None:
        """Makes a certificate of the CA."""
        alternatives = "subjectAltName=" + ",".join(f"DNS:{name}" for name in names)
        self.openssl("-CA", str(self.authority), "-CAkey", str(self.authority.with_suffix(".key")), "-subj", f"/CN={names[0]}",
                     "-keyout", str(key), "-out", str(certificate), "-addext", alternatives, "-addext", "basicConstraints=critical,CA:FALSE")

    def resolve(self, name: str, address: str) -> None:
        """Adds a DNS record, and waits until it is in force."""
        self.records[name] = address
        self.hosts.write_text("".join(f"{it} {name}\n" for name, it in self.records.items()))
        wait_for(f"{name} has no address", lambda: socket.gethostbyname(name) == address)

    def start(self) -> None:
        """Starts PostgreSQL, Redis and the issuer, which have the names of the page."""
        share = Path("/usr/share/postgresql", POSTGRESQL.parent.name)
        files = [POSTGRESQL.parent, share, Path("/usr/share/zoneinfo"), Path("/bin/sh")]
        load_programs("localhost/postgresql:1", files, ["/bin/sh", "-ec"])
        load_programs("localhost/redis:1", [REDIS], [str(REDIS)])
        self.shell.run(f"""
kubectl create namespace {NAMESPACE}
kubectl --namespace {NAMESPACE} create secret generic password --from-literal=password={PASSWORD}""")
        tls = {"name": "tls", "mountPath": "/tls"}
        self.run("db", 5432, container("postgresql", "localhost/postgresql:1", START_POSTGRESQL, volumeMounts=[
            tls, {"name": "data", "mountPath": "/data"}, {"name": "password", "mountPath": "/password"}]))
        (user,) = re.findall(r"^user (countersign on .*)$", (REPOSITORY / "docs/run/redis.md").read_text(), re.MULTILINE)
        users = ["--protected-mode", "no", "--user", "default", "off", "--user", *user.split()]
        files = ["--tls-cert-file", "/tls/tls.crt", "--tls-key-file", "/tls/tls.key", "--tls-ca-cert-file", "/tls/ca.crt"]
        self.run("redis", 6379, container("redis", "localhost/redis:1", "--port", "0", "--tls-port", "6379", "--tls-auth-clients", "no",
                                          "--save", "", "--dir", "/tmp", *files, *users, volumeMounts=[tls]))
        self.run("login", 8443, container("issuer", "localhost/node:1", "--eval", ISSUER, volumeMounts=[tls]), port=443)

    def run(self, name: str, target: int, runs: dict, port: int = 0) -> None:
        """Runs a pod with a certificate, behind a Service at the host NAME.example.com."""
        host, folder = f"{name}.example.com", self.shell.folder
        self.sign(folder / f"{name}.crt", folder / f"{name}.key", [host])
        self.shell.run(f"""kubectl --namespace {NAMESPACE} create secret generic {name} \
            --from-file=tls.crt={name}.crt --from-file=tls.key={name}.key --from-file=ca.crt={self.authority.name}""")
        volumes = [{"name": "data", "emptyDir": {}}, {"name": "password", "secret": {"secretName": "password"}},
                   {"name": "tls", "secret": {"secretName": name, "defaultMode": 0o440}}]
        runs = runs | {"readinessProbe": {"tcpSocket": {"port": target}}}
        self.shell.apply(*service(name, NAMESPACE, pod_spec(runs, volumes=volumes), port or target, target))
        self.shell.run(f"kubectl --namespace {NAMESPACE} rollout status deployment/{name} --timeout=60s")
        self.resolve(host, self.api.request("GET", f"/api/v1/namespaces/{NAMESPACE}/services/{name}")["spec"]["clusterIP"])

    def serve(self) -> None:
        """Gives each Service of type LoadBalancer an address, and signs what cert-manager would sign."""
        while True:
            time.sleep(0.5)
            # Somebody else may change an object at the same time, and at the end the API server is gone.
            with contextlib.suppress(OSError, ChartError):
                for it in self.api.request("GET", "/api/v1/services")["items"]:
                    if it["spec"]["type"] == "LoadBalancer" and not it["status"]["loadBalancer"]:
                        self.publish(it)
                for it in self.api.request("GET", CERTIFICATES)["items"]:
                    self.issue(it["metadata"]["namespace"], it["spec"])

    def publish(self, service: dict) -> None:
        metadata, address = service["metadata"], "203.0.113." + service["spec"]["clusterIP"].rpartition(".")[2]
        service["status"]["loadBalancer"] = {"ingress": [{"ip": address}]}
        self.api.request("PUT", f"/api/v1/namespaces/{metadata['namespace']}/services/{metadata['name']}/status", service)

    def issue(self, namespace: str, requested: dict) -> None:
        secrets = f"/api/v1/namespaces/{namespace}/secrets"
        if any(it["metadata"]["name"] == requested["secretName"] for it in self.api.request("GET", secrets)["items"]):
            return
        certificate, key = (self.shell.folder / f"{requested['secretName']}.{end}" for end in ("crt", "key"))
        self.sign(certificate, key, requested["dnsNames"])
        files = {"tls.crt": certificate, "tls.key": key, "ca.crt": self.authority}
        data = {name: base64.b64encode(path.read_bytes()).decode() for name, path in files.items()}
        self.api.request("POST", secrets, {"metadata": {"name": requested["secretName"]}, "type": "kubernetes.io/tls", "data": data})
