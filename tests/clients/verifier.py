#!/usr/bin/env python3
"""A service in Python that verifies tokens by the published keys alone, and keeps these for as long as it may.

    verifier.py SERVICE_ID        a token on each line of its input; `ok KID` or what is wrong for each

It asks for the keys again when their time is over and never before, not even for a key that it does not know.
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
        self.keys, self.until = {}, 0.0

    def get(self, kid):
        if time.monotonic() >= self.until:
            asked = time.monotonic()
            with urllib.request.urlopen(f"{URL}/.well-known/jwks.json", context=TLS) as answer:
                age = int(re.search(r"max-age=(\d+)", answer.headers["Cache-Control"])[1])
                keys = jwt.PyJWKSet.from_json(answer.read().decode()).keys
            self.keys, self.until = {key.key_id: key for key in keys}, asked + age
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
