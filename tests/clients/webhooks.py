#!/usr/bin/env python3
"""A receiver in Python: verifies signatures with the reference library of Standard Webhooks, and bodies with jsonschema
against the OpenAPI document.

    webhooks.py [OPENAPI]

Each line of the input is an object with the headers `id`, `timestamp` and `signature`, `body` in base64 and `secret`;
or with only `body`, which is validated against the OpenAPI document. Each line of the output is `ok` or the error.
"""

import base64
import json
import sys

import jsonschema
import referencing
import referencing.jsonschema
import standardwebhooks

OPENAPI_URI = "urn:openapi"


def verify(line, body):
    headers = {f"webhook-{name}": line[name] for name in ("id", "timestamp", "signature")}
    standardwebhooks.Webhook(line["secret"]).verify(body, headers)


def validate_event(openapi, body):
    event = json.loads(body)
    name = event["event"]
    if name not in openapi["webhooks"]:
        raise jsonschema.ValidationError(f"{name} is not in the OpenAPI document")
    schema = openapi["webhooks"][name]["post"]["requestBody"]["content"]["application/json"]["schema"]
    resource = referencing.Resource.from_contents(openapi, referencing.jsonschema.DRAFT202012)
    registry = referencing.Registry().with_resource(OPENAPI_URI, resource)
    absolute = absolute_references(schema)
    jsonschema.Draft202012Validator(absolute, registry=registry).validate(event)


def absolute_references(schema):
    """Makes references absolute, because the schema is validated outside of its document."""
    if isinstance(schema, dict):
        return {
            name: OPENAPI_URI + value if name == "$ref" else absolute_references(value)
            for name, value in schema.items()
        }
    return [absolute_references(item) for item in schema] if isinstance(schema, list) else schema


def main(path=None):
    openapi = json.load(open(path)) if path else None
    for line in sys.stdin:
        line = json.loads(line)
        body = base64.b64decode(line["body"])
        try:
            verify(line, body) if "secret" in line else validate_event(openapi, body)
            print("ok", flush=True)
        except (standardwebhooks.WebhookVerificationError, jsonschema.ValidationError, ValueError) as error:
            print(repr(str(error)), flush=True)


main(*sys.argv[1:])
