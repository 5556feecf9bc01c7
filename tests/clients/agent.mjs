// An agent in Node: generates a key, registers, logs in, and verifies its token as a service would.
//
//     node agent.mjs der|ieee-p1363 SERVICE_ID        the encoding of the signature
//
// Requires Node 24. COUNTERSIGN_URL is the URL of the control plane, COUNTERSIGN_CA its certificate authority.

import assert from "node:assert";
import { createPublicKey, generateKeyPairSync, sign, verify } from "node:crypto";
import { readFileSync } from "node:fs";
import tls from "node:tls";

const url = process.env.COUNTERSIGN_URL;
const [encoding, service] = process.argv.slice(2);
if (process.env.COUNTERSIGN_CA) {
  tls.setDefaultCACertificates([readFileSync(process.env.COUNTERSIGN_CA, "utf8")]);
}

const { privateKey, publicKey } = generateKeyPairSync("ec", { namedCurve: "P-256" });
const pem = publicKey.export({ type: "spki", format: "pem" });
const { agentId } = await call("/auth/register", { email: "node@example.org", name: "Node", publicKey: pem });

const { challengeId, nonce } = await call("/auth/challenge", { agentId, serviceId: service });
const signature = sign("sha256", Buffer.from(nonce), { key: privateKey, dsaEncoding: encoding }).toString("hex");
const { accessToken } = await call("/auth/authenticate", { challengeId, signature });

console.log(JSON.stringify({ agentId, accessToken, claims: await verifyToken(accessToken) }));

async function verifyToken(token) {
  const [header, payload, signature] = token.split(".");
  const { alg, kid } = JSON.parse(Buffer.from(header, "base64url"));
  assert.equal(alg, "ES256");

  const { keys } = await call("/.well-known/jwks.json");
  const key = createPublicKey({ key: keys.find((key) => key.kid === kid), format: "jwk" });
  const options = { key, dsaEncoding: "ieee-p1363" };
  const signed = Buffer.from(`${header}.${payload}`);
  assert(verify("sha256", signed, options, Buffer.from(signature, "base64url")), "the signature is valid");

  const claims = JSON.parse(Buffer.from(payload, "base64url"));
  assert.equal(claims.iss, url);
  assert.equal(claims.aud, service);
  assert(claims.exp > Date.now() / 1000, "the token has not expired");
  return claims;
}

async function call(path, body) {
  const options = { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) };
  const response = await fetch(url + path, body && options);
  if (!response.ok) throw new Error(`${path}: ${response.status} ${await response.text()}`);
  return response.json();
}
