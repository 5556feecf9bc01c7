"""Hooks for what a schema cannot express: existing ids, valid keys, and a check that errors are documented."""

import functools
import json
import os
import re
from datetime import datetime, timedelta, timezone

import requests
import schemathesis
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import strategies as st

ID = re.compile(r"^(agent|svc|role|key|wh|evt)_[0-7][0-9a-hjkmnp-tv-z]{25}$")
PRIVATE_USE = re.compile("[\U000e0000-\U000e007f\U000f0000-\U0010ffff]")
SERVICE = os.environ["COUNTERSIGN_SERVICE_ID"]
EXISTING = {"svc": SERVICE, "agent": os.environ["AGENT_ID"], "role": os.environ["ROLE_ID"]}


def public_key(number: int) -> str:
    key = ec.derive_private_key(number, ec.SECP256R1()).public_key()
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()


# A regular expression in the OpenAPI document cannot describe valid public keys.
schemathesis.openapi.format("pem-public-key", st.integers(1, 50).map(public_key))

# `expiresAt` must be in the future, which the format `date-time` cannot express.
future_times = st.datetimes(datetime(2090, 1, 1), datetime(2190, 1, 1), timezones=st.integers(-720, 720).map(
    lambda minutes: timezone(timedelta(minutes=minutes))
))
schemathesis.openapi.format("date-time", future_times.map(datetime.isoformat))

atom = st.text("abcdefghijklmnopqrstuvwxyzäöüßéçжλ0123456789+-_", min_size=1, max_size=12)
label = st.text("abcdefghijklmnopqrstuvwxyzäß0123456789", min_size=1, max_size=12)
address = st.builds("{}@{}".format, st.lists(atom, min_size=1, max_size=3).map(".".join), st.lists(label, min_size=1, max_size=4).map(".".join))
schemathesis.openapi.format("idn-email", address)


# The server resolves host names. The address 127.0.0.1 exists, but nothing listens on port 65535.
CLOSED_PORT_URL = "http://127.0.0.1:65535/"
schemathesis.openapi.format("uri", st.text("abcdefgh/-_.~%20?=&", max_size=40).map(CLOSED_PORT_URL.__add__))

# A service has each resource URI once.
schemathesis.openapi.format("resource-uri", st.uuids().map("https://{}.example/mcp".format))


def call(method: str, path: str, body: dict | None = None) -> dict:
    response = requests.request(
        method,
        os.environ["COUNTERSIGN_URL"] + path,
        json=body,
        headers={"Authorization": "Bearer " + os.environ["COUNTERSIGN_HUMAN_TOKEN"]},
        verify=os.environ["COUNTERSIGN_CA"],
        timeout=10,
    )
    response.raise_for_status()
    return response.json()


def create(path: str, body: dict, name: str) -> str:
    return call("POST", path, body)[name]


def webhook_collection(path: str) -> str:
    return "/webhooks" if path.startswith("/webhooks") else f"/services/{SERVICE}/webhooks"


WEBHOOK = {"url": CLOSED_PORT_URL, "events": ["agent.role_assigned"], "description": "permanent"}


@functools.cache
def permanent_id(kind: str, path: str) -> str:
    """The id of a webhook in this collection that is not deleted, or of an event that was sent to it."""
    if kind == "wh":
        return create(path, WEBHOOK, "webhookId")
    return create(f"{path}/{permanent_id('wh', path)}/test", {}, "eventId")


# Creates the permanent webhooks before the tests, because a collection has at most ten webhooks.
for collection in (webhook_collection(""), "/webhooks"):
    permanent_id("evt", collection)


def deletable_webhook_id(path: str) -> str:
    webhook_ids = [webhook["webhookId"] for webhook in call("GET", path)["data"]]
    deletable_ids = [webhook_id for webhook_id in webhook_ids if webhook_id != permanent_id("wh", path)]
    return deletable_ids[0] if deletable_ids else create(path, WEBHOOK, "webhookId")


def create_deletable(kind: str, path: str) -> str:
    """Creates a resource that the request may delete, and returns its id."""
    unique = os.urandom(8).hex()
    if kind == "wh":
        return deletable_webhook_id(webhook_collection(path))
    if kind == "role":
        return create(f"/services/{SERVICE}/roles", {"name": unique, "permissions": []}, "roleId")
    if kind == "key":
        return create(f"/services/{SERVICE}/keys", {"name": unique, "scope": "sync"}, "keyId")
    if kind == "svc":
        return create("/services", {"name": unique}, "serviceId")
    return create("/auth/register", {"email": "a@b.example", "name": unique, "publicKey": public_key(7)}, "agentId")


def existing_id(text: object, operation: object) -> object:
    """Replaces a well-formed id with an existing id, and returns other values unchanged."""
    match = ID.match(text) if isinstance(text, str) else None
    if not match:
        return text
    kind = match[1]
    is_destructive = (operation.method.upper(), operation.path) in {
        ("DELETE", "/services/{service}"),
        ("DELETE", "/agents/{agent}"),
        ("DELETE", "/services/{service}/roles/{role}"),
        ("DELETE", "/services/{service}/keys/{key}"),
        ("DELETE", "/services/{service}/webhooks/{webhook}"),
        ("DELETE", "/webhooks/{webhook}"),
        ("PUT", "/agents/{agent}/status"),
        ("PUT", "/agents/{agent}/services/{service}"),
    }
    # The service of a request is deleted only if the request has no other id.
    if is_destructive and (kind != "svc" or operation.path == "/services/{service}"):
        return create_deletable(kind, operation.path)
    if kind in ("wh", "evt"):
        return permanent_id(kind, webhook_collection(operation.path))
    return EXISTING.get(kind, text)


def with_existing_ids(context, values):
    if isinstance(values, dict):
        return {name: existing_id(value, context.operation) for name, value in values.items()}
    return values


@schemathesis.hook
def map_path_parameters(context, path_parameters):
    return with_existing_ids(context, path_parameters)


@schemathesis.hook
def map_query(context, query):
    return with_existing_ids(context, query)


@schemathesis.hook
def map_body(context, body):
    body = with_existing_ids(context, body)
    if isinstance(body, dict) and is_past(body.get("expiresAt")):
        # A time from a response is well-formed but has passed.
        return body | {"expiresAt": "2099-12-31T23:00:00Z"}
    return body


# The configuration sets the service and the agent of a request after `map_path_parameters`.
DELETABLE = {"/services/{service}": ("service", "svc"), "/agents/{agent}": ("agent", "agent")}

EXAMPLE_URLS = ("https://billing.example.org/", "https://api.example/")


@schemathesis.hook
def before_call(context, case, kwargs):
    # A cursor cannot be generated from a schema; tests/tests/api/long_lists.rs covers cursors.
    if isinstance(case.query, dict):
        case.query.pop("cursor", None)
    if case.method.upper() == "DELETE" and case.operation.path in DELETABLE:
        parameter, kind = DELETABLE[case.operation.path]
        if case.path_parameters.get(parameter) == EXISTING[kind]:
            case.path_parameters[parameter] = create_deletable(kind, case.operation.path)
    if isinstance(case.body, dict) and str(case.body.get("url")).startswith(EXAMPLE_URLS):
        # The hosts of the example URLs do not resolve in tests.
        case.body = case.body | {"url": CLOSED_PORT_URL}


def is_past(value: object) -> bool:
    try:
        return datetime.fromisoformat(str(value).replace("Z", "+00:00")).year < 2090
    except ValueError:
        return False


@schemathesis.hook
def filter_body(context, body):
    """Names must not contain tags or private-use characters above U+FFFF; the pattern cannot express that."""
    return not PRIVATE_USE.search(json.dumps(body, ensure_ascii=False, default=repr))


# RFC 6749, sections 4.1.2.1 and 5.2, and RFC 8707.
OAUTH_ERRORS = {
    "invalid_request",
    "invalid_client",
    "invalid_grant",
    "invalid_scope",
    "invalid_target",
    "unauthorized_client",
    "unsupported_grant_type",
    "unsupported_response_type",
}


@schemathesis.check
def errors_are_documented(context, response, case):
    """Each error has an example for its status, named after its reason or code."""
    if response.status_code < 400 or response.status_code == 405:
        return
    if case.operation.path.startswith("/oauth/"):
        assert response.json()["error"] in OAUTH_ERRORS
        return
    documented = case.operation.definition.raw["responses"]
    error = response.json()["error"]
    name = error["details"].get("reason", error["code"])
    documented_response = documented.get(str(response.status_code), {})
    examples = documented_response.get("content", {}).get("application/json", {}).get("examples", {})
    assert name in examples, f"{response.status_code} {name} is not documented, but {sorted(examples)}"
