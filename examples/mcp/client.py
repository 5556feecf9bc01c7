"""Calls the tools of an MCP server as an agent. It knows the URL of the server, the id of the agent and its private key.

The client finds everything else itself: the server refuses the first request and names its metadata (RFC 9728), which names the
control plane, whose metadata (RFC 8414) names the token endpoint.

With the fourth argument, the client gives its assertion to this control plane only, whatever the server names.

usage: client.py URL AGENT KEY_FILE [ISSUER]
"""

import asyncio
import pathlib
import sys
import warnings

import httpx2
from mcp import Client
from mcp.client.auth.extensions.client_credentials import PrivateKeyJWTOAuthProvider, SignedJWTParameters
from mcp.client.streamable_http import streamable_http_client


class MemoryStorage:
    """Keeps the tokens while the program runs."""

    def __init__(self):
        self.tokens = None
        self.client_info = None

    async def get_tokens(self):
        return self.tokens

    async def set_tokens(self, tokens):
        self.tokens = tokens

    async def get_client_info(self):
        return self.client_info

    async def set_client_info(self, client_info):
        self.client_info = client_info


async def call(client, tool):
    try:
        result = await client.call_tool(tool, {"city": "Oslo"})
    except Exception as error:
        print(f"{tool}: refused: {error}")
    else:
        print(f"{tool}: {result.content[0].text}")


async def main(url, agent, key_file, issuer=None):
    assertion = SignedJWTParameters(
        issuer=agent,
        subject=agent,
        signing_key=pathlib.Path(key_file).read_text(),
        signing_algorithm="ES256",
    )
    if issuer is None:
        # The SDK warns, because the server chooses who receives the assertion.
        warnings.simplefilter("ignore")
    provider = PrivateKeyJWTOAuthProvider(
        server_url=url,
        storage=MemoryStorage(),
        client_id=agent,
        assertion_provider=assertion.create_assertion_provider(),
        issuer=issuer,
    )
    async with httpx2.AsyncClient(auth=provider) as http, Client(streamable_http_client(url, http_client=http)) as client:
        print("tools:", ", ".join(tool.name for tool in (await client.list_tools()).tools))
        await call(client, "get_weather")
        await call(client, "delete_city")


asyncio.run(main(*sys.argv[1:]))
