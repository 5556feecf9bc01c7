//! Verifies the tokens of one configured issuer.

use super::{
    claims::verify_claims,
    jwk_set::{InvalidJwkSet, JwkSet},
    key_cache::{CacheLifetimes, KeyCache},
    key_source::{KeyLocation, KeySourceError},
    rules::IssuerRules,
    token::UnverifiedToken,
};
use crate::{domain::caller::Human, metrics::JwksFetchMetrics};
use countersign_identity::{Reason, Refusal, Timestamp, token::signature_only_validation};
use countersign_process::Clock;
use serde_json::{Map, Value};
use std::sync::Arc;

/// An issuer and its keys.
pub struct Issuer {
    rules: IssuerRules,
    keys: KeyCache<KeyLocation>,
}

impl Issuer {
    /// Creates an issuer. The keys are fetched when the first token of the issuer arrives.
    pub fn new(
        rules: IssuerRules,
        keys: KeyLocation,
        lifetimes: CacheLifetimes,
        clock: Arc<dyn Clock>,
        metrics: JwksFetchMetrics,
    ) -> Self {
        let keys = KeyCache::new(rules.issuer.clone(), keys, lifetimes, clock, metrics);
        Self { rules, keys }
    }

    /// The `iss` of the issuer's tokens.
    pub fn iss(&self) -> &str {
        &self.rules.issuer
    }

    /// Uses the keys in a JWK set, which may be empty.
    pub fn set_keys(&self, json: &[u8]) -> Result<(), InvalidJwkSet> {
        self.keys.replace(JwkSet::parse(json)?);
        Ok(())
    }

    /// Uses the keys in a JWK set instead of the previous ones. Returns their number.
    pub fn replace_keys(&self, json: &[u8]) -> Result<usize, InvalidJwkSet> {
        let keys = JwkSet::parse(json)?.require_usable_key()?;
        let count = keys.len();
        self.keys.replace(keys);
        Ok(count)
    }

    /// Trusts the certificate authorities in a PEM file when it fetches keys.
    pub fn replace_authorities(&self, pem: &[u8]) -> Result<(), KeySourceError> {
        self.keys.source().client().map_or(Ok(()), |client| client.replace_authorities(pem))
    }

    /// Verifies a token of the issuer. Returns the human user that the token identifies.
    pub async fn verify(&self, token: &UnverifiedToken<'_>, now: Timestamp) -> Result<Human, Refusal> {
        let algorithm = token.algorithm();
        let key = self.keys.find(token.kid(), algorithm).await?;
        let token =
            jsonwebtoken::decode::<Map<String, Value>>(token.text(), &key, &signature_only_validation(algorithm))
                .map_err(|_| Reason::HumanTokenInvalid)?;
        verify_claims(&token.claims, &self.rules, now)
    }
}
