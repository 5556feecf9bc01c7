// An OAuth client with the library openid-client.
//
//     node openid_client.mjs COMMAND PARAMETERS        the parameters are JSON; prints the result as JSON
//
// ISSUER is the issuer of the control plane, AGENT_ID an agent and KEY_FILE its key in PKCS#8 PEM. NODE_EXTRA_CA_CERTS has the certificate
// authority.

import { createPrivateKey } from "node:crypto";
import { readFileSync } from "node:fs";
import * as oauth from "oauth4webapi";
import * as client from "openid-client";

const { ISSUER, AGENT_ID, KEY_FILE } = process.env;
// Only the service, which is behind Envoy on loopback, has plain HTTP.
const insecure = { [oauth.allowInsecureRequests]: true };

const commands = {
  async discover({ url }) {
    const response = await oauth.resourceDiscoveryRequest(new URL(url), insecure);
    const { resource, authorization_servers } = await oauth.processResourceDiscoveryResponse(new URL(url), response);
    const server = await client.discovery(new URL(authorization_servers[0]), AGENT_ID, undefined, client.None(), {
      algorithm: "oauth2",
    });
    return { resource, issuer: server.serverMetadata().issuer };
  },

  async token({ assertionId, ...parameters }) {
    return client.clientCredentialsGrant(await agent(assertionId), parameters);
  },

  async refresh({ refreshToken }) {
    return client.refreshTokenGrant(await agent(), refreshToken);
  },

  async revoke({ token }) {
    await client.tokenRevocation(await agent(), token);
    return {};
  },

  async call({ accessToken, url }) {
    if (!accessToken) return answer(await fetch(url));
    const config = await agent();
    client.allowInsecureRequests(config);
    try {
      return await answer(await client.fetchProtectedResource(config, accessToken, new URL(url), "GET"));
    } catch (error) {
      if (!(error instanceof client.WWWAuthenticateChallengeError)) throw error;
      return answer(error.response, error.cause);
    }
  },

  async introspect({ service, key, method, token }) {
    const authentication = method === "client_secret_basic" ? client.ClientSecretBasic(key) : client.ClientSecretPost(key);
    return client.tokenIntrospection(await connect(service, authentication), token);
  },
};

/** The control plane, for the agent. The id of its assertions is fixed if there is one, which is wrong. */
async function agent(assertionId) {
  const der = createPrivateKey(readFileSync(KEY_FILE)).export({ type: "pkcs8", format: "der" });
  const key = await crypto.subtle.importKey("pkcs8", der, { name: "ECDSA", namedCurve: "P-256" }, false, ["sign"]);
  const modify = (_header, claims) => assertionId && Object.assign(claims, { jti: assertionId });
  return connect(AGENT_ID, client.PrivateKeyJwt(key, { [client.modifyAssertion]: modify }));
}

function connect(id, authentication) {
  return client.discovery(new URL(ISSUER), id, undefined, authentication, { algorithm: "oauth2" });
}

async function answer(response, challenges) {
  const parameters = challenges?.find(({ scheme }) => scheme === "bearer")?.parameters;
  return { status: response.status, challenge: parameters ?? null, text: await response.text() };
}

const [command, parameters] = process.argv.slice(2);
try {
  console.log(JSON.stringify(await commands[command](JSON.parse(parameters))));
} catch (error) {
  if (!(error instanceof client.ResponseBodyError)) throw error;
  console.log(JSON.stringify({ error: error.error, error_description: error.error_description }));
}
