"""An MCP client with the Python SDK, unmodified. It is given a URL, an agent and the key of the agent, and finds everything else itself.

    mcp_client.py mcp URL AGENT_ID KEY_FILE TOOL...

Calls the tools one after the other, and prints a line for each. SSL_CERT_FILE has the certificate authority.
"""

import asyncio
import pathlib
import sys
import warnings

import httpx2
from mcp import Client
from mcp.client.auth.extensions.client_credentials import PrivateKeyJWTOAuthProvider, SignedJWTParameters
from mcp.client.streamable_http import streamable_http_client


class Storage:
    """Keeps the tokens while the program runs."""

    tokens = client_info = None

    async def get_tokens(self):
        return self.tokens

    async def set_tokens(self, tokens):
        self.tokens = tokens

    async def get_client_info(self):
        return self.client_info

    async def set_client_info(self, client_info):
        self.client_info = client_info


async def main(url, agent, key_file, *tools):
    key = pathlib.Path(key_file).read_text()
    assertion = SignedJWTParameters(issuer=agent, subject=agent, signing_key=key, signing_algorithm="ES256")
    # The SDK warns if it is not given the issuer.
    warnings.simplefilter("ignore")
    provider = PrivateKeyJWTOAuthProvider(
        server_url=url, storage=Storage(), client_id=agent, assertion_provider=assertion.create_assertion_provider()
    )
    async with httpx2.AsyncClient(auth=provider) as http, Client(streamable_http_client(url, http_client=http)) as client:
        print("tools:", ", ".join(tool.name for tool in (await client.list_tools()).tools))
        for tool in tools:
            try:
                result = await client.call_tool(tool, {"city": "Oslo"})
                print(f"{tool}: {result.content[0].text}")
            except Exception as error:
                print(f"{tool}: refused: {error}")


asyncio.run(main(*sys.argv[2:]))
