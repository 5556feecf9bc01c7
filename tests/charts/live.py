#!/usr/bin/env python3
"""Applies both charts with all test values to a real Kubernetes API server, in namespaces that enforce the Pod Security Standard
`restricted`. The API server has no controllers and no nodes, so no pod runs.

For each file of values: install, create all pods without persisting them, upgrade twice, compare the Secrets, uninstall.
"""

import contextlib
import json
import os
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import yaml
from render import CHARTS, HELM, REPOSITORY, ChartError, Release, helm_environment, pod_templates

TOOLS = REPOSITORY / ".tools/kubernetes"
ETCD, ETCD_PEER, API = 23790, 23791, 16443
TOKEN = "charts-live"


class ApiServer:
    """A running API server, and its administrator."""

    url = f"https://127.0.0.1:{API}"

    def __init__(self, directory: Path):
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
            raise ChartError(f"{method} {path}: {json.load(error)['message']}") from None

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
        return {it["metadata"]["name"]: it["data"] for it in items if not it["type"].startswith("helm.sh/")}


@contextlib.contextmanager
def api_server() -> Iterator[ApiServer]:
    """Starts etcd and the API server, and stops them at the end."""
    with tempfile.TemporaryDirectory(prefix="countersign-kubernetes-") as name, contextlib.ExitStack() as stack:
        directory = Path(name)
        (directory / "tokens.csv").write_text(f"{TOKEN},admin,admin,system:masters\n")
        subprocess.run(["openssl", "genrsa", "-out", directory / "key.pem", "2048"], check=True, capture_output=True)
        urls = [f"http://127.0.0.1:{port}" for port in (ETCD, ETCD_PEER)]
        start(stack, directory / "etcd.log", "etcd", f"--data-dir={directory}/etcd", f"--listen-client-urls={urls[0]}",
              f"--advertise-client-urls={urls[0]}", f"--listen-peer-urls={urls[1]}")
        server = start(stack, directory / "api.log", "kube-apiserver", f"--etcd-servers={urls[0]}", f"--secure-port={API}",
                       "--bind-address=127.0.0.1", f"--cert-dir={directory}/certificates", "--authorization-mode=RBAC",
                       f"--token-auth-file={directory}/tokens.csv", "--service-cluster-ip-range=10.0.0.0/24,fd00::/120",
                       "--service-account-issuer=https://kubernetes.default.svc", f"--service-account-key-file={directory}/key.pem",
                       f"--service-account-signing-key-file={directory}/key.pem", "--disable-admission-plugins=ServiceAccount")
        api = ApiServer(directory)
        while not api.is_ready():
            if server.poll() is not None:
                raise ChartError("the API server ended:\n" + (directory / "api.log").read_text()[-3000:])
            time.sleep(0.5)
        yield api


def start(stack: contextlib.ExitStack, log_path: Path, program: str, *arguments: str) -> subprocess.Popen:
    with open(log_path, "wb") as log:
        process = subprocess.Popen([TOOLS / program, *arguments], stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    stack.callback(process.wait)
    stack.callback(process.terminate)
    return process


def main() -> int:
    failures = 0
    with api_server() as api:
        for file in sorted((TOOLS / "crds").glob("*.yaml")):
            for definition in yaml.safe_load_all(file.read_text()):
                if definition and definition["kind"] == "CustomResourceDefinition":
                    api.request("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition)
        wait_for_resources(api)
        for chart in ("countersign", "countersign-ext-authz"):
            for number, values in enumerate(sorted((CHARTS / chart / "ci").glob("*-values.yaml")) + extra_values(chart)):
                try:
                    check(api, chart, values, f"{chart}-{number}")
                    print(f"{chart} with {values.name}: installed, upgraded twice, uninstalled", flush=True)
                except ChartError as error:
                    failures += 1
                    print(f"FAILED: {chart} with {values.name}: {error}", file=sys.stderr)
    return 1 if failures else 0


def extra_values(chart: str) -> list[Path]:
    """Files of values on the command line: CHART=FILE."""
    return [Path(it.partition("=")[2]) for it in sys.argv[1:] if it.partition("=")[0] == chart]


def wait_for_resources(api: ApiServer) -> None:
    """Waits until the API server serves the resources of the definitions."""
    for group in ("monitoring.coreos.com/v1", "gateway.networking.k8s.io/v1", "cert-manager.io/v1"):
        for _ in range(60):
            try:
                api.request("GET", f"/apis/{group}")
                break
            except ChartError:
                time.sleep(0.5)


def check(api: ApiServer, chart: str, values: Path, namespace: str) -> None:
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    api.request("POST", "/api/v1/namespaces", {"metadata": {"name": namespace, "labels": labels}})
    arguments = ["countersign", str(CHARTS / chart), "--namespace", namespace, "--values", str(values)]
    api.helm("install", *arguments)
    create_pods(api, chart, values, namespace)
    secrets = api.secrets(namespace)
    for _ in range(2):
        api.helm("upgrade", *arguments)
    if api.secrets(namespace) != secrets:
        raise ChartError("an upgrade changed a Secret")
    api.helm("uninstall", "countersign", "--namespace", namespace)
    if api.secrets(namespace) != secrets:
        raise ChartError("the removal deleted a Secret")


def create_pods(api: ApiServer, chart: str, values: Path, namespace: str) -> None:
    """Creates each pod without persisting it. The namespace must refuse only a pod with a directory of its node."""
    for number, (name, template) in enumerate(pod_templates(Release(chart, namespace=namespace, values=[values]).render())):
        pod = {"metadata": {"name": f"pod-{number}", "labels": template["metadata"].get("labels")}, "spec": template["spec"]}
        for claim in ("data",) if name.startswith("StatefulSet/") else ():
            if claim not in [volume["name"] for volume in pod["spec"]["volumes"]]:
                pod["spec"]["volumes"].append({"name": claim, "persistentVolumeClaim": {"claimName": claim}})
        # The priority classes and service accounts of the values do not exist.
        pod["spec"] = {key: value for key, value in pod["spec"].items() if key != "priorityClassName"}
        uses_node = any("hostPath" in volume for volume in pod["spec"].get("volumes", []))
        try:
            api.request("POST", f"/api/v1/namespaces/{namespace}/pods?dryRun=All&fieldValidation=Strict", pod)
        except ChartError as error:
            if not (uses_node and "violates PodSecurity" in str(error)):
                raise
        else:
            if uses_node:
                raise ChartError(f"{name} was accepted with a directory of its node")


if __name__ == "__main__":
    os.umask(0o077)
    sys.exit(main())
