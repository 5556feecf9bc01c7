"""The four servers of the demo, how they are told about each other, and how they are reached."""

import os
import re
import socket
import subprocess
from pathlib import Path

import upstream
from console import Failed, say, wait_until
from processes import Processes, clean_environment
from web import Answer, Server

ROOT = Path(__file__).resolve().parents[2]
BINARIES = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve() / "debug"
ENVOY = os.environ.get("ENVOY_BIN") or str(ROOT / ".tools/bin/envoy")
AGENT = ROOT / "examples/agent-openssl-curl/agent.sh"
# Generous: a debug build on a busy machine with two cores.
START_SECONDS = 15


class Stack:
    def __init__(self, folder: Path, processes: Processes):
        self.folder = folder
        self.processes = processes
        self.agent_folder = folder / "agent"
        self.dev_env = folder / "control-plane/dev.env"
        self.socket = folder / "authz.sock"
        self.dev: dict[str, str] = {}

    def start(self) -> None:
        say("Starting")
        self.start_control_plane()
        self.api = Server(self.dev["COUNTERSIGN_URL"], self.dev["COUNTERSIGN_CA"])
        self.start_sidecar()
        self.service_port = upstream.start()
        say(f"   upstream        http://127.0.0.1:{self.service_port}, echoes its headers")
        self.start_envoy()

    def start_control_plane(self) -> None:
        """The second time on the ports of the first, so that the sidecar finds it again."""
        ports = {name: urlport(self.dev.get(f"COUNTERSIGN_{name}")) for name in ("URL", "SYNC_URL", "ADMIN_URL")}
        self.processes.start(
            "control-plane",
            [str(BINARIES / "countersign-control-plane"), "--dev", "--set", f"data_dir={self.dev_env.parent}"],
            {
                "COUNTERSIGN_LISTEN__API": f"127.0.0.1:{ports['URL']}",
                "COUNTERSIGN_LISTEN__SYNC": f"127.0.0.1:{ports['SYNC_URL']}",
                "COUNTERSIGN_LISTEN__ADMIN": f"127.0.0.1:{ports['ADMIN_URL']}",
            },
        )
        self._wait("control-plane", "dev.env", self.dev_env.exists)
        self.dev = read_env(self.dev_env)
        self._wait_ready("control-plane", self.dev["COUNTERSIGN_ADMIN_URL"])
        say(f"   control plane   {self.dev['COUNTERSIGN_URL']}, ready")

    def start_sidecar(self) -> None:
        """With a key that can follow the stream and verify, and do nothing else."""
        path = f"/services/{self.service_id}/keys"
        human = bearer(self.dev["COUNTERSIGN_HUMAN_TOKEN"])
        made = self.api.ask("POST", path, human, {"name": "the demo's sidecar", "scope": "sync"})
        if made.status != 201:
            raise Failed(f"no key for the sidecar: {made}")
        keys = self.folder / "sidecar.keys"
        keys.touch(mode=0o600)
        keys.write_text(made.body["apiKey"] + "\n")
        self.sidecar_admin_url = f"http://127.0.0.1:{free_port()}"
        self.processes.start(
            "sidecar",
            [str(BINARIES / "countersign-ext-authz")],
            {
                "COUNTERSIGN_LISTEN__GRPC": f"unix:{self.socket}",
                "COUNTERSIGN_LISTEN__ADMIN": self.sidecar_admin_url.removeprefix("http://"),
                "COUNTERSIGN_SYNC__URL": self.dev["COUNTERSIGN_SYNC_URL"],
                "COUNTERSIGN_SYNC__CA": self.dev["COUNTERSIGN_CA"],
                "COUNTERSIGN_SYNC__KEYS_FILE": str(keys),
                "COUNTERSIGN_LOG__FORMAT": "text",
            },
        )
        self._wait_ready("sidecar", self.sidecar_admin_url)
        say(f"   sidecar         unix:{self.socket}, has its view")

    def start_envoy(self) -> None:
        """On port 0: the kernel picks, Envoy's admin tells; no port is guessed."""
        config, address = self.folder / "envoy.yaml", self.folder / "envoy.address"
        values = {"authz_socket": self.socket, "service_port": self.service_port, "admin_port": 0, "listen_port": 0}
        config.write_text(filled_in((ROOT / "examples/envoy/envoy.yaml").read_text(), values))
        options = ["--concurrency", "1", "--disable-hot-restart", "--log-level", "warning"]
        self.processes.start("envoy", [ENVOY, "-c", str(config), "--admin-address-path", str(address), *options], {})
        self._wait("envoy", "the admin's address", lambda: address.exists() and address.read_text())
        self.envoy_admin_url = f"http://{address.read_text()}"
        self._wait_ready("envoy", self.envoy_admin_url, "/ready")
        listeners = Server(self.envoy_admin_url).ask("GET", "/listeners?format=json").body
        port = listeners["listener_statuses"][0]["local_address"]["socket_address"]["port_value"]
        self.envoy_url = f"http://127.0.0.1:{port}"
        self.envoy = Server(self.envoy_url)
        say(f"   Envoy           {self.envoy_url}")

    def kill_control_plane(self) -> None:
        self.processes.kill("control-plane")
        self.api.close()

    @property
    def service_id(self) -> str:
        return self.dev["COUNTERSIGN_SERVICE_ID"]

    def as_service(self, method: str, path: str, body: object = None) -> Answer:
        """Asks the API with the service's key; `path` is below the service. A refusal is a failure."""
        answer = self.api.ask(method, f"/services/{self.service_id}{path}", bearer(self.service_key), body)
        if answer.status >= 300:
            raise Failed(f"{method} {path}: {answer}")
        return answer

    @property
    def service_key(self) -> str:
        return self.dev["COUNTERSIGN_SERVICE_KEY"]

    def agent(self, *arguments: str) -> str:
        """Runs the agent's script; returns what it printed."""
        settings = {name: self.dev[name] for name in ("COUNTERSIGN_URL", "COUNTERSIGN_CA")}
        settings["AGENT_DIR"] = str(self.agent_folder)
        ran = subprocess.run(
            [str(AGENT), *arguments], env=clean_environment() | settings, capture_output=True, text=True, timeout=30
        )
        if ran.returncode != 0:
            raise Failed(f"agent.sh {arguments[0]}: {ran.stderr.strip()}")
        return ran.stdout.strip()

    def command_line(self, *arguments: str) -> tuple[int, str, str]:
        """Runs `countersign` with what dev.env says; returns its exit code and what it printed and complained."""
        # In a folder of the demo's own: the profiles of whoever runs it are none of its business.
        settings = self.dev | {"XDG_CONFIG_HOME": str(self.folder / "config")}
        command, environment = [str(BINARIES / "countersign"), *arguments], clean_environment() | settings
        ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=30)
        return ran.returncode, ran.stdout.strip(), ran.stderr.strip()

    def _wait(self, name: str, what: str, condition) -> None:
        def asked():
            self.processes.must_run(name)
            return condition()

        wait_until(f"{name}: {what}", asked, START_SECONDS)

    def _wait_ready(self, name: str, admin_url: str, path: str = "/readyz") -> None:
        self._wait(name, "ready", lambda: answers_200(admin_url, path))


def bearer(token: str) -> list[tuple[str, str]]:
    return [("Authorization", f"Bearer {token}")]


def answers_200(url: str, path: str) -> bool:
    try:
        return Server(url).ask("GET", path).status == 200
    except OSError:
        return False


def read_env(path: Path) -> dict[str, str]:
    """KEY=value lines, a value perhaps in quotes."""
    lines = (line.removeprefix("export ").partition("=") for line in path.read_text().splitlines() if "=" in line)
    return {name: value.strip("'\"") for name, _, value in lines if not name.startswith("#")}


def urlport(url: str | None) -> int:
    """The port of a URL; 0, which takes a free one, if there is none yet."""
    return int(url.rsplit(":", 1)[1].rstrip("/")) if url else 0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def filled_in(template: str, values: dict[str, object]) -> str:
    """Sets each value that the template marks by `# demo:NAME` at the end of its line."""
    for name, value in values.items():
        template, count = re.subn(rf": [^\s:]+ \}}(\s+# demo:{name})$", f": {value} }}\\1", template, flags=re.M)
        if count != 1:
            raise Failed(f"envoy.yaml marks {name} {count} times")
    return template
