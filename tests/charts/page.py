"""The values in docs/run/kubernetes.md: each YAML block is a file of values of the chart `countersign`."""

import re
import tempfile
from pathlib import Path

from render import REPOSITORY, ChartError, Release, pod_templates

PAGE = REPOSITORY / "docs/run/kubernetes.md"
BLOCK = re.compile(r"^```yaml\n(.*?)^```$", re.DOTALL | re.MULTILINE)
CREATED = re.compile(r"create (?:secret \w+|configmap) ([-\w]+)")


def blocks() -> list[str]:
    found = BLOCK.findall(PAGE.read_text())
    if not found:
        raise ChartError(f"{PAGE} has no values")
    return found


def render(block: str) -> list[dict]:
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(block)
        file.flush()
        return Release("countersign", values=[Path(file.name)]).render()


def missing(objects: list[dict]) -> set[str]:
    """The names of Secrets and ConfigMaps that pods mount, and that neither the chart, nor cert-manager, nor a command of the page makes."""
    made = {it["metadata"]["name"] for it in objects if it["kind"] in ("Secret", "ConfigMap")}
    made |= {it["spec"]["secretName"] for it in objects if it["kind"] == "Certificate"}
    volumes = [volume for _, template in pod_templates(objects) for volume in template["spec"].get("volumes", [])]
    mounted = {volume["secret"]["secretName"] for volume in volumes if "secret" in volume}
    mounted |= {volume["configMap"]["name"] for volume in volumes if "configMap" in volume}
    return mounted - made - set(CREATED.findall(PAGE.read_text()))
