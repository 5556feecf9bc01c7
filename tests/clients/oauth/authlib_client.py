#!/usr/bin/env python3
"""An OAuth client with the library Authlib.

    authlib_client.py COMMAND PARAMETERS        the parameters are JSON; prints the result as JSON

ISSUER is the issuer of the control plane, AGENT_ID an agent and KEY_FILE its key in PKCS#8 PEM. REQUESTS_CA_BUNDLE has the certificate
authority.
"""

import json
import os
import sys
import time
from urllib.request import parse_http_list, parse_keqv_list

import requests
from authlib.integrations.base_client import OAuthError
from authlib.integrations.requests_client import OAuth2Session
from authlib.oauth2.rfc7523 import PrivateKeyJWT
from authlib.oauth2.rfc8414 import get_well_known_url
from joserfc.jwk import ECKey

ISSUER, AGENT = os.environ["ISSUER"], os.environ["AGENT_ID"]


class AgentKey(PrivateKeyJWT):
    """Assertions that end after a minute. Those of Authlib end after an hour."""

    def sign(self, auth, token_endpoint):
        self.claims = {"exp": int(time.time()) + 60}
        return super().sign(auth, token_endpoint)


def discover(url):
    resource = fetch(url + "/.well-known/oauth-protected-resource")
    return {"resource": resource["resource"], "issuer": metadata(resource["authorization_servers"][0])["issuer"]}


def token(assertionId=None, stock=False, **parameters):
    assertions = PrivateKeyJWT(alg="ES256") if stock else AgentKey(alg="ES256")
    if assertionId:
        assertions = PrivateKeyJWT(alg="ES256", claims={"exp": int(time.time()) + 60, "jti": assertionId})
    return agent(assertions).fetch_token(grant_type="client_credentials", **parameters)


def refresh(refreshToken):
    return agent().refresh_token(refresh_token=refreshToken)


def revoke(token):
    agent().revoke_token(metadata()["revocation_endpoint"], token=token).raise_for_status()
    return {}


def call(url, accessToken=None):
    if accessToken is None:
        return answer(requests.get(url))
    client = OAuth2Session(token={"access_token": accessToken, "token_type": "Bearer"})
    return answer(client.get(url))


def introspect(service, key, method, token):
    client = OAuth2Session(service, key, token_endpoint_auth_method=method)
    return client.introspect_token(metadata()["introspection_endpoint"], token=token).json()


def agent(assertions=AgentKey(alg="ES256")):
    with open(os.environ["KEY_FILE"]) as file:
        key = ECKey.import_key(file.read())
    client = OAuth2Session(
        AGENT,
        key,
        token_endpoint=metadata()["token_endpoint"],
        token_endpoint_auth_method="private_key_jwt",
        revocation_endpoint_auth_method="private_key_jwt",
    )
    client.register_client_auth_method(assertions)
    return client


def metadata(issuer=ISSUER):
    document = fetch(get_well_known_url(issuer, external=True))
    assert document["issuer"] == issuer
    return document


def fetch(url):
    response = requests.get(url)
    response.raise_for_status()
    return response.json()


def answer(response):
    scheme, _, parameters = response.headers.get("www-authenticate", "").partition(" ")
    challenge = parse_keqv_list(parse_http_list(parameters)) if scheme == "Bearer" else None
    return {"status": response.status_code, "challenge": challenge, "text": response.text}


command, parameters = sys.argv[1:]
try:
    print(json.dumps(globals()[command](**json.loads(parameters))))
except OAuthError as error:
    print(json.dumps({"error": error.error, "error_description": error.description}))
