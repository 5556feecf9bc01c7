"""Reads docker-compose.yaml, and starts its services in the order of their dependencies. See sandbox.py."""

import os
import re
import subprocess
import time
from pathlib import Path

import yaml
from sandbox import SERVICE_ADDRESS, Container, Image, Running

START_SECONDS = 60
# Programs of this machine take the place of the public images. Grafana is in no registry of Debian or PyPI.
NOT_STARTED = {"grafana"}
# What the entry point of the image of PostgreSQL does at the first start.
START_POSTGRES = """
set -e
if [ ! -e "$PGDATA/PG_VERSION" ]; then
    initdb --pgdata "$PGDATA" --username "$POSTGRES_USER" --pwfile "$POSTGRES_PASSWORD_FILE" --auth scram-sha-256 \
        $POSTGRES_INITDB_ARGS >/dev/null
    echo "CREATE DATABASE $POSTGRES_DB" | postgres --single -D "$PGDATA" postgres >/dev/null
    echo "host all all all scram-sha-256" >>"$PGDATA/pg_hba.conf"
fi
exec postgres -D "$PGDATA" -c listen_addresses='*' -c unix_socket_directories=/var/run/postgresql
"""


class Compose:
    """The services of docker-compose.yaml. `folder` contains the project, the roots of the images, and the volumes."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.project = folder / "project"
        self.services = yaml.safe_load((self.project / "docker-compose.yaml").read_text())["services"]
        self.running: dict[str, Running] = {}
        (folder / "hosts").write_text(f"127.0.0.1 localhost\n{SERVICE_ADDRESS} {' '.join(self.services)}\n")
        # PostgreSQL looks up the name of its user.
        users = {0: "root", 999: "postgres", 65532: "nonroot", 65534: "nobody"}
        (folder / "passwd").write_text("".join(f"{name}:x:{uid}:{uid}::/:/sbin/nologin\n" for uid, name in users.items()))
        (folder / "logs").mkdir()

    def up(self) -> None:
        """Starts all services without a profile, as `docker compose up` does."""
        for name, service in self.services.items():
            if name in NOT_STARTED:
                # Checks only that its mounted files exist and that the service is restricted.
                self.container(name)
            elif "profiles" not in service:
                self.start(name)

    def start(self, name: str) -> None:
        """Starts a service after its dependencies. A service that ends is started again."""
        if name in self.running:
            return
        for dependency, settings in self.services[name].get("depends_on", {}).items():
            self.start(dependency)
            self.wait_for(dependency, settings["condition"])
        with open(self.folder / "logs" / name, "ab") as log:
            options = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": subprocess.STDOUT}
            self.running[name] = self.container(name).start(**options)

    def wait_for(self, name: str, condition: str) -> None:
        if condition == "service_completed_successfully":
            deadline = time.monotonic() + START_SECONDS
            while (code := self.running[name].process.poll()) is None:
                self.check_running()
                assert time.monotonic() < deadline, f"{name} has not ended within {START_SECONDS} s: {self.log(name)}"
                time.sleep(0.05)
            assert code == 0, f"{name} ended with {code}: {self.log(name)}"
        elif condition == "service_healthy":
            self.wait_until_healthy(name)
        else:
            assert condition == "service_started", condition

    def check_running(self) -> None:
        """A container engine would restart a service that has ended."""
        for name, running in self.running.items():
            if "restart" in self.services[name]:
                assert running.process.poll() is None, f"{name} has ended: {self.log(name)}"

    def wait_until_healthy(self, name: str) -> None:
        check = self.services[name]["healthcheck"]["test"]
        command = ["sh", "-c", unescape(check[1])] if check[0] == "CMD-SHELL" else check[1:]
        deadline = time.monotonic() + START_SECONDS
        while (result := self.container(name, command, as_service=False).run()).returncode != 0:
            self.check_running()
            assert time.monotonic() < deadline, f"{name} is not healthy: {result.stdout}{result.stderr}{self.log(name)}"
            time.sleep(0.2)

    def run(self, name: str, *command: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess:
        """Runs a command with the image of a service, as `docker compose run` does."""
        return self.container(name, list(command) or None, environment=environment or {}).run()

    def container(self, name: str, command: list[str] | None = None, as_service: bool = True, environment=()) -> Container:
        service = self.services[name]
        assert service["read_only"] and service["cap_drop"] == ["ALL"], f"{name} is not restricted"
        assert service["security_opt"] == ["no-new-privileges:true"], f"{name} is not restricted"
        values = {key: substitute(str(value), dict(environment)) for key, value in service.get("environment", {}).items()}
        mounts = [self.mount(volume) for volume in service.get("volumes", [])]
        mounts.append((self.folder / "hosts", "/etc/hosts", True))
        image = self.image(service)
        if image.root is None:
            mounts.append((self.folder / "passwd", "/etc/passwd", True))
            mounts.append((self.folder / "bin", "/programs", True))
            values["PATH"] = f"/programs:{os.environ['POSTGRESQL_PROGRAMS']}:/usr/bin:/bin"
        command = command if command is not None else [unescape(word) for word in service.get("command", [])]
        if as_service and image.root is None:
            command = program_of(service["image"]) + command
        return Container(
            image,
            command,
            int(str(service["user"]).split(":")[0]),
            values,
            mounts,
            [entry.split(":")[0] for entry in service.get("tmpfs", [])],
            service.get("cap_add", []),
        )

    def image(self, service: dict) -> Image:
        target = service.get("build", {}).get("target")
        return Image.of_target(target, self.folder / "roots" / target) if target else Image(None)

    def mount(self, volume: str) -> tuple[Path, str, bool]:
        source, target, *mode = volume.split(":")
        if source.startswith("./"):
            path = self.project / source
            assert path.exists(), f"{source} does not exist"
        else:
            path = self.folder / "volumes" / source
            # A new volume gets the owner and the mode of the folder in the image. The folders of public images belong to their users.
            if not path.exists():
                path.mkdir(parents=True)
                self.give_to_user(path, source)
        return path, target, mode == ["ro"]

    def give_to_user(self, path: Path, volume: str) -> None:
        owner = {"postgres-data": 999, "prometheus-data": 65534, "grafana-data": 472, "cli-home": 65532}.get(volume, 0)
        if os.geteuid() == 0:
            os.chown(path, owner, owner)

    def stop(self, name: str) -> int:
        """Stops a service, and returns its exit code."""
        return self.running.pop(name).stop()

    def restart_after_kill(self, name: str) -> None:
        """What a container engine does after a crash."""
        running = self.running.pop(name)
        running.kill()
        running.process.wait()
        self.start(name)

    def kill(self) -> None:
        for running in self.running.values():
            running.kill()

    def log(self, name: str) -> str:
        return (self.folder / "logs" / name).read_text(errors="replace")[-2000:]


def program_of(image: str) -> list[str]:
    """The entry point of a public image."""
    return {
        "postgres": ["sh", "-c", START_POSTGRES],
        "envoyproxy/envoy": ["envoy"],
        "prom/prometheus": ["prometheus"],
    }.get(image.split(":")[0], [])


def substitute(value: str, environment: dict[str, str]) -> str:
    return unescape(re.sub(r"\$\{(\w+):-(.*?)\}", lambda match: environment.get(match[1]) or match[2], value))


def unescape(value: str) -> str:
    return value.replace("$$", "$")
