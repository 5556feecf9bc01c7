"""Verifies an access token at a service with a client that openapi-python-client generated, and prints the result.

The first argument is the folder that contains the generated package `countersign_api`.
"""

import json
import os
import ssl
import sys

sys.path.insert(0, sys.argv[1])

from countersign_api import AuthenticatedClient
from countersign_api.api.verification import verify_token
from countersign_api.models import VerificationResponse

client = AuthenticatedClient(
    base_url=os.environ["COUNTERSIGN_URL"],
    token=os.environ["SERVICE_KEY"],
    verify_ssl=ssl.create_default_context(cafile=os.environ["COUNTERSIGN_CA"]),
)
token = "Bearer " + os.environ["AGENT_TOKEN"]
verified = verify_token.sync(os.environ["SERVICE_ID"], client=client, x_agent_token=token)
if isinstance(verified, VerificationResponse):
    print(json.dumps({"id": verified.agent.id, "roles": verified.agent.roles}))
else:
    print(json.dumps({"code": verified.error.code}))
