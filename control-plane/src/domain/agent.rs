//! Agents: registration data, status and status transitions.

use super::text::{DisplayName, EmailAddress, Metadata};
use countersign_identity::{
    AgentId, AgentStatus, P256PublicKey, Reason, Revision, RoleName, ServiceId, Timestamp, TrustScore,
};
use std::{
    hash::{BuildHasher as _, RandomState},
    sync::LazyLock,
};

/// A human user who owns resources, identified by token issuer and `sub`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Owner {
    /// `iss` of the user's token.
    pub issuer: String,
    /// `sub` of the user's token.
    pub subject: String,
}

/// A hash that stands for an owner in this process, to save memory. Owners with the same hash share the limits per owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct OwnerHash(u64);

impl OwnerHash {
    /// The hash of an owner.
    pub fn of(owner: &Owner) -> Self {
        static HASHER: LazyLock<RandomState> = LazyLock::new(RandomState::new);
        Self(HASHER.hash_one(owner))
    }

    /// The bytes of the hash.
    pub const fn bytes(self) -> [u8; 8] {
        self.0.to_be_bytes()
    }
}

/// The data that an agent is registered with.
#[derive(Debug, Clone, PartialEq)]
pub struct Registration {
    /// The human user who registers the agent; `None` for public registration.
    pub owner: Option<Owner>,
    /// E-mail address of the registrant.
    pub email: EmailAddress,
    pub name: DisplayName,
    pub key: P256PublicKey,
    /// SHA-256 of the canonical SPKI DER of the public key.
    pub key_hash: String,
    /// Free-form JSON from the registrant.
    pub metadata: Metadata,
}

/// A registered agent.
#[derive(Debug, Clone, PartialEq)]
pub struct Agent {
    pub id: AgentId,
    /// Data from the registration.
    pub registration: Registration,
    pub status: AgentStatus,
    /// Tokens and sessions with a lower revision are invalid. Each suspension or revocation of the agent raises this cutoff.
    pub cutoff: Revision,
    pub trust: TrustScore,
    pub created_at: Timestamp,
    /// Time of the last change of status or trust score. A login does not count as a change.
    pub updated_at: Timestamp,
    /// Time of the last login or refresh.
    pub last_seen_at: Option<Timestamp>,
    /// The service of the agent's last login for a service. The service may have been deleted since.
    pub last_service: Option<ServiceId>,
}

/// A service at which an agent holds a role, or which the owner of the agent has left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceOfAgent {
    pub service: ServiceId,
    /// Name of the service; `None` if the agent held no role when its owner left the service. If we showed the name then, anybody
    /// with an agent could leave any service to read its name.
    pub name: Option<DisplayName>,
    /// When the owner of the agent left the service. `None`: it was not left, so it may assign roles to the agent.
    pub left_at: Option<Timestamp>,
    /// The roles that the agent holds at the service, sorted, and when they expire.
    pub roles: Vec<(RoleName, Option<Timestamp>)>,
}

/// Requires that an agent is active. The error says whether the agent is suspended or revoked.
pub const fn require_active(status: AgentStatus) -> Result<(), Reason> {
    match status {
        AgentStatus::Active => Ok(()),
        AgentStatus::Suspended => Err(Reason::AgentSuspended),
        AgentStatus::Revoked => Err(Reason::AgentRevoked),
    }
}

/// Effect of a status change on tokens that are already issued.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StatusChange {
    /// The status does not change.
    Unchanged,
    /// The agent becomes active. Tokens that were issued before the deactivation stay invalid.
    Reactivated,
    /// The agent becomes suspended or revoked. All tokens of the agent become invalid.
    Deactivated,
}

/// Error for a status change of a revoked agent. A revocation cannot be undone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InvalidStatusTransition;

/// Checks a status change and returns its effect. `active` and `suspended` can change to any status; `revoked` is final.
pub fn check_status_transition(from: AgentStatus, to: AgentStatus) -> Result<StatusChange, InvalidStatusTransition> {
    match (from, to) {
        (from, to) if from == to => Ok(StatusChange::Unchanged),
        (AgentStatus::Revoked, _) => Err(InvalidStatusTransition),
        (_, AgentStatus::Active) => Ok(StatusChange::Reactivated),
        (_, AgentStatus::Suspended | AgentStatus::Revoked) => Ok(StatusChange::Deactivated),
    }
}

/// Returns the status as written in JSON and in the database.
pub const fn status_text(status: AgentStatus) -> &'static str {
    match status {
        AgentStatus::Active => "active",
        AgentStatus::Suspended => "suspended",
        AgentStatus::Revoked => "revoked",
    }
}

/// Parses a status from the text that [`status_text`] returns.
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
    fn only_revoked_status_is_final() {
        assert_eq!(check_status_transition(Active, Suspended), Ok(StatusChange::Deactivated));
        assert_eq!(check_status_transition(Suspended, Active), Ok(StatusChange::Reactivated));
        assert_eq!(check_status_transition(Suspended, Revoked), Ok(StatusChange::Deactivated));
        assert_eq!(check_status_transition(Active, Active), Ok(StatusChange::Unchanged));
        assert_eq!(check_status_transition(Revoked, Revoked), Ok(StatusChange::Unchanged));
        assert_eq!(check_status_transition(Revoked, Active), Err(InvalidStatusTransition));
        assert_eq!(check_status_transition(Revoked, Suspended), Err(InvalidStatusTransition));
    }
}
