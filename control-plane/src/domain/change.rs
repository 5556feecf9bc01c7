//! Changes for sidecars. A change says which data has changed, and does not contain the new value.

use countersign_identity::{AgentId, Revision, ServiceId, SessionId, TokenId};

/// A change that sidecars must receive. The change feed has one entry for each recipient, with the revision of the transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Change {
    /// The roles of an agent at a service. The recipient is the service.
    Roles(AgentId, ServiceId),
    /// The trust score of an agent. The recipients are the audiences of the agent's live tokens.
    Trust(AgentId),
    /// The status or cutoff of an agent. The recipients are the audiences of the agent's live tokens.
    Status(AgentId),
    /// The role definitions of a service. The recipient is the service.
    Definitions(ServiceId),
    /// The token settings of a service. The recipient is the service.
    ServiceSettings(ServiceId),
    /// An access token was revoked. The recipient is the audience of the token: a service, or `None` for an unbound token.
    Token(TokenId, Option<ServiceId>),
    /// A session was ended. The recipients are the audiences of the live tokens of the session.
    Session(SessionId),
    /// The signing keys. All services are recipients.
    Keys,
}

/// The services whose sidecars receive a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Recipients {
    AllServices,
    Service(ServiceId),
    /// The services that accept unbound tokens, which are bound to no service.
    UnboundTokens,
    /// No service, because the change affects no live token. The entry only shows that the feed has reached the revision.
    NoService,
}

/// An entry of the change feed: a change, for some recipients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FeedEntry {
    /// The revision of the transaction that made the change.
    pub revision: Revision,
    pub change: Change,
    /// Who receives the change.
    pub recipients: Recipients,
}

/// The result of an operation, and the revision that a sidecar must reach to know it: the revision of the transaction. If the
/// transaction changed nothing, an earlier change, of unknown revision, led to the result, so we take the newest revision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Changed<T> {
    pub value: T,
    /// A sidecar whose view has reached this revision knows the result.
    pub revision: Revision,
}

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
    /// The revision floor: the change feed has all changes above it. Housekeeping deletes the changes up to it.
    pub floor: Revision,
    /// The revision of the last restore from a backup; 0 if there was no restore. The restore has lost revocations and uses of
    /// challenges after the backup. So sessions that started below this revision are invalid, and we refuse challenges with another
    /// `restore_revision`.
    pub cutoff: Revision,
}
