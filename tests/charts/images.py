"""Container images from root file systems and from programs of this machine, loaded into containerd without a registry."""

import hashlib
import io
import json
import re
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterable
from pathlib import Path

from node import PACKAGES
from render import REPOSITORY

sys.path.append(str(REPOSITORY / "scripts"))
from sandbox import Image  # noqa: E402

# Users of the images, as PostgreSQL looks up the name of its user.
PASSWD = "root:x:0:0:root:/:/sbin/nologin\nnonroot:x:65532:65532:nonroot:/tmp:/sbin/nologin\n"


def load_root(name: str, target: str, root: Path) -> None:
    """Loads the root file system of a target of the Dockerfile."""
    image = Image.of_target(target, root)
    environment = [f"{key}={value}" for key, value in image.environment.items()]
    settings = {"Entrypoint": image.entrypoint, "Env": environment, "WorkingDir": image.working_folder, "User": "65532:65532"}
    load(name, settings, lambda layer: layer.add(root, "."))


def load_programs(name: str, paths: Iterable[Path], entrypoint: Iterable[str] = ()) -> None:
    """Loads an image with programs and folders of this machine, at the same paths, and the shared libraries that they need."""
    files = {file for path in paths for file in ([path] if path.is_file() else path.rglob("*")) if file.is_file()}
    files |= {library for file in files if is_program(file) for library in libraries(file)}

    def fill(layer: tarfile.TarFile) -> None:
        temporary = tarfile.TarInfo("tmp")
        temporary.type, temporary.mode = tarfile.DIRTYPE, 0o1777
        layer.addfile(temporary)
        add_text(layer, "etc/passwd", PASSWD)
        for file in sorted(files):
            layer.add(file.resolve(), str(file))

    load(name, {"Entrypoint": list(entrypoint), "Env": ["PATH=/usr/local/bin:/usr/bin:/bin"]}, fill)


def is_program(file: Path) -> bool:
    with open(file, "rb") as opened:
        return opened.read(4) == b"\x7fELF"


def libraries(file: Path) -> list[Path]:
    output = subprocess.run(["ldd", file], capture_output=True, text=True, check=False).stdout
    return [Path(it) for it in re.findall(r"(?:=> |^\t)(/\S+) \(", output, re.MULTILINE)]


def load(name: str, settings: dict, fill: Callable[[tarfile.TarFile], None]) -> None:
    """Loads an image with one layer, in the archive format of `docker save`, into containerd."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as archive:
        fill(archive)
    content = layer.getvalue()
    layers = {"type": "layers", "diff_ids": ["sha256:" + hashlib.sha256(content).hexdigest()]}
    config = {"architecture": machine(), "os": "linux", "config": settings, "rootfs": layers}
    manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
    command = [PACKAGES / "usr/bin/ctr", "--namespace=k8s.io", "images", "import", "-"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    with tarfile.open(fileobj=process.stdin, mode="w|") as archive:
        add_text(archive, "config.json", json.dumps(config))
        add_text(archive, "manifest.json", json.dumps(manifest))
        add(archive, "layer.tar", content)
    process.stdin.close()
    if process.wait() != 0:
        raise SystemExit(f"containerd refuses the image {name}")


def machine() -> str:
    return subprocess.run(["dpkg", "--print-architecture"], capture_output=True, text=True, check=True).stdout.strip()


def add_text(archive: tarfile.TarFile, name: str, text: str) -> None:
    add(archive, name, text.encode())


def add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), 0o644
    archive.addfile(entry, io.BytesIO(content))
