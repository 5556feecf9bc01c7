"""Calls the tools of an MCP server as an agent. It knows the URL of the server, the id of the agent and its private key.

The client finds everything else itself: the server refuses the first request and names its metadata (RFC 9728), which names the
control plane, whose metadata (RFC 8414) names the token endpoint.

With --issuer, the client gives its assertion to this control plane only, whatever the server names.
"""

import argparse
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


async def main(arguments):
    assertion = SignedJWTParameters(
        issuer=arguments.agent,
        subject=arguments.agent,
        signing_key=arguments.key_file.read_text(),
        signing_algorithm="ES256",
    )
    if arguments.issuer is None:
        # The SDK warns, because the server chooses who receives the assertion.
        warnings.simplefilter("ignore")
    provider = PrivateKeyJWTOAuthProvider(
        server_url=arguments.url,
        storage=MemoryStorage(),
        client_id=arguments.agent,
        assertion_provider=assertion.create_assertion_provider(),
        issuer=arguments.issuer,
    )
    async with httpx2.AsyncClient(auth=provider) as http:
        async with Client(streamable_http_client(arguments.url, http_client=http)) as client:
            print("tools:", ", ".join(tool.name for tool in (await client.list_tools()).tools))
            for tool in arguments.tools:
                await call(client, tool)


parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("url", metavar="URL")
parser.add_argument("agent", metavar="AGENT")
parser.add_argument("key_file", metavar="KEY_FILE", type=pathlib.Path)
parser.add_argument("tools", metavar="TOOL", nargs="*", default=["get_weather", "delete_city"])
parser.add_argument("--issuer", metavar="URL")
try:
    asyncio.run(main(parser.parse_args()))
except* Exception as group:
    errors = group.exceptions
    while isinstance(errors[0], ExceptionGroup):
        errors = errors[0].exceptions
    sys.exit(f"{type(errors[0]).__name__}: {errors[0]}")
