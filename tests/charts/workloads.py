"""Pods of the tests themselves, which the Pod Security Standard `restricted` allows."""

from typing import Any


def container(name: str, image: str, *arguments: str, **more: Any) -> dict:
    security = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    return {"name": name, "image": image, "args": list(arguments), "securityContext": security, **more}


def pod_spec(*containers: dict, **more: Any) -> dict:
    security = {"runAsNonRoot": True, "runAsUser": 65532, "fsGroup": 65532, "seccompProfile": {"type": "RuntimeDefault"}}
    return {"containers": list(containers), "securityContext": security, "automountServiceAccountToken": False, **more}


def service(name: str, namespace: str, spec: dict, port: int, target: int) -> list[dict]:
    """A Deployment with one pod, and its Service."""
    labels, metadata = {"app": name}, {"name": name, "namespace": namespace}
    return [
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata,
         "spec": {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": spec}}},
        {"apiVersion": "v1", "kind": "Service", "metadata": metadata,
         "spec": {"selector": labels, "ports": [{"port": port, "targetPort": target}]}},
    ]
