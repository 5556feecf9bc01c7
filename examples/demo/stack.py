"""Starts and connects the four servers of the demo."""

import os
import socket
import subprocess
from pathlib import Path

import upstream
from console import DemoFailed, print_line, wait_until
from processes import Processes, clean_environment
from web import Response, Server

ROOT = Path(__file__).resolve().parents[2]
BINARIES = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve() / "debug"
ENVOY = os.environ.get("ENVOY_BIN") or str(ROOT / ".tools/bin/envoy")
AGENT_SCRIPT = ROOT / "examples/agent-openssl-curl/agent.sh"
# The time that a server has to become ready. A debug build on a busy machine with two cores needs several seconds.
START_SECONDS = 15


class Stack:
    """The control plane, the sidecar, the upstream service and Envoy."""

    def __init__(self, folder: Path, processes: Processes):
        self.folder = folder
        self.processes = processes
        self.agent_folder = folder / "agent"
        self.dev_env = folder / "control-plane/dev.env"
        self.socket = folder / "authz.sock"
        self.dev: dict[str, str] = {}

    def start(self) -> None:
        print_line("Starting")
        self.start_control_plane()
        self.api = Server(self.dev["COUNTERSIGN_URL"], self.dev["COUNTERSIGN_CA"])
        self.start_sidecar()
        self.service_port = upstream.start()
        print_line(f"   upstream        http://127.0.0.1:{self.service_port}, echoes request headers")
        self.start_envoy()

    def start_control_plane(self) -> None:
        """Starts the control plane. A restart uses the same ports, so that the sidecar can reconnect."""
        ports = {name: url_port(self.dev.get(f"COUNTERSIGN_{name}")) for name in ("URL", "SYNC_URL", "ADMIN_URL")}
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
        print_line(f"   control plane   {self.dev['COUNTERSIGN_URL']}, ready")

    def start_sidecar(self) -> None:
        """Starts the sidecar with a new API key of scope `sync`."""
        path = f"/services/{self.service_id}/keys"
        human = bearer(self.dev["COUNTERSIGN_HUMAN_TOKEN"])
        response = self.api.request("POST", path, human, {"name": "demo sidecar", "scope": "sync"})
        if response.status != 201:
            raise DemoFailed(f"cannot create the API key of the sidecar: {response}")
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
                "COUNTERSIGN_SYNC__URLS": self.dev["COUNTERSIGN_SYNC_URL"],
                "COUNTERSIGN_SYNC__CA": self.dev["COUNTERSIGN_CA"],
                "COUNTERSIGN_SYNC__KEYS_FILE": str(keys),
                "COUNTERSIGN_LOG__FORMAT": "text",
            },
        )
        self._wait_ready("sidecar", self.sidecar_admin_url)
        print_line(f"   sidecar         unix:{self.socket}, ready")

    def start_envoy(self) -> None:
        """Starts Envoy on a free port. Envoy reports the port on its admin port."""
        config, address = self.folder / "envoy.yaml", self.folder / "envoy.address"
        values = {
            "port_value: 9901": 0,
            "port_value: 10000": 0,
            "path: /run/countersign/authz.sock": self.socket,
            "port_value: 8080": self.service_port,
        }
        config.write_text(replace_addresses((ROOT / "examples/envoy/envoy.yaml").read_text(), values))
        options = ["--concurrency", "1", "--disable-hot-restart", "--log-level", "warning"]
        self.processes.start("envoy", [ENVOY, "-c", str(config), "--admin-address-path", str(address), *options], {})
        self._wait("envoy", "the admin address", lambda: address.exists() and address.read_text())
        self.envoy_admin_url = f"http://{address.read_text()}"
        self._wait_ready("envoy", self.envoy_admin_url, "/ready")
        listeners = Server(self.envoy_admin_url).request("GET", "/listeners?format=json").body
        port = listeners["listener_statuses"][0]["local_address"]["socket_address"]["port_value"]
        self.envoy_url = f"http://127.0.0.1:{port}"
        self.envoy = Server(self.envoy_url)
        print_line(f"   Envoy           {self.envoy_url}")

    def kill_control_plane(self) -> None:
        self.processes.kill("control-plane")
        self.api.close()

    @property
    def service_id(self) -> str:
        return self.dev["COUNTERSIGN_SERVICE_ID"]

    def as_service(self, method: str, path: str, body: object = None) -> Response:
        """Calls the API with the API key of the service. `path` is relative to the service. Raises DemoFailed on errors."""
        response = self.api.request(method, f"/services/{self.service_id}{path}", bearer(self.service_key), body)
        if response.status >= 300:
            raise DemoFailed(f"{method} {path}: {response}")
        return response

    @property
    def service_key(self) -> str:
        return self.dev["COUNTERSIGN_SERVICE_KEY"]

    def run_agent_script(self, *arguments: str) -> str:
        """Runs the agent script and returns its standard output."""
        settings = {name: self.dev[name] for name in ("COUNTERSIGN_URL", "COUNTERSIGN_CA")}
        settings["AGENT_DIR"] = str(self.agent_folder)
        result = subprocess.run(
            [str(AGENT_SCRIPT), *arguments],
            env=clean_environment() | settings,
            capture_output=True,
            text=True,
            timeout=30,
        )
        if result.returncode != 0:
            raise DemoFailed(f"agent.sh {arguments[0]}: {result.stderr.strip()}")
        return result.stdout.strip()

    def run_command_line(self, *arguments: str) -> tuple[int, str, str]:
        """Runs `countersign` with the variables of dev.env. Returns exit code, standard output and standard error."""
        # The demo has a separate configuration folder, so that the command does not use or change the profiles of the
        # user.
        settings = self.dev | {"XDG_CONFIG_HOME": str(self.folder / "config")}
        command, environment = [str(BINARIES / "countersign"), *arguments], clean_environment() | settings
        result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=30)
        return result.returncode, result.stdout.strip(), result.stderr.strip()

    def _wait(self, name: str, awaited: str, condition) -> None:
        def check():
            self.processes.check_running(name)
            return condition()

        wait_until(f"{name}: {awaited}", check, START_SECONDS)

    def _wait_ready(self, name: str, admin_url: str, path: str = "/readyz") -> None:
        self._wait(name, "ready", lambda: responds_with_200(admin_url, path))


def bearer(token: str) -> list[tuple[str, str]]:
    return [("Authorization", f"Bearer {token}")]


def responds_with_200(url: str, path: str) -> bool:
    try:
        return Server(url).request("GET", path).status == 200
    except OSError:
        return False


def read_env(path: Path) -> dict[str, str]:
    """Parses lines of the form KEY=value, whose values may be quoted."""
    lines = (line.removeprefix("export ").partition("=") for line in path.read_text().splitlines() if "=" in line)
    return {name: value.strip("'\"") for name, _, value in lines if not name.startswith("#")}


def url_port(url: str | None) -> int:
    """Returns the port of a URL, or 0 (any free port) if `url` is None."""
    return int(url.rsplit(":", 1)[1].rstrip("/")) if url else 0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def replace_addresses(config: str, values: dict[str, object]) -> str:
    """Replaces addresses of the example configuration."""
    for address, value in values.items():
        if config.count(address) != 1:
            raise DemoFailed(f"envoy.yaml must contain `{address}` once")
        config = config.replace(address, f"{address.split(' ')[0]} {value}")
    return config
