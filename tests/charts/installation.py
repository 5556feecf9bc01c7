#!/usr/bin/env python3
"""Installs both charts without a cluster: renders them, runs their pods as a kubelet would, and runs the pods of `helm test`.

The first release has only the required value. A stranger's first hour is then: install, test, create a service, install the sidecar, test.
"""

import tempfile
from pathlib import Path

import yaml
from network import enter_private_network
from owner import Owner, secret
from pods import Cluster, PodFailed, Server, run_to_completion
from render import Release, find

DECLARED = """
apiVersion: countersign/v1
services:
  - name: Declared
    roles:
      - { name: reader, permissions: [read] }
      - { name: writer, permissions: [read, write] }
"""

HOSTS = [f"{name}.identity.svc" for name in ("countersign", "countersign-ext-authz")]


def main() -> None:
    enter_private_network()
    with tempfile.TemporaryDirectory(prefix="countersign-charts-") as directory:
        cluster = Cluster(Path(directory), HOSTS)
        control_plane = Release("countersign", settings=["backup.enabled=true", "backup.keep=2"])
        cluster.apply(control_plane.render())
        with Server(cluster, "countersign", find(cluster.objects, "StatefulSet")) as server:
            say("control plane: ready")
            run_helm_test(cluster, "countersign-test")
            check_sidecar(cluster, server)
            check_apply(cluster)
            check_backups(cluster)
            server.stop()
            say("control plane: stopped by SIGTERM")
        with Server(cluster, "countersign", find(cluster.objects, "StatefulSet")):
            say("control plane: ready again with the same volume")


def run_helm_test(cluster: Cluster, name: str) -> None:
    """Runs the pod of `helm test`."""
    outputs = run_to_completion(cluster, name, find(cluster.objects, "Pod", name))
    say(f"helm test: {name}: {len(outputs)} containers succeeded")


def check_sidecar(cluster: Cluster, control_plane: Server) -> None:
    """Creates a service and its key as its owner, installs the sidecar, and tests it."""
    mint = ["--config", "/etc/countersign/config.toml", "human-token", "mint", "--subject", "owner"]
    token = control_plane.container.run(mint).strip()
    cluster.apply([secret("owner", {"human-token": token})])
    service, key = Owner(cluster).create_service("Shop")
    cluster.apply([secret("guarded", {"keys": key})])
    sidecar = Release(
        "countersign-ext-authz",
        name="countersign-ext-authz",
        settings=[
            "syncUrls=https://countersign.identity.svc:8444",
            "keys.existingSecret=guarded",
            "ca.existingConfigMap=countersign-ca",
            "tests.controlPlaneUrl=https://countersign.identity.svc:8443",
            "tests.existingSecret=owner",
            f"tests.serviceId={service}",
            "copy.enabled=true",
        ],
    )
    cluster.apply(sidecar.render())
    with Server(cluster, "countersign-ext-authz", find(cluster.objects, "Deployment")) as server:
        say("sidecar: ready")
        run_helm_test(cluster, "countersign-ext-authz-test")
        server.stop()
        say("sidecar: stopped by SIGTERM")
    try:
        run_helm_test(cluster, "countersign-ext-authz-test")
    except PodFailed:
        say("helm test: fails without a sidecar")
    else:
        raise PodFailed("the test succeeded although no sidecar runs")


def check_apply(cluster: Cluster) -> None:
    """Upgrades the control plane with declared state, and runs the job twice: the second run changes nothing."""
    values = {"apply": {"enabled": True, "existingSecret": "owner", "files": {"shop.yaml": DECLARED}}}
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        yaml.safe_dump(values, file)
        file.flush()
        objects = Release("countersign", values=[Path(file.name)]).render()
    # An upgrade keeps the certificate, which rendering without a cluster makes anew.
    kept = ("countersign-tls", "countersign-ca")
    cluster.apply([it for it in objects if it["metadata"]["name"] not in kept])
    job = find(cluster.objects, "Job", "countersign-apply")["spec"]["template"]
    for expected in ("Plan: 3 to create, 0 to change.", "Plan: 0 to create, 0 to change."):
        (output,) = run_to_completion(cluster, "countersign-apply", job)
        if expected not in output:
            raise PodFailed(f"the job of apply did not print {expected!r}:\n{output}")
    say("apply: the job made a service with two roles, and the second run changed nothing")


def check_backups(cluster: Cluster) -> None:
    """Runs the backup job on a volume with two older backups. The volume keeps two backups, and all other files."""
    job = find(cluster.objects, "CronJob", "countersign-backup")["spec"]["jobTemplate"]["spec"]["template"]
    volume = cluster.directory / "claims/countersign-backup"
    volume.mkdir(parents=True)
    for name in ("countersign-20250101T000000Z.db", "countersign-20250102T000000Z.db", "notes"):
        (volume / name).touch()
    (report,) = run_to_completion(cluster, "countersign-backup", job)
    if "validated" not in report:
        raise PodFailed(f"the backup job did not report a backup:\n{report}")
    kept = sorted(path.name for path in volume.iterdir())
    if len(kept) != 3 or kept[0] != "countersign-20250102T000000Z.db" or kept[2] != "notes":
        raise PodFailed(f"the volume has the files {kept}")
    say("backup: one made, the oldest of three deleted")


def say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    main()
