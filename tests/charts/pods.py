"""Runs the containers of rendered pods as a kubelet would: with the rendered command, environment, user, volumes and read-only root.

The root file systems are those of the images, with the programs of this build. The network is that of this process.
"""

import base64
import os
import shutil
import signal
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

from network import PodNetwork
from render import REPOSITORY, find

ROOTS = REPOSITORY / "target/image-debug"
# The target of the Dockerfile and the program of an image, by the end of its repository.
IMAGES = {
    "countersign-control-plane": ("control-plane", "countersign-control-plane"),
    "countersign-ext-authz": ("ext-authz", "countersign-ext-authz"),
    "countersign-cli": ("cli", "countersign"),
}
STOP_SECONDS = 30
COMMAND_SECONDS = 60


class PodFailed(Exception):
    """A container of a pod does not do what it should."""


class Cluster:
    """The objects that pods refer to, and the content of their volumes."""

    def __init__(self, directory: Path, hosts: list[str]):
        self.directory = directory
        self.objects: list[dict] = []
        self.hosts = directory / "hosts"
        self.resolve({host: ["127.0.0.1"] for host in hosts})

    def resolve(self, addresses: dict[str, list[str]]) -> None:
        """Sets the addresses of hosts, also for pods that run."""
        lines = "".join(f"{address} {host}\n" for host, its in addresses.items() for address in its)
        self.hosts.write_text(f"127.0.0.1 localhost\n{lines}")

    def apply(self, objects: list[dict]) -> None:
        """Adds objects, which replace those of the same kind and name."""
        names = {(it["kind"], it["metadata"]["name"]) for it in objects}
        self.objects = [it for it in self.objects if (it["kind"], it["metadata"]["name"]) not in names] + objects

    def volume(self, pod: str, volume: dict, claims: list[str]) -> Path:
        """The directory of a volume. A claim keeps its content, an emptyDir keeps it for the pod."""
        name = volume["name"]
        if "persistentVolumeClaim" in volume or name in claims:
            claim = volume.get("persistentVolumeClaim", {}).get("claimName", f"{name}-{pod}-0")
            path = self.directory / "claims" / claim
        else:
            path = self.directory / "pods" / pod / name
        path.mkdir(parents=True, exist_ok=True)
        if "configMap" in volume:
            content = find(self.objects, "ConfigMap", volume["configMap"]["name"])["data"]
            write_files(path, {key: text.encode() for key, text in content.items()}, volume["configMap"])
        elif "secret" in volume:
            write_files(path, self.secret(volume["secret"]["secretName"]), volume["secret"])
        return path

    def secret(self, name: str) -> dict[str, bytes]:
        """The content of a Secret."""
        secret = find(self.objects, "Secret", name)
        text = {key: value.encode() for key, value in secret.get("stringData", {}).items()}
        return text | {key: base64.b64decode(value) for key, value in secret.get("data", {}).items()}

    @staticmethod
    def decode(value: str) -> str:
        """A value of the data of a Secret, as text."""
        return base64.b64decode(value).decode()


def write_files(directory: Path, content: dict[str, bytes], source: dict) -> None:
    """Writes the keys that the source selects, under the names that it gives them."""
    items = source.get("items") or [{"key": key, "path": key} for key in content]
    for item in items:
        if item["key"] not in content:
            raise PodFailed(f"{source} needs the key {item['key']}, but there are only {sorted(content)}")
        (directory / item["path"]).write_bytes(content[item["key"]])


class Container:
    """A container of a pod."""

    def __init__(self, cluster: Cluster, pod_name: str, template: dict, container: dict, claims: list[str]):
        spec = template["spec"]
        self.cluster, self.container = cluster, container
        self.name = f"{pod_name}/{container['name']}"
        security = container["securityContext"]
        if not security["readOnlyRootFilesystem"] or security["capabilities"] != {"drop": ["ALL"]}:
            raise PodFailed(f"{self.name}: the security context is weaker than expected")
        self.user = security.get("runAsUser", spec["securityContext"]["runAsUser"])
        self.volumes = {
            volume["name"]: cluster.volume(pod_name, volume, claims) for volume in spec.get("volumes", [])
        } | {claim: cluster.volume(pod_name, {"name": claim}, claims) for claim in claims}

    def command(self, arguments: list[str] | None = None) -> list[str]:
        """The command that runs the container, or the program of the container with other arguments."""
        repository = self.container["image"].split("@")[0].rsplit(":", 1)[0].rsplit("/", 1)[-1]
        target, program = IMAGES[repository]
        sandbox = [
            *(str(REPOSITORY / ".tools/bin/bwrap"), "--unshare-user", "--uid", str(self.user), "--gid", str(self.user)),
            *("--unshare-pid", "--unshare-ipc", "--die-with-parent", "--new-session", "--cap-drop", "ALL", "--clearenv"),
        ]
        for path in root_paths(ROOTS / target):
            sandbox += ["--ro-bind", str(ROOTS / target / path), f"/{path}"]
        sandbox += ["--proc", "/proc", "--dev", "/dev", "--ro-bind", str(self.cluster.hosts), "/etc/hosts"]
        for mount in self.container.get("volumeMounts", []):
            option = "--ro-bind" if mount.get("readOnly") else "--bind"
            sandbox += [option, str(self.volumes[mount["name"]]), mount["mountPath"]]
        for name, value in self._environment().items():
            sandbox += ["--setenv", name, value]
        arguments = self.container.get("args", []) if arguments is None else arguments
        return [*sandbox, "--remount-ro", "/", f"/usr/local/bin/{program}", *arguments]

    def _environment(self) -> dict[str, str]:
        environment = {}
        for variable in self.container.get("env") or []:
            if "value" in variable:
                environment[variable["name"]] = variable["value"]
                continue
            reference = variable["valueFrom"]["secretKeyRef"]
            value = self.cluster.secret(reference["name"]).get(reference["key"])
            if value is not None:
                environment[variable["name"]] = value.decode()
            elif not reference.get("optional"):
                raise PodFailed(f"{self.name}: the Secret {reference['name']} has no key {reference['key']}")
        return environment

    def run(self, arguments: list[str] | None = None) -> str:
        """Runs the container until it ends, and returns its output."""
        command = self.command(arguments)
        result = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False)
        if result.returncode != 0:
            raise PodFailed(f"{self.name} exited with {result.returncode}:\n{result.stdout}{result.stderr}")
        return result.stdout


def root_paths(root: Path) -> list[str]:
    """What is mounted of an image: its folders, but of /etc each entry, because a volume can be mounted in it. A container runtime adds
    the mount points of volumes to the image."""
    paths = [path.name for path in root.iterdir() if path.name not in ("etc", "home", "tmp", "data")]
    return paths + [f"etc/{path.name}" for path in (root / "etc").iterdir()]


def containers(cluster: Cluster, pod_name: str, template: dict, claims: list[str], kind: str) -> list[Container]:
    """The containers of a pod; `kind` is `containers` or `initContainers`."""
    listed = template["spec"].get(kind) or []
    return [Container(cluster, pod_name, template, container, claims) for container in listed]


def run_to_completion(cluster: Cluster, pod_name: str, template: dict) -> list[str]:
    """Runs the containers of a pod that ends, one after the other, and returns their outputs."""
    shutil.rmtree(cluster.directory / "pods" / pod_name, ignore_errors=True)
    steps = containers(cluster, pod_name, template, [], "initContainers")
    steps += containers(cluster, pod_name, template, [], "containers")
    return [step.run() for step in steps]


class Server:
    """A pod with one container that runs until it is stopped, in the network of this process or in one of its own."""

    def __init__(self, cluster: Cluster, pod_name: str, workload: dict, network: PodNetwork | None = None):
        template = workload["spec"]["template"]
        claims = [it["metadata"]["name"] for it in workload["spec"].get("volumeClaimTemplates", [])]
        (self.container,) = containers(cluster, pod_name, template, claims, "containers")
        self.ports = {port["name"]: port["containerPort"] for port in self.container.container["ports"]}
        self.log_path = cluster.directory / f"{pod_name}.log"
        self.network = network
        self.address = network.address if network else "127.0.0.1"
        self.process: subprocess.Popen | None = None

    def __enter__(self) -> "Server":
        with open(self.log_path, "ab") as log:
            # A process group of its own, so that `stop` reaches the server and not only the sandbox.
            self.process = subprocess.Popen(
                [*(self.network.enter() if self.network else []), *self.container.command()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            self.wait_for("startupProbe" if self.container.container.get("startupProbe") else "readinessProbe")
            self.wait_for("livenessProbe")
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def wait_for(self, probe: str) -> None:
        """Waits until a probe succeeds."""
        get = self.container.container[probe]["httpGet"]
        port = self.ports.get(get["port"], get["port"])
        for _ in range(COMMAND_SECONDS * 10):
            try:
                with urllib.request.urlopen(f"http://{self.address}:{port}{get['path']}", timeout=5):
                    return
            except (urllib.error.URLError, OSError):
                if self.process.poll() is not None:
                    break
                time.sleep(0.1)
        raise PodFailed(f"{self.container.name}: its {probe} did not succeed:\n{self.log_path.read_text()}")

    def stop(self) -> None:
        """Runs the preStop hook and sends SIGTERM as the kubelet does, and checks that the process ends without an error."""
        time.sleep(self.container.container.get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0))
        os.kill(self._server_pid(), signal.SIGTERM)
        try:
            code = self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            raise PodFailed(f"{self.container.name} did not end within {STOP_SECONDS} s of SIGTERM") from None
        if code != 0:
            raise PodFailed(f"{self.container.name} exited with {code} after SIGTERM:\n{self.log_path.read_text()}")

    def _server_pid(self) -> int:
        """The process of the server: the only one of the sandbox that has no child."""
        pid = self.process.pid
        while children := Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            pid = int(children[0])
        return pid

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
