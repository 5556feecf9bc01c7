#!/usr/bin/env python3
"""Lets the Prometheus operator make a configuration of the monitors and rules of the charts, and runs Prometheus with it.

The operator runs against a real API server. In place of the controllers of a cluster, this program makes a pod of each release and the
EndpointSlices of its Services. The pod has an address of its own, where the server of the chart runs. Prometheus must scrape exactly
these pods, evaluate all rules, and have an alert about each server as soon as it is stopped.
"""

import base64
import contextlib
import functools
import gzip
import json
import subprocess
import tempfile
import urllib.request
from dataclasses import dataclass
from pathlib import Path

import yaml
from api_server import TOOLS, ApiServer, api_server, pod, start
from api_server import wait_for as wait_for_seconds
from network import GATEWAY, PodNetwork, add_bridge, enter_private_network
from render import CHARTS, REPOSITORY, ChartError, Release, find, pod_templates

PROGRAMS = {"countersign": "countersign-control-plane", "countersign-ext-authz": "countersign-ext-authz"}
ADMIN_PORTS = {"countersign": 9090, "countersign-ext-authz": 9092}
DOWN_ALERTS = {"countersign": "CountersignDown", "countersign-ext-authz": "CountersignSidecarDown"}
# Files of values with a PodMonitor or a ServiceMonitor.
VALUES = [("countersign", "sqlite"), ("countersign", "postgresql"), ("countersign-ext-authz", "everything"),
          ("countersign-ext-authz", "daemonset")]
PROMETHEUS_URL = "http://127.0.0.1:9099"
NAMESPACE = "/api/v1/namespaces/monitoring"
wait_for = functools.partial(wait_for_seconds, seconds=60)


@dataclass
class Monitored:
    """A release with a pod that Prometheus must scrape."""

    chart: str
    namespace: str
    monitor: str
    address: str
    server: subprocess.Popen
    groups: list[dict]

    @property
    def instance(self) -> str:
        return f"{self.address}:{ADMIN_PORTS[self.chart]}"


def main() -> None:
    enter_private_network()
    add_bridge()
    with api_server(GATEWAY) as api, tempfile.TemporaryDirectory(prefix="countersign-monitoring-") as name, contextlib.ExitStack() as stack:
        directory = Path(name)
        releases = [install(api, stack, directory, chart, CHARTS / chart / f"ci/{values}-values.yaml") for chart, values in VALUES]
        configuration, rules = generate(api, stack, directory)
        check_configuration(directory, configuration)
        check_rules(directory, rules, releases)
        start_prometheus(api, stack, directory, configuration)
        check_targets(releases)
        check_evaluation()
        check_alerts(releases)


def install(api: ApiServer, stack: contextlib.ExitStack, directory: Path, chart: str, values: Path) -> Monitored:
    """Installs a release in a namespace of its own, runs its server, and makes its pod and the EndpointSlices of its Services."""
    # Neither the namespace nor the name of the release names the program.
    namespace = values.name.removesuffix("-values.yaml")
    release = Release(chart, name="prod", namespace=namespace, values=[values], settings=["prometheusRule.enabled=true"])
    api.request("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
    api.helm("install", release.name, str(CHARTS / chart), "--namespace", namespace, "--values", str(values), "--set", *release.settings)
    objects = release.render()
    address, server = run_server(stack, directory / namespace, chart)
    workload, template = next(it for it in pod_templates(objects) if it[0].split("/")[0] in ("StatefulSet", "Deployment", "DaemonSet"))
    created = api.request("POST", f"/api/v1/namespaces/{namespace}/pods", pod("server", workload, template))
    created["status"] = {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]}
    api.request("PUT", f"/api/v1/namespaces/{namespace}/pods/server/status", created)
    for service in [it for it in objects if it["kind"] == "Service"]:
        create_endpoints(api, service, created)
    monitor = next(it["kind"] for it in objects if it["kind"] in ("PodMonitor", "ServiceMonitor"))
    monitor = monitor[0].lower() + monitor[1:]
    return Monitored(chart, namespace, monitor, address, server, find(objects, "PrometheusRule")["spec"]["groups"])


def run_server(stack: contextlib.ExitStack, directory: Path, chart: str) -> tuple[str, subprocess.Popen]:
    """Runs the server of a chart at an address of its own."""
    network = PodNetwork()
    stack.callback(network.close)
    directory.mkdir()
    settings = [f"listen.admin=0.0.0.0:{ADMIN_PORTS[chart]}"]
    if chart == "countersign":
        certificate, key = directory / "certificate.pem", directory / "key.pem"
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=countersign", "-keyout", key, "-out",
                        certificate, "-addext", "subjectAltName=DNS:countersign"], check=True, capture_output=True)
        settings += [f"tls.certificate={certificate}", f"tls.private_key={key}", f"data_dir={directory}/data",
                     "public_url=https://countersign"]
    else:
        # No control plane answers, which the metrics report.
        settings += ["sync.keys=svc_sk_none"]
    program = str(REPOSITORY / "target/debug" / PROGRAMS[chart])
    # Without the variables of this process, among which the server would refuse one as an unknown setting.
    command = ["/usr/bin/env", "-i", *network.enter(), program, *(f"--set={it}" for it in settings)]
    return network.address, start(stack, directory / "server.log", *command)


def create_endpoints(api: ApiServer, service: dict, target: dict) -> None:
    """Makes the EndpointSlice of a Service, as the controller of a cluster does, if the Service selects the pod."""
    if not service["spec"]["selector"].items() <= target["metadata"]["labels"].items():
        return
    listed = {it["name"]: it["containerPort"] for container in target["spec"]["containers"] for it in container.get("ports", [])}
    ports = [{"name": it["name"], "port": listed[it["targetPort"]]} for it in service["spec"]["ports"]]
    name, namespace = service["metadata"]["name"], target["metadata"]["namespace"]
    labels = {**service["metadata"]["labels"], "kubernetes.io/service-name": name}
    endpoint = {"addresses": [target["status"]["podIP"]], "conditions": {"ready": False},
                "targetRef": {"kind": "Pod", "namespace": namespace, "name": target["metadata"]["name"]}}
    content = {"metadata": {"name": name, "labels": labels}, "addressType": "IPv4", "endpoints": [endpoint], "ports": ports}
    api.request("POST", f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices", content)


def generate(api: ApiServer, stack: contextlib.ExitStack, directory: Path) -> tuple[dict, dict[str, str]]:
    """Runs the operator for a Prometheus that selects all monitors and rules. Returns the configuration and the files of rules."""
    kinds = ("podMonitor", "serviceMonitor", "rule")
    spec = {f"{kind}{selector}": {} for kind in kinds for selector in ("Selector", "NamespaceSelector")}
    spec |= {"serviceDiscoveryRole": "EndpointSlice"}
    prometheus = {"apiVersion": "monitoring.coreos.com/v1", "kind": "Prometheus", "metadata": {"name": "live"}, "spec": spec}
    api.request("POST", "/api/v1/namespaces", {"metadata": {"name": "monitoring"}})
    api.request("POST", "/apis/monitoring.coreos.com/v1/namespaces/monitoring/prometheuses", prometheus)
    log = directory / "operator.log"
    start(stack, log, "prometheus-operator", KUBECONFIG=str(api.kubeconfig))

    def generated() -> tuple[dict, dict[str, str]] | None:
        secrets = api.request("GET", f"{NAMESPACE}/secrets")["items"]
        maps = api.request("GET", f"{NAMESPACE}/configmaps")["items"]
        files = [it["data"] for it in maps if it["metadata"]["name"] == "prometheus-live-rulefiles-0"]
        compressed = [it["data"]["prometheus.yaml.gz"] for it in secrets if it["metadata"]["name"] == "prometheus-live"]
        if not files or not compressed:
            return None
        # The container next to Prometheus replaces these variables.
        text = gzip.decompress(base64.b64decode(compressed[0])).decode()
        return yaml.safe_load(text.replace("$(SHARD)", "0").replace("$(POD_NAME)", "prometheus-live-0")), files[0]

    return wait_for("the operator writes no configuration", generated, log.read_text)


def check_configuration(directory: Path, configuration: dict) -> None:
    path = directory / "generated.yaml"
    path.write_text(yaml.safe_dump(configuration))
    promtool("check", "config", str(path))
    say(f"the operator made {len(configuration['scrape_configs'])} scrape configurations, which promtool accepts")


def check_rules(directory: Path, rules: dict[str, str], releases: list[Monitored]) -> None:
    """The files of rules must be those of the releases."""
    (directory / "rules").mkdir()
    for name, content in rules.items():
        (directory / "rules" / name).write_text(content)
        promtool("check", "rules", str(directory / "rules" / name))
    for release in releases:
        (content,) = [content for name, content in rules.items() if name.startswith(f"{release.namespace}-")]
        if yaml.safe_load(content)["groups"] != release.groups:
            raise ChartError(f"the rules of {release.namespace} differ from those of the chart:\n{content}")
    say(f"the operator made {len(rules)} files of rules, which are those of the charts, and which promtool accepts")


def start_prometheus(api: ApiServer, stack: contextlib.ExitStack, directory: Path, configuration: dict) -> None:
    """Starts Prometheus as it runs outside of a pod: with a file for the access to the API server, and with other paths."""
    for job in configuration["scrape_configs"]:
        job["scrape_interval"] = job["scrape_timeout"] = "1s"
        for discovery in job["kubernetes_sd_configs"]:
            discovery["kubeconfig_file"] = str(api.kubeconfig)
    configuration["rule_files"] = [f"{directory}/rules/*.yaml"]
    configuration["global"]["evaluation_interval"] = "1s"
    path = directory / "prometheus.yaml"
    path.write_text(yaml.safe_dump(configuration))
    log = directory / "prometheus.log"
    start(stack, log, "prometheus", f"--config.file={path}", f"--storage.tsdb.path={directory}/tsdb",
          f"--web.listen-address={PROMETHEUS_URL.removeprefix('http://')}")
    wait_for("Prometheus does not start", lambda: query("status/buildinfo"), log.read_text)


def check_targets(releases: list[Monitored]) -> None:
    """Prometheus must scrape the pods of the releases and nothing else, and find the namespace, which the rules need."""
    expected = sorted((it.namespace, it.monitor, f"http://{it.instance}/metrics", "up") for it in releases)

    def targets() -> list[tuple]:
        return sorted(
            (it["labels"]["namespace"], it["scrapePool"].split("/")[0], it["scrapeUrl"], it["lastError"] or it["health"])
            for it in query("targets?state=active")["activeTargets"]
        )

    wait_for("Prometheus has other targets", lambda: targets() == expected, lambda: f"{targets()} instead of {expected}")
    for target in query("targets?state=active")["activeTargets"]:
        say(f"up: {target['scrapePool']}: {target['scrapeUrl']} with job {target['labels']['job']}")


def check_evaluation() -> None:
    def rules() -> list[dict]:
        return [rule for group in query("rules")["groups"] for rule in group["rules"]]

    wait_for("rules fail", lambda: rules() and all(it["health"] == "ok" for it in rules()),
             lambda: str([it for it in rules() if it["health"] != "ok"]))
    say(f"Prometheus evaluated {len(rules())} rules without an error")


def check_alerts(releases: list[Monitored]) -> None:
    """Stops the servers. Each must have an alert, which is pending at first."""
    for release in releases:
        release.server.terminate()
    expected = {(DOWN_ALERTS[it.chart], it.namespace, it.instance) for it in releases}

    def missing() -> set[tuple]:
        labels = [it["labels"] for it in query("alerts")["alerts"]]
        return expected - {(it["alertname"], it.get("namespace"), it.get("instance")) for it in labels}

    wait_for("no alerts about servers that are down", lambda: not missing(), lambda: str(sorted(missing())))
    say(f"Prometheus has alerts about all {len(expected)} servers after their end")


def query(path: str) -> dict:
    with urllib.request.urlopen(f"{PROMETHEUS_URL}/api/v1/{path}", timeout=10) as response:
        return json.load(response)["data"]


def promtool(*arguments: str) -> None:
    result = subprocess.run([str(TOOLS / "promtool"), *arguments], capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise ChartError(f"promtool {' '.join(arguments)}:\n{result.stdout}{result.stderr}")


def say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    main()
