"""A program that knows only a token endpoint, a client id and a client secret. It prints a line for each request."""

import base64
import json
import os
import sys
import urllib.error
import urllib.parse
import urllib.request

URL, ID, SECRET = (os.environ[f"OAUTH_{name}"] for name in ("TOKEN_URL", "CLIENT_ID", "CLIENT_SECRET"))


def request(fields, headers):
    form = urllib.parse.urlencode({"grant_type": "client_credentials", **fields}).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(URL, form, headers)) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def basic(secret):
    quoted = [urllib.parse.quote_plus(text, safe="") for text in (ID, secret)]
    return {"Authorization": "Basic " + base64.b64encode(":".join(quoted).encode()).decode()}


for status, body in (
    request({}, basic(SECRET)),
    request({"client_id": ID, "client_secret": SECRET}, {}),
    request({}, basic(SECRET[:-1] + "g")),
):
    print(json.dumps({"status": status, "body": body}))
sys.exit(42)
