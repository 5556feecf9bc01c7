"""The owner of a service, who uses the command line in its image, as the documentation says."""

from pods import Cluster, run_to_completion
from render import find


class Owner:
    """Runs commands as the human user whose token is in the Secret `owner`."""

    def __init__(self, cluster: Cluster):
        self.cluster = cluster
        pod = find(cluster.objects, "Pod", "countersign-test")
        volumes = [it for it in pod["spec"]["volumes"] if it["name"] in ("home", "ca")]
        self.spec = {**pod["spec"], "volumes": volumes, "initContainers": []}
        self.container = dict(pod["spec"]["containers"][0])
        token = {"name": "owner", "key": "human-token"}
        environment = [it for it in self.container["env"] if not it["name"].startswith("COUNTERSIGN_HUMAN")]
        self.container["env"] = [
            *environment,
            {"name": "COUNTERSIGN_HUMAN_TOKEN", "valueFrom": {"secretKeyRef": token}},
        ]

    def run(self, *commands: list[str]) -> str:
        """Runs commands one after the other with the same home directory, and returns the output of the last one."""
        steps = [{**self.container, "name": f"step-{number}", "args": it} for number, it in enumerate(commands)]
        return run_to_completion(self.cluster, "owner", {"spec": {**self.spec, "containers": steps}})[-1].strip()

    def mount(self, name: str, files: dict[str, str]) -> None:
        """Mounts files at `/NAME` for the commands that follow."""
        self.cluster.apply([{"kind": "ConfigMap", "metadata": {"name": name}, "data": files}])
        self.spec["volumes"] = [*self.spec["volumes"], {"name": name, "configMap": {"name": name}}]
        mount = {"name": name, "mountPath": f"/{name}", "readOnly": True}
        self.container["volumeMounts"] = [*self.container["volumeMounts"], mount]

    def create_service(self, name: str) -> tuple[str, str]:
        """Creates a service and an API key for sidecars, and returns its id and the key."""
        service = self.run(["--quiet", "service", "create", name])
        return service, self.run(["--quiet", "key", "create", "--service", service, "--scope", "sync"])


def secret(name: str, content: dict[str, str]) -> dict:
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": content}
