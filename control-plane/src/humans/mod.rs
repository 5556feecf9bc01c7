//! Verification of the tokens of human users.
//!
//! [`HumanTokenVerifier`] selects the issuer by the `iss` of a token, and verifies the token with the keys of that issuer: the
//! operator key, or the keys of a configured [`Issuer`], which [`key_source`] fetches and [`key_cache`] caches. `http`
//! authenticates bearer tokens with the verifier; `app` configures the issuers. Invariant: a token is never verified with keys
//! of another issuer. If the keys of the issuer are unavailable, the token is rejected with the reason
//! `human_issuer_unavailable`.

mod claims;
mod issuer;
mod jwk_set;
mod key_cache;
mod key_source;
mod operator_key;
mod rules;
mod token;

pub use issuer::Issuer;
pub use jwk_set::InvalidJwkSet;
pub use key_cache::CacheLifetimes;
pub use key_source::{JwksClient, KeyLocation, KeySourceError, read_file as read_key_file};
pub use operator_key::{OperatorKey, OperatorKeyError};
pub use rules::{AdminClaim, IssuerRules};

use crate::domain::caller::Human;
use countersign_identity::{Reason, Refusal, Timestamp};
use std::{collections::HashMap, sync::Arc};
use token::UnverifiedToken;

/// Verifies tokens of all accepted issuers.
pub struct HumanTokenVerifier {
    operator_key: Option<Arc<OperatorKey>>,
    issuers: HashMap<String, Issuer>,
}

impl HumanTokenVerifier {
    /// A verifier that accepts tokens of the given issuers, and tokens of the operator key if the key is enabled.
    pub fn new(operator_key: Option<Arc<OperatorKey>>, issuers: Vec<Issuer>) -> Self {
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

    /// The issuer with this `iss`, if it is configured.
    pub fn issuer(&self, iss: &str) -> Option<&Issuer> {
        self.issuers.get(iss)
    }

    /// Verifies a token. Returns the human user that the token identifies.
    pub async fn verify(&self, token: &str, now: Timestamp) -> Result<Human, Refusal> {
        let token = UnverifiedToken::parse(token).ok_or(Reason::HumanTokenInvalid)?;
        if token.issuer() == operator_key::ISSUER {
            let operator_key = self.operator_key.as_ref().ok_or(Reason::HumanTokenInvalid)?;
            return operator_key.verify(token.text(), now);
        }
        let issuer = self.issuers.get(token.issuer()).ok_or(Reason::HumanTokenInvalid)?;
        issuer.verify(&token, now).await
    }
}
