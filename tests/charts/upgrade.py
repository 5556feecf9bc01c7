#!/usr/bin/env python3
"""Upgrades both releases while clients send requests through Envoy and two sidecars: no request may be refused. The control plane runs on
SQLite, and then on PostgreSQL and Redis.

Envoy gets the addresses of the sidecars as those of a headless Service: a pod is in the list from its readiness until it is deleted, and is
taken out of it during its preStop hook. The pods are replaced as the strategies of the rendered workloads say.
"""

import http.client
import json
import subprocess
import tempfile
import threading
import time
from pathlib import Path

from control_planes import HOST, OnPostgresql, OnSqlite, render, replace_one_by_one, require_surge
from network import PodNetwork, add_bridge, enter_private_network
from owner import Owner, secret
from pods import Cluster, PodFailed, Server, run_to_completion
from render import REPOSITORY, find

ENVOY_PORT = 10000
CLIENTS = 4


def main() -> None:
    enter_private_network()
    add_bridge()
    for kind in (OnSqlite, OnPostgresql):
        with tempfile.TemporaryDirectory(prefix="countersign-upgrade-") as directory:
            cluster = Cluster(Path(directory), [])
            Upgrade(cluster, Path(directory), kind(cluster, Path(directory))).run()


class Upgrade:
    """The pods of two releases, Envoy, and its clients."""

    def __init__(self, cluster: Cluster, directory: Path, control_plane: OnSqlite | OnPostgresql):
        self.cluster, self.directory, self.control_plane = cluster, directory, control_plane
        self.sidecars: list[Server] = []

    def run(self) -> None:
        control_plane = self.control_plane
        control_plane.start("old")
        try:
            token = self.prepare()
            self.install_sidecars()
            with Envoy(self.directory) as envoy:
                clients = Clients(token)
                clients.wait()
                self.replace_sidecars()
                clients.wait()
                say(f"{control_plane.name}: {len(self.sidecars)} sidecars replaced")
                control_plane.replace(clients.wait)
                clients.wait()
                say(f"{control_plane.name}: control plane replaced")
                # The sidecars that start now learn everything from the new control plane.
                self.replace_sidecars()
                clients.wait()
                answered, refused = clients.stop()
            if refused:
                raise PodFailed(f"{len(refused)} of {answered} requests were refused: {refused[:5]}\n{envoy.log()}")
            say(f"{control_plane.name}: upgraded during {answered} requests, none refused")
        finally:
            for sidecar in self.sidecars:
                sidecar.kill()
            control_plane.kill()

    def prepare(self) -> str:
        """Runs `helm test`, and creates a service with a key, and an agent with a role. Returns the token of the agent."""
        self.cluster.apply([secret("owner", {"human-token": self.control_plane.human_token()})])
        outputs = run_to_completion(self.cluster, "test", find(self.cluster.objects, "Pod", "countersign-test"))
        say(f"{self.control_plane.name}: helm test: {len(outputs)} containers succeeded")
        owner = Owner(self.cluster)
        service, key = owner.create_service("Shop")
        self.cluster.apply([secret("guarded", {"keys": key})])
        owner.run(["role", "create", "reader", "--permission", "read", "--service", service])
        key_file, home = ["--key", "/home/nonroot/agent.key"], self.directory / "pods/owner/home"
        register = ["agent", "register", *key_file, "--email", "client@example.com", "--name", "client"]
        log_in = ["--quiet", "agent", "login", "--service", service, "--out", "/home/nonroot/token"]
        owner.run(["agent", "keygen", *key_file], register, log_in)
        token = (home / "token").read_text().strip()
        assignment = {"role": "reader", "match": {"name": "client"}}
        declared = {"apiVersion": "countersign/v1", "services": [{"name": "Shop", "assignments": [assignment]}]}
        owner.mount("declared", {"shop.yaml": json.dumps(declared)})
        owner.run(["apply", "--file", "/declared"])
        return token

    def install_sidecars(self) -> None:
        authority = find(self.cluster.objects, "ConfigMap", "countersign-ca")["data"]["ca.crt"]
        authority_path(self.directory).write_text(authority)
        self.render_sidecars("old")
        for _ in range(self.workload()["spec"]["replicas"]):
            self.add_sidecar()

    def render_sidecars(self, version: str) -> None:
        values = {
            "syncUrls": f"https://{HOST}:8444",
            "keys": {"existingSecret": "guarded"},
            "ca": {"existingConfigMap": "countersign-ca"},
            "tls": {"existingSecret": "countersign-check-tls"},
        }
        self.cluster.apply(render("countersign-ext-authz", values, version))

    def workload(self) -> dict:
        return find(self.cluster.objects, "Deployment", "countersign-ext-authz")

    def add_sidecar(self) -> None:
        """Starts a pod, and lists it when it is ready."""
        name = f"sidecar-{time.time_ns()}"
        self.sidecars.append(Server(self.cluster, name, self.workload(), PodNetwork()).__enter__())
        write_endpoints(self.directory, self.sidecars)

    def remove_sidecar(self, pod: Server) -> None:
        self.sidecars.remove(pod)
        write_endpoints(self.directory, self.sidecars)

    def replace_sidecars(self) -> None:
        self.render_sidecars("new")
        require_surge(self.workload())
        replace_one_by_one(self.sidecars, self.add_sidecar, self.remove_sidecar)


def authority_path(directory: Path) -> Path:
    """The file with the CA that Envoy trusts."""
    return directory / "ca.pem"


def write_endpoints(directory: Path, sidecars: list[Server]) -> None:
    """Writes the list of endpoints that Envoy watches."""
    address = lambda it: {"socket_address": {"address": it.address, "port_value": it.ports["grpc"]}}
    endpoints = [{"endpoint": {"address": address(it)}} for it in sidecars]
    assignment = {
        "@type": "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment",
        "cluster_name": "countersign",
        "endpoints": [{"lb_endpoints": endpoints}],
    }
    new = directory / "endpoints.new"
    new.write_text(json.dumps({"version_info": str(time.time_ns()), "resources": [assignment]}))
    # Envoy notices files that are moved.
    new.rename(directory / "endpoints.json")


class Envoy:
    """An Envoy that asks the sidecars, and answers allowed requests itself."""

    def __init__(self, directory: Path):
        self.directory = directory
        (directory / "envoy.json").write_text(json.dumps(envoy_config(directory)))

    def __enter__(self) -> "Envoy":
        command = [str(REPOSITORY / ".tools/bin/envoy"), "--config-path", str(self.directory / "envoy.json")]
        command += ["--concurrency", "1", "--use-dynamic-base-id", "--log-level", "warning"]
        with open(self.directory / "envoy.log", "wb") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()

    def log(self) -> str:
        return (self.directory / "envoy.log").read_text()


def envoy_config(directory: Path) -> dict:
    """The part of examples/envoy/envoy.yaml that this test needs, with a list of endpoints in a file."""
    api = "type.googleapis.com/envoy.extensions"
    ext_authz = {
        "@type": f"{api}.filters.http.ext_authz.v3.ExtAuthz",
        "transport_api_version": "V3",
        "grpc_service": {"envoy_grpc": {"cluster_name": "countersign"}, "timeout": "2s"},
        "failure_mode_allow": False,
        "status_on_error": {"code": "ServiceUnavailable"},
    }
    http2 = {
        "@type": f"{api}.upstreams.http.v3.HttpProtocolOptions",
        "explicit_http_config": {"http2_protocol_options": {}},
    }
    manager = {
        "@type": f"{api}.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "service",
        "route_config": {
            "virtual_hosts": [
                {
                    "name": "service",
                    "domains": ["*"],
                    "routes": [{"match": {"prefix": "/"}, "direct_response": {"status": 200, "body": {"inline_string": "done"}}}],
                    "typed_per_filter_config": {
                        "envoy.filters.http.ext_authz": {
                            "@type": f"{api}.filters.http.ext_authz.v3.ExtAuthzPerRoute",
                            "check_settings": {"context_extensions": {"require_permissions": "read"}},
                        }
                    },
                }
            ]
        },
        "http_filters": [
            {"name": "envoy.filters.http.ext_authz", "typed_config": ext_authz},
            {"name": "envoy.filters.http.router", "typed_config": {"@type": f"{api}.filters.http.router.v3.Router"}},
        ],
    }
    listener = {
        "address": {"socket_address": {"address": "127.0.0.1", "port_value": ENVOY_PORT}},
        "filter_chains": [{"filters": [{"name": "http", "typed_config": manager}]}],
    }
    sidecar = "countersign-ext-authz.identity.svc.cluster.local"
    validation = {
        "trusted_ca": {"filename": str(authority_path(directory))},
        "match_typed_subject_alt_names": [{"san_type": "DNS", "matcher": {"exact": sidecar}}],
    }
    tls = {
        "@type": f"{api}.transport_sockets.tls.v3.UpstreamTlsContext",
        "sni": sidecar,
        "common_tls_context": {"validation_context": validation},
    }
    cluster = {
        "name": "countersign",
        "type": "EDS",
        "connect_timeout": "1s",
        "eds_cluster_config": {
            "eds_config": {"resource_api_version": "V3", "path_config_source": {"path": str(directory / "endpoints.json")}}
        },
        "typed_extension_protocol_options": {"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": http2},
        "transport_socket": {"name": "envoy.transport_sockets.tls", "typed_config": tls},
    }
    return {
        "node": {"id": "upgrade", "cluster": "upgrade"},
        "static_resources": {"listeners": [listener], "clusters": [cluster]},
    }


class Clients:
    """Clients that send requests without a pause."""

    def __init__(self, token: str):
        self.token = token
        self.is_stopped = threading.Event()
        self.answered, self.refused = [0] * CLIENTS, []
        wait_for_envoy()
        self.threads = [threading.Thread(target=self._send, args=(number,), daemon=True) for number in range(CLIENTS)]
        for thread in self.threads:
            thread.start()

    def _send(self, number: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", ENVOY_PORT, timeout=10)
        while not self.is_stopped.is_set():
            connection.request("GET", "/orders", headers={"authorization": f"Bearer {self.token}"})
            response = connection.getresponse()
            body = response.read()
            self.answered[number] += 1
            if response.status != 200:
                self.refused.append((time.strftime("%X"), response.status, body[:200]))

    def wait(self) -> None:
        """Waits until each client has sent 100 more requests."""
        ends = [count + 100 for count in self.answered]
        while any(count < end for count, end in zip(self.answered, ends, strict=True)):
            if not all(thread.is_alive() for thread in self.threads):
                raise PodFailed("a client has failed")
            time.sleep(0.05)

    def stop(self) -> tuple[int, list]:
        self.is_stopped.set()
        for thread in self.threads:
            thread.join()
        return sum(self.answered), self.refused


def wait_for_envoy() -> None:
    for _ in range(300):
        try:
            connection = http.client.HTTPConnection("127.0.0.1", ENVOY_PORT, timeout=5)
            connection.request("GET", "/")
            connection.getresponse().read()
            return
        except OSError:
            time.sleep(0.1)
    raise PodFailed("Envoy does not listen")


def say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    main()
