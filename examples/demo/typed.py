"""The last step: the same flow with the `countersign` command line only."""

import json

from console import DemoFailed, does, expect, notes, step, wait_until
from stack import Stack, bearer

# A revocation must take effect at the proxy within this time.
WITHIN_SECONDS = 1


def use_command_line(stack: Stack) -> None:
    step("h", "The same with the `countersign` command line")
    agent = log_in(stack)
    show_resources(stack, agent)
    revoke_and_check(stack, agent)


def log_in(stack: Stack) -> str:
    run_and_show(stack, "agent", "keygen")
    agent = run_and_show(stack, "agent", "register", "--email", "demo@example.com", "--name", "Typed")
    run_and_show(stack, "role", "create", "typist", "--permission", "type")
    run_and_show(stack, "role", "assign", "typist")
    run(stack, "agent", "login")
    expect([agent, "typist"], upstream_identity(run(stack, "agent", "call", stack.envoy_url)), "agent and role")
    curl = f'curl -sSf -H "Authorization: Bearer $COUNTERSIGN_TOKEN" {stack.envoy_url}/'
    expect([agent, "typist"], upstream_identity(run(stack, "agent", "exec", "--", "sh", "-c", curl)), "agent and role")
    return agent


def show_resources(stack: Stack, agent: str) -> None:
    services = run_and_show(stack, "service", "list")
    expect(True, stack.service_id in services, "the service is listed")
    expect(True, "the demo's sidecar" in run_and_show(stack, "key", "list"), "the key of the sidecar is listed")
    inspected = json.loads(run(stack, "-o", "json", "token", "inspect"))
    expect([agent, stack.service_id], [inspected["claims"][name] for name in ("sub", "aud")], "sub and aud")
    verified = json.loads(run(stack, "-o", "json", "token", "verify", "--service", stack.service_id))
    expect(True, verified["verified"], "verified")


def revoke_and_check(stack: Stack, agent: str) -> None:
    token = run(stack, "agent", "login")
    run_and_show(stack, "token", "revoke")
    refused = lambda: (response := stack.envoy.request("GET", "/", bearer(token))).status != 200 and response
    expect("401 token_revoked", wait_until("the proxy refuses", refused, WITHIN_SECONDS).short, "the revoked token")
    expect([agent, "typist"], upstream_identity(run(stack, "agent", "call", stack.envoy_url)), "after a new login")

    run_and_show(stack, "role", "revoke", "typist")
    expect_denied(stack, "403 no_role")
    run_and_show(stack, "role", "delete", "typist", "--yes")
    run_and_show(stack, "agent", "revoke", agent, "--yes")
    expect_denied(stack, "403 agent_revoked")


def run(stack: Stack, *arguments: str) -> str:
    """Runs `countersign` and returns its standard output."""
    quoted = (f"'{argument}'" if " " in argument else argument for argument in arguments)
    does(f"countersign {' '.join(quoted)}")
    code, printed, error_output = stack.command_line(*arguments)
    if code != 0:
        raise DemoFailed(f"countersign {arguments[0]} {arguments[1]}: exit code {code}: {error_output}")
    return printed


def run_and_show(stack: Stack, *arguments: str) -> str:
    """Like `run`, and prints the output. Not for commands that print a token."""
    printed = run(stack, *arguments)
    for line in printed.splitlines():
        notes(line)
    return printed


def upstream_identity(body: str) -> list[str | None]:
    """Returns agent id and roles from the headers that the upstream echoed."""
    headers = dict(json.loads(body)["headers"])
    return [headers.get("x-agent-id"), headers.get("x-agent-roles")]


def expect_denied(stack: Stack, reason: str) -> None:
    """Expects `agent call` to fail with the exit code for a denial and the reason."""
    does(f"countersign agent call {stack.envoy_url}")
    call = lambda: (result := stack.command_line("agent", "call", stack.envoy_url))[0] != 0 and result
    code, _, error_output = wait_until("the proxy refuses", call, WITHIN_SECONDS)
    for line in error_output.splitlines():
        notes(line)
    expect([3, True], [code, reason in error_output], f"exit code, and whether the error names {reason}")
