// An agent in Node: makes a key, registers, logs in and verifies its own token, as a service would.
//
//     node agent.mjs der|ieee-p1363 SERVICE_ID        how the signature is written
//
// Needs nothing but Node 24. COUNTERSIGN_URL says where the service is, COUNTERSIGN_CA whom to trust.

import assert from "node:assert";
import { createPublicKey, generateKeyPairSync, sign, verify } from "node:crypto";
import { readFileSync } from "node:fs";
import tls from "node:tls";

const url = process.env.COUNTERSIGN_URL;
const [form, service] = process.argv.slice(2);
if (process.env.COUNTERSIGN_CA) {
  tls.setDefaultCACertificates([readFileSync(process.env.COUNTERSIGN_CA, "utf8")]);
}

const { privateKey, publicKey } = generateKeyPairSync("ec", { namedCurve: "P-256" });
const pem = publicKey.export({ type: "spki", format: "pem" });
const { agentId } = await call("/auth/register", { email: "node@example.org", name: "Node", publicKey: pem });

const { challengeId, nonce } = await call("/auth/challenge", { agentId, serviceId: service });
const signature = sign("sha256", Buffer.from(nonce), { key: privateKey, dsaEncoding: form }).toString("hex");
const { accessToken } = await call("/auth/authenticate", { challengeId, signature });

console.log(JSON.stringify({ agentId, accessToken, claims: await claimsOf(accessToken) }));

async function claimsOf(token) {
  const [header, payload, signature] = token.split(".");
  const { alg, kid } = JSON.parse(Buffer.from(header, "base64url"));
  assert.equal(alg, "ES256");

  const { keys } = await call("/.well-known/jwks.json");
  const key = createPublicKey({ key: keys.find((key) => key.kid === kid), format: "jwk" });
  const options = { key, dsaEncoding: "ieee-p1363" };
  const signed = Buffer.from(`${header}.${payload}`);
  assert(verify("sha256", signed, options, Buffer.from(signature, "base64url")), "the signature fits");

  const claims = JSON.parse(Buffer.from(payload, "base64url"));
  assert.equal(claims.iss, url);
  assert.equal(claims.aud, service);
  assert(claims.exp > Date.now() / 1000, "the token lives");
  return claims;
}

async function call(path, body) {
  const options = { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) };
  const answer = await fetch(url + path, body && options);
  if (!answer.ok) throw new Error(`${path}: ${answer.status} ${await answer.text()}`);
  return answer.json();
}
