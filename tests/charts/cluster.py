#!/usr/bin/env python3
"""Installs both charts in a cluster with a real node, by the commands of docs/run/kubernetes.md.

    cluster.py ROOTS          ROOTS: the folder with the root file systems of the targets of the Dockerfile
    cluster.py ROOTS shell    only starts the cluster, and a shell in it

node.py describes the node, and images.py the images.
"""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import page
import yaml
from api_server import TOOLS, wait_for
from images import load_programs, load_root
from node import PAUSE, enter_namespaces, node
from render import REPOSITORY, ChartError
from shell import Shell
from surroundings import Surroundings
from workloads import container, pod_spec, service

REGISTRY = "registry.example.com/identity"
# Exit codes of the command line.
SUCCESS, DENIED = 0, 3
# A service that answers with the headers of the request.
ECHO = 'require("http").createServer((q, s) => s.end(JSON.stringify(q.headers))).listen(8080, "127.0.0.1")'
TARGETS = ("control-plane", "ext-authz", "cli")


def main() -> int:
    roots = Path(sys.argv[1]).resolve()
    folder = enter_namespaces()
    started = time.monotonic()
    try:
        with node(folder) as api:
            os.environ["PATH"] += f":{roots}/cli/usr/local/bin"
            shell = Shell(folder)
            load_images(roots)
            if sys.argv[2:] == ["shell"]:
                print("the cluster runs", flush=True)
                return subprocess.call(["bash"], cwd=shell.folder)
            for done, step in steps(shell, Surroundings(api, shell, folder / "hosts")):
                step()
                print(f"{time.monotonic() - started:4.0f} s  {done}", flush=True)
    except (ChartError, subprocess.TimeoutExpired) as error:
        print(f"FAILED: {error}", file=sys.stderr)
        return 1
    return 0


def steps(shell: Shell, surroundings: Surroundings) -> list[tuple[str, Callable[[], None]]]:
    return [
        ("a pod runs, and resolves the name of a Service", lambda: check_node(shell)),
        ("the trial works, and its sidecars decide in a Deployment and in the pod of a service", lambda: check_trial(shell)),
        ("a second service came to the running sidecars", lambda: check_second_service(shell)),
        ("sidecars in a DaemonSet decide", lambda: check_daemon_set(shell)),
        ("checks use mutual TLS and certificates of cert-manager", lambda: check_mutual_tls(shell, surroundings)),
        ("the trial became production on SQLite, and a backup was restored", lambda: check_production(shell, surroundings)),
        ("PostgreSQL, Redis and an issuer run", surroundings.start),
        ("production works with PostgreSQL and Redis", lambda: check_postgresql(shell, surroundings)),
        ("the job of apply added a service and its API key", lambda: check_apply(shell)),
        ("the master key was rotated", lambda: check_master_key(shell)),
        ("upgrades, rollbacks, restarts and a drain interrupted no request", lambda: check_upgrades(shell)),
        ("the charts are removed", lambda: check_removal(shell)),
        ("every command of the page ran", lambda: check_page(shell)),
    ]


def load_images(roots: Path) -> None:
    load_programs(PAUSE, [TOOLS / "pause"], [str(TOOLS / "pause")])
    for target in TARGETS:
        load_root(f"{REGISTRY}/countersign-{target}:0.1.0", target, roots / target)
    envoy, node_js = ((REPOSITORY / ".tools/bin" / name).resolve() for name in ("envoy", "node"))
    load_programs("docker.io/envoyproxy/envoy:distroless-v1.40.0", [envoy], [str(envoy)])
    load_programs("localhost/node:1", [node_js], [str(node_js)])
    load_programs("registry.example.com/shop:1.0", [node_js], [str(node_js), "--eval", ECHO])


def check_node(shell: Shell) -> None:
    """Nothing else needs to be checked if a pod of the cluster does not run."""
    code = 'require("dns").lookup("kubernetes.default.svc", (error, address) => { if (error) throw error; console.log(address) })'
    spec = pod_spec(container("probe", "localhost/node:1", "--eval", code), restartPolicy="Never")
    shell.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "probe", "namespace": "default"}, "spec": spec})
    shell.run("""
kubectl wait pod/probe --for=jsonpath='{.status.phase}'=Succeeded --timeout=60s
kubectl get nodes,pods --output=wide
kubectl logs probe
kubectl delete pod probe""")


def check_trial(shell: Shell) -> None:
    shell.follow("Try it")
    shell.follow("The first agent")
    shell.follow("Sidecars", "helm install countersign-ext-authz")
    install_store(shell, "ca.pem")
    check_requests(shell, "http://store.store.svc/")
    shell.follow("A native sidecar container")
    check_requests(shell, f"http://{address(shell, 'shop', 'app=shop')}:10000/")
    shell.follow("Sidecars", "--target istio")


def check_daemon_set(shell: Shell) -> None:
    shell.run("""
helm upgrade countersign-ext-authz charts/countersign-ext-authz --namespace identity --reuse-values --wait --set kind=DaemonSet
helm test countersign-ext-authz --namespace identity""")
    check_requests(shell, "http://store.store.svc/")


def check_mutual_tls(shell: Shell, surroundings: Surroundings) -> None:
    """cert-manager and mutual TLS for checks, by the commands of the page. The CA of the Envoys is that of the company."""
    surroundings.sign(shell.folder / "helm-test.pem", shell.folder / "helm-test-key.pem", ["helm-test"])
    shell.run("cp company-ca.pem envoys-ca.pem")
    shell.follow("What encrypts checks")
    shell.run("helm test countersign-ext-authz --namespace identity")


def check_production(shell: Shell, surroundings: Surroundings) -> None:
    """From the trial to production on SQLite."""
    surroundings.sign(shell.folder / "fullchain.pem", shell.folder / "privkey.pem", ["id.example.com", "countersign.identity.svc"])
    shell.follow("For production", "kubectl delete namespace")
    shell.follow("For production", "helm upgrade --install")
    record_host(shell, surroundings)
    shell.run("""
export COUNTERSIGN_URL=https://id.example.com COUNTERSIGN_CA=$PWD/company-ca.pem
export COUNTERSIGN_HUMAN_TOKEN=$(kubectl --namespace identity exec statefulset/countersign -- \\
    countersign-control-plane --config /etc/countersign/config.toml human-token mint --subject operator --admin)
before=$(countersign service create before)""")
    shell.follow("Restore a backup of SQLite", "create job backup-now")
    shell.run("after=$(countersign service create after)")
    shell.follow("Restore a backup of SQLite", "create job restore")
    services = require(shell, "countersign service list", "before")
    if "after" in services:
        raise ChartError(f"the restored database is not that of the backup: {services}")


def check_postgresql(shell: Shell, surroundings: Surroundings) -> None:
    """From nothing to PostgreSQL and Redis."""
    shell.run("cp company-ca.pem database-ca.pem; cp company-ca.pem redis-ca.pem; kubectl delete namespace identity")
    title = "PostgreSQL and Redis"
    shell.follow(title, "create namespace")
    shell.follow(title, "database:")
    trust_company(shell)
    shell.follow(title, "helm upgrade --install")
    record_host(shell, surroundings)
    if '"status":"healthy"' not in (health := shell.follow(title, "/health")):
        raise ChartError(f"the control plane is not healthy: {health}")
    shell.run("""
export COUNTERSIGN_URL=https://id.example.com COUNTERSIGN_CA=$PWD/company-ca.pem
export COUNTERSIGN_HUMAN_TOKEN=$(curl --silent --fail --cacert company-ca.pem https://login.example.com/token)
export COUNTERSIGN_SERVICE_ID=$(countersign service create shop)
countersign role create reader --permission read
countersign key create --scope sync --name production --out production.keys
agent=$(countersign agent register --key agent.key --email me@example.com --name 'My agent')
countersign role assign reader "$agent"
kubectl --namespace identity create secret generic guarded-services --from-file=keys=production.keys
kubectl --namespace identity create secret generic operator --from-literal=human-token="$COUNTERSIGN_HUMAN_TOKEN"
helm install countersign-ext-authz charts/countersign-ext-authz --namespace identity --wait \\
    --set image.registry=registry.example.com/identity \\
    --set syncUrls=https://countersign.identity.svc:8444 \\
    --set keys.existingSecret=guarded-services \\
    --set ca.existingSecret=countersign-tls \\
    --set tls.certManager.enabled=true \\
    --set tls.certManager.issuerRef.kind=ClusterIssuer \\
    --set tls.certManager.issuerRef.name=company \\
    --set tests.controlPlaneUrl=https://countersign.identity.svc \\
    --set tests.existingSecret=operator
helm test countersign-ext-authz --namespace identity
kubectl delete namespace store --ignore-not-found""")
    install_store(shell, "company-ca.pem")
    check_requests(shell, "http://store.store.svc/")


def record_host(shell: Shell, surroundings: Surroundings) -> None:
    """Gives the host of the page the address of the Service, as its comment says."""
    query = "jsonpath='{.status.loadBalancer.ingress[0].ip}'"
    surroundings.resolve("id.example.com", shell.run(f"kubectl --namespace identity get service countersign --output {query}"))


def trust_company(shell: Shell) -> None:
    """Adds to the values of the page the CA of the issuer, which is that of the database, and no public one."""
    values = yaml.safe_load((shell.folder / "values.yaml").read_text())
    values["settings"]["humans"]["issuers"]["corp"]["ca_file"] = "/database-ca/ca.crt"
    (shell.folder / "values.yaml").write_text(yaml.safe_dump(values))


def check_second_service(shell: Shell) -> None:
    """A second service at the running sidecars, by the page about it. No pod restarts."""
    path = REPOSITORY / "docs/run/second-service.md"
    pods = shell.run("kubectl --namespace identity get pods --selector app.kubernetes.io/name=countersign-ext-authz --output name")
    shell.follow("Add it", "service create", path=path)
    shell.follow("In Kubernetes", path=path)
    role = 'countersign role {} --service "$second"'
    shell.run(role.format("create reader --permission read"))
    call = role.format('assign reader "$agent" --wait')
    wait_for("the sidecars do not follow the second service", lambda: "enforced" in shell.attempt(call)[1], lambda: shell.attempt(call)[1])
    require(shell, "kubectl --namespace identity get pods --output name", pods.split()[0])


def check_apply(shell: Shell) -> None:
    """The job of `apply`, with a Secret that exists already and is in use."""
    title = "Declared state"
    shell.follow(title, "apply:", values="apply.yaml")
    shell.follow(title, "create configmap cluster-issuer")
    shell.follow(title, "kubectl --namespace identity label secret")
    shell.follow(title, "--values apply.yaml")
    require(shell, "countersign service list", "Shop")
    shell.run("service=$COUNTERSIGN_SERVICE_ID; countersign key create --scope full --name apply --out shop.key")
    shell.follow(title, "create secret generic countersign-apply")
    require(shell, "kubectl --namespace identity get secret guarded-services --output jsonpath='{.data.keys}' | base64 -d | wc -l", "2")
    check_requests(shell, "http://store.store.svc/")


def check_master_key(shell: Shell) -> None:
    """The commands for Kubernetes in the page about the master key."""
    page_of_key = REPOSITORY / "docs/run/master-key.md"
    output = shell.follow("Rotate the master key", "countersign-master-key-2", path=page_of_key)
    if "no longer needs the master key" not in output:
        raise ChartError(f"the rotation of the master key is not complete: {output}")
    shell.run("kubectl --namespace identity rollout status deployment/countersign")
    check_requests(shell, "http://store.store.svc/")


def check_upgrades(shell: Shell) -> None:
    """Agents reach the service, and the API answers, while all pods are replaced. A drain leaves as many pods as the charts promise."""
    api = "curl --silent --show-error --fail --cacert company-ca.pem https://id.example.com/.well-known/jwks.json"
    with Traffic(shell, "countersign agent call --plain-http http://store.store.svc/"), Traffic(shell, api):
        shell.run("""
helm upgrade countersign charts/countersign --namespace identity --wait --reuse-values --set podAnnotations.release=new
helm upgrade countersign-ext-authz charts/countersign-ext-authz --namespace identity --wait --reuse-values --set podAnnotations.release=new""")
        shell.follow("Upgrades", "helm upgrade")
        shell.follow("Upgrades", "helm rollback")
        shell.follow("Secrets that change", "rollout restart")
        status, _ = shell.attempt("kubectl drain node --ignore-daemonsets --delete-emptydir-data --pod-selector='!app' --timeout=20s")
        if status == SUCCESS:
            raise ChartError("a drain evicted all pods at once, although no other node can run them")
        shell.run("kubectl uncordon node")
        shell.run("kubectl --namespace identity wait deployment --all --for=condition=Available --timeout=120s")


def check_removal(shell: Shell) -> None:
    """What remains is what the page says, and a deletion of the namespace ends."""
    shell.follow("Remove it")
    pods = "kubectl --namespace identity get pods"
    wait_for("pods remain", lambda: "No resources found" in shell.attempt(pods)[1], lambda: shell.attempt(pods)[1])
    shell.run("kubectl delete namespace identity --timeout=60s")


def check_page(shell: Shell) -> None:
    if left_out := shell.left_out():
        raise ChartError(f"{page.PAGE} has commands that did not run: {left_out}")


class Traffic:
    """Runs a command again and again, each of which must succeed."""

    def __init__(self, shell: Shell, command: str):
        self.command, self.count, self.failures = command, 0, []
        self.shell, self.is_over = shell, threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)

    def run(self) -> None:
        while not self.is_over.wait(0.2):
            self.count += 1
            status, output = self.shell.attempt(self.command, "traffic-" + str(id(self)))
            if status != SUCCESS:
                self.failures.append(output)

    def __enter__(self) -> "Traffic":
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.is_over.set()
        self.thread.join()
        if self.failures:
            raise ChartError(f"{len(self.failures)} of {self.count} times, {self.command!r} failed: {self.failures[0]}")


def install_store(shell: Shell, authority: str) -> None:
    """Installs a service that answers with the headers of each request, and an Envoy in front of it that asks the sidecars."""
    name, sidecar = "store", "countersign-ext-authz.identity.svc.cluster.local:9191"
    shell.run(f"""
kubectl create namespace {name}
cp {authority} ca.crt
countersign envoy config --target envoy --sidecar {sidecar} --sidecar-ca /etc/envoy/ca.crt \\
    --check-timeout 5s --listen 0.0.0.0:10000 >envoy.yaml
kubectl --namespace {name} create configmap envoy --from-file=envoy.yaml --from-file=ca.crt""")
    containers = [
        container("envoy", "envoyproxy/envoy:distroless-v1.40.0", "--config-path", "/etc/envoy/envoy.yaml",
                  readinessProbe={"tcpSocket": {"port": 10000}}, volumeMounts=[{"name": "envoy", "mountPath": "/etc/envoy"}]),
        container("service", "registry.example.com/shop:1.0"),
    ]
    spec = pod_spec(*containers, volumes=[{"name": "envoy", "configMap": {"name": "envoy"}}])
    shell.apply(*service(name, name, spec, 80, 10000))
    shell.run(f"kubectl --namespace {name} rollout status deployment/{name} --timeout=60s")


def check_requests(shell: Shell, url: str) -> None:
    """A request with a role passes with identity headers, and none passes after the revocation of the role."""
    call = f"countersign agent call --plain-http {url}"
    wait_for(f"no agent reaches {url}", lambda: shell.attempt(call)[0] == SUCCESS, lambda: shell.attempt(call)[1])
    headers = shell.run(f"{call} --header 'x_agent_roles: admin'")
    if '"x-agent-roles":"reader"' not in headers or "admin" in headers:
        raise ChartError(f"the service received {headers}")
    require(shell, f"curl --silent --output /dev/null --write-out '%{{http_code}}' {url}", "401")
    require(shell, 'countersign role revoke reader "$agent" --wait', "enforced")
    status, output = shell.attempt(call)
    if status != DENIED or "no_role" not in output:
        raise ChartError(f"after the revocation: {status}, {output}")
    shell.run('countersign role assign reader "$agent" --wait')
    shell.run(call)


def address(shell: Shell, namespace: str, selector: str) -> str:
    """The address of a pod."""
    query = "jsonpath='{.items[0].status.podIP}'"
    return shell.run(f"kubectl --namespace {namespace} get pods --selector {selector} --output {query}").strip()


def require(shell: Shell, commands: str, expected: str) -> str:
    """Runs commands, which must print the expected text."""
    output = shell.run(commands)
    if expected not in output:
        raise ChartError(f"{commands} printed no {expected}:\n{output}")
    return output


if __name__ == "__main__":
    sys.exit(main())
