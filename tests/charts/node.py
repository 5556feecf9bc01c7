"""One Kubernetes node on this machine, without a container engine: the servers of Kubernetes, containerd, a bridge and CoreDNS.

The program runs in namespaces of its own, with its own processes, mounts and network. When it ends, the kernel ends all pods, and removes
their mounts, interfaces and firewall rules. Folders and control groups are removed by the process that stays outside.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import yaml
from api_server import TOOLS, ApiServer, api_server, start, wait_for
from render import REPOSITORY, ChartError

NAME = "node"
ADDRESS, PODS, SERVICES = "172.30.0.1", "10.244.0.0/24", "10.0.0.0/24"
CONTROL_GROUPS = Path("/sys/fs/cgroup")
FOLDER = "COUNTERSIGN_CLUSTER_FOLDER"
PACKAGES = REPOSITORY / ".tools/node"
PAUSE = "localhost/pause:1"
VOLUMES = 16


def enter_namespaces() -> Path:
    """Runs this program again in namespaces of its own, and returns the folder for its files."""
    if folder := os.environ.get(FOLDER):
        return Path(folder)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    command = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", sys.executable, "-B", *sys.argv]
    with tempfile.TemporaryDirectory(prefix="countersign-cluster-") as folder:
        create_control_groups(Path(folder).name)
        try:
            sys.exit(subprocess.call(command, env=os.environ | {FOLDER: folder, "TMPDIR": folder}))
        finally:
            remove_control_groups(Path(folder).name)


def create_control_groups(name: str) -> None:
    """The kubelet needs a control group for its pods: one for each controller, or with version 2 a single one."""
    controllers = [it.parent for it in CONTROL_GROUPS.glob("*/tasks")]
    for hierarchy in controllers or [CONTROL_GROUPS]:
        (hierarchy / name).mkdir(exist_ok=True)


def remove_control_groups(name: str) -> None:
    """Removes the control groups as soon as the kernel has ended their processes."""
    for group in [CONTROL_GROUPS / name, *CONTROL_GROUPS.glob(f"*/{name}")]:
        for _ in range(50):
            inside = [it for it in group.rglob("*") if it.is_dir()]
            with contextlib.suppress(OSError):
                for it in sorted(inside, key=lambda it: -len(it.parts)):
                    it.rmdir()
                group.rmdir()
            if not group.exists():
                break
            time.sleep(0.1)


@contextlib.contextmanager
def node(folder: Path) -> Iterator[ApiServer]:
    """Starts a cluster with one node."""
    prepare_mounts(folder)
    prepare_network()
    admission = f"--admission-control-config-file={write(folder / 'admission.yaml', yaml.safe_dump(pod_security()))}"
    with api_server(ADDRESS, admission) as api, contextlib.ExitStack() as stack:
        access = f"--kubeconfig={api.kubeconfig}"

        def run(program: str, *arguments: str, **environment: str) -> None:
            start(stack, folder / f"{Path(program).name}.log", program, *arguments, **environment)

        run("kube-controller-manager", access, "--leader-elect=false", f"--service-account-private-key-file={api.directory}/key.pem",
            f"--root-ca-file={api.directory}/certificates/apiserver.crt", "--bind-address=127.0.0.1")
        run("kube-scheduler", access, "--leader-elect=false", "--bind-address=127.0.0.1")
        # The limits of connections belong to the whole machine.
        run("kube-proxy", access, f"--hostname-override={NAME}", f"--cluster-cidr={PODS}", "--conntrack-max-per-core=0",
            "--conntrack-tcp-timeout-established=0", "--conntrack-tcp-timeout-close-wait=0", "--bind-address=127.0.0.1")
        run("coredns", f"-conf={write(folder / 'Corefile', corefile(api, folder))}")
        run(f"{PACKAGES}/usr/bin/containerd", f"--config={write(folder / 'containerd.toml', containerd_settings(folder))}",
            PATH=f"{PACKAGES}/usr/bin:{PACKAGES}/usr/sbin:{os.environ['PATH']}")
        (folder / "cni").mkdir()
        write(folder / "cni/pods.conflist", json.dumps(pod_network()))
        settings = write(folder / "kubelet.yaml", yaml.safe_dump(kubelet_settings(folder)))
        run("kubelet", access, f"--config={settings}", f"--hostname-override={NAME}", f"--node-ip={ADDRESS}", f"--root-dir={folder}/kubelet")
        os.environ |= {"KUBECONFIG": str(api.kubeconfig), "PATH": f"{TOOLS}:{REPOSITORY}/.tools/bin:{os.environ['PATH']}"}
        try:
            create_volumes(api, folder)
            wait_for("the node is not ready", lambda: is_ready(api), lambda: tail(folder / "kubelet.log"))
            yield api
        except BaseException:
            for log in sorted(folder.glob("*.log")):
                print(f"--- {log.name}\n{tail(log)}", file=sys.stderr)
            raise


def prepare_mounts(folder: Path) -> None:
    """What the programs write into /var and /run does not reach the machine. The node asks CoreDNS as a pod does."""
    for name in ("upper", "work"):
        (folder / "var" / name).mkdir(parents=True)
    layers = f"lowerdir=/var,upperdir={folder}/var/upper,workdir={folder}/var/work"
    execute("mount", "-t", "overlay", "-o", layers, "overlay", "/var")
    execute("mount", "-t", "tmpfs", "tmpfs", "/run")
    resolver = write(folder / "resolv.conf", f"nameserver {ADDRESS}\nsearch svc.cluster.local cluster.local\noptions ndots:5\n")
    execute("mount", "--bind", str(resolver), "/etc/resolv.conf")


def prepare_network() -> None:
    """The default route makes Services reachable from the node, and leads nowhere else."""
    execute("ip", "link", "set", "lo", "up")
    execute("ip", "link", "add", "uplink", "type", "bridge")
    execute("ip", "address", "add", f"{ADDRESS}/24", "dev", "uplink")
    execute("ip", "link", "set", "uplink", "up")
    execute("ip", "route", "add", "default", "dev", "uplink")
    for setting in ("ipv4/ip_forward", "bridge/bridge-nf-call-iptables"):
        Path("/proc/sys/net", setting).write_text("1")


def pod_security() -> dict:
    """All namespaces enforce the Pod Security Standard `restricted`, unless their labels say otherwise."""
    configuration = {"apiVersion": "pod-security.admission.config.k8s.io/v1", "kind": "PodSecurityConfiguration",
                     "defaults": {"enforce": "restricted", "enforce-version": "latest"}}
    return {"apiVersion": "apiserver.config.k8s.io/v1", "kind": "AdmissionConfiguration",
            "plugins": [{"name": "PodSecurity", "configuration": configuration}]}


def corefile(api: ApiServer, folder: Path) -> str:
    return f""".:53 {{
    bind {ADDRESS}
    kubernetes cluster.local {{
        kubeconfig {api.kubeconfig}
    }}
    hosts {folder}/hosts {{
        reload 500ms
        fallthrough
    }}
}}
"""


def containerd_settings(folder: Path) -> str:
    # The kernel of a virtual machine may refuse to lower the OOM score of a container.
    return f"""version = 2
root = "{folder}/containerd"
state = "/run/containerd"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{PAUSE}"
restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "{PACKAGES}/usr/lib/cni"
conf_dir = "{folder}/cni"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
BinaryName = "{PACKAGES}/usr/sbin/runc"
"""


def pod_network() -> dict:
    addresses = {"type": "host-local", "subnet": PODS, "routes": [{"dst": "0.0.0.0/0"}]}
    bridge = {"type": "bridge", "bridge": "pods", "isGateway": True, "ipMasq": True, "hairpinMode": True, "ipam": addresses}
    return {"cniVersion": "1.0.0", "name": "pods", "plugins": [bridge, {"type": "portmap", "capabilities": {"portMappings": True}}]}


def kubelet_settings(folder: Path) -> dict:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        # Nothing outside of the namespace reaches the kubelet.
        "address": ADDRESS,
        "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
        "authorization": {"mode": "AlwaysAllow"},
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "clusterDNS": [ADDRESS],
        "clusterDomain": "cluster.local",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{folder.name}",
        "failCgroupV1": False,
        "failSwapOn": False,
        "imageGCHighThresholdPercent": 100,
        # The machine may be as full as it likes.
        "evictionHard": {"nodefs.available": "0%", "imagefs.available": "0%", "memory.available": "0%"},
        # A test changes Secrets, and waits for the kubelet.
        "syncFrequency": "5s",
        "configMapAndSecretChangeDetectionStrategy": "Watch",
    }


def create_volumes(api: ApiServer, folder: Path) -> None:
    """Makes local volumes, which claims without a storage class bind."""
    term = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [NAME]}]}
    for number in range(VOLUMES):
        path = folder / f"volumes/{number}"
        path.mkdir(parents=True)
        spec = {"capacity": {"storage": "16Gi"}, "accessModes": ["ReadWriteOnce"], "local": {"path": str(path)},
                "persistentVolumeReclaimPolicy": "Retain", "nodeAffinity": {"required": {"nodeSelectorTerms": [term]}}}
        api.request("POST", "/api/v1/persistentvolumes", {"metadata": {"name": f"volume-{number}"}, "spec": spec})


def is_ready(api: ApiServer) -> bool:
    nodes = api.request("GET", "/api/v1/nodes")["items"]
    return any(it["type"] == "Ready" and it["status"] == "True" for it in (nodes[0]["status"]["conditions"] if nodes else []))


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def tail(path: Path) -> str:
    return "\n".join(path.read_text(errors="replace").splitlines()[-25:])


def execute(*command: str) -> None:
    subprocess.run(command, check=True)
