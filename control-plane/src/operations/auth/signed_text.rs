//! What an agent signs to log in: a challenge or a client assertion.

use crate::domain::challenge::Challenge;
use countersign_identity::{Reason, Revision};

/// What an agent signs to log in. At most one session begins with it.
#[derive(Debug, Clone)]
pub enum SignedText {
    /// The nonce of a challenge.
    Challenge(Challenge),
    Assertion {
        /// See [`ClientAssertion::single_use_id`](crate::domain::client_assertion::ClientAssertion::single_use_id).
        single_use_id: String,
        /// The revision of the last restore of the database before the assertion was verified.
        restore_revision: Revision,
    },
}

/// The reasons with which a text of this kind is refused.
pub struct RefusalReasons {
    /// The agent of the text is unknown.
    pub invalid: Reason,
    /// The text is from before a restore of the database.
    pub expired: Reason,
    /// The text was used before.
    pub used: Reason,
}

impl SignedText {
    /// Identifies the text. The session that begins with the text records this id.
    pub fn single_use_id(&self) -> String {
        match self {
            Self::Challenge(challenge) => challenge.random_id_hex(),
            Self::Assertion { single_use_id, .. } => single_use_id.clone(),
        }
    }

    pub const fn restore_revision(&self) -> Revision {
        match self {
            Self::Challenge(Challenge { restore_revision, .. }) | Self::Assertion { restore_revision, .. } => {
                *restore_revision
            }
        }
    }

    pub const fn reasons(&self) -> RefusalReasons {
        match self {
            Self::Challenge(_) => RefusalReasons {
                invalid: Reason::ChallengeInvalid,
                expired: Reason::ChallengeExpired,
                used: Reason::ChallengeUsed,
            },
            Self::Assertion { .. } => RefusalReasons {
                invalid: Reason::AssertionInvalid,
                expired: Reason::AssertionExpired,
                used: Reason::AssertionUsed,
            },
        }
    }
}
