#!/usr/bin/env python3
"""Builds and runs the tests, and prints how long each binary and each slow test took.

Usage: test.py fast              the tests of `make test`
       test.py quick SUBJECT     unit tests of the changed crates, and test modules whose name contains SUBJECT
       test.py deep [PART...]    the parts of `make test-deep`; all of them without an argument
       test.py touched           the parts of `make test-deep` that test what was changed in the last day, and one more
       test.py run BINARY [FILTER...]   some tests of one binary, on SQLite, with their durations

tests/suites.txt says to which part each module belongs. The last line counts the tests.
"""

import concurrent.futures
import contextlib
import dataclasses
import fnmatch
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROCESSORS = os.cpu_count() or 1

# Several binaries run at the same time, because many tests wait, and so that the last tests of one leave no processor idle.
BINARIES_AT_ONCE = 3
MOSTLY_WAITING = ("webhooks", "histories")

# Longer lines in the output of a failed test are cut.
LONGEST_LINE = 4000

# Tests that take longer are listed by name.
SLOW_SECONDS = 2.0

# How a test binary begins the line of an event.
EVENT_START = '{ "type": "test"'

# After this time a binary hangs, and is ended.
BINARY_TIMEOUT_SECONDS = 30 * 60

# The tests keep their databases in memory, where an fsync costs nothing, if there is enough memory.
MEMORY_FOLDER = pathlib.Path("/dev/shm")
REQUIRED_MEMORY_BYTES = 4 << 30

# CI runs no further parts of the deep suite after this time. It starts at least one.
TOUCHED_MINUTES = 12


@dataclasses.dataclass
class Part:
    """A part of the deep suite, besides the tests that suites.txt gives it.

    `minutes` is how long the part usually takes, `paths` are patterns of the files that the part tests, `again` are patterns of tests that also run
    in other parts, `targets` are targets of the Makefile. `needs` is a program, and `attempt` a command that fails where the part cannot run, with
    what to say then. `binaries_at_once` is lower if its tests need the processors for themselves.
    """

    minutes: float
    paths: list
    environment: dict = dataclasses.field(default_factory=dict)
    again: list = dataclasses.field(default_factory=list)
    targets: list = dataclasses.field(default_factory=list)
    needs: str = ""
    attempt: tuple = ((), "")
    binaries_at_once: int = BINARIES_AT_ONCE

    def obstacle(self):
        """Why the part cannot run here, or nothing."""
        command, meaning = self.attempt
        if self.needs and not shutil.which(self.needs):
            return f"{self.needs} is not installed"
        return meaning if command and subprocess.run(command, stderr=subprocess.DEVNULL).returncode != 0 else ""


# What a node of Kubernetes needs from the machine.
NODE = (("unshare", "--net", "--mount", "--pid", "--fork", "test", "-w", "/sys/fs/cgroup"), "a node needs root, namespaces and control groups")

PARTS = {
    "engines": Part(11, ["control-plane/src/store/*", "control-plane/src/ephemeral/*", "control-plane/migrations/*"], {"TEST_ENGINES": "fleet"}),
    "histories": Part(14, ["identity/src/*", "proto/*", "*/src/sync/*", "ext-authz/src/*", "tests/tests/histories/*"], {"HISTORIES": "64"}, ["histories *"]),
    "faults": Part(8, ["process/src/*", "tests/tests/faults/*", "tests/tests/replicas/*"], binaries_at_once=2),
    "hostile": Part(7, ["control-plane/src/http/*", "process/src/server*", "tests/contract/*"], {"PROPTEST_CASES": "1024"}, ["*fuzz*"], binaries_at_once=2),
    "sidecar": Part(3, ["ext-authz/src/*", "control-plane/src/sync/*", "control-plane/src/sidecars/*"]),
    "storage": Part(3, ["control-plane/src/store/*", "control-plane/src/app/*", "control-plane/migrations/*"], binaries_at_once=2),
    "clients": Part(1, ["control-plane/src/http/*", "client/*", "tests/clients/*"]),
    "costs": Part(2, ["ext-authz/src/*", "identity/src/*", "Cargo.*"], binaries_at_once=1),
    "bench": Part(3, ["tests/examples/*", "scripts/bench*"], targets=["bench-check"]),
    "images": Part(1, ["Dockerfile", "docker-compose.yaml", "scripts/*image*", "scripts/*compose*"], targets=["check-image"]),
    "dependencies": Part(1, ["Cargo.*", "*/Cargo.toml", "deny.toml"], targets=["deny"]),
    "charts": Part(2, ["charts/*", "docs/run/kubernetes.md", "tests/charts/*", "*/config.default.toml"], targets=["charts"], needs="go"),
    "cluster": Part(15, ["charts/*", "docs/run/kubernetes.md", "docs/run/master-key.md", "docs/run/second-service.md", "tests/charts/*"], targets=["cluster"], needs="go", attempt=NODE),
}

# The versions of Envoy before the newest one, with the tests that show that the configurations work there.
EARLIER_ENVOYS = ["1.36", "1.37", "1.38", "1.39"]
CORE = ["check_tls*", "end_to_end*", "example_envoy*", "identity_headers*", "proxy_configs*", "recipes*", "route_rules::mcp::*", "route_rules::rules_decide*", "streams*"]
PARTS |= {
    f"envoy-{version}": Part(1, ["client/templates/*", "docs/run/proxies.md"], {"TEST_ENVOY": version}, [f"edge {pattern}" for pattern in CORE])
    for version in EARLIER_ENVOYS
}


@dataclasses.dataclass
class Binary:
    """A program that contains tests, and the folder of its crate, in which it runs."""

    name: str
    path: pathlib.Path
    crate: pathlib.Path
    is_unit: bool


@dataclasses.dataclass(frozen=True)
class Suite:
    """A line of tests/suites.txt."""

    binary: str
    module: str
    part: str
    engines: str

    def contains(self, test):
        return test == self.module or test.startswith(f"{self.module}::") or (self.module == "main" and "::" not in test)


@dataclasses.dataclass
class Job:
    """Tests of one binary."""

    binary: Binary
    tests: list
    environment: dict


@dataclasses.dataclass
class Result:
    name: str
    passed: int = 0
    ignored: int = 0
    seconds: float = 0.0
    failures: list = dataclasses.field(default_factory=list)
    durations: list = dataclasses.field(default_factory=list)
    skipped: str = ""


def main():
    started = time.monotonic()
    match sys.argv[1:]:
        case ["fast"]:
            results = run_jobs(fast_jobs(build("--tests")))
        case ["quick", subject]:
            results = run_jobs(quick_jobs(subject))
        case ["deep", *parts] if set(parts) <= PARTS.keys():
            results = run_parts(parts or list(PARTS))
        case ["touched"]:
            results = run_parts(touched_parts())
        case ["run", binary, *filters]:
            results = run_jobs(selected_jobs(build("--tests"), binary, filters))
        case _:
            sys.exit(f"{__doc__}\nParts: {', '.join(PARTS)}")
    sys.exit(report(results, time.monotonic() - started))


def build(*targets, command=("build", "--bins")):
    """Builds targets, by default with the programs, and returns the binaries that contain tests."""
    started = time.monotonic()
    arguments = [*command, "--workspace", *targets, "--message-format=json-render-diagnostics"]
    output = subprocess.run(["cargo", *arguments], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    if output.returncode != 0:
        sys.exit(output.returncode)
    messages = [json.loads(line) for line in output.stdout.splitlines()]
    tests = [message for message in messages if message.get("executable") and message["profile"]["test"]]
    print(f"the build took {time.monotonic() - started:.0f} s", flush=True)
    return [binary_of(message) for message in tests]


def binary_of(message):
    target, crate = message["target"], pathlib.Path(message["manifest_path"]).parent
    is_end_to_end = target["kind"] == ["test"] and crate == ROOT / "tests"
    name = target["name"] if is_end_to_end else f"{crate.name}/{target['kind'][0]}"
    return Binary(name, pathlib.Path(message["executable"]), crate, not is_end_to_end)


def read_suites():
    lines = (ROOT / "tests/suites.txt").read_text().splitlines()
    return [Suite(*line.split()) for line in lines if line and not line.startswith("#")]


def list_tests(binary):
    command = [binary.path, "--list", "--format=terse"]
    output = subprocess.run(command, cwd=binary.crate, stdout=subprocess.PIPE, text=True, check=True)
    return [line.removesuffix(": test") for line in output.stdout.splitlines() if line.endswith(": test")]


def select(binaries, environment, wanted):
    """Jobs with the wanted tests, each of which is judged by its suite: the longest line of suites.txt that contains it."""
    suites, used, jobs = read_suites(), set(), []
    for binary in binaries:
        candidates = [suite for suite in suites if suite.binary == binary.name]
        tests = []
        for test in list_tests(binary):
            suite = max((suite for suite in candidates if suite.contains(test)), key=lambda suite: len(suite.module), default=None)
            if suite is None and not binary.is_unit:
                sys.exit(f"tests/suites.txt has no line for {binary.name} {test}")
            used.add(suite)
            if wanted(suite or Suite(binary.name, "main", "test", "once"), test):
                tests.append(test)
        if tests:
            jobs.append(Job(binary, tests, environment))
    names = {binary.name for binary in binaries}
    for suite in suites:
        if suite.binary in names and suite not in used:
            sys.exit(f"tests/suites.txt has a line for {suite.binary} {suite.module}, which contains no test")
    return jobs


def fast_jobs(binaries):
    # One history and a few random inputs show that they run; the parts `histories` and `hostile` of the deep suite look for faults.
    return select(binaries, {"HISTORIES": "1", "PROPTEST_CASES": "64"}, lambda suite, _: suite.part == "test")


def part_jobs(name, binaries):
    part = PARTS[name]

    def wanted(suite, test):
        again = any(fnmatch.fnmatch(f"{suite.binary} {test}", pattern) for pattern in part.again)
        return again or (suite.engines == "both" if name == "engines" else suite.part == name)

    return select(binaries, part.environment, wanted)


def selected_jobs(binaries, name, filters):
    names = sorted({binary.name for binary in binaries})
    if name not in names:
        sys.exit(f"no test binary has the name `{name}`; there are {', '.join(names)}")
    jobs = []
    for binary in (binary for binary in binaries if binary.name == name):
        tests = [test for test in list_tests(binary) if not filters or any(part in test for part in filters)]
        # Without names, a binary would run all of its tests.
        if tests:
            jobs.append(Job(binary, tests, {}))
    if not jobs:
        sys.exit(f"no test of {name} has a name that contains {' or '.join(filters)}")
    return jobs


def quick_jobs(subject):
    about = [suite for suite in read_suites() if subject in suite.module or subject == suite.binary]
    suites = [suite for suite in about if suite.part == "test"]
    if not suites:
        parts = sorted({suite.part for suite in about})
        advice = f'run `make test-deep PARTS="{" ".join(parts)}"`' if parts else "see tests/suites.txt"
        sys.exit(f"no module of `make test` is about `{subject}`: {advice}")
    subjects, crates = {suite.binary for suite in suites}, changed_crates()
    build()
    ends = (f"--test={name}" for name in sorted(subjects) if "/" not in name)
    # `cargo build` builds libraries without their tests.
    binaries = build("--lib", *ends, command=("test", "--no-run"))

    def wanted(suite, _):
        return suite in suites or (suite.part == "test" and suite.binary.split("/")[0] in crates)

    return select(binaries, {}, wanted)


def changed_files(since):
    changed = subprocess.run(["git", "diff", "--name-only", since], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    return changed.stdout.splitlines()


def changed_crates():
    """The folders of the crates that differ from the last commit or, if none differs, that the last commit changed."""
    files = changed_files("HEAD") or changed_files("HEAD~1")
    return {file.split("/")[0] for file in files}


def touched_parts():
    """The parts that test what was changed in the last day, and one more, as far as they fit into TOUCHED_MINUTES.

    Each commit begins with another part, so that every part runs now and then.
    """
    git = ["git", "rev-list", "HEAD"]
    before = subprocess.check_output([*git, "--max-count=1", "--before=1 day ago"], cwd=ROOT, text=True).strip()
    files = changed_files(before) if before else []
    names = list(PARTS)
    turn = int(subprocess.check_output([*git, "--count"], cwd=ROOT, text=True)) % len(names)
    names = names[turn:] + names[:turn]
    concerned = [name for name in names if any(fnmatch.filter(files, pattern) for pattern in PARTS[name].paths)]
    concerned += [name for name in names if name not in concerned][:1]
    chosen, minutes = [], 0
    for name in concerned:
        if not chosen or minutes + PARTS[name].minutes <= TOUCHED_MINUTES:
            chosen.append(name)
            minutes += PARTS[name].minutes
    left_out = [name for name in concerned if name not in chosen]
    print(f"parts of the deep suite: {', '.join(chosen)}; left out for time: {', '.join(left_out) or 'none'}", flush=True)
    return chosen


def run_parts(names):
    results = []
    binaries = build("--tests")
    for name in names:
        started, part = time.monotonic(), PARTS[name]
        if obstacle := part.obstacle():
            results.append(Result(name, skipped=f"part {name} was SKIPPED: {obstacle}"))
            continue
        results += run_jobs(part_jobs(name, binaries), part.binaries_at_once) + [run_target(target) for target in part.targets]
        print(f"part {name} took {minutes_since(started)}", flush=True)
    return results


def run_target(target):
    """Runs a target of the Makefile, which counts as one test."""
    started = time.monotonic()
    code = subprocess.run(["make", target], cwd=ROOT).returncode
    result = Result(f"make {target}", passed=int(code == 0), seconds=time.monotonic() - started)
    result.failures = [] if code == 0 else [(target, "see the output above")]
    print_result(result)
    return result


def run_jobs(jobs, at_once=BINARIES_AT_ONCE):
    with memory_folder() as folder, concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        # Binaries that mostly wait come first, and of each group the longest, so that no long one runs alone at the end.
        jobs = sorted(jobs, key=lambda job: (job.binary.is_unit, job.binary.name not in MOSTLY_WAITING, -len(job.tests)))
        return list(pool.map(lambda job: run_job(job, folder), jobs))


@contextlib.contextmanager
def memory_folder():
    """A folder for temporary files, in memory if there is enough, which is removed at the end."""
    enough = MEMORY_FOLDER.is_dir() and shutil.disk_usage(MEMORY_FOLDER).free >= REQUIRED_MEMORY_BYTES
    with tempfile.TemporaryDirectory(prefix="countersign-tests-", dir=MEMORY_FOLDER if enough else None, ignore_cleanup_errors=True) as folder:
        # PostgreSQL runs as another user, and its files are in this folder.
        os.chmod(folder, 0o711)
        yield folder


def run_job(job, folder):
    started, result, output = time.monotonic(), Result(job.binary.name), []
    # The options for durations are unstable, and RUSTC_BOOTSTRAP enables them.
    command = [job.binary.path, *job.tests, "--exact", "-Zunstable-options", "--format=json", "--report-time"]
    environment = os.environ | job.environment | {"TMPDIR": folder, "CARGO_MANIFEST_DIR": str(job.binary.crate), "RUSTC_BOOTSTRAP": "1"}
    environment.setdefault("RUST_TEST_THREADS", str(PROCESSORS))
    process = subprocess.Popen(command, cwd=job.binary.crate, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True, errors="replace")
    timer = threading.Timer(BINARY_TIMEOUT_SECONDS, process.kill)
    timer.start()
    for line in process.stdout:
        record(line, result, output)
    timer.cancel()
    code, missing = process.wait(), len(job.tests) - result.passed - result.ignored - len(result.failures)
    if (code != 0 and not result.failures) or missing > 0:
        result.failures.append((result.name, f"ended with {code}, {missing} tests without a result:\n{''.join(output[-200:])}"))
    result.seconds = time.monotonic() - started
    print_result(result)
    return result


def record(line, result, output):
    """Records a line of a test binary: an event in JSON, or what the tests print."""
    # A program that a test runs may have written the beginning of the line.
    start = max(line.find(EVENT_START), 0)
    try:
        event = json.loads(line[start:])
    except ValueError:
        event = None
    if not isinstance(event, dict) or event.get("type") != "test" or event.get("event") not in ("ok", "failed", "ignored"):
        output.append(line)
        return
    name = event["name"]
    if event["event"] == "ok":
        result.passed += 1
    if event["event"] == "ignored":
        result.ignored += 1
    if event["event"] == "failed":
        result.failures.append((name, event.get("stdout", "")))
        print(f"FAILED {result.name} {name}: its output is below", flush=True)
    if "exec_time" in event:
        result.durations.append((event["exec_time"], name))


def print_result(result):
    print(f"{result.name}: {result.passed} passed, {len(result.failures)} failed in {result.seconds:.0f} s", flush=True)


def report(results, seconds):
    """Prints failures, slow tests and totals. Returns the exit code."""
    for result in results:
        for name, output in result.failures:
            lines = (line[:LONGEST_LINE] for line in output.splitlines())
            print(f"\n---- {result.name} {name}\n" + "\n".join(lines))
    slow = sorted(((duration, f"{result.name} {name}") for result in results for duration, name in result.durations), reverse=True)
    print(f"\ntests that took more than {SLOW_SECONDS:.0f} s:")
    for duration, name in slow:
        if duration > SLOW_SECONDS:
            print(f"{duration:7.1f} s  {name}")
    passed, failed = sum(result.passed for result in results), sum(len(result.failures) for result in results)
    for result in results:
        if result.skipped:
            print(result.skipped)
    print(f"\nthe build and all tests took {seconds / 60:.1f} minutes")
    print(f"{passed} passed, {failed} failed")
    return 0 if passed and not failed else 1


def minutes_since(started):
    return f"{(time.monotonic() - started) / 60:.1f} minutes"


if __name__ == "__main__":
    main()
