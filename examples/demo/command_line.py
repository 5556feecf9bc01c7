"""The last step of the demo: the same operations with the `countersign` command line only."""

import json

from console import DemoFailed, expect, print_action, print_note, print_step, wait_until
from stack import Stack, bearer

# The time within which a revocation must take effect at the proxy.
EFFECT_SECONDS = 1


def use_command_line(stack: Stack) -> None:
    print_step("h", "The same operations with the `countersign` command line")
    agent = log_in(stack)
    show_resources(stack, agent)
    revoke_and_check(stack, agent)


def log_in(stack: Stack) -> str:
    run_and_show(stack, "agent", "keygen")
    agent = run_and_show(stack, "agent", "register", "--email", "demo@example.com", "--name", "Demo agent")
    run_and_show(stack, "role", "create", "writer", "--permission", "write")
    run_and_show(stack, "role", "assign", "writer", agent)
    run(stack, "agent", "login")
    expect([agent, "writer"], upstream_identity(run(stack, "agent", "call", stack.envoy_url)), "agent and role")
    curl = f'curl -sSf -H "Authorization: Bearer $COUNTERSIGN_TOKEN" {stack.envoy_url}/'
    expect([agent, "writer"], upstream_identity(run(stack, "agent", "exec", "--", "sh", "-c", curl)), "agent and role")
    return agent


def show_resources(stack: Stack, agent: str) -> None:
    services = run_and_show(stack, "service", "list")
    expect(True, stack.service_id in services, "the service is listed")
    expect(True, "demo sidecar" in run_and_show(stack, "key", "list"), "the key of the sidecar is listed")
    inspected = json.loads(run(stack, "-o", "json", "token", "inspect"))
    expect([agent, stack.service_id], [inspected["claims"][name] for name in ("sub", "aud")], "sub and aud")
    verified = json.loads(run(stack, "-o", "json", "token", "verify", "--service", stack.service_id))
    expect(True, verified["verified"], "verified")


def revoke_and_check(stack: Stack, agent: str) -> None:
    token = run(stack, "agent", "login")
    run_and_show(stack, "token", "revoke")
    denied = lambda: (response := stack.envoy.request("GET", "/", bearer(token))).status != 200 and response
    denial = wait_until("the proxy denies", denied, EFFECT_SECONDS)
    expect("401 token_revoked", denial.status_and_reason, "the revoked token")
    expect([agent, "writer"], upstream_identity(run(stack, "agent", "call", stack.envoy_url)), "after a new login")

    run_and_show(stack, "role", "revoke", "writer", agent)
    expect_denied(stack, "403 no_role")
    run_and_show(stack, "role", "delete", "writer", "--yes")
    run_and_show(stack, "agent", "revoke", agent, "--yes")
    expect_denied(stack, "403 agent_revoked")


def run(stack: Stack, *arguments: str) -> str:
    """Runs `countersign` and returns its standard output."""
    quoted = (f"'{argument}'" if " " in argument else argument for argument in arguments)
    print_action(f"countersign {' '.join(quoted)}")
    code, output, error_output = stack.run_command_line(*arguments)
    if code != 0:
        raise DemoFailed(f"countersign {arguments[0]} {arguments[1]}: exit code {code}: {error_output}")
    return output


def run_and_show(stack: Stack, *arguments: str) -> str:
    """Like `run`, and prints the output. Do not use it for commands that print a token."""
    output = run(stack, *arguments)
    for line in output.splitlines():
        print_note(line)
    return output


def upstream_identity(body: str) -> list[str | None]:
    """Returns the agent id and the roles from the headers that the upstream received."""
    headers = dict(json.loads(body)["headers"])
    return [headers.get("x-agent-id"), headers.get("x-agent-roles")]


def expect_denied(stack: Stack, reason: str) -> None:
    """Checks that `countersign agent call` exits with 3, the code for a denial, and prints the reason."""
    print_action(f"countersign agent call {stack.envoy_url}")
    denied = lambda: (result := stack.run_command_line("agent", "call", stack.envoy_url))[0] != 0 and result
    code, _, error_output = wait_until("the proxy denies", denied, EFFECT_SECONDS)
    for line in error_output.splitlines():
        print_note(line)
    expect([3, True], [code, reason in error_output], f"exit code, and whether the error contains {reason}")
