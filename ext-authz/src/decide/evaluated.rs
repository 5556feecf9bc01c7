//! An identity with everything that further checks of the same token need.

use crate::view::ContentId;
use countersign_identity::{Timestamp, VerifiedIdentity};

/// The identity that a token grants, as evaluated from one content of a view at one time.
#[derive(Debug)]
pub struct EvaluatedIdentity {
    /// The identity.
    pub identity: VerifiedIdentity,
    /// The content of the view.
    pub(super) content: ContentId,
    /// The time by the clock of the control plane.
    pub(super) evaluated_at: Timestamp,
}

impl EvaluatedIdentity {
    /// The identity that was evaluated from this content at this time.
    pub const fn new(identity: VerifiedIdentity, content: ContentId, evaluated_at: Timestamp) -> Self {
        Self { identity, content, evaluated_at }
    }

    /// Whether an evaluation from this content at this time would have the same result. Until `valid_until`, no role of the
    /// identity ends, and a role that has ended does not begin again. Before `evaluated_at`, other roles may not have ended.
    pub fn applies(&self, content: ContentId, now: Timestamp) -> bool {
        self.content == content && (self.evaluated_at..self.identity.valid_until).contains(&now)
    }
}

impl PartialEq for EvaluatedIdentity {
    fn eq(&self, other: &Self) -> bool {
        self.identity == other.identity
    }
}

impl Eq for EvaluatedIdentity {}

#[cfg(test)]
impl EvaluatedIdentity {
    /// The identity of an agent with these roles.
    pub fn fixture(roles: Vec<countersign_identity::RoleName>) -> Self {
        use crate::fixtures::{AGENT_ID, ISSUED_AT, TOKEN_ID};
        let identity = VerifiedIdentity {
            agent: AGENT_ID,
            name: "Reader".into(),
            roles,
            permissions: Vec::new(),
            trust_score: countersign_identity::TrustScore::INITIAL,
            token: TOKEN_ID,
            valid_until: Timestamp::from_seconds(ISSUED_AT + 3600),
        };
        Self::unshared(identity)
    }

    /// An identity of a view that no other identity has, since the beginning of time.
    pub fn unshared(identity: VerifiedIdentity) -> Self {
        Self::new(identity, ContentId::next(), Timestamp::from_seconds(0))
    }
}
