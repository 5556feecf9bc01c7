"""Runs commands as the containers of docker-compose.yaml do, with bubblewrap instead of a container engine.

A command sees the root file system of its image, read-only, and its volumes. It runs as the user of its service, without
capabilities, and can get no new rights. All commands share one network without a way out, in which the name of each service
resolves to one address, which is not on loopback, as in a network of containers.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STOP_SECONDS = 40
# The address of all services, of a network that is reserved for documentation.
SERVICE_ADDRESS = "192.0.2.1"
# The variable PATH of an image that sets none.
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# What programs of this machine need, instead of the root file system of a public image.
MACHINE_FOLDERS = ["/usr", "/etc/ssl", "/etc/alternatives", "/etc/ld.so.cache", "/etc/localtime"]
MACHINE_LINKS = ["/bin", "/sbin", "/lib", "/lib64"]


def run_again(binds: dict[str, Path], environment: dict[str, str]) -> int:
    """Runs this program again, in a network of its own, so that the ports are free and nothing is reachable. The variable
    SANDBOX_FOLDER names a folder that shows the paths of `binds` to users who may not enter the checkout."""
    folder = Path(tempfile.mkdtemp(prefix="countersign-", dir="/tmp"))
    folder.chmod(0o755)
    arguments = [*enter_network(), "bwrap", "--die-with-parent", "--dev-bind", "/", "/"]
    arguments += ["--cap-add", "ALL"] if os.geteuid() == 0 else []
    for name, source in binds.items():
        target = folder / name
        target.parent.mkdir(exist_ok=True)
        target.mkdir() if source.is_dir() else target.touch()
        arguments += ["--ro-bind", str(source.resolve()), str(target)]
    for name, value in (environment | {"SANDBOX_FOLDER": str(folder)}).items():
        arguments += ["--setenv", name, value]
    try:
        return subprocess.run([*arguments, "--", sys.executable, "-B", *sys.argv]).returncode
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def enter_network() -> list[str]:
    """Runs a command in a network of its own, with loopback and SERVICE_ADDRESS."""
    add_addresses = f'ip link set lo up && ip address add {SERVICE_ADDRESS}/32 dev lo && exec "$@"'
    command = ["--net", "sh", "-c", add_addresses, "sh"]
    if os.geteuid() == 0:
        return ["unshare", *command]
    # Only root may add addresses, even if it is root of this network only. bwrap needs the user again.
    return ["unshare", "--map-root-user", *command, "unshare", f"--map-user={os.geteuid()}", f"--map-group={os.getegid()}"]


@dataclass
class Image:
    """The root file system of an image, and the properties that its Dockerfile sets."""

    root: Path | None
    entrypoint: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    working_folder: str = "/"

    @staticmethod
    def of_target(target: str, root: Path) -> "Image":
        """Reads the properties of a target from the Dockerfile."""
        stages = re.split(r"^FROM .* AS (\S+)$", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)
        lines = stages[stages.index(target) + 1].splitlines()
        values = lambda name: [line.removeprefix(name).strip() for line in lines if line.startswith(f"{name} ")]
        return Image(
            root,
            json.loads(values("ENTRYPOINT")[0]),
            dict(value.split("=", 1) for value in values("ENV")),
            (values("WORKDIR") or ["/"])[0],
        )


@dataclass
class Container:
    """A command with its image, user and mounts. A mount is (source, target, whether it is read-only)."""

    image: Image
    command: list[str]
    user: int
    environment: dict[str, str]
    mounts: list[tuple[Path, str, bool]]
    temporary_folders: list[str]
    capabilities: list[str]

    def start(self, **options) -> "Running":
        """Starts the command. `options` are passed to subprocess.Popen."""
        reader, writer = os.pipe()
        process = subprocess.Popen(self.arguments(writer), pass_fds=[writer], start_new_session=True, **options)
        os.close(writer)
        return Running(process, reader)

    def run(self) -> subprocess.CompletedProcess:
        """Runs the command until it ends."""
        return subprocess.run(self.arguments(None), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)

    def arguments(self, info: int | None) -> list[str]:
        arguments = ["bwrap", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--die-with-parent", "--as-pid-1", "--new-session"]
        if info is not None:
            arguments += ["--info-fd", str(info)]
        arguments += self.user_arguments() + self.root_arguments()
        for folder in self.temporary_folders:
            arguments += ["--perms", "1777" if folder == "/tmp" else "0755", "--tmpfs", folder]
        for source, target, read_only in self.mounts:
            arguments += ["--ro-bind" if read_only else "--bind", str(source), target]
        # The last step, because bwrap creates the mount points before.
        arguments += ["--remount-ro", "/", "--chdir", self.image.working_folder, "--clearenv"]
        for name, value in ({"PATH": DEFAULT_PATH} | self.image.environment | self.environment).items():
            arguments += ["--setenv", name, value]
        return self.change_user() + arguments + ["--", *self.image.entrypoint, *self.command]

    def change_user(self) -> list[str]:
        """Root changes to the user before bwrap starts, so that the permissions of files apply as in a container."""
        if os.geteuid() != 0 or self.user == 0:
            return []
        numbers = ["--reuid", str(self.user), "--regid", str(self.user), "--clear-groups"]
        return ["setpriv", *numbers, "--no-new-privs", "--"]

    def user_arguments(self) -> list[str]:
        if os.geteuid() != 0:
            return ["--unshare-user", "--uid", str(self.user or 65532), "--gid", str(self.user or 65532)]
        if self.user == 0:
            return ["--cap-drop", "ALL", *(word for name in self.capabilities for word in ("--cap-add", f"CAP_{name}"))]
        return ["--unshare-user"]

    def root_arguments(self) -> list[str]:
        """The root is a temporary folder with the entries of the image, because bwrap must create mount points in it."""
        arguments = ["--tmpfs", "/"]
        if self.image.root is None:
            for path in filter(os.path.exists, MACHINE_FOLDERS):
                arguments += ["--ro-bind", path, path]
            for path in filter(os.path.exists, MACHINE_LINKS):
                is_link = os.path.islink(path)
                arguments += ["--symlink", os.readlink(path), path] if is_link else ["--ro-bind", path, path]
        else:
            entries = [entry for entry in self.image.root.iterdir() if entry.name != "etc"]
            for entry in entries + list((self.image.root / "etc").iterdir()):
                arguments += ["--ro-bind", str(entry), f"/{entry.relative_to(self.image.root)}"]
        return arguments + ["--dev", "/dev", "--proc", "/proc"]


class Running:
    """A started command."""

    def __init__(self, process: subprocess.Popen, info: int):
        self.process = process
        with os.fdopen(info) as reader:
            text = reader.read()
        if not text:
            raise RuntimeError(f"bwrap did not start: exit code {process.wait()}")
        self.first_process = json.loads(text)["child-pid"]

    def stop(self) -> int:
        """Sends SIGTERM to the first process of the container, as `docker stop` does, and returns the exit code."""
        if self.process.poll() is None:
            os.kill(self.first_process, signal.SIGTERM)
        try:
            return self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            return self.process.wait()

    def kill(self) -> None:
        if self.process.poll() is None:
            os.kill(self.first_process, signal.SIGKILL)
