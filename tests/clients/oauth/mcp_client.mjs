// An MCP client with a library of the protocol, unmodified. It is given a URL, an agent and the key of the agent, and finds everything
// else itself.
//
//     node mcp_client.mjs PACKAGE URL AGENT_ID KEY_FILE TOOL...
//
// PACKAGE is @modelcontextprotocol/client or @modelcontextprotocol/sdk. Calls the tools one after the other, and prints a line for each.
// NODE_EXTRA_CA_CERTS has the certificate authority, and SCOPE a scope, if the client is configured with one.

import { readFileSync } from "node:fs";

const [library, url, clientId, keyFile, ...tools] = process.argv.slice(2);
const modules = {
  "@modelcontextprotocol/client": [""],
  "@modelcontextprotocol/sdk": ["/client/index.js", "/client/streamableHttp.js", "/client/auth-extensions.js"],
};
const imported = await Promise.all(modules[library].map((path) => import(library + path)));
const { Client, StreamableHTTPClientTransport, PrivateKeyJwtProvider } = Object.assign({}, ...imported);

const privateKey = readFileSync(keyFile, "utf8");
const scope = process.env.SCOPE;
const authProvider = new PrivateKeyJwtProvider({ clientId, privateKey, algorithm: "ES256", scope });
const client = new Client({ name: "test", version: "1.0.0" });
await client.connect(new StreamableHTTPClientTransport(new URL(url), { authProvider }));
console.log(`tools: ${(await client.listTools()).tools.map(({ name }) => name).join(", ")}`);
for (const name of tools) {
  try {
    const { content } = await client.callTool({ name, arguments: { city: "Oslo" } });
    console.log(`${name}: ${content[0].text}`);
  } catch (error) {
    console.log(`${name}: refused: ${error.message}`);
  }
}
await client.close();
