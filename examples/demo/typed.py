"""The last step: all of it once more with the command line `countersign` and nothing else."""

import json

from console import Failed, does, expect, notes, step, wait_until
from stack import Stack, bearer

# How soon what was ended must be refused at the proxy.
WITHIN_SECONDS = 1


def all_with_the_command_line(stack: Stack) -> None:
    step("h", "The same with `countersign` alone, as it is typed")
    agent = an_agent_gets_in(stack)
    what_there_is_is_shown(stack, agent)
    what_is_ended_is_refused(stack, agent)


def an_agent_gets_in(stack: Stack) -> str:
    tells(stack, "agent", "keygen")
    agent = tells(stack, "agent", "register", "--email", "demo@example.com", "--name", "Typed")
    tells(stack, "role", "create", "typist", "--permission", "type")
    tells(stack, "role", "assign", "typist")
    types(stack, "agent", "login")
    expect([agent, "typist"], seen_by_upstream(types(stack, "agent", "call", stack.envoy_url)), "agent and role")
    curl = f'curl -sSf -H "Authorization: Bearer $COUNTERSIGN_TOKEN" {stack.envoy_url}/'
    expect([agent, "typist"], seen_by_upstream(types(stack, "agent", "exec", "--", "sh", "-c", curl)), "agent and role")
    return agent


def what_there_is_is_shown(stack: Stack, agent: str) -> None:
    services = tells(stack, "service", "list")
    expect(True, stack.service_id in services, "the service is among them")
    expect(True, "the demo's sidecar" in tells(stack, "key", "list"), "the sidecar's key is among them")
    inspected = json.loads(types(stack, "-o", "json", "token", "inspect"))
    expect([agent, stack.service_id], [inspected["claims"][name] for name in ("sub", "aud")], "for whom it is")
    verified = json.loads(types(stack, "-o", "json", "token", "verify", "--service", stack.service_id))
    expect(True, verified["verified"], "verified")


def what_is_ended_is_refused(stack: Stack, agent: str) -> None:
    token = types(stack, "agent", "login")
    tells(stack, "token", "revoke")
    refused = lambda: (answer := stack.envoy.ask("GET", "/", bearer(token))).status != 200 and answer
    expect("401 token_revoked", wait_until("the proxy refuses", refused, WITHIN_SECONDS).short, "that token")
    expect([agent, "typist"], seen_by_upstream(types(stack, "agent", "call", stack.envoy_url)), "after a new login")

    tells(stack, "role", "revoke", "typist")
    denied(stack, "403 no_role")
    tells(stack, "role", "delete", "typist", "--yes")
    tells(stack, "agent", "revoke", agent, "--yes")
    denied(stack, "403 agent_revoked")


def types(stack: Stack, *arguments: str) -> str:
    """Runs `countersign`; returns what it printed."""
    quoted = (f"'{argument}'" if " " in argument else argument for argument in arguments)
    does(f"countersign {' '.join(quoted)}")
    code, printed, complaint = stack.command_line(*arguments)
    if code != 0:
        raise Failed(f"countersign {arguments[0]} {arguments[1]}: exit code {code}: {complaint}")
    return printed


def tells(stack: Stack, *arguments: str) -> str:
    """The same, and shows it: not for what prints a token."""
    printed = types(stack, *arguments)
    for line in printed.splitlines():
        notes(line)
    return printed


def seen_by_upstream(body: str) -> list[str | None]:
    """The agent and its roles, in the headers that the upstream saw and sent back."""
    headers = dict(json.loads(body)["headers"])
    return [headers.get("x-agent-id"), headers.get("x-agent-roles")]


def denied(stack: Stack, reason: str) -> None:
    """`agent call` ends with the exit code for a denial, soon, and says why."""
    does(f"countersign agent call {stack.envoy_url}")
    call = lambda: (came := stack.command_line("agent", "call", stack.envoy_url))[0] != 0 and came
    code, _, complaint = wait_until("the proxy refuses", call, WITHIN_SECONDS)
    for line in complaint.splitlines():
        notes(line)
    expect([3, True], [code, reason in complaint], f"exit code, and whether it says {reason}")
