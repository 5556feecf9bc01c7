"""A Kubernetes API server with etcd, without controllers and nodes."""

import contextlib
import json
import os
import ssl
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml
from render import HELM, REPOSITORY, ChartError, helm_environment

TOOLS = REPOSITORY / ".tools/kubernetes"
ETCD, ETCD_PEER, API = 23790, 23791, 16443
TOKEN = "charts-live"
# The issuer of kubeadm and most distributions.
ISSUER = "https://kubernetes.default.svc.cluster.local"


class ApiServer:
    """A running API server, and its administrator."""

    def __init__(self, directory: Path, address: str):
        self.directory = directory
        self.url = f"https://{address}:{API}"
        self.kubeconfig = directory / "kubeconfig"
        cluster = {"server": self.url, "insecure-skip-tls-verify": True}
        self.kubeconfig.write_text(
            yaml.safe_dump(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "clusters": [{"name": "live", "cluster": cluster}],
                    "users": [{"name": "live", "user": {"token": TOKEN}}],
                    "contexts": [{"name": "live", "context": {"cluster": "live", "user": "live"}}],
                    "current-context": "live",
                }
            )
        )
        self.tls = ssl._create_unverified_context()

    def request(self, method: str, path: str, content: dict | None = None) -> dict:
        """Sends a request. Fails with the text of the API server."""
        headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
        body = None if content is None else json.dumps(content).encode()
        request = urllib.request.Request(self.url + path, data=body, headers=headers, method=method)
        try:
            with urllib.request.urlopen(request, context=self.tls, timeout=30) as response:
                return json.load(response)
        except urllib.error.HTTPError as error:
            raise ChartError(f"{method} {path}: {error.read().decode()}") from None

    def is_ready(self) -> bool:
        with contextlib.suppress(urllib.error.URLError, OSError):
            request = urllib.request.Request(self.url + "/readyz", headers={"Authorization": f"Bearer {TOKEN}"})
            with urllib.request.urlopen(request, context=self.tls, timeout=5):
                return True
        return False

    def helm(self, *arguments: str) -> None:
        environment = helm_environment(str(self.kubeconfig))
        # Hooks are jobs, which no controller would run.
        command = [str(HELM), *arguments, "--no-hooks"]
        result = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        if result.returncode != 0:
            raise ChartError(result.stderr.strip())

    def secrets(self, namespace: str) -> dict[str, dict]:
        """The data of the Secrets of a namespace that are not those of helm."""
        items = self.request("GET", f"/api/v1/namespaces/{namespace}/secrets")["items"]
        return {it["metadata"]["name"]: it.get("data", {}) for it in items if not it["type"].startswith("helm.sh/")}


@contextlib.contextmanager
def api_server(address: str = "127.0.0.1", admission: str = "--disable-admission-plugins=ServiceAccount") -> Iterator[ApiServer]:
    """Starts etcd and the API server with the definitions of the resources of other projects, if they were fetched, and stops both
    servers at the end. Without controllers, no service account exists, so pods must need none, which is the default of `admission`."""
    with tempfile.TemporaryDirectory(prefix="countersign-kubernetes-") as name, contextlib.ExitStack() as stack:
        directory = Path(name)
        (directory / "tokens.csv").write_text(f"{TOKEN},admin,admin,system:masters\n")
        subprocess.run(["openssl", "genrsa", "-out", directory / "key.pem", "2048"], check=True, capture_output=True)
        urls = [f"http://127.0.0.1:{port}" for port in (ETCD, ETCD_PEER)]
        start(stack, directory / "etcd.log", "etcd", f"--data-dir={directory}/etcd", f"--listen-client-urls={urls[0]}",
              f"--advertise-client-urls={urls[0]}", f"--listen-peer-urls={urls[1]}")
        server = start(stack, directory / "api.log", "kube-apiserver", f"--etcd-servers={urls[0]}", f"--secure-port={API}",
                       f"--bind-address={address}", f"--cert-dir={directory}/certificates", "--authorization-mode=RBAC",
                       f"--token-auth-file={directory}/tokens.csv", "--kubelet-preferred-address-types=InternalIP",
                       "--service-cluster-ip-range=10.0.0.0/24,fd00::/120",
                       f"--service-account-issuer={ISSUER}", f"--service-account-key-file={directory}/key.pem",
                       f"--service-account-signing-key-file={directory}/key.pem", admission)
        api = ApiServer(directory, address)
        while not api.is_ready():
            if server.poll() is not None:
                raise ChartError("the API server ended:\n" + (directory / "api.log").read_text()[-3000:])
            time.sleep(0.5)
        define_resources(api)
        yield api


def wait_for(failure: str, attempt: Callable[[], Any], details: Callable[[], str] = str, seconds: int = 120) -> Any:
    """Repeats an attempt until it returns something, or fails with the details."""
    for _ in range(seconds * 2):
        with contextlib.suppress(OSError):
            if result := attempt():
                return result
        time.sleep(0.5)
    raise ChartError(f"{failure}:\n{details()}")


def start(stack: contextlib.ExitStack, log_path: Path, program: str, *arguments: str, **environment: str) -> subprocess.Popen:
    """Starts a program of .tools/kubernetes, or one with an absolute path, and stops it when the stack is closed."""
    with open(log_path, "wb") as log:
        process = subprocess.Popen([TOOLS / program, *arguments], stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                                   env=os.environ | environment)
    stack.callback(process.wait)
    stack.callback(process.terminate)
    return process


def define_resources(api: ApiServer) -> None:
    """Creates the definitions, and waits until the API server serves the resources."""
    files = sorted((TOOLS / "crds").glob("*.yaml"))
    loaded = [it for file in files for it in yaml.safe_load_all(file.read_text()) if it]
    definitions = [it for it in loaded if it["kind"] == "CustomResourceDefinition"]
    for definition in definitions:
        api.request("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition)
    for definition in definitions:
        spec = definition["spec"]
        version = next(it["name"] for it in spec["versions"] if it["served"])
        for _ in range(60):
            with contextlib.suppress(ChartError):
                api.request("GET", f"/apis/{spec['group']}/{version}/{spec['names']['plural']}")
                break
            time.sleep(0.5)


def pod(name: str, workload: str, template: dict) -> dict:
    """The pod of a pod template. `workload` begins with the kind of the workload."""
    spec = dict(template["spec"], volumes=list(template["spec"].get("volumes", [])))
    for claim in ("data",) if workload.startswith("StatefulSet/") else ():
        if claim not in [volume["name"] for volume in spec["volumes"]]:
            spec["volumes"].append({"name": claim, "persistentVolumeClaim": {"claimName": claim}})
    # The priority classes of the values do not exist.
    spec.pop("priorityClassName", None)
    return {"metadata": {"name": name, "labels": template["metadata"].get("labels")}, "spec": spec}
