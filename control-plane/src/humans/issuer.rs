//! One issuer of the platform, and its tokens.

use super::{
    claims::judge,
    key_set::Algorithm,
    keys::{Keys, Patience},
    origin::KeysAt,
    token::UnverifiedToken,
};
use crate::domain::caller::Human;
use countersign_identity::{Reason, Refusal, Timestamp, token::signature_only_validation};
use countersign_process::Clock;
use serde_json::{Map, Value};
use std::sync::Arc;

/// What the operator decided about an issuer.
#[derive(Debug, Clone)]
pub struct IssuerRules {
    /// The `iss` of its tokens, exactly.
    pub issuer: String,
    /// What the `aud` of its tokens must contain.
    pub audience: String,
    /// What its tokens may be signed with.
    pub algorithms: Vec<Algorithm>,
    /// What makes an administrator, if anything does.
    pub admin: Option<AdminClaim>,
}

/// The claim that makes an administrator.
#[derive(Debug, Clone)]
pub struct AdminClaim {
    /// Its name, or a path with dots.
    pub name: String,
    /// What it must be or contain; empty: `true`.
    pub value: String,
}

/// An issuer and its keys.
pub struct Issuer {
    rules: IssuerRules,
    keys: Keys<KeysAt>,
}

impl Issuer {
    /// An issuer; its keys are fetched when the first of its tokens comes.
    pub fn new(rules: IssuerRules, keys: KeysAt, patience: Patience, clock: Arc<dyn Clock>) -> Self {
        let keys = Keys::new(rules.issuer.clone(), keys, patience, clock);
        Self { rules, keys }
    }

    /// Its `iss`.
    pub fn name(&self) -> &str {
        &self.rules.issuer
    }

    /// Whose token this is, which names this issuer.
    pub async fn verify(&self, token: &UnverifiedToken<'_>, now: Timestamp) -> Result<Human, Refusal> {
        let algorithm = token.algorithm();
        if !self.rules.algorithms.contains(&algorithm) {
            return Err(Reason::HumanTokenInvalid.into());
        }
        let key = self.keys.find(token.kid(), algorithm).await?;
        let token = jsonwebtoken::decode::<Map<String, Value>>(
            token.text(),
            &key,
            &signature_only_validation(algorithm.in_library()),
        )
        .map_err(|_| Reason::HumanTokenInvalid)?;
        judge(&token.claims, &self.rules, now)
    }
}
