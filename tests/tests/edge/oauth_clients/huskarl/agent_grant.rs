//! The Rust code in `docs/use/oauth.md`. A test compares it with the page.

use huskarl::{
    core::{
        client_auth::{Audience, JwtBearer},
        server_metadata::AuthorizationServerMetadata,
    },
    grant::client_credentials::ClientCredentialsGrant,
};
use huskarl_crypto_native::asymmetric::signer::{AsymmetricAlgorithm, PrivateKey, pkcs8_pem};
use huskarl_reqwest::ReqwestClient;
use std::path::Path;

/// How an agent gets tokens with its key, in PKCS#8 PEM.
pub async fn agent_grant(
    http: ReqwestClient,
    issuer: &str,
    agent: &str,
    key_file: &Path,
) -> Result<ClientCredentialsGrant, Box<dyn std::error::Error>> {
    let metadata = AuthorizationServerMetadata::fetch().http_client(&http).issuer(issuer).call().await?;
    let key = pkcs8_pem(&std::fs::read_to_string(key_file)?, AsymmetricAlgorithm::Es256, None)?;
    let assertions = JwtBearer::builder().signer(PrivateKey::from_jwk(key)?).audience(Audience::Issuer).build();
    let grant = ClientCredentialsGrant::builder_from_metadata(&metadata).client_id(agent).http_client(http);
    Ok(grant.client_auth(assertions).build())
}
