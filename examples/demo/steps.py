"""The steps of the demo."""

import base64
import json
import math
import time
from datetime import datetime, timezone
from urllib.parse import unquote

from console import DemoFailed, does, expect, expect_that, notes, step, wait_until
from stack import Stack, bearer
from typed import use_command_line
from web import Response

# A change must take effect at the sidecar within this time.
WITHIN_SECONDS = 1
# Lifetime of the role assignment in step f: long enough to kill a server meanwhile, and short to wait for.
SHORT_ROLE_SECONDS = 3


def reject_requests_without_token(stack: Stack) -> None:
    step("a", "A request without a token is rejected, with the reason")
    does("GET / through Envoy, with no token")
    response = stack.envoy.request("GET", "/")
    expect("401 token_missing", response.short)
    expect("token_missing", response.headers.get("x-agent-reason"), "header x-agent-reason")


def log_in_with_openssl_and_curl(stack: Stack) -> None:
    step("b", "An agent made of openssl and curl gets through, and the service reads its identity from headers")
    run_agent(stack, "key")
    run_agent(stack, "register", "demo@example.com", "A shell script")
    does("the service creates a role `reader` with permission `read` and assigns it to the agent")
    stack.agent_id = (stack.agent_folder / "id").read_text().strip()
    stack.reader = create_role(stack, "reader", ["read"])
    assign(stack, stack.reader)
    run_agent(stack, "login", stack.service_id)
    # The script fails unless the status is 2xx.
    run_agent(stack, "call", f"{stack.envoy_url}/hello")
    stack.token = (stack.agent_folder / "access-token").read_text().strip()

    seen = upstream_identity(call(stack, "/hello"))
    for name, value in seen.items():
        notes(f"upstream saw {name}: {value}")
    expect(stack.agent_id, seen.get("x-agent-id"), "x-agent-id")
    expect("reader", seen.get("x-agent-roles"), "x-agent-roles")
    expect("read", seen.get("x-agent-permissions"), "x-agent-permissions")
    expect(stack.service_id, seen.get("x-agent-service"), "x-agent-service")
    expect(False, stack.token in str(call(stack, "/hello").body), "token visible to the upstream")


def strip_forged_headers(stack: Stack) -> None:
    step("c", "Identity headers cannot be forged, in any spelling, on any path")
    names = ["x-agent-roles", "x_agent_roles", "X-Agent.Roles", "X-Agent-Id", "x_agent-id"]
    forged = [(name, "forged") for name in names]
    for path, token, why in [
        ("/", bearer(stack.token), "with a valid token"),
        ("/open", [], "where no token is required"),
        ("/health", [], "where the filter is disabled"),
    ]:
        does(f"GET {path} ({why}) with {', '.join(names)}: forged")
        response = stack.envoy.request("GET", path, forged + token)
        expect(200, response.status, "status")
        arrived = [f"{name}: {value}" for name, value in response.body["headers"] if "forged" in value]
        expect([], arrived, "forged headers at the upstream")


def require_permission(stack: Stack) -> None:
    step("d", "A route requires a permission that the agent does not have")
    does("GET /admin, whose route has require_permissions: admin")
    expect("403 permission_missing", call(stack, "/admin").short)


def revoke_role(stack: Stack) -> None:
    step("e", "A revoked role stops working at the proxy at once, although the token is valid for an hour")
    expect(200, call(stack, "/").status, "before")
    does("DELETE the role assignment, then repeat GET /")
    path = f"/agents/{stack.agent_id}/roles/{stack.reader}"
    expect({"revoked": True}, stack.as_service("DELETE", path).body)
    answered = time.monotonic()
    refusal = wait_until("refused", lambda: refused(call(stack, "/")), 5 * WITHIN_SECONDS, pause=0)
    took = time.monotonic() - answered
    expect("403 no_role", refusal.short)
    expect_that(took < WITHIN_SECONDS, f"within {WITHIN_SECONDS} s of the response", f"{took * 1000:.1f} ms")


def kill_control_plane(stack: Stack) -> None:
    step("f", "The control plane is killed; the proxy continues to decide")
    # Assignments expire at whole seconds.
    ends = math.ceil(time.time()) + SHORT_ROLE_SECONDS
    stack.operator = create_role(stack, "operator", ["admin"])
    does(f"assign the role `reader` again, and `operator` with permission `admin` until {rfc3339(ends)}")
    assign(stack, stack.reader)
    assign(stack, stack.operator, ends)
    wait_until("/admin allows", lambda: call(stack, "/admin").status == 200, 2 * WITHIN_SECONDS)
    does("kill -9 of the control plane")
    stack.kill_control_plane()
    expect(200, call(stack, "/").status, "the token at /")
    expect(200, call(stack, "/admin").status, "the token at /admin")
    tampered = stack.envoy.request("GET", "/", bearer(with_one_bit_flipped(stack.token)))
    expect("401 token_signature_invalid", tampered.short, "a token with one flipped bit in its signature")

    does(f"repeat GET /admin until {rfc3339(ends)} has passed")
    seconds = ends - time.time() + 5
    refusal = wait_until("refused", lambda: refused(call(stack, "/admin")), seconds, pause=0.002)
    late = time.time() - ends
    expect("403 permission_missing", refusal.short)
    expect_that(0 <= late < WITHIN_SECONDS, "not before, and within 1 s", f"{late * 1000:.1f} ms after")
    expect(200, call(stack, "/").status, "the token at /, with the remaining role")


def compare_api_and_proxy(stack: Stack) -> None:
    step("g", "The control plane is back; API and proxy give the same response")
    does("start it again, with the same data and ports")
    stack.start_control_plane()
    does("assign the role `operator` again, to see that the sidecar follows the stream again")
    assign(stack, stack.operator)
    wait_until("the sidecar follows the stream", lambda: call(stack, "/admin").status == 200, 10)

    does("valid token: GET /services/:id/verify, and GET / through Envoy")
    verified = verify(stack, stack.token)
    expect(True, verified.body.get("valid"), "valid")
    expect(in_verify_format(upstream_identity(call(stack, "/"))), with_sorted_lists(verified.body["agent"]))

    does("invalid token: the same requests")
    bad = with_one_bit_flipped(stack.token)
    verified = verify(stack, bad)
    expect(False, verified.body.get("valid"), "valid")
    expect(stack.envoy.request("GET", "/", bearer(bad)).short, verified.short)


ALL = [
    reject_requests_without_token,
    log_in_with_openssl_and_curl,
    strip_forged_headers,
    require_permission,
    revoke_role,
    kill_control_plane,
    compare_api_and_proxy,
    use_command_line,
]


def run_agent(stack: Stack, *arguments: str) -> None:
    quoted = (f"'{argument}'" if " " in argument else argument for argument in arguments)
    does(f"agent.sh {' '.join(quoted)}")
    response = stack.agent(*arguments)
    if arguments[0] != "call":
        notes(response)


def call(stack: Stack, path: str) -> Response:
    """Sends a request through Envoy with the token of the agent."""
    return stack.envoy.request("GET", path, bearer(stack.token))


def refused(response: Response) -> Response | None:
    return response if response.status != 200 else None


def create_role(stack: Stack, name: str, permissions: list[str]) -> str:
    body = {"name": name, "description": f"the demo's {name}", "permissions": permissions}
    return stack.as_service("POST", "/roles", body).body["roleId"]


def assign(stack: Stack, role: str, ends: int | None = None) -> None:
    body = {"roleId": role} | ({"expiresAt": rfc3339(ends)} if ends else {})
    response = stack.as_service("POST", f"/agents/{stack.agent_id}/roles", body)
    if response.body != {"assigned": True}:
        raise DemoFailed(f"the role was not assigned: {response}")


def verify(stack: Stack, token: str) -> Response:
    headers = bearer(stack.service_key) + [("X-Agent-Token", f"Bearer {token}")]
    return stack.api.request("GET", f"/services/{stack.service_id}/verify", headers)


def upstream_identity(response: Response) -> dict[str, str]:
    """Returns the identity headers that the upstream received."""
    if response.status != 200:
        raise DemoFailed(f"expected 200, got {response}")
    return {name: value for name, value in response.body["headers"] if name.startswith("x-agent-")}


def in_verify_format(seen: dict[str, str]) -> dict:
    """Converts identity headers to the `agent` object of a verify response. Lists in headers are comma-separated and
    percent-encoded."""
    return with_sorted_lists(
        {
            "id": seen["x-agent-id"],
            "name": unquote(seen["x-agent-name"]),
            "trustScore": json.loads(seen["x-agent-trust-score"]),
            "roles": [unquote(role) for role in seen["x-agent-roles"].split(",")],
            "permissions": [unquote(permission) for permission in seen["x-agent-permissions"].split(",")],
        }
    )


def with_sorted_lists(agent: dict) -> dict:
    return agent | {"roles": sorted(agent["roles"]), "permissions": sorted(agent["permissions"])}


def with_one_bit_flipped(token: str) -> str:
    """Flips a bit in the middle of the signature. The last base64 character has unused padding bits."""
    signed, _, signature = token.rpartition(".")
    raw = bytearray(base64.urlsafe_b64decode(signature + "=="))
    raw[len(raw) // 2] ^= 1
    return f"{signed}.{base64.urlsafe_b64encode(raw).decode().rstrip('=')}"


def rfc3339(second: int) -> str:
    return datetime.fromtimestamp(second, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
