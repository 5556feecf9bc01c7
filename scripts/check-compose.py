#!/usr/bin/env python3
"""Starts docker-compose.yaml without a container engine, and checks that an agent with a role gets through Envoy.

    check-compose.py ROOTS    ROOTS: the folder with the root file systems of the targets of the Dockerfile

The images of this project run with their root file systems. Programs of this machine take the place of the public images, with the
same settings files, volumes and users. scripts/sandbox.py describes what is as in a container.
"""

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

from compose import Compose
from sandbox import run_again

ROOT = Path(__file__).resolve().parent.parent
TOOLS = ROOT / ".tools"
ENVOY = "http://127.0.0.1:10000"
PROMETHEUS = "http://127.0.0.1:9091"
# Envoy starts after all others.
START_SECONDS = 60
# A revocation takes effect within a second, but a busy machine starts the command line slowly.
EFFECT_SECONDS = 15
# Prometheus scrapes every 15 s.
SCRAPE_SECONDS = 45
SUCCESS, DENIED = 0, 3


def main() -> int:
    if folder := os.environ.get("SANDBOX_FOLDER"):
        return check(Compose(Path(folder)))
    binds = {"project": ROOT, "roots": Path(sys.argv[1])}
    binds |= {f"bin/{program}": TOOLS / "bin" / program for program in ("envoy", "redis-server", "prometheus")}
    return run_again(binds, {"POSTGRESQL_PROGRAMS": str((TOOLS / "postgresql").resolve())})


def check(compose: Compose) -> int:
    try:
        compose.up()
        step("all services run")
        owner = exports(compose.run("owner"))
        check_agent(compose, owner)
        check_second_setup(compose)
        check_crash(compose)
        check_monitoring()
        check_stop(compose)
        return 0
    except (AssertionError, subprocess.TimeoutExpired) as failure:
        print(f"check-compose.py: {failure}", file=sys.stderr)
        for log in sorted((compose.folder / "logs").iterdir()):
            print(f"--- {log.name}\n{compose.log(log.name)}", file=sys.stderr)
        return 1
    finally:
        compose.kill()


def check_agent(compose: Compose, owner: dict[str, str]) -> None:
    """Runs the commands of docs/run/compose.md."""

    def cli(*arguments: str, code: int = SUCCESS) -> str:
        result = compose.run("cli", *arguments, environment=owner)
        output = result.stdout + result.stderr
        assert result.returncode == code, f"countersign {arguments}: {result.returncode}, not {code}: {output}"
        return (result.stdout if code == SUCCESS else result.stderr).strip()

    wait_until(lambda: status(f"{ENVOY}/") == 401, START_SECONDS, "a request without a token gets 401")
    cli("agent", "keygen")
    agent = cli("agent", "register", "--email", "me@example.com", "--name", "My agent")
    assert "no_role" in cli("agent", "call", "--plain-http", "http://envoy:10000/", code=DENIED)
    step("an agent without a role gets 403 no_role through Envoy")
    cli("role", "assign", "reader", agent)
    call = lambda: compose.run("cli", "agent", "call", "--plain-http", "http://envoy:10000/").returncode
    wait_until(lambda: call() == SUCCESS, EFFECT_SECONDS, "200 after the assignment")
    headers = dict(json.loads(cli("agent", "call", "--plain-http", "http://envoy:10000/"))["headers"])
    assert (headers["x-agent-id"], headers["x-agent-roles"]) == (agent, "reader"), headers
    assert status(f"{ENVOY}/", cli("agent", "login")) == 200, "with the token of agent login"
    step("an agent with a role gets 200 through Envoy, and the service receives its identity")
    cli("role", "revoke", "reader", agent)
    wait_until(lambda: call() == DENIED, EFFECT_SECONDS, "403 after the revocation")
    step("without the role it gets 403 again")


def check_second_setup(compose: Compose) -> None:
    key = compose.folder / "volumes/sidecar-secrets/keys"
    before = (key.stat().st_mtime_ns, (compose.folder / "volumes/ca/ca.pem").stat().st_mtime_ns)
    for name in ("setup", "create-service"):
        result = compose.run(name)
        assert result.returncode == SUCCESS, f"{name}: {result.stderr}"
    assert before == (key.stat().st_mtime_ns, (compose.folder / "volumes/ca/ca.pem").stat().st_mtime_ns), "a secret has changed"
    step("a second start changes no secret")


def check_crash(compose: Compose) -> None:
    """A killed sidecar leaves its socket on the volume, and the next one takes its place."""
    compose.restart_after_kill("ext-authz")
    wait_until(lambda: status(f"{ENVOY}/") == 401, START_SECONDS, "Envoy reaches the restarted sidecar")
    step("Envoy reaches a sidecar that was killed and started again")


def check_monitoring() -> None:
    """Prometheus scrapes both servers, and evaluates all rules of the charts."""

    def is_up() -> bool:
        targets = query("/api/v1/targets")["activeTargets"]
        return len(targets) == 2 and all(target["health"] == "up" for target in targets)

    def rules_are_good() -> bool:
        groups = query("/api/v1/rules")["groups"]
        return len(groups) >= 4 and all(rule["health"] == "ok" for group in groups for rule in group["rules"])

    wait_until(is_up, SCRAPE_SECONDS, "Prometheus scrapes both servers")
    wait_until(rules_are_good, SCRAPE_SECONDS, "Prometheus evaluates the rules")
    step("Prometheus scrapes both servers and evaluates the rules")


def check_stop(compose: Compose) -> None:
    stopped = {name: compose.stop(name) for name in ("ext-authz", "control-plane")}
    assert set(stopped.values()) == {0}, f"exit codes after SIGTERM: {stopped}"
    step("the control plane and the sidecar end with 0 after SIGTERM")


def exports(result: subprocess.CompletedProcess) -> dict[str, str]:
    assert result.returncode == SUCCESS, result.stderr
    return dict(line.removeprefix("export ").split("=", 1) for line in result.stdout.splitlines())


def query(path: str) -> dict:
    with urllib.request.urlopen(PROMETHEUS + path, timeout=5) as response:
        return json.load(response)["data"]


def status(url: str, token: str | None = None) -> int | None:
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"} if token else {})
    try:
        return urllib.request.urlopen(request, timeout=5).status
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return None


def wait_until(condition, seconds: float, description: str) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {description}"
        time.sleep(0.1)


def step(text: str) -> None:
    print(f"compose: {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
