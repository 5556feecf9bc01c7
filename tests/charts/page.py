"""The values and the commands in docs/run/kubernetes.md: each YAML block is a file of values of the chart `countersign`."""

import re
import tempfile
from dataclasses import dataclass
from pathlib import Path

from render import REPOSITORY, ChartError, Release, pod_templates

PAGE = REPOSITORY / "docs/run/kubernetes.md"
FENCE = re.compile(r"^```(\S+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
# A heading stands outside of a block, where a line that begins with `#` is a comment.
PART = re.compile(r"^```.*?^```$|^#+ (?P<title>[^\n]*)$", re.DOTALL | re.MULTILINE)
CREATED = re.compile(r"create (?:secret \w+|configmap) ([-\w]+)")


@dataclass(frozen=True)
class Block:
    """A block of the page. Its kind is what follows the fence, such as `sh` or `yaml`."""

    title: str
    kind: str
    text: str


def all_blocks(path: Path = PAGE) -> list[Block]:
    """The blocks of a page, each with the heading above it."""
    title, found = "", []
    for part in PART.finditer(path.read_text()):
        if part["title"]:
            title = part["title"]
        elif fence := FENCE.match(part[0]):
            found.append(Block(title, fence[1], fence[2]))
    return found


def blocks() -> list[str]:
    found = [it.text for it in all_blocks() if it.kind == "yaml"]
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
