"""Starts and connects the four servers of the demo."""

import os
import re
import socket
import subprocess
from pathlib import Path

import upstream
from console import DemoFailed, say, wait_until
from processes import Processes, clean_environment
from web import Response, Server

ROOT = Path(__file__).resolve().parents[2]
BINARIES = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve() / "debug"
ENVOY = os.environ.get("ENVOY_BIN") or str(ROOT / ".tools/bin/envoy")
AGENT = ROOT / "examples/agent-openssl-curl/agent.sh"
# Long enough for a debug build on a busy machine with two cores.
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
        say(f"   upstream        http://127.0.0.1:{self.service_port}, echoes request headers")
        self.start_envoy()

    def start_control_plane(self) -> None:
        """A restart uses the same ports, so that the sidecar can reconnect."""
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
        """Uses an API key of scope `sync`."""
        path = f"/services/{self.service_id}/keys"
        human = bearer(self.dev["COUNTERSIGN_HUMAN_TOKEN"])
        response = self.api.request("POST", path, human, {"name": "the demo's sidecar", "scope": "sync"})
        if response.status != 201:
            raise DemoFailed(f"creating the key of the sidecar failed: {response}")
        keys = self.folder / "sidecar.keys"
        keys.touch(mode=0o600)
        keys.write_text(response.body["apiKey"] + "\n")
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
        say(f"   sidecar         unix:{self.socket}, ready")

    def start_envoy(self) -> None:
        """Listens on port 0. Envoy reports the actual port on its admin port."""
        config, address = self.folder / "envoy.yaml", self.folder / "envoy.address"
        values = {"authz_socket": self.socket, "service_port": self.service_port, "admin_port": 0, "listen_port": 0}
        config.write_text(fill_template((ROOT / "examples/envoy/envoy.yaml").read_text(), values))
        options = ["--concurrency", "1", "--disable-hot-restart", "--log-level", "warning"]
        self.processes.start("envoy", [ENVOY, "-c", str(config), "--admin-address-path", str(address), *options], {})
        self._wait("envoy", "admin address", lambda: address.exists() and address.read_text())
        self.envoy_admin_url = f"http://{address.read_text()}"
        self._wait_ready("envoy", self.envoy_admin_url, "/ready")
        listeners = Server(self.envoy_admin_url).request("GET", "/listeners?format=json").body
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

    def as_service(self, method: str, path: str, body: object = None) -> Response:
        """Calls the API with the key of the service. `path` is relative to the service. Fails on an error response."""
        response = self.api.request(method, f"/services/{self.service_id}{path}", bearer(self.service_key), body)
        if response.status >= 300:
            raise DemoFailed(f"{method} {path}: {response}")
        return response

    @property
    def service_key(self) -> str:
        return self.dev["COUNTERSIGN_SERVICE_KEY"]

    def agent(self, *arguments: str) -> str:
        """Runs the agent script and returns its standard output."""
        settings = {name: self.dev[name] for name in ("COUNTERSIGN_URL", "COUNTERSIGN_CA")}
        settings["AGENT_DIR"] = str(self.agent_folder)
        ran = subprocess.run(
            [str(AGENT), *arguments], env=clean_environment() | settings, capture_output=True, text=True, timeout=30
        )
        if ran.returncode != 0:
            raise DemoFailed(f"agent.sh {arguments[0]}: {ran.stderr.strip()}")
        return ran.stdout.strip()

    def command_line(self, *arguments: str) -> tuple[int, str, str]:
        """Runs `countersign` with the environment of dev.env; returns exit code, standard output and standard error."""
        # A separate configuration folder, so that the profiles of the user are neither used nor changed.
        settings = self.dev | {"XDG_CONFIG_HOME": str(self.folder / "config")}
        command, environment = [str(BINARIES / "countersign"), *arguments], clean_environment() | settings
        ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=30)
        return ran.returncode, ran.stdout.strip(), ran.stderr.strip()

    def _wait(self, name: str, what: str, condition) -> None:
        def check():
            self.processes.must_run(name)
            return condition()

        wait_until(f"{name}: {what}", check, START_SECONDS)

    def _wait_ready(self, name: str, admin_url: str, path: str = "/readyz") -> None:
        self._wait(name, "ready", lambda: answers_200(admin_url, path))


def bearer(token: str) -> list[tuple[str, str]]:
    return [("Authorization", f"Bearer {token}")]


def answers_200(url: str, path: str) -> bool:
    try:
        return Server(url).request("GET", path).status == 200
    except OSError:
        return False


def read_env(path: Path) -> dict[str, str]:
    """Parses KEY=value lines with optionally quoted values."""
    lines = (line.removeprefix("export ").partition("=") for line in path.read_text().splitlines() if "=" in line)
    return {name: value.strip("'\"") for name, _, value in lines if not name.startswith("#")}


def urlport(url: str | None) -> int:
    """Returns the port of a URL, or 0 (any free port) for None."""
    return int(url.rsplit(":", 1)[1].rstrip("/")) if url else 0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def fill_template(template: str, values: dict[str, object]) -> str:
    """Replaces each value that a `# demo:NAME` comment at the end of its line marks."""
    for name, value in values.items():
        template, count = re.subn(rf": [^\s:]+ \}}(\s+# demo:{name})$", f": {value} }}\\1", template, flags=re.M)
        if count != 1:
            raise DemoFailed(f"envoy.yaml marks {name} {count} times")
    return template
