"""The walk: eight steps, each saying what it does, what it expects and what came."""

import base64
import json
import math
import time
from datetime import datetime, timezone
from urllib.parse import unquote

from console import Failed, does, expect, expect_that, notes, step, wait_until
from stack import Stack, bearer
from typed import all_with_the_command_line
from web import Answer

# How soon everything that changes must be true at the sidecar.
WITHIN_SECONDS = 1
# Life of the short role in step f: enough to kill a server meanwhile, and short to wait for.
SHORT_SECONDS = 3


def nobody_without_a_token(stack: Stack) -> None:
    step("a", "Without a token nobody gets in, and is told why")
    does("GET / through Envoy, with no token")
    answer = stack.envoy.ask("GET", "/")
    expect("401 token_missing", answer.short)
    expect("token_missing", answer.headers.get("x-agent-reason"), "header x-agent-reason")


def an_agent_of_openssl_and_curl(stack: Stack) -> None:
    step("b", "An agent of openssl and curl alone gets in, and the service reads who it is from headers")
    agent_does(stack, "key")
    agent_does(stack, "register", "demo@example.com", "A shell script")
    does("the service, with its key: a role `reader` with permission `read`, given to the agent")
    stack.agent_id = (stack.agent_folder / "id").read_text().strip()
    stack.reader = make_role(stack, "reader", ["read"])
    give(stack, stack.reader)
    agent_does(stack, "login", stack.service_id)
    # The script calls, so that its answer is what is looked at; it fails unless it gets a 2xx.
    agent_does(stack, "call", f"{stack.envoy_url}/hello")
    stack.token = (stack.agent_folder / "access-token").read_text().strip()

    seen = identity_seen(call(stack, "/hello"))
    for name, value in seen.items():
        notes(f"upstream saw {name}: {value}")
    expect(stack.agent_id, seen.get("x-agent-id"), "x-agent-id")
    expect("reader", seen.get("x-agent-roles"), "x-agent-roles")
    expect("read", seen.get("x-agent-permissions"), "x-agent-permissions")
    expect(stack.service_id, seen.get("x-agent-service"), "x-agent-service")
    expect(False, stack.token in str(call(stack, "/hello").body), "the token itself at the upstream")


def forgeries_never_arrive(stack: Stack) -> None:
    step("c", "Identity headers cannot be forged, in any spelling, on any path")
    names = ["x-agent-roles", "x_agent_roles", "X-Agent.Roles", "X-Agent-Id", "x_agent-id"]
    forged = [(name, "forged") for name in names]
    for path, token, why in [
        ("/", bearer(stack.token), "with a good token"),
        ("/open", [], "where a token is not needed"),
        ("/health", [], "where the filter is off"),
    ]:
        does(f"GET {path} ({why}) with {', '.join(names)}: forged")
        answer = stack.envoy.ask("GET", path, forged + token)
        expect(200, answer.status, "status")
        arrived = [f"{name}: {value}" for name, value in answer.body["headers"] if "forged" in value]
        expect([], arrived, "forged headers at the upstream")


def a_permission_is_asked(stack: Stack) -> None:
    step("d", "A route that needs a permission the agent lacks")
    does("GET /admin, where Envoy's route says require_permissions: admin")
    expect("403 permission_missing", call(stack, "/admin").short)


def a_revoked_role_is_gone(stack: Stack) -> None:
    step("e", "A revoked role stops working at the proxy at once, though the token lives for an hour")
    expect(200, call(stack, "/").status, "before")
    does("DELETE the role; from its answer on, GET / over and over")
    path = f"/agents/{stack.agent_id}/roles/{stack.reader}"
    expect({"revoked": True}, stack.as_service("DELETE", path).body)
    answered = time.monotonic()
    refusal = wait_until("refused", lambda: refused(call(stack, "/")), 5 * WITHIN_SECONDS, pause=0)
    took = time.monotonic() - answered
    expect("403 no_role", refusal.short)
    expect_that(took < WITHIN_SECONDS, f"within {WITHIN_SECONDS} s of the answer", f"{took * 1000:.1f} ms")


def the_control_plane_is_killed(stack: Stack) -> None:
    step("f", "The control plane is killed; the proxy goes on deciding")
    # A whole second, since that is what an assignment ends at; the next one but SHORT_SECONDS.
    ends = math.ceil(time.time()) + SHORT_SECONDS
    stack.operator = make_role(stack, "operator", ["admin"])
    does(f"the role `reader` again, and `operator` with permission `admin` until {clock(ends)}")
    give(stack, stack.reader)
    give(stack, stack.operator, ends)
    wait_until("/admin lets in", lambda: call(stack, "/admin").status == 200, 2 * WITHIN_SECONDS)
    does("kill -9 of the control plane")
    stack.kill_control_plane()
    expect(200, call(stack, "/").status, "the token at /")
    expect(200, call(stack, "/admin").status, "the token at /admin")
    tampered = stack.envoy.ask("GET", "/", bearer(with_one_bit_flipped(stack.token)))
    expect("401 token_signature_invalid", tampered.short, "the token with one bit of its signature flipped")

    does(f"GET /admin over and over, until {clock(ends)} is past")
    seconds = ends - time.time() + 5
    refusal = wait_until("refused", lambda: refused(call(stack, "/admin")), seconds, pause=0.002)
    late = time.time() - ends
    expect("403 permission_missing", refusal.short)
    expect_that(0 <= late < WITHIN_SECONDS, "not before it, and within 1 s", f"{late * 1000:.1f} ms after it")
    expect(200, call(stack, "/").status, "the token at /, with the role that stays")


def both_say_the_same(stack: Stack) -> None:
    step("g", "The control plane is back; API and proxy say the same")
    does("starts it again, with the same data and ports")
    stack.start_control_plane()
    does("the role `operator` again, to see that the sidecar follows once more")
    give(stack, stack.operator)
    wait_until("the sidecar follows again", lambda: call(stack, "/admin").status == 200, 10)

    does("a good token: GET /services/:id/verify, and GET / through Envoy")
    verified = verify(stack, stack.token)
    expect(True, verified.body.get("valid"), "valid")
    expect(as_verify_says_it(identity_seen(call(stack, "/"))), in_order(verified.body["agent"]))

    does("a bad token: the same two")
    bad = with_one_bit_flipped(stack.token)
    verified = verify(stack, bad)
    expect(False, verified.body.get("valid"), "valid")
    expect(stack.envoy.ask("GET", "/", bearer(bad)).short, verified.short)


ALL = [
    nobody_without_a_token,
    an_agent_of_openssl_and_curl,
    forgeries_never_arrive,
    a_permission_is_asked,
    a_revoked_role_is_gone,
    the_control_plane_is_killed,
    both_say_the_same,
    all_with_the_command_line,
]


def agent_does(stack: Stack, *arguments: str) -> None:
    quoted = (f"'{argument}'" if " " in argument else argument for argument in arguments)
    does(f"agent.sh {' '.join(quoted)}")
    answer = stack.agent(*arguments)
    if arguments[0] != "call":
        notes(answer)


def call(stack: Stack, path: str) -> Answer:
    """Through Envoy, with the agent's token."""
    return stack.envoy.ask("GET", path, bearer(stack.token))


def refused(answer: Answer) -> Answer | None:
    return answer if answer.status != 200 else None


def make_role(stack: Stack, name: str, permissions: list[str]) -> str:
    body = {"name": name, "description": f"the demo's {name}", "permissions": permissions}
    return stack.as_service("POST", "/roles", body).body["roleId"]


def give(stack: Stack, role: str, ends: int | None = None) -> None:
    body = {"roleId": role} | ({"expiresAt": clock(ends)} if ends else {})
    answer = stack.as_service("POST", f"/agents/{stack.agent_id}/roles", body)
    if answer.body != {"assigned": True}:
        raise Failed(f"the role was not assigned: {answer}")


def verify(stack: Stack, token: str) -> Answer:
    headers = bearer(stack.service_key) + [("X-Agent-Token", f"Bearer {token}")]
    return stack.api.ask("GET", f"/services/{stack.service_id}/verify", headers)


def identity_seen(answer: Answer) -> dict[str, str]:
    """The identity headers that the upstream saw."""
    if answer.status != 200:
        raise Failed(f"expected to get through, came {answer}")
    return {name: value for name, value in answer.body["headers"] if name.startswith("x-agent-")}


def as_verify_says_it(seen: dict[str, str]) -> dict:
    """Headers as the `agent` of a verify answer: lists are comma-separated and percent-encoded there."""
    return in_order(
        {
            "id": seen["x-agent-id"],
            "name": unquote(seen["x-agent-name"]),
            "trustScore": json.loads(seen["x-agent-trust-score"]),
            "roles": [unquote(role) for role in seen["x-agent-roles"].split(",")],
            "permissions": [unquote(permission) for permission in seen["x-agent-permissions"].split(",")],
        }
    )


def in_order(agent: dict) -> dict:
    return agent | {"roles": sorted(agent["roles"]), "permissions": sorted(agent["permissions"])}


def with_one_bit_flipped(token: str) -> str:
    """Inside the signature's bytes: the last character of its base64 has padding bits that mean nothing."""
    signed, _, signature = token.rpartition(".")
    raw = bytearray(base64.urlsafe_b64decode(signature + "=="))
    raw[len(raw) // 2] ^= 1
    return f"{signed}.{base64.urlsafe_b64encode(raw).decode().rstrip('=')}"


def clock(second: int) -> str:
    return datetime.fromtimestamp(second, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
