//! Verification of the tokens of human users.
//!
//! [`HumanTokenVerifier`] selects the issuer by the `iss` of a token, and verifies the token with the keys of that issuer: the
//! operator key, or the keys of a configured [`Issuer`], from a file or fetched ([`key_source`]) and cached ([`key_cache`]). `http`
//! authenticates bearer tokens with the verifier; `app` configures the issuers. Invariant: a token is never verified with keys of
//! another issuer. If the keys of the issuer are unavailable, the token is rejected with the reason `human_issuer_unavailable`.

mod claims;
mod jwk_set;
mod key_cache;
mod key_source;
mod operator_key;
mod token;

pub use claims::{AdminClaim, IssuerRules};
pub use key_source::{JwksClient, KeyLocation, read_file as read_key_file};
pub use operator_key::{OperatorKey, OperatorKeyError};

use crate::{domain::caller::Human, metrics::JwksFetchMetrics};
use arc_swap::ArcSwap;
use claims::verify_claims;
use countersign_identity::{Reason, Refusal, Timestamp, token::signature_only_validation};
use countersign_process::Clock;
use jwk_set::JwkSet;
use key_cache::KeyCache;
use serde_json::{Map, Value};
use std::{collections::HashMap, sync::Arc};
use token::UnverifiedToken;

/// Verifies tokens of all accepted issuers.
pub struct HumanTokenVerifier {
    operator_key: Option<Arc<OperatorKey>>,
    issuers: HashMap<String, Arc<Issuer>>,
}

impl HumanTokenVerifier {
    /// A verifier that accepts tokens of the given issuers, and tokens of the operator key if the key is enabled.
    pub fn new(operator_key: Option<Arc<OperatorKey>>, issuers: Vec<Arc<Issuer>>) -> Self {
        let issuers = issuers.into_iter().map(|issuer| (issuer.iss().to_owned(), issuer)).collect();
        Self { operator_key, issuers }
    }

    /// The issuers whose tokens are accepted, sorted.
    pub fn issuers(&self) -> Vec<&str> {
        let operator = self.operator_key.as_ref().map(|_| operator_key::ISSUER);
        let mut issuers: Vec<_> = self.issuers.keys().map(String::as_str).chain(operator).collect();
        issuers.sort_unstable();
        issuers
    }

    /// Verifies a token. Returns the human user that the token identifies.
    pub async fn verify(&self, token: &str, now: Timestamp) -> Result<Human, Refusal> {
        let token = UnverifiedToken::parse(token).ok_or(Reason::HumanTokenInvalid)?;
        if token.issuer == operator_key::ISSUER {
            let operator_key = self.operator_key.as_ref().ok_or(Reason::HumanTokenInvalid)?;
            return operator_key.verify(token.text, now);
        }
        let issuer = self.issuers.get(&token.issuer).ok_or(Reason::HumanTokenInvalid)?;
        issuer.verify(&token, now).await
    }
}

pub struct Issuer {
    rules: IssuerRules,
    keys: IssuerKeys,
}

enum IssuerKeys {
    Fetched(KeyCache<KeyLocation>),
    /// The keys from a file. They stay in use until the file has a usable new set.
    OfFile(ArcSwap<JwkSet>),
}

impl Issuer {
    /// An issuer whose keys are fetched when its first token arrives.
    pub fn with_fetched_keys(
        rules: IssuerRules,
        keys: KeyLocation,
        clock: Arc<dyn Clock>,
        metrics: JwksFetchMetrics,
    ) -> Self {
        let keys = KeyCache::new(rules.issuer.clone(), keys, clock, metrics);
        Self { rules, keys: IssuerKeys::Fetched(keys) }
    }

    /// An issuer whose keys are in a file with this JWK set, which may be empty.
    pub fn with_key_file(rules: IssuerRules, json: &[u8]) -> Result<Self, &'static str> {
        let keys = JwkSet::parse(json)?;
        keys.warn_if_empty(&rules.issuer);
        Ok(Self { rules, keys: IssuerKeys::OfFile(ArcSwap::from_pointee(keys)) })
    }

    /// The `iss` of the issuer's tokens.
    pub fn iss(&self) -> &str {
        &self.rules.issuer
    }

    /// Uses new content of the file of the issuer: its keys, or the certificate authorities with which they are fetched. Returns a
    /// description for the log.
    pub fn load_file(&self, content: &[u8]) -> Result<String, String> {
        let iss = self.iss();
        match &self.keys {
            IssuerKeys::Fetched(keys) => {
                keys.source().client().replace_authorities(content)?;
                Ok(format!("certificate authorities for the next fetch of the keys of {iss}"))
            }
            IssuerKeys::OfFile(in_use) => {
                let keys = JwkSet::parse(content)?.require_usable_key()?;
                let count = keys.len();
                in_use.store(Arc::new(keys));
                Ok(format!("{count} usable keys of the issuer {iss}"))
            }
        }
    }

    /// Verifies a token of the issuer. Returns the human user that the token identifies.
    pub async fn verify(&self, token: &UnverifiedToken<'_>, now: Timestamp) -> Result<Human, Refusal> {
        let UnverifiedToken { text, issuer: _, algorithm, kid } = token;
        let key = match &self.keys {
            IssuerKeys::Fetched(keys) => keys.find(kid.as_deref(), *algorithm).await?,
            IssuerKeys::OfFile(keys) => keys.load().find_final(kid.as_deref(), *algorithm)?,
        };
        let token = jsonwebtoken::decode::<Map<String, Value>>(text, &key, &signature_only_validation(*algorithm))
            .map_err(|_| Reason::HumanTokenInvalid)?;
        verify_claims(&token.claims, &self.rules, now)
    }
}
