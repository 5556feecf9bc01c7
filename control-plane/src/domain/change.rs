//! What a sidecar must learn: which facet of whom changed, without the content.

use countersign_identity::{AgentId, Revision, ServiceId, SessionId, TokenId};

/// One change, appended under the revision of its transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Change {
    /// The roles that an agent holds at a service; for the sidecars of that service only.
    Roles(AgentId, ServiceId),
    /// An agent's trust; for all sidecars.
    Trust(AgentId),
    /// An agent's status or cut-off; for all sidecars.
    Status(AgentId),
    /// The roles that a service defines; for its sidecars only.
    Definitions(ServiceId),
    /// How a service wants its tokens judged; for its sidecars only.
    Terms(ServiceId),
    /// An access token was revoked; for all sidecars.
    Token(TokenId),
    /// A login was ended; for all sidecars.
    Session(SessionId),
    /// The signing keys; for all sidecars.
    Keys,
}

/// A change and its revision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamped {
    /// When, in commit order.
    pub revision: Revision,
    /// What.
    pub change: Change,
}

/// A stretch of the feed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// Changes above this ...
    pub since: Revision,
    /// ... up to and including this.
    pub until: Revision,
}

/// Where the feed stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FeedPosition {
    /// The newest change.
    pub revision: Revision,
    /// From here on nothing was forgotten.
    pub floor: Revision,
    /// Where it stood when the database was last restored from a backup; 0 if it never was. What became of logins and
    /// challenges between the backup and then is not known: logins that began below are dead, whosever they are, and so are
    /// challenges of another era than this.
    pub cutoff: Revision,
}
