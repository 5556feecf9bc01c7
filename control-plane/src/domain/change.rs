//! Changes that are sent to sidecars. A change identifies the data that changed and does not contain the new value.

use countersign_identity::{AgentId, Revision, ServiceId, SessionId, TokenId};

/// A change that sidecars must receive. The change feed stores a change under the revision of the transaction that made it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Change {
    /// The roles of an agent at a service. The change is sent only to the sidecars of the service.
    Roles(AgentId, ServiceId),
    /// The trust score of an agent. The change is sent to all sidecars.
    Trust(AgentId),
    /// The status or cutoff of an agent. The change is sent to all sidecars.
    Status(AgentId),
    /// The role definitions of a service. The change is sent only to the sidecars of the service.
    Definitions(ServiceId),
    /// The token settings of a service. The change is sent only to the sidecars of the service.
    ServiceSettings(ServiceId),
    /// An access token was revoked. The change is sent to all sidecars.
    Token(TokenId),
    /// A session was ended. The change is sent to all sidecars.
    Session(SessionId),
    /// The signing keys. The change is sent to all sidecars.
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

/// The current position of the change feed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FeedPosition {
    /// The revision of the newest change.
    pub revision: Revision,
    /// The revision floor: changes up to this revision were deleted from the change feed. All changes after the revision
    /// floor are still in the change feed.
    pub floor: Revision,
    /// The revision of the last restore from a backup; 0 if there was no restore. Revocations and uses of challenges between
    /// the backup and the restore are lost. Sessions that started below the revision of the last restore are invalid, and
    /// challenges whose `restore_revision` is not the revision of the last restore are refused.
    pub cutoff: Revision,
}
