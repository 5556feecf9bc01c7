#!/usr/bin/env python3
"""Installs both charts in a cluster with a real node, by the commands of docs/run/kubernetes.md.

    cluster.py ROOTS    ROOTS: the folder with the root file systems of the targets of the Dockerfile
    cluster.py ROOTS shell    starts the cluster, and a shell in it

node.py describes the node, and images.py the images.
"""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from images import load_programs, load_root
from node import PAUSE, enter_namespaces, node, wait_for
from api_server import TOOLS
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
    except (ChartError, subprocess.TimeoutExpired) as error:
        print(f"FAILED: {error}", file=sys.stderr)
        return 1
    return 0


def load_images(roots: Path) -> None:
    load_programs(PAUSE, [TOOLS / "pause"], [str(TOOLS / "pause")])
    for target in TARGETS:
        load_root(f"{REGISTRY}/countersign-{target}:0.1.0", target, roots / target)
    python = Path(sys.executable).resolve()
    load_programs("localhost/python:1", [python, Path(os.__file__).parent], [str(python)])
    load_programs("localhost/envoy:1", [(REPOSITORY / ".tools/bin/envoy").resolve()], [str((REPOSITORY / ".tools/bin/envoy").resolve())])


def check_node(shell: Shell) -> None:
    shell.run("""
        kubectl run probe --image=localhost/python:1 --restart=Never -- -c '
        import socket; print(socket.gethostbyname("kubernetes.default.svc"))'
        kubectl wait pod/probe --for=jsonpath='{.status.phase}'=Succeeded --timeout=60s
        kubectl get nodes,pods --output=wide
        kubectl logs probe
        kubectl delete pod probe""".replace("\n        ", "\n"))


if __name__ == "__main__":
    sys.exit(main())
