"""Renders charts with helm."""

import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import yaml

REPOSITORY = Path(__file__).resolve().parents[2]
CHARTS = REPOSITORY / "charts"
HELM = REPOSITORY / ".tools/bin/helm"

# The registry, which all installations need. Other values can replace it.
REGISTRY_VALUES = Path(__file__).with_name("registry-values.yaml")

# A helm that `go install` built assumes a very old version of Kubernetes.
KUBERNETES = "1.33.0"


class ChartError(Exception):
    """A chart cannot be rendered."""


class StrictLoader(yaml.SafeLoader):
    """Refuses a map with the same key twice, as YAML requires. PyYAML and helm would keep the last one, but Flux and kustomize refuse it."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        keys = [key.value for key, _ in node.value]
        twice = {key for key in keys if keys.count(key) > 1}
        if twice:
            raise ChartError(f"a map has the keys {sorted(twice)} twice:{node.start_mark}")
        return super().construct_mapping(node, deep)


def load_all(text: str) -> list[dict]:
    """The documents of a YAML text that are not empty."""
    return [it for it in yaml.load_all(text, StrictLoader) if it]


@dataclass
class Release:
    """An installation of a chart. `values` are files, `settings` single values (KEY=VALUE)."""

    chart: str
    name: str = "countersign"
    namespace: str = "identity"
    values: list[Path] = field(default_factory=list)
    settings: list[str] = field(default_factory=list)

    def render(self) -> list[dict]:
        """All objects of the release, with those of hooks."""
        arguments = ["template", self.name, str(CHARTS / self.chart), "--namespace", self.namespace]
        return load_all(helm(*arguments, "--kube-version", KUBERNETES, *self._values()))

    def _values(self) -> list[str]:
        files = [argument for file in [REGISTRY_VALUES, *self.values] for argument in ("--values", str(file))]
        return files + [argument for setting in self.settings for argument in ("--set", setting)]


def helm_environment(kubeconfig: str) -> dict[str, str]:
    """The environment of helm: no settings of the user, and a cache of its own."""
    folders = {f"HELM_{name}_HOME": str(HELM.parents[1] / "helm" / name.lower()) for name in ("CACHE", "CONFIG", "DATA")}
    return {"PATH": "/usr/bin:/bin", "HOME": "/", "KUBECONFIG": kubeconfig} | folders


def helm(*arguments: str) -> str:
    """Runs helm, and returns its output."""
    # No cluster and no settings of the user, so that the result is the same on every machine.
    environment = helm_environment("/dev/null")
    result = subprocess.run([str(HELM), *arguments], capture_output=True, text=True, env=environment, check=False)
    if result.returncode != 0:
        raise ChartError(result.stderr.strip() or result.stdout.strip())
    return result.stdout


def find(objects: list[dict], kind: str, name: str | None = None) -> dict:
    """The only object of this kind, and with this name if it is given."""
    found = [it for it in objects if it["kind"] == kind and name in (None, it["metadata"]["name"])]
    if len(found) != 1:
        raise ChartError(f"{len(found)} objects of kind {kind} and name {name} instead of one")
    return found[0]


def pod_templates(objects: list[dict]) -> list[tuple[str, dict]]:
    """The pods that the objects create: a name, and the pod template with its metadata and spec."""
    pods = []
    for it in objects:
        name = f"{it['kind']}/{it['metadata']['name']}"
        match it["kind"]:
            case "Pod":
                pods.append((name, it))
            case "Deployment" | "StatefulSet" | "DaemonSet" | "Job":
                pods.append((name, it["spec"]["template"]))
            case "CronJob":
                pods.append((name, it["spec"]["jobTemplate"]["spec"]["template"]))
    return pods
