#!/usr/bin/env python3
"""Installs both charts in a cluster with a real node, by the commands of docs/run/kubernetes.md.

    cluster.py ROOTS    ROOTS: the folder with the root file systems of the targets of the Dockerfile
    cluster.py ROOTS shell    starts the cluster, and a shell in it

node.py describes the node, and images.py the images.
"""

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from api_server import TOOLS
from images import load_programs, load_root
from node import PAUSE, enter_namespaces, node
from render import REPOSITORY, ChartError
from shell import Shell

REGISTRY = "registry.example.com/identity"
TARGETS = ("control-plane", "ext-authz", "cli")


def main() -> int:
    roots = Path(sys.argv[1]).resolve()
    folder = enter_namespaces()
    started = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - started:4.0f} s  {text}", flush=True)

    try:
        with node(folder) as api:
            say("the node is ready")
            load_images(roots)
            os.environ["PATH"] += f":{roots}/cli/usr/local/bin"
            say("the images are loaded")
            shell = Shell(folder)
            if sys.argv[2:] == ["shell"]:
                return subprocess.call(["bash"], cwd=shell.folder)
            check_node(shell)
            say("a pod runs, and resolves the name of a Service")
            check_trial(shell)
            say("the trial runs")
    except (ChartError, subprocess.TimeoutExpired) as error:
        print(f"FAILED: {error}", file=sys.stderr)
        return 1
    return 0


def load_images(roots: Path) -> None:
    load_programs(PAUSE, [TOOLS / "pause"], [str(TOOLS / "pause")])
    for target in TARGETS:
        load_root(f"{REGISTRY}/countersign-{target}:0.1.0", target, roots / target)
    for name in ("envoy", "node"):
        program = (REPOSITORY / ".tools/bin" / name).resolve()
        load_programs(f"localhost/{name}:1", [program], [str(program)])


def container(name: str, image: str, *arguments: str, **more: Any) -> dict:
    """A container that the Pod Security Standard `restricted` allows."""
    security = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    return {"name": name, "image": image, "args": list(arguments), "securityContext": security, **more}


def pod_spec(*containers: dict, **more: Any) -> dict:
    security = {"runAsNonRoot": True, "runAsUser": 65532, "fsGroup": 65532, "seccompProfile": {"type": "RuntimeDefault"}}
    return {"containers": list(containers), "securityContext": security, "automountServiceAccountToken": False, **more}


def check_node(shell: Shell) -> None:
    """Nothing else needs to be checked if a pod of the cluster does not run."""
    code = 'require("dns").lookup("kubernetes.default.svc", (error, address) => { if (error) throw error; console.log(address) })'
    spec = pod_spec(container("probe", "localhost/node:1", "--eval", code), restartPolicy="Never")
    shell.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "probe", "namespace": "default"}, "spec": spec})
    shell.run("""
kubectl wait pod/probe --for=jsonpath='{.status.phase}'=Succeeded --timeout=60s
kubectl get nodes,pods --output=wide
kubectl logs probe
kubectl delete pod probe""")


def check_trial(shell: Shell) -> None:
    shell.follow("Try it")
    shell.follow("The first agent")


if __name__ == "__main__":
    sys.exit(main())
