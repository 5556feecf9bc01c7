"""The steps of the demo."""

import base64
import http.client
import json
import math
import time
from datetime import datetime, timezone
from urllib.parse import unquote

from command_line import use_command_line
from console import DemoFailed, expect, expect_condition, print_action, print_note, print_step, wait_until
from stack import Stack, bearer
from web import Response

# The time within which a change must take effect at the sidecar.
EFFECT_SECONDS = 1
# The lifetime of the role assignment in step f. The control plane is killed before the assignment expires.
SHORT_ROLE_SECONDS = 3


def reject_requests_without_token(stack: Stack) -> None:
    print_step("a", "A request without a token is rejected, with the reason")
    print_action("GET / through Envoy, with no token")
    response = stack.envoy.request("GET", "/")
    expect("401 token_missing", response.status_and_reason)
    expect("token_missing", response.headers.get("x-agent-reason"), "header x-agent-reason")


def log_in_with_openssl_and_curl(stack: Stack) -> None:
    print_step("b", "An agent that uses openssl and curl is allowed, and the service reads its identity from headers")
    run_agent(stack, "key")
    run_agent(stack, "register", "demo@example.com", "A shell script")
    print_action("the service creates a role `reader` with permission `read` and assigns it to the agent")
    stack.agent_id = (stack.agent_folder / "id").read_text().strip()
    stack.reader = create_role(stack, "reader", ["read"])
    assign(stack, stack.reader)
    run_agent(stack, "login", stack.service_id)
    # The script exits with 1 if the status is not 2xx.
    run_agent(stack, "call", f"{stack.envoy_url}/hello")
    stack.token = (stack.agent_folder / "access-token").read_text().strip()

    identity = upstream_identity(call(stack, "/hello"))
    for name, value in identity.items():
        print_note(f"upstream received {name}: {value}")
    expect(stack.agent_id, identity.get("x-agent-id"), "x-agent-id")
    expect("reader", identity.get("x-agent-roles"), "x-agent-roles")
    expect("read", identity.get("x-agent-permissions"), "x-agent-permissions")
    expect(stack.service_id, identity.get("x-agent-service"), "x-agent-service")
    expect(False, stack.token in str(call(stack, "/hello").body), "whether the upstream received the token")


def strip_forged_headers(stack: Stack) -> None:
    print_step("c", "Identity headers cannot be forged, in any spelling, on any path")
    names = ["x-agent-roles", "x_agent_roles", "X-Agent.Roles", "X-Agent-Id", "x_agent-id"]
    forged = [(name, "forged") for name in names]
    for path, token, condition in [
        ("/", bearer(stack.token), "with a valid token"),
        ("/open", [], "where no token is required"),
        ("/health", [], "where the filter is disabled"),
    ]:
        print_action(f"GET {path} ({condition}) with {', '.join(names)}: forged")
        response = stack.envoy.request("GET", path, forged + token)
        expect(200, response.status, "status")
        received = [f"{name}: {value}" for name, value in response.body["headers"] if "forged" in value]
        expect([], received, "forged headers that the upstream received")


def require_permission(stack: Stack) -> None:
    print_step("d", "A route requires a permission that the agent does not have")
    print_action("GET /admin, whose route has require_permissions: admin")
    expect("403 permission_missing", call(stack, "/admin").status_and_reason)


def revoke_role(stack: Stack) -> None:
    print_step("e", "A revoked role stops working at the proxy at once, although the token is valid for an hour")
    expect(200, call(stack, "/").status, "before")
    print_action("DELETE the role assignment, then repeat GET /")
    path = f"/agents/{stack.agent_id}/roles/{stack.reader}"
    expect(True, stack.as_service("DELETE", path).body["revoked"], "revoked")
    revoked_at = time.monotonic()
    denial = wait_until("the proxy denies", lambda: denied_or_none(call(stack, "/")), 5 * EFFECT_SECONDS, pause=0)
    elapsed = time.monotonic() - revoked_at
    expect("403 no_role", denial.status_and_reason)
    expect_condition(elapsed < EFFECT_SECONDS, f"within {EFFECT_SECONDS} s of the response", f"{elapsed * 1000:.1f} ms")


def kill_control_plane(stack: Stack) -> None:
    print_step("f", "The control plane is killed; the proxy continues to decide")
    # Assignments expire at whole seconds.
    expires_at = math.ceil(time.time()) + SHORT_ROLE_SECONDS
    stack.operator = create_role(stack, "operator", ["admin"])
    print_action(f"assign the role `reader` again, and `operator` with permission `admin` until {rfc3339(expires_at)}")
    assign(stack, stack.reader)
    assign(stack, stack.operator, expires_at)
    wait_until("the proxy allows /admin", lambda: call(stack, "/admin").status == 200, 2 * EFFECT_SECONDS)
    print_action("kill -9 of the control plane")
    stack.kill_control_plane()
    expect(200, call(stack, "/").status, "the token at /")
    expect(200, call(stack, "/admin").status, "the token at /admin")
    tampered = stack.envoy.request("GET", "/", bearer(with_flipped_bit(stack.token)))
    expect("401 token_signature_invalid", tampered.status_and_reason, "a token with one flipped bit in its signature")

    print_action(f"repeat GET /admin until {rfc3339(expires_at)} has passed")
    seconds = expires_at - time.time() + 5
    denial = wait_until("the proxy denies", lambda: denied_or_cut(stack, "/admin"), seconds, pause=0.002)
    delay = time.time() - expires_at
    expect("403 permission_missing", denial.status_and_reason)
    # The sidecar estimates the clock of the control plane. A request that Envoy cuts at the expiry takes one more second.
    denied_in_time = -0.1 <= delay < 3 * EFFECT_SECONDS
    expect_condition(denied_in_time, "denied within 3 s after the expiry, not earlier", f"{delay * 1000:.1f} ms after")
    expect(200, call(stack, "/").status, "the token at /, with the remaining role")


def compare_api_and_proxy(stack: Stack) -> None:
    print_step("g", "The control plane is started again; API and proxy give the same response")
    print_action("start the control plane again, with the same data and ports")
    stack.start_control_plane()
    print_action("assign the role `operator` again, to test that the sidecar receives changes again")
    assign(stack, stack.operator)
    wait_until("the sidecar receives the change", lambda: call(stack, "/admin").status == 200, 10)

    print_action("valid token: send GET /services/:id/verify, and GET / through Envoy")
    verified = verify(stack, stack.token)
    expect(True, verified.body.get("valid"), "valid")
    expect(in_verify_format(upstream_identity(call(stack, "/"))), with_sorted_lists(verified.body["agent"]))

    print_action("invalid token: send the same requests")
    invalid_token = with_flipped_bit(stack.token)
    verified = verify(stack, invalid_token)
    expect(False, verified.body.get("valid"), "valid")
    expect(stack.envoy.request("GET", "/", bearer(invalid_token)).status_and_reason, verified.status_and_reason)


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
    print_action(f"agent.sh {' '.join(quoted)}")
    output = stack.run_agent_script(*arguments)
    if arguments[0] != "call":
        print_note(output)


def call(stack: Stack, path: str) -> Response:
    """Sends a request through Envoy with the token of the agent."""
    return stack.envoy.request("GET", path, bearer(stack.token))


def denied_or_none(response: Response) -> Response | None:
    """Returns the response if its status is not 200, else None."""
    return response if response.status != 200 else None


def denied_or_cut(stack: Stack, path: str) -> Response | None:
    """Sends a request. Returns the response if the request was denied, else None.

    Envoy cuts a request whose decision ends meanwhile: it answers 504, or closes the connection after the head of the response.
    """
    try:
        denied = denied_or_none(call(stack, path))
    except http.client.IncompleteRead:
        stack.envoy.close()
        return None
    return denied if denied and denied.status != 504 else None


def create_role(stack: Stack, name: str, permissions: list[str]) -> str:
    body = {"name": name, "description": f"Role {name} of the demo", "permissions": permissions}
    return stack.as_service("POST", "/roles", body).body["roleId"]


def assign(stack: Stack, role: str, expires_at: int | None = None) -> None:
    body = {"roleId": role} | ({"expiresAt": rfc3339(expires_at)} if expires_at else {})
    response = stack.as_service("POST", f"/agents/{stack.agent_id}/roles", body)
    if response.body.get("assigned") is not True:
        raise DemoFailed(f"the role was not assigned: {response}")


def verify(stack: Stack, token: str) -> Response:
    headers = bearer(stack.service_key) + [("X-Agent-Token", f"Bearer {token}")]
    return stack.api.request("GET", f"/services/{stack.service_id}/verify", headers)


def upstream_identity(response: Response) -> dict[str, str]:
    """Returns the identity headers that the upstream received."""
    if response.status != 200:
        raise DemoFailed(f"expected 200, got {response}")
    return {name: value for name, value in response.body["headers"] if name.startswith("x-agent-")}


def in_verify_format(identity: dict[str, str]) -> dict:
    """Converts identity headers to the `agent` object of a verify response. Lists in headers are comma-separated and
    percent-encoded."""
    return with_sorted_lists(
        {
            "id": identity["x-agent-id"],
            "name": unquote(identity["x-agent-name"]),
            "trustScore": json.loads(identity["x-agent-trust-score"]),
            "roles": [unquote(role) for role in identity["x-agent-roles"].split(",")],
            "permissions": [unquote(permission) for permission in identity["x-agent-permissions"].split(",")],
        }
    )


def with_sorted_lists(agent: dict) -> dict:
    return agent | {"roles": sorted(agent["roles"]), "permissions": sorted(agent["permissions"])}


def with_flipped_bit(token: str) -> str:
    """Flips a bit in the middle of the signature, because the last base64 character has unused padding bits."""
    signed, _, signature = token.rpartition(".")
    raw = bytearray(base64.urlsafe_b64decode(signature + "=="))
    raw[len(raw) // 2] ^= 1
    return f"{signed}.{base64.urlsafe_b64encode(raw).decode().rstrip('=')}"


def rfc3339(second: int) -> str:
    return datetime.fromtimestamp(second, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
