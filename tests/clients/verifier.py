#!/usr/bin/env python3
"""A service in Python that verifies tokens with the published keys, which it caches for the maximum allowed time.

    verifier.py SERVICE_ID        reads one token per line; prints `ok KID` or the error for each

It fetches the keys again only when the cache has expired, not even for an unknown key.
"""

import os
import re
import ssl
import sys
import time
import urllib.request

import jwt

URL = os.environ["COUNTERSIGN_URL"]
TLS = ssl.create_default_context(cafile=os.environ.get("COUNTERSIGN_CA"))


class Keys:
    def __init__(self):
        self.keys, self.expires_at = {}, 0.0

    def get(self, kid):
        if time.monotonic() >= self.expires_at:
            fetched_at = time.monotonic()
            with urllib.request.urlopen(f"{URL}/.well-known/jwks.json", context=TLS) as response:
                age = int(re.search(r"max-age=(\d+)", response.headers["Cache-Control"])[1])
                keys = jwt.PyJWKSet.from_json(response.read().decode()).keys
            self.keys, self.expires_at = {key.key_id: key for key in keys}, fetched_at + age
        return self.keys[kid]


def main(service):
    keys = Keys()
    for token in sys.stdin:
        token = token.strip()
        kid = jwt.get_unverified_header(token)["kid"]
        try:
            jwt.decode(token, keys.get(kid), algorithms=["ES256"], audience=service, issuer=URL)
            print("ok", kid, flush=True)
        except (KeyError, jwt.PyJWTError) as error:
            print("refused", kid, repr(error), flush=True)


main(*sys.argv[1:])
