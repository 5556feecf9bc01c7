"""Networks for pods without a cluster: this process gets a network of its own, and a pod can get an address of its own in it."""

import ctypes
import itertools
import os
import subprocess
import sys

BRIDGE = "pods"
PREFIX = "10.88.0"
GATEWAY = f"{PREFIX}.1"
_numbers = itertools.count(10)


def enter_private_network() -> None:
    """Runs this program again in a network namespace of its own, in which no other process uses the ports of the pods."""
    if os.environ.get("COUNTERSIGN_PRIVATE_NETWORK") != "1":
        environment = os.environ | {"COUNTERSIGN_PRIVATE_NETWORK": "1"}
        command = ["unshare", "--map-root-user", "--net", sys.executable, "-B", *sys.argv]
        os.execvpe(command[0], command, environment)
    _run("ip", "link", "set", "lo", "up")
    # The children end with this process.
    ctypes.CDLL(None).prctl(36, 1)


def add_bridge() -> None:
    """Connects this process with the pods that have addresses of their own."""
    _run("ip", "link", "add", BRIDGE, "type", "bridge")
    _run("ip", "address", "add", f"{GATEWAY}/24", "dev", BRIDGE)
    _run("ip", "link", "set", BRIDGE, "up")


class PodNetwork:
    """The network namespace of a pod, with an address that other pods reach."""

    def __init__(self):
        number = next(_numbers)
        self.address = f"{PREFIX}.{number}"
        # It ends with this process at the latest: `cat` reads the end of its input.
        self.holder = subprocess.Popen(["unshare", "--net", "sh", "-c", "echo ready; exec cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.holder.stdout.readline()
        _run("ip", "link", "add", f"pod{number}", "type", "veth", "peer", "name", "eth0", "netns", str(self.holder.pid))
        _run("ip", "link", "set", f"pod{number}", "master", BRIDGE, "up")
        _run(*self.enter(), "ip", "address", "add", f"{self.address}/24", "dev", "eth0")
        for device in ("eth0", "lo"):
            _run(*self.enter(), "ip", "link", "set", device, "up")

    def enter(self) -> list[str]:
        """The command that runs another one in this namespace."""
        return ["nsenter", f"--target={self.holder.pid}", "--net"]

    def close(self) -> None:
        self.holder.kill()
        self.holder.wait()
        self.holder.stdin.close()
        self.holder.stdout.close()


def _run(*command: str) -> None:
    subprocess.run(command, check=True)
