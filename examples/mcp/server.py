"""An MCP server with two tools. It checks no credentials: Envoy and the sidecar do.

usage: server.py [PORT]
"""

import asyncio
import sys

from mcp.server.mcpserver import MCPServer

server = MCPServer("weather")


@server.tool()
def get_weather(city: str) -> str:
    """The weather in a city."""
    return f"It is sunny in {city}."


@server.tool()
def delete_city(city: str) -> str:
    """Removes a city."""
    return f"{city} is removed."


port = int(sys.argv[1]) if len(sys.argv) > 1 else 8080
asyncio.run(server.run_streamable_http_async(host="127.0.0.1", port=port))
