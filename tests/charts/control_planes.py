"""Installations of the chart `countersign`, which a test replaces by the next version."""

import json
import tempfile
import threading
import time
from pathlib import Path

import yaml
from engines import DATABASE_URL, REDIS_URL, Engines, Issuer
from network import PodNetwork
from owner import secret
from pods import Cluster, PodFailed, Server, run_to_completion
from render import Release, find

HOST = "countersign.identity.svc"
# Less than the shortest preStop hook: clients learn later than the kubelet that a pod is deleted.
ENDPOINTS_DELAY_SECONDS = 1


def render(chart: str, values: dict, version: str) -> list[dict]:
    """The objects of a release of a version, which differs from others by an annotation of its pods."""
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        yaml.safe_dump({**values, "podAnnotations": {"version": version}}, file)
        file.flush()
        name = "countersign-ext-authz" if chart == "countersign-ext-authz" else "countersign"
        return Release(chart, name=name, values=[Path(file.name)]).render()


def replace_one_by_one(old: list[Server], add, remove) -> None:
    """Replaces pods as the strategy of a Deployment with maxSurge 1 says: one more, then one less. Clients learn of a deletion while the
    preStop hook runs."""
    for pod in list(old):
        add()
        stopping = threading.Thread(target=pod.stop)
        stopping.start()
        time.sleep(ENDPOINTS_DELAY_SECONDS)
        remove(pod)
        stopping.join()


def require_surge(workload: dict) -> None:
    strategy = workload["spec"]["strategy"]
    if strategy["rollingUpdate"] != {"maxUnavailable": 0, "maxSurge": 1}:
        raise PodFailed(f"this test replaces pods otherwise than {strategy}")


class OnSqlite:
    """One pod of a StatefulSet with a volume, and no values."""

    name = "SQLite"

    def __init__(self, cluster: Cluster, _directory: Path):
        self.cluster = cluster
        # A StatefulSet gives its pod the same name again. Here, the name stands for the same address.
        self.network = PodNetwork()
        cluster.resolve({HOST: [self.network.address]})
        self.pod: Server | None = None

    def start(self, version: str) -> None:
        objects = render("countersign", {}, version)
        if version == "old":
            self.cluster.apply(objects)
        self.pod = Server(self.cluster, "countersign", find(objects, "StatefulSet"), self.network).__enter__()

    def human_token(self) -> str:
        mint = ["--config", "/etc/countersign/config.toml", "human-token", "mint", "--subject", "owner"]
        return self.pod.container.run(mint).strip()

    def replace(self, wait) -> None:
        """Starts the new pod when the old one has ended. Sidecars decide without a control plane meanwhile."""
        self.pod.stop()
        wait()
        self.start("new")

    def kill(self) -> None:
        self.pod.kill()


class OnPostgresql:
    """Two pods of a Deployment on PostgreSQL and Redis, with an OIDC issuer, and the migration as a hook."""

    name = "PostgreSQL and Redis"

    def __init__(self, cluster: Cluster, directory: Path):
        self.cluster, self.directory = cluster, directory
        self.engines = Engines(directory)
        self.issuer = Issuer(directory)
        self.pods: list[Server] = []
        self.values = {
            "database": {"type": "postgresql", "existingSecret": "database"},
            "redis": {"existingSecret": "redis"},
            "masterKey": {"existingSecret": "master-key"},
            "replicaCount": 2,
            "migrations": {"hook": True},
            "settings": {
                "humans": {
                    "issuers": {
                        "company": {
                            "issuer": Issuer.url,
                            "audience": Issuer.audience,
                            "jwks": "/issuer/jwks.json",
                        }
                    }
                }
            },
            "extraVolumes": [{"name": "issuer", "configMap": {"name": "issuer"}}],
            "extraVolumeMounts": [{"name": "issuer", "mountPath": "/issuer", "readOnly": True}],
            "tests": {"existingSecret": "owner"},
        }

    def start(self, version: str) -> None:
        self.engines.__enter__()
        issuer = {"kind": "ConfigMap", "metadata": {"name": "issuer"}, "data": {"jwks.json": self.issuer.jwks()}}
        secrets = {"database": {"url": DATABASE_URL}, "redis": {"url": REDIS_URL}, "master-key": {"master-key": "5a" * 32}}
        self.cluster.apply([issuer, *(secret(name, content) for name, content in secrets.items())])
        self.objects = render("countersign", self.values, version)
        self.cluster.apply(self.objects)
        self._migrate()
        for _ in range(find(self.objects, "Deployment")["spec"]["replicas"]):
            self._add()

    def human_token(self) -> str:
        return self.issuer.token("owner")

    def replace(self, wait) -> None:
        self.objects = render("countersign", self.values, "new")
        self._migrate()
        wait()
        require_surge(find(self.objects, "Deployment"))
        replace_one_by_one(self.pods, self._add, self._remove)

    def _migrate(self) -> None:
        job = find(self.objects, "Job", "countersign-migration")
        run_to_completion(self.cluster, "migration", job["spec"]["template"])

    def _add(self) -> None:
        workload, name = find(self.objects, "Deployment"), f"countersign-{len(self.pods)}-{time.time_ns()}"
        self.pods.append(Server(self.cluster, name, workload, PodNetwork()).__enter__())
        self._resolve()

    def _remove(self, pod: Server) -> None:
        self.pods.remove(pod)
        self._resolve()

    def _resolve(self) -> None:
        self.cluster.resolve({HOST: [pod.address for pod in self.pods]})

    def kill(self) -> None:
        for pod in self.pods:
            pod.kill()
        self.engines.__exit__()
