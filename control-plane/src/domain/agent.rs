//! An agent: whoever holds the private half of a registered key.

use super::text::{DisplayName, EmailAddress, Metadata};
use countersign_identity::{AgentId, AgentStatus, P256PublicKey, Reason, Revision, Timestamp, TrustScore};

/// A person known by the issuer of their token and their `sub` there.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Owner {
    /// The `iss` of the person's token.
    pub issuer: String,
    /// The `sub` of the person's token.
    pub subject: String,
}

/// What is registered.
#[derive(Debug, Clone)]
pub struct Registration {
    /// Who registers it; nobody in public registration.
    pub owner: Option<Owner>,
    /// Where the registrant can be written to.
    pub email: EmailAddress,
    /// What people call the agent.
    pub name: DisplayName,
    /// The public half of its key.
    pub key: P256PublicKey,
    /// The key's canonical hash.
    pub key_hash: String,
    /// What its owner attached.
    pub metadata: Metadata,
}

/// A registered agent.
#[derive(Debug, Clone)]
pub struct Agent {
    /// Its identifier.
    pub id: AgentId,
    /// What was registered.
    pub registration: Registration,
    /// Where it is in its life.
    pub status: AgentStatus,
    /// Tokens and logins below this revision are dead.
    pub cutoff: Revision,
    /// Trust.
    pub trust: TrustScore,
    /// When it was registered.
    pub created_at: Timestamp,
    /// When its record last changed.
    pub updated_at: Timestamp,
    /// When it last logged in or refreshed.
    pub last_seen_at: Option<Timestamp>,
}

impl Agent {
    /// Refuses an agent that is not active.
    pub const fn require_active(&self) -> Result<(), Reason> {
        match self.status {
            AgentStatus::Active => Ok(()),
            AgentStatus::Suspended => Err(Reason::AgentSuspended),
            AgentStatus::Revoked => Err(Reason::AgentRevoked),
        }
    }
}

/// What a change of status means for the tokens that are out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StatusChange {
    /// It is as wished already.
    None,
    /// The agent may act again; its old tokens stay dead.
    Revive,
    /// The agent may act no more: all its tokens die.
    CutOff,
}

/// The agent is revoked, which is for good.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RevokedForGood;

/// `active` ⇄ `suspended`; either → `revoked`, for good.
pub fn change_status(from: AgentStatus, to: AgentStatus) -> Result<StatusChange, RevokedForGood> {
    match (from, to) {
        (from, to) if from == to => Ok(StatusChange::None),
        (AgentStatus::Revoked, _) => Err(RevokedForGood),
        (_, AgentStatus::Active) => Ok(StatusChange::Revive),
        (_, AgentStatus::Suspended | AgentStatus::Revoked) => Ok(StatusChange::CutOff),
    }
}

/// The status as it stands in JSON and in the database.
pub const fn status_text(status: AgentStatus) -> &'static str {
    match status {
        AgentStatus::Active => "active",
        AgentStatus::Suspended => "suspended",
        AgentStatus::Revoked => "revoked",
    }
}

/// Reads what [`status_text`] wrote.
pub fn parse_status(text: &str) -> Option<AgentStatus> {
    [AgentStatus::Active, AgentStatus::Suspended, AgentStatus::Revoked]
        .into_iter()
        .find(|status| status_text(*status) == text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use AgentStatus::{Active, Revoked, Suspended};

    #[test]
    fn revoked_is_for_good_and_the_rest_goes_both_ways() {
        assert_eq!(change_status(Active, Suspended), Ok(StatusChange::CutOff));
        assert_eq!(change_status(Suspended, Active), Ok(StatusChange::Revive));
        assert_eq!(change_status(Suspended, Revoked), Ok(StatusChange::CutOff));
        assert_eq!(change_status(Active, Active), Ok(StatusChange::None));
        assert_eq!(change_status(Revoked, Revoked), Ok(StatusChange::None));
        assert_eq!(change_status(Revoked, Active), Err(RevokedForGood));
        assert_eq!(change_status(Revoked, Suspended), Err(RevokedForGood));
    }
}
