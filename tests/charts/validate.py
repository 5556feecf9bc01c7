#!/usr/bin/env python3
"""Checks the charts with all test values (charts/*/ci): helm lint, the schemas of Kubernetes, kube-score, the Pod Security Standard
`restricted`, the settings with the real programs, the rules with promtool, and the errors for values that cannot work.
"""

import contextlib
import functools
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import kubernetes_validate
import page
import yaml
from pods import Cluster, Container, PodFailed
from render import CHARTS, KUBERNETES, REPOSITORY, ChartError, Release, find, helm, load_all, pod_templates
from wrong_values import WRONG_VALUES

TOOLS = REPOSITORY / ".tools/bin"

# Kinds of other projects, for which there are no schemas.
FOREIGN_GROUPS = ("monitoring.coreos.com/", "gateway.networking.k8s.io/", "cert-manager.io/")

# What kube-score reports and why it is right here.
IGNORED_SCORES = [
    # A limit would stop the process for the rest of each 100 ms in which it has used its share.
    "container-resources",
    # The image and its tag are values. `IfNotPresent` is the default of Kubernetes for a tag.
    "container-image-pull-policy",
    # Tmp directories and copies have no limit, or one of their own.
    "container-ephemeral-storage-request-and-limit",
    # A NetworkPolicy is optional, because it depends on the network of the cluster.
    "pod-networkpolicy",
    # All probes of a server ask the admin port, with different paths.
    "pod-probes",
    # Pods are spread by topologySpreadConstraints.
    "deployment-has-host-podantiaffinity",
    "statefulset-has-host-podantiaffinity",
    # The user 65532 is that of the images, as in other minimal images.
    "container-security-context-user-group-id",
    # The Service of a StatefulSet with one pod need not be headless: no one addresses the pod.
    "statefulset-has-servicename",
]


def main() -> int:
    failures = []
    for chart in ("countersign", "countersign-ext-authz"):
        for values in sorted((CHARTS / chart / "ci").glob("*-values.yaml")):
            for check in (check_lint, check_objects):
                failures += attempt(f"{chart} with {values.name}: {check.__name__}", check, chart, values)
        for values, expected in WRONG_VALUES[chart]:
            failures += attempt(f"{chart} refuses what cannot work: {expected}", check_refusal, chart, values, expected)
    for number, block in enumerate(page.blocks(), 1):
        failures += attempt(f"values {number} of docs/run/kubernetes.md", check_page, block)
    failures += attempt("the example of a sidecar container", check_example)
    failures += attempt("pods restart when their settings change, not when route rules change", check_restarts)
    for failure in failures:
        print(f"FAILED: {failure}", file=sys.stderr)
    return 1 if failures else 0


def attempt(title: str, check, *arguments) -> list[str]:
    """Runs a check, and returns its failure."""
    try:
        check(*arguments)
    except (ChartError, PodFailed, AssertionError) as error:
        return [f"{title}:\n{error}"]
    print(title, flush=True)
    return []


def check_lint(chart: str, values: Path) -> None:
    helm("lint", "--strict", "--quiet", "--kube-version", KUBERNETES, str(CHARTS / chart), "--values", str(values))


def check_objects(chart: str, values: Path) -> None:
    objects = Release(chart, values=[values]).render()
    for it in objects:
        check_schema(it)
    for name, template in pod_templates(objects):
        check_pod(name, template)
    check_score([it for it in objects if not it["apiVersion"].startswith(FOREIGN_GROUPS)])
    check_settings(objects)
    check_rules(objects)


def check_page(block: str) -> None:
    objects = page.render(block)
    for it in objects:
        check_schema(it)
    for name, template in pod_templates(objects):
        check_pod(name, template)
    assert not page.missing(objects), f"no command of the page creates {page.missing(objects)}"


def check_schema(it: dict) -> None:
    if it["apiVersion"].startswith(FOREIGN_GROUPS):
        return
    try:
        kubernetes_validate.validate(it, KUBERNETES.rsplit(".", 1)[0], strict=True)
    except (kubernetes_validate.ValidationError, kubernetes_validate.SchemaNotFoundError) as error:
        raise ChartError(f"{it['kind']}/{it['metadata']['name']}: {error}") from None


def check_pod(name: str, template: dict) -> None:
    """What the Pod Security Standard `restricted` requires, and what the project requires besides: no token of a service account, no
    service links, a read-only root and a limit of memory."""
    spec = template["spec"]
    volumes = {next(iter(set(volume) - {"name"})) for volume in spec.get("volumes", [])}
    allowed = {"configMap", "secret", "emptyDir", "persistentVolumeClaim", "projected"}
    if name.startswith("DaemonSet/"):
        allowed.add("hostPath")  # for a socket on the node, which needs a privileged namespace
    assert volumes <= allowed, f"{name}: volumes of the kinds {volumes}"
    pod = spec["securityContext"]
    assert pod["runAsNonRoot"] and pod["runAsUser"] > 0, f"{name}: runs as root"
    assert pod["seccompProfile"] == {"type": "RuntimeDefault"}, f"{name}: no seccomp profile"
    assert spec["automountServiceAccountToken"] is False, f"{name}: gets the token of its service account"
    assert spec["enableServiceLinks"] is False, f"{name}: gets variables of Services"
    assert not spec.get("hostNetwork") and not spec.get("hostPID"), f"{name}: shares a namespace with its node"
    for container in spec.get("initContainers", []) + spec["containers"]:
        context = container["securityContext"]
        where = f"{name}, container {container['name']}"
        assert context["allowPrivilegeEscalation"] is False, f"{where}: can get more privileges"
        assert context["readOnlyRootFilesystem"] is True, f"{where}: can write to its root"
        assert context["capabilities"] == {"drop": ["ALL"]}, f"{where}: has capabilities"
        assert container["resources"]["limits"]["memory"], f"{where}: has no limit of memory"
        assert container["resources"]["requests"], f"{where}: requests no resources"


def check_score(objects: list[dict]) -> None:
    ignored = [argument for test in IGNORED_SCORES for argument in ("--ignore-test", test)]
    command = [str(TOOLS / "kube-score"), "score", "--output-format", "ci", *ignored, "-"]
    result = subprocess.run(command, input=yaml.safe_dump_all(objects), capture_output=True, text=True, check=False)
    problems = [line for line in result.stdout.splitlines() if line.startswith(("[CRITICAL]", "[WARNING]"))]
    assert not problems and result.returncode == 0, "\n".join(problems) or result.stderr


def check_settings(objects: list[dict]) -> None:
    """Checks the settings of each server with the program itself, as its container would read them."""
    for it in objects:
        if it["kind"] not in ("StatefulSet", "Deployment", "DaemonSet"):
            continue
        with tempfile.TemporaryDirectory(prefix="countersign-charts-") as directory:
            template = it["spec"]["template"]
            spec = {**template["spec"], "volumes": [without_host_path(volume) for volume in template["spec"]["volumes"]]}
            cluster = Cluster(Path(directory), [])
            cluster.apply(objects + missing_objects(objects, spec))
            claims = [claim["metadata"]["name"] for claim in it["spec"].get("volumeClaimTemplates", [])]
            container = Container(cluster, it["metadata"]["name"], {"spec": spec}, spec["containers"][0], claims)
            container.run(config_check(container))


def without_host_path(volume: dict) -> dict:
    return {"name": volume["name"], "emptyDir": {}} if "hostPath" in volume else volume


def config_check(container: Container) -> list[str]:
    """The arguments of `config check` with the same settings."""
    arguments = container.container["args"]
    if "ext-authz" in container.container["image"]:
        return ["config", "check", *arguments]
    return [*arguments, "config", "check"]


def missing_objects(objects: list[dict], spec: dict) -> list[dict]:
    """Secrets and ConfigMaps that the values name and that the chart does not create, with content of the right form."""
    made = []
    for volume in spec["volumes"]:
        for kind, key in (("Secret", "secret"), ("ConfigMap", "configMap")):
            source = volume.get(key)
            if source is None:
                continue
            name = source.get("secretName", source.get("name"))
            with contextlib.suppress(ChartError):
                if find(objects, kind, name)["data"].get("ca.crt") != "":
                    continue
            items = source.get("items", [{"key": "ca.crt", "path": "ca.crt"}])
            content = {item["key"]: example(volume["name"], item["path"]) for item in items}
            made.append({"kind": kind, "metadata": {"name": name}, "stringData" if kind == "Secret" else "data": content})
    return made


@functools.cache
def certificates() -> dict[str, str]:
    """A certificate, its key and its CA: those that the chart makes."""
    return find(Release("countersign").render(), "Secret", "countersign-tls")["data"]


def example(volume: str, path: str) -> str:
    """Content for a key of a Secret."""
    match path:
        case "tls.crt" | "tls.key" | "ca.crt":
            return Cluster.decode(certificates()[path])
        case "master-key":
            return ("ab" if volume == "master-key" else "cd") * 32
        case "url" if volume == "redis":
            return "rediss://user:password@redis.example.com:6379/0?sslrootcert=/redis-ca/ca.crt"
        case "url":
            return "postgres://user:password@db.example.com/countersign?sslmode=verify-full&sslrootcert=/database-ca/ca.crt"
        case "keys":
            return "svc_sk_" + "0" * 64
    raise ChartError(f"the test has no example for {path} of the volume {volume}")


def check_rules(objects: list[dict]) -> None:
    """Checks the rendered rules, in which the links of the alerts are absolute."""
    for it in objects:
        if it["kind"] != "PrometheusRule":
            continue
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            yaml.safe_dump(it["spec"], file)
            file.flush()
            command = [str(TOOLS / "promtool"), "check", "rules", "--lint=all", file.name]
            result = subprocess.run(command, capture_output=True, text=True, check=False)
            assert result.returncode == 0, result.stderr
        rules = [rule for group in it["spec"]["groups"] for rule in group["rules"] if "alert" in rule]
        links = [rule["annotations"]["runbook_url"] for rule in rules]
        assert rules and all(link.startswith("https://docs.example.com/countersign/run/alerts.html#") for link in links), links


def check_example() -> None:
    """Renders the chart of examples/kubernetes, which depends on a chart of this repository."""
    with tempfile.TemporaryDirectory(prefix="countersign-charts-") as directory:
        for folder in ("charts", "examples/kubernetes"):
            shutil.copytree(REPOSITORY / folder, Path(directory) / folder)
        chart = f"{directory}/examples/kubernetes/sidecar-container"
        helm("dependency", "update", chart)
        output = helm("template", "shop", chart, "--namespace", "shop", "--kube-version", KUBERNETES)
    objects = load_all(output)
    for it in objects:
        check_schema(it)
    (pod,) = [template["spec"] for _, template in pod_templates(objects)]
    (sidecar,) = pod["initContainers"]
    assert sidecar["restartPolicy"] == "Always", "the container is not a sidecar"
    mounts = {mount["name"] for container in [sidecar, *pod["containers"]] for mount in container.get("volumeMounts", [])}
    volumes = {volume["name"] for volume in pod["volumes"]}
    assert mounts == volumes, f"the containers mount {mounts}, and the pod has {volumes}"
    sockets = [container["name"] for container in [sidecar, *pod["containers"]] if has_mount(container, "countersign-socket")]
    assert sockets == ["countersign-ext-authz", "envoy"], f"{sockets} have the socket"


def has_mount(container: dict, name: str) -> bool:
    return any(mount["name"] == name for mount in container.get("volumeMounts", []))


def check_restarts() -> None:
    """The settings are read at the start only. The route rules are loaded while the sidecar runs."""

    def checksum(chart: str, *settings: str) -> str:
        values = [CHARTS / chart / "ci/default-values.yaml"]
        (template,) = [
            template
            for name, template in pod_templates(Release(chart, values=values, settings=list(settings)).render())
            if name.startswith(("StatefulSet/", "Deployment/"))
        ]
        return template["metadata"]["annotations"]["checksum/config"]

    for chart in ("countersign", "countersign-ext-authz"):
        assert checksum(chart) == checksum(chart), f"{chart}: each upgrade restarts the pods"
        assert checksum(chart) != checksum(chart, "settings.log.level=debug"), f"{chart}: the pods keep the old settings"
    sidecar = "countersign-ext-authz"
    assert checksum(sidecar, "rules=a") == checksum(sidecar, "rules=b"), "other route rules restart the pods"


def check_refusal(chart: str, values: str, expected: str) -> None:
    """Checks that the chart refuses values with an error that contains a text."""
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(values)
        file.flush()
        try:
            Release(chart, values=[Path(file.name)]).render()
        except ChartError as error:
            assert expected in str(error), f"the error does not contain {expected!r}: {error}"
        else:
            raise AssertionError("the chart was rendered")


if __name__ == "__main__":
    sys.exit(main())
