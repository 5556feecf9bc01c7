#!/usr/bin/env python3
"""Applies both charts with all test values to a real Kubernetes API server, in namespaces that enforce the Pod Security Standard
`restricted`. The API server has no controllers and no nodes, so no pod runs.

For each file of values: install, create all pods without persisting them, upgrade twice, compare the Secrets, uninstall.
"""

import os
import sys
from pathlib import Path

from api_server import ApiServer, api_server, pod
from render import CHARTS, ChartError, Release, pod_templates


def main() -> int:
    failures = 0
    with api_server() as api:
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
        created = pod(f"pod-{number}", name, template)
        uses_node = any("hostPath" in volume for volume in created["spec"]["volumes"])
        try:
            api.request("POST", f"/api/v1/namespaces/{namespace}/pods?dryRun=All&fieldValidation=Strict", created)
        except ChartError as error:
            if not (uses_node and "violates PodSecurity" in str(error)):
                raise
        else:
            if uses_node:
                raise ChartError(f"{name} was accepted with a directory of its node")


if __name__ == "__main__":
    os.umask(0o077)
    sys.exit(main())
