//! People: verification of their tokens.
//!
//! A token names its issuer; [`Humans`] looks that up before anything else, and hands the token to it.
//! The operator key is the issuer of the first minutes; every [`Issuer`] of the platform has a cache of keys
//! ([`keys`]) that come from where [`origin`] says. Neighbours: `http` asks who a bearer token belongs to; `app`
//! says which issuers there are. The rule of the room: a token is verified against the keys of the issuer it
//! names, or not at all; there is no fallback to another key, and what cannot be known is refused as such.

mod claims;
mod issuer;
mod key_set;
mod keys;
mod operator;
mod origin;
mod token;

pub use issuer::{AdminClaim, Issuer, IssuerRules};
pub use key_set::Algorithm;
pub use keys::Patience;
pub use operator::{OperatorError, OperatorKey};
pub use origin::{KeysAt, Web};

use crate::domain::caller::Human;
use countersign_identity::{Reason, Refusal, Timestamp};
use std::{collections::HashMap, sync::Arc};
use token::UnverifiedToken;

/// Everybody whose tokens speak for people.
pub struct Humans {
    operator: Option<Arc<OperatorKey>>,
    issuers: HashMap<String, Issuer>,
}

impl Humans {
    /// The operator key, where it may be used, and the issuers of the platform.
    pub fn new(operator: Option<Arc<OperatorKey>>, issuers: Vec<Issuer>) -> Self {
        Self { operator, issuers: issuers.into_iter().map(|issuer| (issuer.name().to_owned(), issuer)).collect() }
    }

    /// Whose token this is.
    pub async fn verify(&self, token: &str, now: Timestamp) -> Result<Human, Refusal> {
        let token = UnverifiedToken::parse(token).ok_or(Reason::HumanTokenInvalid)?;
        if token.issuer() == operator::ISSUER {
            let operator = self.operator.as_ref().ok_or(Reason::HumanTokenInvalid)?;
            return operator.verify(token.text(), now);
        }
        let issuer = self.issuers.get(token.issuer()).ok_or(Reason::HumanTokenInvalid)?;
        issuer.verify(&token, now).await
    }
}
