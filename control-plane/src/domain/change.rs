//! Changes that are sent to sidecars. A change identifies the data that changed and does not contain the new value.

use countersign_identity::{AgentId, Revision, ServiceId, SessionId, TokenId};

/// A change. The feed stores a change under the revision of the transaction that made it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Change {
    /// The roles of an agent at a service. Sent only to the sidecars of the service.
    Roles(AgentId, ServiceId),
    /// The trust score of an agent. Sent to all sidecars.
    Trust(AgentId),
    /// The status or cutoff of an agent. Sent to all sidecars.
    Status(AgentId),
    /// The role definitions of a service. Sent only to the sidecars of the service.
    Definitions(ServiceId),
    /// The token settings of a service. Sent only to the sidecars of the service.
    ServiceSettings(ServiceId),
    /// An access token was revoked. Sent to all sidecars.
    Token(TokenId),
    /// A session was ended. Sent to all sidecars.
    Session(SessionId),
    /// The signing keys. Sent to all sidecars.
    Keys,
}

/// A range of revisions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RevisionRange {
    /// Exclusive lower bound.
    pub since: Revision,
    /// Inclusive upper bound.
    pub until: Revision,
}

/// The current state of the feed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FeedPosition {
    /// The revision of the newest change.
    pub revision: Revision,
    /// The revision up to which changes were deleted. All later changes are still in the feed.
    pub floor: Revision,
    /// The revision of the last restore from a backup; 0 if there was none. Revocations and uses of challenges between the
    /// backup and the restore are lost. So sessions that started below this revision are invalid, and challenges that were
    /// issued under another cutoff are refused.
    pub cutoff: Revision,
}
