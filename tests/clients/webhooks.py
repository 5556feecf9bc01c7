#!/usr/bin/env python3
"""A receiver in Python: the reference library of Standard Webhooks says which signatures are good, and jsonschema
which bodies fit the description of the API.

    webhooks.py [OPENAPI]

Each line of the input is an object with the headers `id`, `timestamp` and `signature`, `body` in base64 and `secret`;
or with `body` alone, to be judged by the description. Each line of the output is `ok` or what is wrong.
"""

import base64
import json
import sys

import jsonschema
import referencing
import referencing.jsonschema
import standardwebhooks

DESCRIPTION = "urn:description"


def verify(line, body):
    headers = {f"webhook-{name}": line[name] for name in ("id", "timestamp", "signature")}
    standardwebhooks.Webhook(line["secret"]).verify(body, headers)


def fit(openapi, body):
    event = json.loads(body)
    name = event["event"]
    if name not in openapi["webhooks"]:
        raise jsonschema.ValidationError(f"{name} is not described")
    described = openapi["webhooks"][name]["post"]["requestBody"]["content"]["application/json"]["schema"]
    resource = referencing.Resource.from_contents(openapi, referencing.jsonschema.DRAFT202012)
    registry = referencing.Registry().with_resource(DESCRIPTION, resource)
    absolute = absolute_references(described)
    jsonschema.Draft202012Validator(absolute, registry=registry).validate(event)


def absolute_references(schema):
    """References in a schema that is taken out of the description lead into it all the same."""
    if isinstance(schema, dict):
        return {
            name: DESCRIPTION + value if name == "$ref" else absolute_references(value)
            for name, value in schema.items()
        }
    return [absolute_references(item) for item in schema] if isinstance(schema, list) else schema


def main(path=None):
    openapi = json.load(open(path)) if path else None
    for line in sys.stdin:
        line = json.loads(line)
        body = base64.b64decode(line["body"])
        try:
            verify(line, body) if "secret" in line else fit(openapi, body)
            print("ok", flush=True)
        except (standardwebhooks.WebhookVerificationError, jsonschema.ValidationError, ValueError) as error:
            print(repr(str(error)), flush=True)


main(*sys.argv[1:])
