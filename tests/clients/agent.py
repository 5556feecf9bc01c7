#!/usr/bin/env python3
"""An agent in Python: generates a key, registers, logs in, and verifies its token as a service would.

    agent.py der|raw SERVICE_ID        the encoding of the signature: DER, or 64 bytes r and s

Requires `cryptography` and `PyJWT`. COUNTERSIGN_URL is the URL of the control plane, COUNTERSIGN_CA its certificate
authority.
"""

import json
import os
import ssl
import sys
import urllib.request

import jwt
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, utils

URL = os.environ["COUNTERSIGN_URL"]
TLS = ssl.create_default_context(cafile=os.environ.get("COUNTERSIGN_CA"))


def main(encoding, service):
    key = ec.generate_private_key(ec.SECP256R1())
    pem = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    agent = post("/auth/register", email="python@example.org", name="Python", publicKey=pem.decode())["agentId"]

    challenge = post("/auth/challenge", agentId=agent, serviceId=service)
    signature = sign(key, challenge["nonce"].encode(), encoding).hex()
    tokens = post("/auth/authenticate", challengeId=challenge["challengeId"], signature=signature)

    claims = verify(tokens["accessToken"], service)
    print(json.dumps({"agentId": agent, "accessToken": tokens["accessToken"], "claims": claims}))


def sign(key, message, encoding):
    der = key.sign(message, ec.ECDSA(hashes.SHA256()))
    if encoding == "der":
        return der
    r, s = utils.decode_dss_signature(der)
    return r.to_bytes(32, "big") + s.to_bytes(32, "big")


def verify(token, service):
    keys = jwt.PyJWKClient(f"{URL}/.well-known/jwks.json", ssl_context=TLS)
    return jwt.decode(
        token,
        keys.get_signing_key_from_jwt(token),
        algorithms=["ES256"],
        audience=service,
        issuer=URL,
        options={"require": ["aud", "iss", "exp"]},
    )


def post(path, **body):
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(URL + path, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, context=TLS) as response:
        return json.load(response)


main(*sys.argv[1:])
