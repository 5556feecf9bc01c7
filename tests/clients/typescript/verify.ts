// Verifies an access token at a service with types that openapi-typescript generated, and prints the result.

import createClient from "openapi-fetch";
import type { paths } from "./api.js";

declare const process: { env: Record<string, string> };

const { COUNTERSIGN_URL, SERVICE_ID, SERVICE_KEY, AGENT_TOKEN } = process.env;
const client = createClient<paths>({
  baseUrl: COUNTERSIGN_URL,
  headers: { authorization: `Bearer ${SERVICE_KEY}` },
});
const path = { service: SERVICE_ID };
const header = { "X-Agent-Token": `Bearer ${AGENT_TOKEN}` };
const { data, error } = await client.GET("/services/{service}/verify", { params: { path, header } });

// The token is a required argument: a call without it must not compile.
// @ts-expect-error
export const verifyWithoutToken = () => client.GET("/services/{service}/verify", { params: { path } });

console.log(JSON.stringify(data ? { id: data.agent.id, roles: data.agent.roles } : { code: error.error.code }));
